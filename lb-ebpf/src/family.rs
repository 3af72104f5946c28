//! What differs between IPv4 and IPv6.

use lb_common::{
    abi::{Frontend, FrontendKey, Plan, SocketSeats},
    addr::Address,
    flow::{Flow, slots::Purpose},
    parse::{Segment, Tuple},
    select::Policy,
    trace::Trail,
    verdict::Hook,
    work::Work,
};

/// The maps that each family has for itself, and the steps of the work on its packets as functions
/// that the verifier looks at once.
pub trait FamilyMaps: Address {
    fn work(hook: Hook) -> Option<*mut Work<Self>>;
    /// Room for the SYN of a connection that has its turn.
    fn turn_work() -> Option<*mut Work<Self>>;
    fn frontend(key: &FrontendKey<Self>) -> Option<Frontend>;
    fn flow(index: u32) -> Option<*mut Flow<Self>>;
    /// [`lb_common::pipeline::open_index`] as a function that the verifier looks at once.
    fn open_index(work: &mut Work<Self>, ifindex: u32) -> u64;
    /// [`lb_common::pipeline::finish_index`], likewise.
    fn finish_index(work: &mut Work<Self>) -> u64;
    /// [`lb_common::flow::table::find_index`], likewise.
    fn find_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::flow::claim::claim_index`], likewise.
    fn claim_index(tuple: &Tuple<Self>, hash: u64) -> u64;
    /// [`lb_common::flow::claim::has_rival`], likewise.
    fn has_rival(tuple: &Tuple<Self>, hash: u64, outcome: u64) -> bool;
    /// [`lb_common::flow::end::gives_way`], likewise.
    fn gives_way(index: u32, segment: &Segment, purpose: Purpose) -> bool;
    /// [`lb_common::select::sticky_index`], likewise.
    fn sticky_index(plan: &Plan, policy: Policy, tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::service::unknown_index`], likewise.
    fn unknown_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::pipeline::seat_socket`] of the socket with this cookie, likewise: the number of a
    /// [`Reason`](lb_common::verdict::Reason), or one that none has.
    fn seat_socket(tuple: &Tuple<Self>, endpoint: u32, held: *mut SocketSeats, cookie: u64) -> u64;
    /// A record of the other table.
    fn other_flow(index: u32) -> Option<*mut Flow<Self>>;
    /// [`lb_common::flow::slots::Slots::other_mask`].
    fn other_mask() -> u32;
    /// [`lb_common::flow::table::find_other_index`] as a function that the verifier looks at once.
    fn find_other_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::flow::resize::copy_index`], likewise.
    fn copy_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::flow::resize::end_other`], likewise.
    fn end_other(index: u32);
    /// [`lb_common::flow::seats::join_party`], likewise.
    fn join_party(forward: u32, ports: u32, most: u32) -> u64;
    /// [`lb_common::flow::seats::leave_party`], likewise.
    fn leave_party(forward: u32, ports: u32) -> u64;
    /// [`lb_common::flow::seats::leave_endpoint`], likewise.
    fn leave_endpoint(forward: u32, ports: u32);
    /// [`lb_common::flow::seats::leave_ended`], likewise.
    fn leave_ended(index: u32);
    /// [`lb_common::flow::table::approach`], likewise.
    fn approach(hash: u64, other: u64);
    /// [`lb_common::pipeline::copy_slot`], likewise; a [`lb_common::pipeline::Copied`].
    fn copy_slot(index: u32) -> u64;
    /// Logs a packet if somebody traces it.
    fn trace(trail: &mut Trail<Self>);
    /// A place in the rings of half-open flows.
    fn half_open_place(index: u32) -> Option<*mut u64>;
    /// Places handed out in a ring so far.
    fn half_open_cursor(ring: u32) -> Option<*mut u32>;
}
