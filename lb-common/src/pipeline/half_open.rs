//! Flows that have not proved themselves: a budget per service, in which the oldest gives way.
//!
//! A real client completes its handshake within a round trip, a spoofed one never does. So when a
//! service has more half-open flows than its budget, each new one ends the oldest: a SYN cache.
//! The oldest is found by a ring of places that are handed out in turn.

use crate::{
    addr::Address,
    atomic,
    flow::{Record, end, record::look, tag},
    tables::Tables,
    work::Work,
};

/// Half-open flows that a service may have before it needs places in a ring. A service that is not
/// attacked has fewer.
pub const WITHOUT_RING: u32 = 128;
/// Half-open flows of a service give up their ports to services with the same endpoint once they
/// use one part in so many of its ring. The part is so small that this many services cannot use up
/// the ports of an endpoint.
const RING_PART: u32 = 16;
/// How many ticks a flow must have been silent before another may take its port: an eighth of a
/// second at least, in which a nearby client completes its handshake.
const SILENCE: i32 = 2;
/// After so many failed attempts half of those ticks are enough, and after twice as many none. Else
/// a flood that takes all ports towards an endpoint within [`SILENCE`] would shut out new clients.
const PATIENCE: u32 = 6;
/// The number of rings. Services share a ring if their ids differ by a multiple of this.
pub const RINGS: u32 = 64;

/// Whether a service has more half-open flows than one that is not attacked.
#[inline(always)]
pub fn is_pressed<A: Address, T: Tables<A>>(tables: &T, service: u32) -> bool {
    tables.half_open(service) >= WITHOUT_RING
}

/// No record.
pub(super) const NOBODY: u64 = u64::MAX;

/// Counts a flow that was just opened, and ends the service's oldest half-open one if the budget is
/// used up: returns the index of that one's client's direction, or [`NOBODY`]. `index` is the new
/// flow's own, of the client's direction, and `tag` the one it was published with.
#[inline(always)]
pub(super) fn enter<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    service: u32,
    index: u32,
    tag: u32,
) -> u64 {
    let before = tables.half_open(service);
    tables.count_half_open(service, 1);
    match before >= WITHOUT_RING {
        true => take_place(tables, work, service, index, tag),
        false => NOBODY,
    }
}

/// Puts a flow in its service's ring, and ends the one that had the place before. Out of line,
/// since only a service that is attacked needs it.
#[inline(never)]
fn take_place<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    service: u32,
    index: u32,
    tag: u32,
) -> u64 {
    let ring = service % RINGS;
    let Some(cursor) = tables.half_open_cursor(ring) else {
        return NOBODY;
    };
    // SAFETY: a valid word that is only accessed atomically.
    let turn = unsafe { atomic::fetch_add(cursor.as_ptr(), 1) };
    let mask = tables.half_open_mask();
    let place = ring.wrapping_mul(mask.wrapping_add(1)) | turn & mask;
    let Some(place) = tables.half_open_place(place) else {
        return NOBODY;
    };
    // SAFETY: a word of a map's element, only reached through atomics.
    work.memory =
        unsafe { atomic::exchange(place.as_ptr(), u64::from(tag) << 32 | u64::from(index)) };
    let (index, tag) = (work.memory as u32, (work.memory >> 32) as u32);
    if let Some((seen, forward)) = tables.slot(index).map(look)
        && seen == tag
        && give_way(tables, forward, tag)
    {
        return u64::from(index);
    }
    NOBODY
}

/// Ends the half-open flow that has the port in [`Work::other`], if it has been silent for a while
/// and its service uses more than a part of its ring. The more attempts have failed, the shorter
/// the while. Returns the index of its endpoint's direction if the port is free now, or [`NOBODY`].
///
/// Each service has its own budget, but the ports towards an endpoint are shared by all services to
/// which the endpoint belongs.
#[inline(never)]
pub(super) fn give_port<A: Address, T: Tables<A>>(
    tables: &T,
    work: &Work<A>,
    attempts: u32,
) -> u64 {
    let found = u32::try_from(tables.find_index(&work.other));
    let Some(reply) = found.ok().and_then(|index| tables.slot(index)) else {
        return NOBODY;
    };
    // SAFETY: records stay valid until every program that can see them ends.
    let Some(forward) = tables.slot(unsafe { reply.as_ref() }.peer) else {
        return NOBODY;
    };
    let (tag, forward) = look(forward);
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { forward.as_ref() };
    // Another flow may have the client's record by now.
    let holds = Ok(flow.peer) == found;
    let many = WITHOUT_RING.max(tables.half_open_mask() / RING_PART);
    let silence = tables.now().wrapping_sub(flow.last_seen) as i32;
    let is_silent = silence >= SILENCE >> (attempts / PATIENCE);
    let is_many = tables.half_open(flow.service_id()) >= many;
    match holds && is_many && is_silent && give_way(tables, forward, tag) {
        true => found.map_or(NOBODY, u64::from),
        false => NOBODY,
    }
}

/// Ends a flow if its client's direction still has this tag, unless the flow has proved itself.
/// Returns whether it was ended.
#[inline(always)]
fn give_way<A: Address, T: Tables<A>>(tables: &T, forward: Record<A>, tag: u32) -> bool {
    if tag::state(tag) != tag::HALF {
        return false;
    }
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { forward.as_ref() };
    let Some(reply) = tables.slot(flow.peer) else {
        return false;
    };
    let ended = end::evict(tables, forward, reply, tag);
    if ended {
        // A dead record keeps its fields.
        tables.count_gave_way(flow.service_id());
    }
    ended
}
