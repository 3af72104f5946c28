//! A socket for whole frames of one device.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv, recvmsg, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;

/// Frames of all protocols (`ETH_P_ALL`).
const ALL: u16 = 0x0003;
/// No frame is longer.
const LONGEST: usize = 70_000;
/// Octets that the kernel keeps of a record until they are received.
const RECORD: usize = 64 << 20;

/// A packet socket on a device of the network namespace that the calling thread was in.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Opens one that receives what comes to the device, and what is sent there by others and itself.
    ///
    /// # Errors
    /// If there is no such device, or without root.
    pub fn open(device: &str) -> Result<Self> {
        Self::of(device, ALL)
    }

    /// Opens one that receives nothing.
    ///
    /// # Errors
    /// As [`PacketSocket::open`].
    pub fn for_sending(device: &str) -> Result<Self> {
        Self::of(device, 0)
    }

    fn of(device: &str, protocol: u16) -> Result<Self> {
        let what = || format!("cannot open {device} for frames");
        let index = if_nametoindex(CString::new(device)?.as_c_str()).with_context(what)?;
        let (family, flags) = (AddressFamily::Packet, SockFlag::SOCK_CLOEXEC);
        let socket = socket(family, SockType::Raw, flags, None).with_context(what)?;
        // SAFETY: the structure holds numbers only.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = index as libc::c_int;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is a whole `sockaddr_ll` of the length said, and outlives the call.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        Errno::result(bound).with_context(what)?;
        Ok(Self(socket))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// If the device does not take it.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let sent = send(self.0.as_raw_fd(), frame, MsgFlags::empty());
        let size = sent.context("cannot send a frame")?;
        ensure!(size == frame.len(), "a frame was sent in part");
        Ok(())
    }

    /// The next frame that has been received.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; LONGEST];
        let size = recv(self.0.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT)?;
        frame.truncate(size);
        Ok(frame)
    }

    /// Has the kernel note when it took each frame, and keep many of them, for
    /// [`PacketSocket::receive_start`].
    ///
    /// # Errors
    /// Without root.
    pub fn record(&self) -> Result<()> {
        let set = setsockopt(&self.0, sockopt::ReceiveTimestampns, &true)
            .and_then(|()| setsockopt(&self.0, sockopt::RcvBufForce, &RECORD));
        set.context("cannot have frames recorded")
    }

    /// The next frame that has been recorded, as far as it fits into `buffer`: its length there, and
    /// when the kernel took it, since the Unix epoch.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none.
    pub fn receive_start(&self, buffer: &mut [u8]) -> io::Result<(usize, Duration)> {
        let mut slices = [IoSliceMut::new(buffer)];
        let mut control = nix::cmsg_space!(TimeSpec);
        let (fd, flags) = (self.0.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let received = recvmsg::<()>(fd, &mut slices, Some(&mut control), flags)?;
        let mut messages = received.cmsgs()?;
        let taken = messages.find_map(|message| match message {
            ControlMessageOwned::ScmTimestampns(time) => Some(time.into()),
            _ => None,
        });
        let taken =
            taken.ok_or_else(|| io::Error::other("the kernel noted no time: call `record`"))?;
        Ok((received.bytes, taken))
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
