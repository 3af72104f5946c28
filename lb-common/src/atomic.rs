//! The atomic operations on words in maps that several CPUs share.
//!
//! `core::sync::atomic` has no compare-and-swap on the BPF target, whose kernel does have it.

use crate::model::{Access, before};

/// Sets `*word` to `new` if it is `old`. Returns whether it was. A full barrier.
///
/// # Safety
///
/// `word` must point to a valid, aligned word that is only accessed atomically or volatilely.
#[inline(always)]
pub unsafe fn compare_and_swap(word: *mut u32, old: u32, new: u32) -> bool {
    before(word, Access::CompareAndSwap { old, new });
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

/// [`compare_and_swap`] for a word of 64 bits.
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn compare_and_swap_wide(word: *mut u64, old: u64, new: u64) -> bool {
    before(word, Access::Update);
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_cxchg};
        // SAFETY: the caller's promise.
        unsafe { atomic_cxchg::<u64, { SeqCst }, { SeqCst }>(word, old, new).0 == old }
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(word) }
            .compare_exchange(old, new, SeqCst, SeqCst)
            .is_ok()
    }
}

/// Reads `*word`. On the host, everything after this is read after it; in the kernel, only what is
/// read through [`crate::flow::record::behind`].
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn load(word: *mut u32) -> u32 {
    before(word, Access::Read);
    #[cfg(target_arch = "bpf")]
    {
        // SAFETY: the caller's promise.
        unsafe { word.read_volatile() }
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU32, Ordering::Acquire};
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(word) }.load(Acquire)
    }
}

/// Sets `*word` to 0. Returns what it was. A full barrier.
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn take(word: *mut u32) -> u32 {
    before(word, Access::Update);
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xchg};
        // SAFETY: the caller's promise.
        unsafe { atomic_xchg::<u32, { SeqCst }>(word, 0) }
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(word) }.swap(0, SeqCst)
    }
}

/// Sets `*word` to `new` after everything written before. A full barrier.
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn publish(word: *mut u32, new: u32) {
    before(word, Access::Write);
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
/// As for `compare_and_swap`.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, amount: u64) {
    before(counter, Access::Update);
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

/// Sets bits of a word that several CPUs share.
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn set_bits(word: *mut u32, bits: u32) {
    before(word, Access::Update);
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_or};
        // SAFETY: the caller's promise.
        unsafe { atomic_or::<u32, u32, { SeqCst }>(word, bits) };
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(word) }.fetch_or(bits, SeqCst);
    }
}

/// Clears bits of a word that several CPUs share.
///
/// # Safety
///
/// As for [`compare_and_swap`].
#[inline(always)]
pub unsafe fn clear_bits(word: *mut u32, bits: u32) {
    before(word, Access::Update);
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_and};
        // SAFETY: the caller's promise.
        unsafe { atomic_and::<u32, u32, { SeqCst }>(word, !bits) };
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(word) }.fetch_and(!bits, SeqCst);
    }
}

/// Adds to a number that several CPUs share, modulo 2^32. Returns what it was before.
///
/// # Safety
///
/// As for `compare_and_swap`.
#[inline(always)]
pub unsafe fn fetch_add(number: *mut u32, amount: u32) -> u32 {
    before(number, Access::Update);
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xadd};
        // SAFETY: the caller's promise.
        unsafe { atomic_xadd::<u32, u32, { SeqCst }>(number, amount) }
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(number) }.fetch_add(amount, SeqCst)
    }
}

/// [`fetch_add`] for a number of 64 bits.
///
/// # Safety
///
/// As for `compare_and_swap`.
#[inline(always)]
pub unsafe fn fetch_add_wide(number: *mut u64, amount: u64) -> u64 {
    before(number, Access::Update);
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xadd};
        // SAFETY: the caller's promise.
        unsafe { atomic_xadd::<u64, u64, { SeqCst }>(number, amount) }
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(number) }.fetch_add(amount, SeqCst)
    }
}

/// Replaces a word that several CPUs share. Returns what it was before.
///
/// # Safety
///
/// `word` must point to a valid, aligned word that is only accessed atomically.
#[inline(always)]
pub unsafe fn exchange(word: *mut u64, new: u64) -> u64 {
    before(word, Access::Update);
    #[cfg(target_arch = "bpf")]
    {
        use core::intrinsics::{AtomicOrdering::SeqCst, atomic_xchg};
        // SAFETY: the caller's promise.
        unsafe { atomic_xchg::<u64, { SeqCst }>(word, new) }
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(word) }.swap(new, SeqCst)
    }
}
