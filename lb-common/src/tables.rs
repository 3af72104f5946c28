//! What a packet may ask: the state that decisions depend on. The kernel answers from maps, tests and
//! `explain` from memory.

use core::ptr::NonNull;

use crate::{
    abi::{
        Affinity, AffinityKey, Config, Device, Endpoint, EndpointMemory, FragmentKey, Frontend,
        FrontendKey, Plan,
    },
    addr::{Address, Ip6},
    flow::{Hop, hop::Hops, table::Slots},
    pipeline::{self, Work},
    verdict::Reason,
};

/// State that the choice of an endpoint depends on.
pub trait Services<A: Address> {
    fn config(&self) -> &Config;
    fn frontend(&self, key: &FrontendKey<A>) -> Option<Frontend>;
    /// The published plan of a service.
    fn plan(&self, service: u32) -> Option<&Plan>;
    /// The endpoint at an index.
    fn endpoint(&self, index: u32) -> Option<&Endpoint>;
    /// Position of an endpoint in its service's range, at a row of a Maglev lookup table.
    fn maglev(&self, row: u32) -> Option<u16>;
    /// Whether a set of source ranges has the address.
    fn source_allowed(&self, set: u32, address: Ip6) -> bool;
    /// Whether the address is one of this node's.
    fn is_local(&self, address: Ip6) -> bool;
    /// What is special about a device; nothing about most.
    fn device(&self, ifindex: u32) -> Device;
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity>;
    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity);
    /// Where an endpoint is now, by its id.
    fn slots_of(&self, endpoint: u32) -> [u32; 2];
    /// A number that nobody can foresee.
    fn random(&self) -> u32;
    /// The kernel's clock, of which [`Config::hz`] are a second. Starts anew at its end.
    fn jiffies(&self) -> u32;
    /// Counts a connection to an endpoint.
    fn count_connection(&self, service: u32, endpoint: u32);
    /// Counts a refused or dropped first packet.
    fn count_refusal(&self, service: u32, reason: Reason);
}

/// State and services of the kernel that only packets need, sockets do not.
pub trait Tables<A: Address>: Services<A> + Slots<A> + Hops {
    /// Whether frames can be sent to any device and neighbours be resolved (TC), or only frames with
    /// a complete header to certain devices (XDP).
    const ANY_DEVICE: bool;

    /// [`pipeline::open_index`](crate::pipeline::open_index), which the kernel's side makes a function
    /// that the verifier looks at by itself, and only once.
    fn open_index(&self, work: &mut Work<A>, ifindex: u32) -> u64
    where
        Self: Sized,
    {
        pipeline::open_index(self, work, ifindex)
    }
    /// [`pipeline::finish_index`](crate::pipeline::finish_index), likewise.
    fn finish_index(&self, work: &mut Work<A>) -> u64
    where
        Self: Sized,
    {
        pipeline::finish_index(self, work)
    }
    /// What is remembered of an endpoint, by its id; its numbers are only accessed atomically.
    fn endpoint_memory(&self, endpoint: u32) -> Option<NonNull<EndpointMemory>>;
    /// [`crate::abi::Limits::half_open_mask`].
    fn half_open_mask(&self) -> u32;
    /// Flows of a service that have not proved themselves.
    fn half_open(&self, service: u32) -> u32;
    /// Counts one of them that gave way to a newer one.
    fn count_gave_way(&self, service: u32);
    /// A place in the rings of half-open flows: index of the client's direction, and its tag in the upper
    /// half.
    fn half_open_place(&self, index: u32) -> Option<NonNull<u64>>;
    /// Places handed out in a ring so far.
    fn half_open_cursor(&self, ring: u32) -> Option<NonNull<u32>>;
    /// Looks up where a packet with these addresses leaves, into `hop`.
    fn next_hop(&self, protocol: u8, source: &A, destination: &A, hop: &mut Hop) -> NextHop;
    /// The device that the way back to a source must lead to, for packets that came by a device; 0 means any.
    fn way_back(&self, ifindex: u32) -> u32;
    /// Index of the flow that a packet's first fragment was of.
    fn fragment(&self, key: &FragmentKey) -> Option<u32>;
    fn remember_fragment(&self, key: &FragmentKey, flow: u32);
    /// Whether one more ICMP answer may be sent.
    fn may_answer(&self) -> bool;
}

/// How much is known of where a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Device, addresses and MTU.
    Known,
    /// The device; the neighbour's address is not known yet.
    Unresolved,
    /// There is no route.
    None,
}
