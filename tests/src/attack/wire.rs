//! A host's device, from which frames of any content are sent.

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_packet::{Mac, Packet};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, MsgFlags, MultiHeaders, SockFlag, SockType, SockaddrIn, sendmmsg, socket,
};
use serde_json::Value;

use crate::lab::host::output_of;
use crate::patience::patient;

use super::Forged;

/// A packet socket on the device by which a target is reached.
#[derive(Debug)]
pub struct Wire {
    socket: OwnedFd,
    next_hop: Mac,
    own: Mac,
}

impl Wire {
    /// Frames per system call.
    pub const BATCH: usize = 64;

    /// Opens the device by which the calling thread's network namespace reaches `target`, and
    /// learns who the next hop is.
    pub fn towards(target: IpAddr) -> Result<Self> {
        let route = ip(&format!("route get {target}"))?;
        let device = text(&route, "dev")?;
        let neighbour = route["gateway"].as_str().map(str::to_owned);
        let neighbour = neighbour.unwrap_or_else(|| target.to_string());
        let own = mac(text(&ip(&format!("link show dev {device}"))?, "address")?)?;
        let next_hop = resolve(target, &neighbour, device)
            .with_context(|| format!("nobody is {neighbour} on {device}"))?;
        Ok(Self {
            socket: open(device).with_context(|| format!("cannot send frames from {device}"))?,
            next_hop,
            own,
        })
    }

    /// The frame of a packet on this wire.
    pub fn forge(&self, packet: Packet) -> Forged {
        Forged::new(packet, self.next_hop, self.own)
    }

    /// Sends a frame.
    pub fn send(&self, frame: &Forged) -> Result<()> {
        let sent =
            nix::sys::socket::send(self.socket.as_raw_fd(), frame.bytes(), MsgFlags::empty());
        let size = sent.context("cannot send a frame")?;
        ensure!(size == frame.bytes().len(), "a frame was sent in part");
        Ok(())
    }

    /// Sends up to [`Wire::BATCH`] frames, as many as the device takes. Returns how many that were.
    pub fn send_all(&self, frames: &[Forged]) -> io::Result<usize> {
        let slices: Vec<_> = frames.iter().map(|f| [IoSlice::new(f.bytes())]).collect();
        let nowhere = [const { None::<SockaddrIn> }; Self::BATCH];
        let mut headers = MultiHeaders::preallocate(slices.len(), None);
        let fd = self.socket.as_raw_fd();
        match sendmmsg(
            fd,
            &mut headers,
            &slices,
            &nowhere[..slices.len()],
            [],
            MsgFlags::empty(),
        ) {
            Ok(sent) => Ok(sent.count()),
            Err(Errno::ENOBUFS) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// A packet socket on a device, which receives nothing.
fn open(device: &str) -> Result<OwnedFd> {
    let index = if_nametoindex(CString::new(device)?.as_c_str())?;
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: the structure holds numbers only.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_ifindex = index as libc::c_int;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is a whole `sockaddr_ll` of the length said, and outlives the call.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    Errno::result(bound)?;
    Ok(socket)
}

/// The Ethernet address of the neighbour by which a target is reached. A datagram to an unused port
/// makes the kernel ask for it.
fn resolve(target: IpAddr, neighbour: &str, device: &str) -> Result<Mac> {
    const DISCARD: u16 = 9;
    let start = Instant::now();
    loop {
        let known = ip(&format!("neigh show to {neighbour} dev {device}"));
        if let Ok(address) = known.and_then(|known| mac(text(&known, "lladdr")?)) {
            return Ok(address);
        }
        if start.elapsed() > patient(Duration::from_secs(2)) {
            bail!("no answer to neighbour solicitations");
        }
        let any: IpAddr = match target {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        UdpSocket::bind((any, 0))?.send_to(&[], (target, DISCARD))?;
        thread::sleep(Duration::from_millis(10));
    }
}

/// The first object that `ip` tells of.
fn ip(arguments: &str) -> Result<Value> {
    let mut command = Command::new("ip");
    command.arg("-json").args(arguments.split(' '));
    let text = output_of(command, "").with_context(|| format!("ip -json {arguments}"))?;
    let all: Value = serde_json::from_str(&text).with_context(|| format!("ip {arguments}"))?;
    let first = all.get(0).cloned();
    first.with_context(|| format!("`ip {arguments}` shows nothing"))
}

fn text<'a>(object: &'a Value, field: &str) -> Result<&'a str> {
    object[field]
        .as_str()
        .with_context(|| format!("no {field} in {object}"))
}

fn mac(text: &str) -> Result<Mac> {
    let bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let bytes = bytes.collect::<Result<Vec<_>, _>>();
    let bytes = bytes.with_context(|| format!("{text:?} is no Ethernet address"))?;
    bytes
        .try_into()
        .ok()
        .with_context(|| format!("{text:?} is no Ethernet address"))
}
