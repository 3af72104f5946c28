//! The other ends of a node's devices: frames go in there, and what comes out is collected.

use std::{
    cell::Cell,
    io::ErrorKind,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use lb_packet::{Header, icmp, icmp_number};
use lb_tests::{Namespace, PacketSocket, lab::address::Addresses};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use super::ground::{GATEWAY, LOCAL_PODS, NODE};

/// One of the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wire {
    /// To other nodes and the world.
    Out,
    Pod1,
    Pod2,
}

/// All of them.
pub struct Wires {
    sockets: [PacketSocket; 3],
    /// Number of the latest marker.
    marker: Cell<u16>,
    _beyond: Namespace,
}

/// A packet that the node has sent, without its Ethernet header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    pub wire: Wire,
    pub packet: Vec<u8>,
}

/// Keeps the calling thread on one processor, which then deals with all that it sends, in order.
pub fn stay_on_one_processor() -> Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu) == Ok(true));
    let mut one = CpuSet::new();
    one.set(first.context("no processor")?)?;
    Ok(sched_setaffinity(this, &one)?)
}

/// Markers have this as the number of their "process".
const MARKER: u16 = 0x6d6b;
/// How long a node may take for a packet.
const DEADLINE: Duration = Duration::from_secs(20);

impl Wire {
    pub const ALL: [Self; 3] = [Self::Out, Self::Pod1, Self::Pod2];

    pub fn device(self) -> &'static str {
        ["out", "pod1", "pod2"][self as usize]
    }

    /// In bytes: pods of other CNIs have less.
    pub fn mtu(self) -> usize {
        if self == Self::Pod2 { 1400 } else { 1500 }
    }

    /// The node's own Ethernet address.
    pub fn near(self) -> [u8; 6] {
        [2, 0, 0, 1, 0, self as u8]
    }

    /// That of whoever is behind it.
    pub fn far(self) -> [u8; 6] {
        [2, 0, 0, 2, 0, self as u8]
    }

    /// Who asks for a marker's answer.
    fn asker(self) -> Addresses {
        let pods = LOCAL_PODS.iter().find(|(wire, _)| *wire == self);
        pods.map_or(GATEWAY, |(_, pod)| *pod)
    }
}

impl Wires {
    /// Those that a network namespace has.
    pub fn new(beyond: Namespace) -> Result<Self> {
        let open = |wire: Wire| beyond.run(move || PacketSocket::open(wire.device()));
        let [out, one, two] = Wire::ALL.map(open);
        Ok(Self {
            sockets: [out?, one?, two?],
            marker: 0.into(),
            _beyond: beyond,
        })
    }

    /// Sends packets by a wire, and returns what comes out at any of them until the node has dealt
    /// with all.
    pub fn exchange(&self, wire: Wire, packets: &[Vec<u8>]) -> Result<Vec<Sent>> {
        // Nobody could send more there.
        for packet in packets.iter().filter(|packet| packet.len() <= wire.mtu()) {
            self.send(wire, packet)?;
        }
        let mut found = Vec::new();
        // What the first marker's answer may have overtaken is through before the second's.
        for _ in 0..2 {
            self.pass(wire, &mut found)?;
        }
        Ok(found)
    }

    fn send(&self, wire: Wire, packet: &[u8]) -> Result<()> {
        let kind: u16 = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
        let header = [&wire.near()[..], &wire.far(), &kind.to_be_bytes()].concat();
        let frame = [&header[..], packet].concat();
        self.sockets[wire as usize].send(&frame)
    }

    /// Waits until a query that is sent now is answered.
    fn pass(&self, wire: Wire, found: &mut Vec<Sent>) -> Result<()> {
        let number = self.marker.get().wrapping_add(1);
        self.marker.set(number);
        let (from, to) = (wire.asker().v4.into(), NODE.v4.into());
        let word = u32::from(MARKER) << 16 | u32::from(number);
        let query = icmp(from, to, (8, 0), word, b"marker");
        self.send(wire, &Header::new(from, to).packet(icmp_number(to), &query))?;
        let began = Instant::now();
        loop {
            let mut is_through = false;
            for wire in Wire::ALL {
                while let Some(packet) = self.receive(wire)? {
                    match marker(&packet) {
                        Some(one) => is_through |= one == number,
                        None if is_chatter(&packet) => {}
                        None => found.push(Sent { wire, packet }),
                    }
                }
            }
            if is_through {
                return Ok(());
            }
            if began.elapsed() > DEADLINE {
                bail!("the node has not answered a query on {wire:?}");
            }
            thread::yield_now();
        }
    }

    /// A packet that is there.
    fn receive(&self, wire: Wire) -> Result<Option<Vec<u8>>> {
        let socket = &self.sockets[wire as usize];
        loop {
            let frame = match socket.receive() {
                Ok(frame) => frame,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error).with_context(|| format!("{wire:?}")),
            };
            // The others are those that have been sent here.
            let is_ours = frame.get(..6) == Some(&wire.far());
            if is_ours && matches!(frame.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd])) {
                return Ok(Some(frame[14..].to_vec()));
            }
        }
    }
}

/// The number of a marker to which a packet is the answer.
fn marker(packet: &[u8]) -> Option<u16> {
    let [0x45, ..] = packet else { return None };
    let is_answer = packet.get(9) == Some(&1) && packet.get(20) == Some(&0);
    let word = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    (is_answer && word(24)? == MARKER).then(|| word(26))?
}

/// Whether a packet is what the kernel tells its neighbours by itself.
fn is_chatter(packet: &[u8]) -> bool {
    let kind = match packet {
        [first, ..] if first >> 4 == 6 && packet.get(6) == Some(&58) => packet.get(40),
        // Behind a hop-by-hop header: reports of multicast listeners.
        [first, ..] if first >> 4 == 6 && packet.get(6) == Some(&0) => packet.get(48),
        _ => None,
    };
    matches!(kind, Some(130..=137 | 143))
}
