//! Flows that have not proved themselves: a budget per service, in which the oldest gives way.
//!
//! A real client completes its handshake within a round trip, a spoofed one never does. So when a
//! service has more half-open flows than its budget, each new one ends the oldest: a SYN cache. Which
//! one that is tells a ring of places, handed out in turn.

use super::Work;
use crate::{
    addr::Address,
    atomic,
    flow::{
        Record, end,
        record::{in_order, look},
        tag,
    },
    tables::Tables,
};

/// Half-open flows that a service may have before it needs places in a ring: whoever is not attacked
/// does without one.
pub const WITHOUT_RING: u32 = 128;
/// Rings; services whose ids differ by a multiple of this share one.
pub const RINGS: u32 = 64;

/// Whether a service has more half-open flows than one that is not attacked.
#[inline(always)]
pub fn is_pressed<A: Address, T: Tables<A>>(tables: &T, service: u32) -> bool {
    tables.half_open(service) >= WITHOUT_RING
}

/// Counts a flow that was just opened, and ends the service's oldest half-open one if the budget is
/// used up. `index` is the flow's own, of the client's direction, and `tag` the one it was published
/// with.
#[inline(always)]
pub(super) fn enter<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    service: u32,
    index: u32,
    tag: u32,
) {
    let before = tables.half_open(service);
    tables.count_half_open(service, 1);
    if before >= WITHOUT_RING {
        take_place(tables, work, service, index, tag);
    }
}

/// Puts a flow in its service's ring, and ends the one that had the place before. Out of line: a service
/// that is not attacked does without.
#[inline(never)]
fn take_place<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    service: u32,
    index: u32,
    tag: u32,
) {
    let ring = service % RINGS;
    let Some(cursor) = tables.half_open_cursor(ring) else {
        return;
    };
    // SAFETY: a valid word that is only accessed atomically.
    let turn = unsafe { atomic::fetch_add(cursor.as_ptr(), 1) };
    let mask = tables.half_open_mask();
    let place = ring.wrapping_mul(mask.wrapping_add(1)) | turn & mask;
    let Some(place) = tables.half_open_place(place) else {
        return;
    };
    // SAFETY: as above.
    work.memory =
        unsafe { atomic::exchange(place.as_ptr(), u64::from(tag) << 32 | u64::from(index)) };
    give_way(tables, work.memory);
}

/// Ends the flow that had a place before, if it still has not proved itself.
#[inline(always)]
fn give_way<A: Address, T: Tables<A>>(tables: &T, place: u64) {
    let (index, tag) = (place as u32, (place >> 32) as u32);
    if tag::state(tag) != tag::HALF {
        return;
    }
    let found = tables.slot(index).map(look);
    let Some((_, record)) = found.filter(|(seen, _)| *seen == tag) else {
        return;
    };
    // SAFETY: records stay valid until every program that can see them ends.
    let Some(peer) = tables.slot(unsafe { record.as_ref() }.peer) else {
        return;
    };
    let (forward, reply): (Record<A>, _) = in_order(record, peer);
    if end::evict(tables, forward, reply, tag) {
        // SAFETY: as above; a dead record keeps its fields.
        tables.count_gave_way(unsafe { forward.as_ref() }.service);
    }
}
