//! The two atomic operations on shared 32-bit words that records change hands with.
//!
//! `core::sync::atomic` has no compare-and-swap on the BPF target, whose kernel does have it.

/// Sets `*word` to `new` if it is `old`; whether it was. A full barrier.
///
/// # Safety
///
/// `word` must point to a valid, aligned word that is only accessed atomically or volatilely.
#[inline(always)]
pub unsafe fn compare_and_swap(word: *mut u32, old: u32, new: u32) -> bool {
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg};
        // SAFETY: the caller's promise.
        unsafe { atomic_cxchg::<u32, { SeqCst }, { SeqCst }>(word, old, new).0 == old }
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(word) }
            .compare_exchange(old, new, SeqCst, SeqCst)
            .is_ok()
    }
}

/// Sets `*word` to `new` after everything written before. A full barrier.
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn publish(word: *mut u32, new: u32) {
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xchg};
        // SAFETY: the caller's promise.
        unsafe { atomic_xchg::<u32, { SeqCst }>(word, new) };
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(word) }.store(new, SeqCst);
    }
}

/// Adds to a counter that several CPUs share.
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn add(counter: *mut u64, amount: u64) {
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::Relaxed, atomic_xadd};
        // SAFETY: the caller's promise.
        unsafe { atomic_xadd::<u64, u64, { Relaxed }>(counter, amount) };
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(counter) }.fetch_add(amount, Relaxed);
    }
}
