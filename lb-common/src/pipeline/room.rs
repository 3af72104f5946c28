//! Endpoints that have as many connections as their Service lets each have: new connections go to
//! others, and are refused where none has room.

use super::admit;
use crate::{
    abi::plan_flag,
    addr::Address,
    flow::{claim, slots::Slots, tcp},
    select::{self, Range},
    service::Route,
    tables::{Services, Tables},
    verdict::Reason,
    work::Work,
};

/// The answer of [`with_room`] if no endpoint has room.
const NONE: u32 = u32::MAX;

/// Index of the first endpoint of a set, from the one at `index` on and then from the set's beginning,
/// that has fewer than `most` connections open; `NONE` if there is none among the next 64.
#[inline(always)]
pub fn with_room<A: Address, T: Services<A> + Slots<A>>(
    tables: &T,
    set: Range,
    index: u32,
    most: u32,
) -> u32 {
    for index in set.from(index) {
        if select::open_at(tables, index) < most {
            return index;
        }
    }
    NONE
}

/// The endpoint for a new connection where each may have so many, which `Opening::most` says then: the
/// one at `index`, or else another one that has room. `None` if none has, and [`Work::refusal`] and
/// [`Work::reason`] say so.
///
/// Who is let in when limits are reached stays where it is: a connection in progress, whose flow was
/// lost, and one to an essential Service.
#[inline(never)]
pub(super) fn find_room<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
    index: u32,
) -> Option<u32> {
    let is_in_progress = !tcp::begins(work.tuple.protocol, work.segment.flags);
    if is_in_progress || route.plan.has(plan_flag::EXEMPT) {
        return Some(index);
    }
    work.opening.most = route.plan.most;
    let set = route.plan.set(route.policy);
    let found = tables.with_room(set, index, route.plan.most);
    if found != NONE {
        return Some(found);
    }
    // Its flow may exist, or another CPU is opening it: the packet came twice.
    work.reason = Reason::InsertRace;
    if claim::is_unknown(tables, &work.tuple, work.hash) {
        admit::refuse(tables, work, Reason::EndpointLimit);
    }
    None
}
