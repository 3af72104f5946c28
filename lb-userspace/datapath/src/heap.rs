//! The process's own memory.

/// Gives back to the system what the C library keeps of memory that nobody uses any more: after
/// very much was read, that is a large part. Takes some milliseconds, in which others may wait for
/// memory.
pub fn give_back() {
    // Other C libraries have no such function, and keep less.
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, from any thread, and takes no pointers.
    unsafe {
        libc::malloc_trim(0);
    }
}
