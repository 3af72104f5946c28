//! The places where a model checker may switch threads: before every access to a word that several
//! CPUs share and that decides what happens to a record.
//!
//! This is empty without the feature `model`, which only tests enable.

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

/// Called by a thread before it accesses a word. It may let other threads run first.
#[cfg(feature = "model")]
pub type Observer = fn(*mut (), Access);

#[cfg(feature = "model")]
static OBSERVER: std::sync::OnceLock<Observer> = std::sync::OnceLock::new();

/// Makes all threads call `observer` from now on. Only the first call has an effect.
#[cfg(feature = "model")]
pub fn observe(observer: Observer) {
    OBSERVER.get_or_init(|| observer);
}

/// Calls the observer, if there is one.
#[inline(always)]
pub(crate) fn before<T>(word: *mut T, access: Access) {
    #[cfg(feature = "model")]
    if let Some(observer) = OBSERVER.get() {
        observer(word.cast(), access);
    }
    #[cfg(not(feature = "model"))]
    let _ = (word, access);
}
