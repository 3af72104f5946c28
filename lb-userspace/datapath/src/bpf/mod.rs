//! The parts of the bpf(2) system call that aya does not offer: batches, memory-mapped arrays and
//! links as the kernel sees them.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    thread,
    time::Duration,
};

use aya::Pod;
use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_prog_info};

use crate::socket_option;

mod array;
mod batch;
mod iterate;
mod link;
mod run;

pub use array::{ArrayError, MappedArray};
pub use batch::{BatchError, BatchMap, Position};
pub use iterate::iterate;
pub use link::{AttachPoint, Link, LinkInfo, LinkTarget};
pub use run::{Words, run_classifier};

/// Longer than any BPF program runs. For kernels that cannot tell when all programs have returned.
const GRACE_PERIOD: Duration = Duration::from_millis(100);

/// Waits until every BPF program that was running when this was called has returned.
///
/// What programs could no longer find in a map before the call, they do not use after it:
/// unpublished ranges may be reused. It takes some tens of milliseconds, so callers should collect
/// what is to be freed.
///
/// `membarrier(MEMBARRIER_CMD_GLOBAL)` is `synchronize_rcu()`, and programs run inside an RCU
/// read-side section. If CPUs run without a tick (`nohz_full`), the kernel refuses the call; then
/// this sleeps for 100 ms instead.
pub fn synchronize_rcu() {
    // SAFETY: membarrier takes three integers and touches no memory of ours.
    let refused =
        unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) } != 0;
    if refused {
        thread::sleep(GRACE_PERIOD);
    }
}

/// The bytes of a plain value, for globals and map elements that are written as bytes.
pub fn bytes_of<T: Pod>(value: &T) -> &[u8] {
    // SAFETY: `Pod` types have no padding whose bytes would be uninitialised, and the slice borrows
    // `value` for as long as it lives.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Bytes per page of memory.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf only reads a number.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("the page size is known on Linux")
}

/// Opens a pinned object.
pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;

    let path = c_path(path)?;
    let mut attr = empty_attr();
    attr.__bindgen_anon_4.pathname = path.as_ptr() as u64;
    let fd = bpf(bpf_cmd::BPF_OBJ_GET, &mut attr)?;
    // SAFETY: the kernel just gave us this descriptor, nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn c_path(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt as _;

    std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path with a zero byte"))
}

pub(crate) fn empty_attr() -> bpf_attr {
    // SAFETY: `bpf_attr` is a union of plain integers; the kernel demands unused bytes to be zero.
    unsafe { mem::zeroed() }
}

/// The system call. Addresses in `attr` must stay valid, and writable where the command writes,
/// until it returns.
pub(crate) fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: `attr` is a whole, initialised `bpf_attr`; the callers keep what it points to alive.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's number of a program.
///
/// # Errors
///
/// The kernel's; none is expected.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the kernel's struct for programs, of plain integers.
    let info: bpf_prog_info = unsafe { object_info(program) }?;
    Ok(info.id)
}

/// What the kernel says of a program, map or link.
///
/// # Safety
///
/// `T` has to be the kernel's struct for this kind of object, of integers alone.
unsafe fn object_info<T>(object: BorrowedFd<'_>) -> io::Result<T> {
    // SAFETY: integers, by the caller's word.
    let mut info: T = unsafe { mem::zeroed() };
    let mut attr = empty_attr();
    attr.info.bpf_fd = object.as_raw_fd() as u32;
    attr.info.info_len = size_of::<T>() as u32;
    attr.info.info = &raw mut info as u64;
    bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info)
}

/// The number by which BPF programs know a socket's network namespace.
///
/// # Errors
///
/// If the kernel is older than 5.14.
pub fn netns_cookie(socket: &impl AsRawFd) -> io::Result<u64> {
    let mut cookie = [0; size_of::<u64>()];
    socket_option::read(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// `SO_NETNS_COOKIE` of Linux, which the libc crate has not.
const SO_NETNS_COOKIE: libc::c_int = 71;
