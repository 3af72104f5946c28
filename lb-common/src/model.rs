//! Where a model checker stands: before every access to a word that several CPUs share and that
//! decides what becomes of a record.
//!
//! There is nothing here unless the feature `model` asks for it, which only tests do.

/// What is about to be done with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// The word becomes `new` if it is `old`.
    CompareAndSwap {
        old: u32,
        new: u32,
    },
    /// Read and written, as one step.
    Update,
}

/// Is told of an access before it happens, by the thread that is about to do it, and may let other
/// threads go first.
#[cfg(feature = "model")]
pub type Observer = fn(*mut (), Access);

#[cfg(feature = "model")]
static OBSERVER: std::sync::OnceLock<Observer> = std::sync::OnceLock::new();

/// Has all threads tell `observer`, from now on; only the first one that asks is told.
#[cfg(feature = "model")]
pub fn observe(observer: Observer) {
    OBSERVER.get_or_init(|| observer);
}

/// Tells the observer, if there is one.
#[inline(always)]
pub(crate) fn before<T>(word: *mut T, access: Access) {
    #[cfg(feature = "model")]
    if let Some(observer) = OBSERVER.get() {
        observer(word.cast(), access);
    }
    #[cfg(not(feature = "model"))]
    let _ = (word, access);
}
