//! A host's device, from which frames of any content are sent.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lb_packet::{Mac, Packet};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg};
use serde_json::Value;

use crate::lab::host::output_of;
use crate::packet_socket::PacketSocket;
use crate::patience::patient;

use super::Forged;

/// A packet socket on the device by which a target is reached.
#[derive(Debug)]
pub struct Wire {
    socket: PacketSocket,
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
            socket: PacketSocket::for_sending(device)?,
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
        self.socket.send(frame.bytes())
    }

    /// Sends up to [`Wire::BATCH`] frames, as many as the device takes. Returns how many that were.
    pub fn send_all(&self, frames: &[Forged]) -> io::Result<usize> {
        let slices: Vec<_> = frames.iter().map(|f| [IoSlice::new(f.bytes())]).collect();
        let nowhere = [const { None::<SockaddrIn> }; Self::BATCH];
        let mut headers = MultiHeaders::preallocate(slices.len(), None);
        let fd = self.socket.as_fd().as_raw_fd();
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
