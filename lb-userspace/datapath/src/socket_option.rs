//! Socket options that no library reads.

use std::{io, os::fd::AsRawFd};

/// Has the kernel write an option into `value`. Some options are named by what `value` contains.
///
/// # Errors
///
/// The kernel's.
pub fn read(
    socket: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<()> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, all of them in `value`, and the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
