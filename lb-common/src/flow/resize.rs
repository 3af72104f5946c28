//! Flows in two tables, while the flow table changes its size.
//!
//! During the change, programs know two tables: their own, which they search first and in which
//! they open flows, and the other one. A flow that is only there is copied before its packet is
//! handled, so programs with either table as their own can run at the same time. The other table
//! keeps its record, because other programs may still use it; [`flow_flag::COPIED`] says in both
//! that there is or was a copy. If two CPUs copy the same flow at once, they are kept apart as if
//! they opened it.

use super::{
    Record, Stage,
    claim::{self, Claim, Refused},
    flow_flag,
    record::{in_order, kill, read_tag, set},
    seats,
    slots::Slots,
    tag,
};
use crate::{addr::Address, opaque::rolled, parse::Tuple};

/// Index of no record: neither table has the tuple.
pub const NONE: u64 = u64::MAX;
/// Index of no record: another CPU is in the way.
pub const RACED: u64 = u64::MAX - 2;
/// Index of no record: the other table has the tuple, and there is no room for it.
pub const FULL: u64 = u64::MAX - 3;

/// Attempts to copy a flow that another CPU is copying, too: longer than that takes.
const ATTEMPTS: usize = 16;

/// Index of a tuple's record in the programs' own table, where it is copied to if only the other
/// one has it.
#[inline(always)]
pub fn copy_index<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> u64 {
    for _ in rolled(ATTEMPTS) {
        let index = slots.find_index(tuple);
        if index != NONE {
            return index;
        }
        let Some(record) = find_other(slots, tuple) else {
            return NONE;
        };
        // SAFETY: records stay valid until every program that can see them ends.
        if unsafe { record.as_ref() }.has(flow_flag::COPIED) {
            // Since the search above; or the copy has ended, and that ended the flow.
            return slots.find_index(tuple);
        }
        let Some(peer) = other_half(slots, record) else {
            return NONE;
        };
        if copy(slots, record, peer) == Some(Refused::Full) {
            return FULL;
        }
    }
    RACED
}

/// Whether a flow that is only in the other table has a tuple. To look there takes less of the
/// stack than to copy.
#[inline(always)]
pub fn is_elsewhere<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> bool {
    slots.other_mask() != 0
        && find_other(slots, tuple).is_some_and(|record| {
            // SAFETY: records stay valid until every program that can see them ends.
            !unsafe { record.as_ref() }.has(flow_flag::COPIED)
        })
}

/// Leaves a closed flow in the other table, if it is only there and has a tuple that another
/// connection is about to use past its Service.
#[inline(always)]
pub fn leave_closed<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) {
    if slots.other_mask() == 0 {
        return;
    }
    let Some(record) = find_other(slots, tuple) else {
        return;
    };
    let Some(peer) = other_half(slots, record) else {
        return;
    };
    let (forward, reply) = in_order(record, peer);
    // SAFETY: records stay valid until every program that can see them ends.
    let (there, back) = unsafe { (forward.as_ref(), reply.as_ref()) };
    if Stage::of(read_tag(forward), there.flags, back.flags) == Stage::Closed {
        set(forward, flow_flag::COPIED);
        set(reply, flow_flag::COPIED);
        seats::release(slots, reply);
    }
}

/// Ends the copy of a flow that has just ended, or the flow that it was copied from: a new flow has
/// its addresses and ports, so the old one must not be found. `index` is that of one of its
/// records.
#[inline(always)]
pub fn end_other<A: Address, S: Slots<A>>(slots: &S, index: u32) {
    let Some(record) = slots.slot(index) else {
        return;
    };
    // SAFETY: records stay valid, and a dead one keeps its fields.
    let flow = unsafe { record.as_ref() };
    if !flow.has(flow_flag::COPIED) {
        return;
    }
    let Some(other) = find_other(slots, &flow.tuple()) else {
        return;
    };
    // SAFETY: records stay valid until every program that can see them ends.
    let there = unsafe { other.as_ref() };
    if !there.has(flow_flag::COPIED) || there.rewrite != flow.rewrite {
        return;
    }
    let Some(peer) = other_half(slots, other) else {
        return;
    };
    // Not counted: it was one flow.
    let (forward, reply) = in_order(other, peer);
    let now = slots.now();
    kill(forward, now);
    // If it had its seats there, the agent's recount finds that its party counts one too many.
    seats::kill(slots, reply, now);
}

/// The other direction of a flow in the other table; `None` if there is only half a flow.
#[inline(always)]
pub fn other_half<A: Address, S: Slots<A>>(slots: &S, record: Record<A>) -> Option<Record<A>> {
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let peer = slots.other_slot(flow.peer)?;
    // SAFETY: records stay valid until every program that can see them ends.
    let other = unsafe { peer.as_ref() };
    let to = &flow.rewrite;
    // An agent that ends a flow may leave one direction, and another flow may have the record.
    let paired = to.destination == other.source && to.destination_port == other.source_port;
    (paired && tag::in_use(read_tag(peer))).then_some(peer)
}

#[inline(always)]
fn find_other<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> Option<Record<A>> {
    slots.other_slot(u32::try_from(slots.find_other_index(tuple)).ok()?)
}

/// Copies both directions of a flow or none. If it cannot, returns why.
#[inline(always)]
fn copy<A: Address, S: Slots<A>>(slots: &S, record: Record<A>, peer: Record<A>) -> Option<Refused> {
    // Always in the same order, so that CPUs which copy the flow for either direction wait for each
    // other.
    let (record, peer) = in_order(record, peer);
    let mut refused = Refused::Exists;
    let Some(one) = claim(slots, record, &mut refused) else {
        return Some(refused);
    };
    let Some(two) = claim(slots, peer, &mut refused) else {
        one.release();
        return Some(refused);
    };
    let (mut new_record, mut new_peer) = (one.record(), two.record());
    fill(record, new_record);
    fill(peer, new_peer);
    // SAFETY: claimed records are their claimer's alone until they are published.
    unsafe { core::mem::swap(&mut new_record.as_mut().peer, &mut new_peer.as_mut().peer) };
    // The seats go with the copy.
    let peers = match seats::take_out(peer) {
        true => tag::SEATED,
        false => tag::LIVE,
    };
    let state = state_of(record);
    two.publish(peers);
    one.publish(state);
    // A CPU that sees this finds the copy.
    set(record, flow_flag::COPIED);
    set(peer, flow_flag::COPIED);
    if !tag::in_use(read_tag(record)) {
        // A CPU that has just ended it did not see the flag.
        kill(new_record, slots.now());
        seats::kill(slots, new_peer, slots.now());
    }
    None
}

/// Claims a record for the tuple of one in the other table.
#[inline(always)]
fn claim<A: Address, S: Slots<A>>(
    slots: &S,
    record: Record<A>,
    refused: &mut Refused,
) -> Option<Claim<A>> {
    // SAFETY: records stay valid until every program that can see them ends.
    let tuple = unsafe { record.as_ref() }.tuple();
    claim::claim_free(slots, &tuple, refused)
}

/// The state of a client's record in use. In another version's tag, the bit for `HALF` may mean
/// something else; the agent decides what such a record is.
#[inline(always)]
fn state_of<A: Address>(record: Record<A>) -> u32 {
    // SAFETY: records stay valid until every program that can see them ends.
    match unsafe { record.as_ref() }.is_foreign() {
        true => tag::LIVE,
        false if tag::state(read_tag(record)) == tag::HALF => tag::HALF,
        false => tag::LIVE,
    }
}

/// Copies all of a record but what depends on its place.
#[inline(always)]
fn fill<A: Address>(from: Record<A>, mut to: Record<A>) {
    // SAFETY: records stay valid, and claimed ones are their claimer's alone. Numbers that packets
    // change meanwhile may be of either moment.
    let (from, to) = unsafe { (from.as_ref(), to.as_mut()) };
    to.last_seen = from.last_seen;
    to.source = from.source;
    to.destination = from.destination;
    to.source_port = from.source_port;
    to.destination_port = from.destination_port;
    to.flags = from.flags | flow_flag::COPIED;
    to.rewrite = from.rewrite;
    to.hop = from.hop;
    to.next = from.next;
    to.acknowledged = from.acknowledged;
    to.window = from.window;
    to.mark = from.mark;
    to.detail = from.detail;
    to.service = from.service;
}
