//! What the kernel knows about a TCP connection and tells only its owner.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, c_void, socklen_t};
use nix::errno::Errno;

/// The position of a connection in its sequence numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Sequence number of the next byte to send.
    pub to_send: u32,
    /// Sequence number of the next byte to receive.
    pub to_receive: u32,
}

/// Segments sent again so far, SYNs too (`tcpi_total_retrans`).
pub fn retransmissions(socket: impl AsFd) -> io::Result<u32> {
    // SAFETY: the structure holds numbers only.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    get(socket, libc::TCP_INFO, &mut info)?;
    Ok(info.tcpi_total_retrans)
}

/// The connection's sequence numbers. Needs root.
pub fn numbers(socket: impl AsFd) -> io::Result<Numbers> {
    const RECEIVE_QUEUE: c_int = 1;
    const SEND_QUEUE: c_int = 2;
    /// Switches it off without the segment that would tell the peer of the window.
    const OFF_QUIETLY: c_int = -1;
    let socket = socket.as_fd();
    let of = |queue: c_int| {
        set(socket, libc::TCP_REPAIR_QUEUE, queue)?;
        let mut number = 0;
        get(socket, libc::TCP_QUEUE_SEQ, &mut number).map(|()| number)
    };
    set(socket, libc::TCP_REPAIR, 1)?;
    let numbers = of(SEND_QUEUE).and_then(|to_send| {
        of(RECEIVE_QUEUE).map(|to_receive| Numbers {
            to_send,
            to_receive,
        })
    });
    set(socket, libc::TCP_REPAIR, OFF_QUIETLY)?;
    numbers
}

/// Makes a connection send nothing when its socket is closed. Needs root.
pub fn silence(socket: impl AsFd) -> io::Result<()> {
    set(socket, libc::TCP_REPAIR, 1)
}

fn get<T>(socket: impl AsFd, option: c_int, value: &mut T) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let mut length = size_of::<T>() as socklen_t;
    let value: *mut c_void = (&raw mut *value).cast();
    // SAFETY: the kernel writes at most `length` bytes, which is the size of the value.
    let done = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, option, value, &raw mut length) };
    Ok(Errno::result(done).map(drop)?)
}

fn set(socket: impl AsFd, option: c_int, value: c_int) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let length = size_of::<c_int>() as socklen_t;
    let value: *const c_void = (&raw const value).cast();
    // SAFETY: the kernel reads the integer, which outlives the call.
    let done = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, option, value, length) };
    Ok(Errno::result(done).map(drop)?)
}
