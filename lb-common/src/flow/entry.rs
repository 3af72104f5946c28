//! A flow's record: everything that a packet of one direction needs, in one cache line for IPv4 and
//! two for IPv6.

use crate::{
    addr::Address,
    packet::Plain,
    parse::{Tuple, UDP},
};

/// Element of `FLOWS4` and `FLOWS6`: one direction of a connection.
///
/// The record of the other direction is `peer`; they are made and removed together. [`tag`] says
/// what state the record is in and is the only field that changes hands between CPUs.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub struct Flow<A> {
    /// State, generation and part of the hash; see [`tag`].
    pub tag: u32,
    /// When a packet last came, in ticks of the coarse clock.
    pub last_seen: u32,
    /// The direction's packets as they arrive.
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    /// [`super::tcp`] bits of this direction.
    pub seen: u8,
    pub pad: u8,
    /// [`flow_flag`]s.
    pub flags: u16,
    /// The direction's packets as they leave.
    pub rewrite: Rewrite<A>,
    /// Where they leave to.
    pub hop: Hop,
    /// Index of the other direction's record.
    pub peer: u32,
    /// Service id.
    pub service: u32,
}

/// The addresses and ports that a packet leaves with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rewrite<A> {
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
}

/// The next hop of a forwarded packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Interface index.
    pub ifindex: u32,
    pub ethernet: Ethernet,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Lower bits of the hop generation that this was looked up in.
    pub generation: u16,
}

/// Destination and source address of an Ethernet header.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    pub to: [u8; 6],
    pub from: [u8; 6],
}

// SAFETY: twelve octets, no padding.
unsafe impl Plain for Ethernet {}

/// Bits of [`Flow::flags`].
pub mod flow_flag {
    /// Endpoint to client; otherwise client to endpoint.
    pub const REPLY: u16 = 1 << 0;
    /// UDP; otherwise TCP.
    pub const UDP: u16 = 1 << 1;
    /// Packets are sent on from the hook they arrive at; otherwise they cross the host's stack.
    pub const FORWARD: u16 = 1 << 2;
    /// The client's address is replaced by the node's.
    pub const SOURCE_NAT: u16 = 1 << 3;
    /// `hop` has been looked up.
    pub const HOP: u16 = 1 << 4;
    /// `hop` can be reached from XDP.
    pub const XDP: u16 = 1 << 5;
}

/// [`Flow::tag`]: bits 0-2 the state, 3-15 a generation that every claim raises, 16-31 the upper
/// bits of the tuple's hash.
///
/// `CLEAN` or `TOMB` → `BUSY` → `LIVE` → `DEAD` → `TOMB`, and `TOMB` → `CLEAN` when no search has to
/// pass over the record any more. Programs make all steps up to `DEAD`; the agent makes the rest, and
/// between `DEAD` and `TOMB` it lets every program end that may still be using the record.
pub mod tag {
    /// Free, and a search may end here.
    pub const CLEAN: u32 = 0;
    /// Free, but a search has to go on.
    pub const TOMB: u32 = 1;
    /// Claimed, being written.
    pub const BUSY: u32 = 2;
    /// In use.
    pub const LIVE: u32 = 3;
    /// No longer found, not yet free.
    pub const DEAD: u32 = 4;

    const STATE: u32 = 0x7;
    const GENERATION: u32 = 0xfff8;
    const GENERATION_STEP: u32 = 0x8;
    const HASH: u32 = 0xffff_0000;

    /// The state.
    #[inline(always)]
    pub fn state(tag: u32) -> u32 {
        tag & STATE
    }

    /// The same tag in another state.
    #[inline(always)]
    pub fn with_state(tag: u32, state: u32) -> u32 {
        tag & !STATE | state
    }

    /// The tag of a free record after its claim for a tuple with this hash.
    #[inline(always)]
    pub fn claimed(free: u32, hash: u64) -> u32 {
        hashed(hash) | (free.wrapping_add(GENERATION_STEP) & GENERATION) | BUSY
    }

    /// Whether a record may be that of a tuple with this hash, and is in this state.
    #[inline(always)]
    pub fn matches(tag: u32, hash: u64, state: u32) -> bool {
        tag & (HASH | STATE) == hashed(hash) | state
    }

    #[inline(always)]
    fn hashed(hash: u64) -> u32 {
        (hash >> 32) as u32 & HASH
    }
}

impl<A: Address> Flow<A> {
    /// Whether packets of `tuple` are this flow's.
    #[inline(always)]
    pub fn is(&self, tuple: &Tuple<A>) -> bool {
        self.source_port == tuple.source_port
            && self.destination_port == tuple.destination_port
            && self.source == tuple.source
            && self.destination == tuple.destination
            && self.protocol() == tuple.protocol
    }

    /// The direction's packets as they arrive.
    #[inline(always)]
    pub fn tuple(&self) -> Tuple<A> {
        Tuple {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol(),
            pad: [0; 3],
        }
    }

    /// IP protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        if self.has(flow_flag::UDP) {
            UDP
        } else {
            crate::parse::TCP
        }
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}
