//! The memory of a flow table, and the steps of searches and claims in it.

use core::ptr::NonNull;

use super::{
    Record, Timeouts,
    limit::Seats,
    linger::Lingering,
    place::Place,
    queue::{LevelQueues, Queue},
};
use crate::{
    abi::{EndpointLatency, EndpointLoad, FlowSchema, Latencies},
    addr::Address,
    parse::{Segment, Tuple},
};

/// The memory of a flow table.
///
/// # Safety
///
/// Pointers must stay valid while the table is, and be aligned as [`super::Flow`] asks for.
pub unsafe trait Slots<A: Address>: Steps<A> {
    /// Number of records less one; the number is a power of two and at least `GROUPS * GROUP`.
    fn mask(&self) -> u32;
    /// The record at an index; `None` past the end.
    fn slot(&self, index: u32) -> Option<Record<A>>;
    /// Secret of the hash, so that attackers cannot aim at one group.
    fn secret(&self) -> [u64; 2];
    /// The coarse clock, in ticks.
    fn now(&self) -> u32;
    /// The same clock in eighths of ticks: [`Self::now`] is the lower bits of its eighth.
    fn moment(&self) -> u64 {
        u64::from(self.now()) << 3
    }
    /// How long flows may stay silent, if it is known.
    fn timeouts(&self) -> Option<&Timeouts>;
    /// Changes the number of a service's flows that have not proved themselves.
    fn count_half_open(&self, service: u32, change: i32);
    /// Changes the number of a service's flows.
    fn count_flows(&self, service: u32, change: i32);
    /// The limit at an index (see [`super::limit`]), if connections are limited.
    fn seats(&self, _index: u32) -> Option<NonNull<Seats>> {
        None
    }
    /// A flow schema, by its number.
    fn flow_schema(&self, _number: u32) -> Option<NonNull<FlowSchema>> {
        None
    }
    /// The element of `PARTIES` at an index.
    fn party(&self, _index: u32) -> Option<NonNull<u64>> {
        None
    }
    /// The queues of a priority level, by the level's number.
    fn level_queues(&self, _level: u32) -> Option<NonNull<LevelQueues>> {
        None
    }
    /// The seats of a priority level that linger, by the level's number.
    fn lingering(&self, _level: u32) -> Option<NonNull<Lingering>> {
        None
    }
    /// The element of `QUEUES` at an index.
    fn queue(&self, _index: u32) -> Option<NonNull<Queue>> {
        None
    }
    /// The connections of an endpoint, by its id.
    fn endpoint_load(&self, _endpoint: u32) -> Option<NonNull<EndpointLoad>> {
        None
    }
    /// The answers of an endpoint, by its id.
    fn endpoint_latency(&self, _endpoint: u32) -> Option<NonNull<EndpointLatency>> {
        None
    }
    /// The latencies of a service.
    fn latencies(&self, _service: u32) -> Option<NonNull<Latencies>> {
        None
    }
    /// A clock in [units of latency](super::latency::UNIT), modulo 2^32; 0 where latencies are not
    /// measured.
    fn stopwatch(&self) -> u32 {
        0
    }
    /// Number of records of the other table less one, while the table's size changes (see
    /// [`super::resize`]); 0 if there is none.
    fn other_mask(&self) -> u32 {
        0
    }
    /// The other table's record at an index; `None` past the end.
    fn other_slot(&self, _index: u32) -> Option<Record<A>> {
        None
    }
}

/// The steps of a search and a claim. In the kernel, each is a function that the verifier checks
/// separately, and only once. Elsewhere they are those of [`Plain`](super::steps::Plain).
pub trait Steps<A: Address> {
    /// [`find_index`](super::table::find_index).
    fn find_index(&self, tuple: &Tuple<A>) -> u64;
    /// [`claim_index`](super::claim::claim_index).
    fn claim_index(&self, tuple: &Tuple<A>, hash: u64) -> u64;
    /// [`has_rival`](super::claim::has_rival).
    fn has_rival(&self, tuple: &Tuple<A>, hash: u64, outcome: u64) -> bool;
    /// [`gives_way`](super::end::gives_way).
    fn gives_way(&self, index: u32, segment: &Segment, purpose: Purpose) -> bool;
    /// [`join_party`](super::seats::join_party).
    fn join_party(&self, forward: u32, ports: u32, most: u32) -> u64;
    /// [`leave_party`](super::seats::leave_party).
    fn leave_party(&self, forward: u32, ports: u32) -> u64;
    /// [`enter_party`](super::seats::enter_party).
    fn enter_party(&self, party: u64, most: u32) -> u64;
    /// [`enter_endpoint`](super::load::enter_endpoint).
    fn enter_endpoint(&self, endpoint: u32, most: u32) -> bool;
    /// [`leave_endpoint`](super::seats::leave_endpoint).
    fn leave_endpoint(&self, forward: u32, ports: u32);
    /// [`approach`](super::table::approach).
    fn approach(&self, hash: u64, other: u64);
    /// [`leave_ended`](super::seats::leave_ended).
    fn leave_ended(&self, index: u32);
    /// [`charge`](super::queue::charge).
    fn charge(&self, place: Place, party: u64, ports: u32, is_over: bool);
    /// [`linger`](super::linger::linger).
    fn linger(&self, place: Place, schema: u32) -> Place;
    /// [`find_other_index`](super::table::find_other_index).
    fn find_other_index(&self, tuple: &Tuple<A>) -> u64;
    /// [`copy_index`](super::resize::copy_index).
    fn copy_index(&self, tuple: &Tuple<A>) -> u64;
    /// [`end_other`](super::resize::end_other).
    fn end_other(&self, index: u32);
}

/// What a record is claimed for: this decides what happens to a flow that already has the tuple.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A flow that has the tuple keeps it, unless it is just being ended.
    Plain,
    /// A SYN, which may take the place of a closed flow.
    Open,
    /// The answers to a SYN with a port of the node's, which a closed flow may let go.
    Port,
    /// A SYN on a flow with an endpoint that may not have answered.
    Again,
    /// A SYN on a flow with an endpoint that is gone.
    Afresh,
    /// A SYN to an endpoint past its Services. The answers look like the flow's.
    Past,
    /// Nothing: the flow is in the way and may be over.
    Nothing,
}

impl Purpose {
    /// The purpose with this number; unknown numbers count as plain.
    #[inline(always)]
    pub fn from_u32(purpose: u32) -> Self {
        match purpose {
            1 => Self::Open,
            2 => Self::Port,
            3 => Self::Again,
            4 => Self::Afresh,
            5 => Self::Past,
            6 => Self::Nothing,
            _ => Self::Plain,
        }
    }
}
