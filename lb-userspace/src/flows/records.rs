//! Access to the memory that contains flow records.

use std::{
    mem::offset_of,
    net::SocketAddr,
    sync::atomic::{AtomicU32, Ordering},
};

use aya::Pod;
use lb_common::{
    addr::Address,
    flow::{Flow, Stage, flow_flag, stage::later, tag},
};
use lb_datapath::bpf::MappedArray;
use lb_objects::Protocol;

/// The records of a flow table. Programs change them while they are read.
pub trait Records<A: Address>: Send {
    /// Number of records.
    fn len(&self) -> u32;
    /// Four bytes of a record. `offset` is a multiple of four.
    fn word(&self, index: u32, offset: usize) -> &AtomicU32;
    /// A copy of a record. The flow that a live or dead record stands for does not change; its
    /// times and hop may.
    fn read(&self, index: u32) -> Flow<A>;

    /// The word that says which flow a record belongs to (see [`tag`]).
    fn tag(&self, index: u32) -> &AtomicU32 {
        self.word(index, offset_of!(Flow<A>, tag))
    }

    /// [`flow_flag`]s.
    fn flags(&self, index: u32) -> &AtomicU32 {
        self.word(index, offset_of!(Flow<A>, flags))
    }

    /// Whether there are no records.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<A: Address> Records<A> for MappedArray<Flow<A>>
where
    Flow<A>: Pod,
{
    fn len(&self) -> u32 {
        self.len()
    }

    fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        self.u32_at(index, offset)
    }

    fn read(&self, index: u32) -> Flow<A> {
        self.read(index)
    }
}

/// Both directions of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Connection<A> {
    pub forward: Flow<A>,
    pub reply: Flow<A>,
}

impl<A: Address> Connection<A> {
    /// The flow of which the record at `index` is one direction; `None` if the other direction is
    /// not live.
    pub fn new(records: &impl Records<A>, index: u32, flow: &Flow<A>) -> Option<Self> {
        let other = other_direction(records, index, flow)?;
        let (forward, reply) = match flow.has(flow_flag::REPLY) {
            true => (other, *flow),
            false => (*flow, other),
        };
        Some(Self { forward, reply })
    }

    /// The protocol of the connection.
    pub fn protocol(&self) -> Protocol {
        protocol(&self.forward)
    }

    /// How far the connection has come.
    pub fn stage(&self) -> Stage {
        Stage::of(self.forward.tag, self.forward.flags, self.reply.flags)
    }

    /// The tick of the latest packet of either direction.
    pub fn last_seen(&self) -> u32 {
        later(self.forward.last_seen, self.reply.last_seen)
    }

    /// The address to which the client's packets are sent.
    pub fn endpoint(&self) -> SocketAddr {
        let to = &self.forward.rewrite;
        socket_addr(to.destination, to.destination_port)
    }
}

/// The live record that `flow`, the one at `index`, names as its other direction, if it names
/// `flow` too.
pub fn other_direction<A: Address>(
    records: &impl Records<A>,
    index: u32,
    flow: &Flow<A>,
) -> Option<Flow<A>> {
    if flow.peer >= records.len() {
        return None;
    }
    // If this load sees the record live, what was written before is visible.
    let seen = records.tag(flow.peer).load(Ordering::Acquire);
    if !tag::in_use(seen) {
        return None;
    }
    let other = records.read(flow.peer);
    let paired = other.tag == seen && other.peer == index;
    (paired && (other.flags ^ flow.flags) & flow_flag::REPLY != 0).then_some(other)
}

/// Which flow a record with this tag is of: 0 if of none, and else a number that the record does not
/// have again soon. It stays while the connection proves itself, and while its seats come and go.
pub fn which(seen: u32) -> u32 {
    match tag::in_use(seen) {
        true => tag::with_state(seen, tag::LIVE),
        false => 0,
    }
}

/// Protocol of a flow.
pub fn protocol<A: Address>(flow: &Flow<A>) -> Protocol {
    // Programs open flows of these protocols alone.
    Protocol::from_number(flow.protocol()).unwrap_or(Protocol::Tcp)
}

/// An address and port of a record.
pub fn socket_addr<A: Address>(address: A, port: u16) -> SocketAddr {
    SocketAddr::new(address.to_mapped().into(), port)
}
