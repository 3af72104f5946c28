//! The pipeline's part in a change of the flow table's size: packets of flows that are still in the
//! other table, and the copy of everything there. See [`crate::flow::resize`].

use super::track::{prove, proves};
use crate::{
    addr::Address,
    flow::{
        Flow, Record, flow_flag,
        record::{read_tag, set},
        resize::{FULL, NONE, RACED, other_half},
        stage::later,
        tag,
        tcp::{after, opens},
    },
    parse::Segment,
    tables::Tables,
    verdict::Reason,
    work::{Refusal, Work},
};

/// What happened to a record of the other table.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// It is not in use, or not the client's direction of a flow.
    Nothing,
    /// Its flow had been copied before. What packets have shown in either table is now combined.
    Merged,
    /// Its flow is copied now.
    Copied,
    /// There is no room for it, or another flow has its addresses and ports.
    Left,
}

/// Index of the flow of a packet that the programs' own table does not contain; [`NONE`] if the
/// packet opens one, or finds it like any other packet. If the flow is not available,
/// [`Work::refusal`] and [`Work::reason`] say why.
#[inline(always)]
pub(super) fn copied_index<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) -> u64 {
    if tables.other_mask() == 0 {
        return NONE;
    }
    let index = tables.copy_index(&work.tuple);
    if index == FULL {
        work.refusal = Refusal::Drop;
        work.reason = Reason::FlowTableFull;
    } else if index != RACED && opens(work.segment.flags) {
        return NONE;
    } else if index != NONE {
        work.reason = Reason::ToEndpoint;
    }
    index
}

/// Copies a flow, if its client's direction is the record at `index` of the other table. If it has
/// been copied before, combines what packets have shown there and here. The other table must not be
/// any program's own any more.
#[inline(always)]
pub fn copy_slot<A: Address, T: Tables<A>>(tables: &T, index: u32) -> Copied {
    let Some(record) = tables.other_slot(index) else {
        return Copied::Nothing;
    };
    // SAFETY: records stay valid until every program that can see them ends.
    let has = |flag| unsafe { record.as_ref() }.has(flag);
    if !tag::in_use(read_tag(record)) || has(flow_flag::REPLY) {
        return Copied::Nothing;
    }
    let Some(answers) = other_half(tables, record) else {
        return Copied::Nothing;
    };
    let known = has(flow_flag::COPIED);
    // SAFETY: records stay valid until every program that can see them ends.
    let tuple = unsafe { record.as_ref() }.tuple();
    let index = tables.copy_index(&tuple);
    let copy = u32::try_from(index).ok();
    match copy.and_then(|index| tables.slot(index)) {
        Some(copy) if known => merge(tables, record, answers, copy),
        Some(_) if has(flow_flag::COPIED) => Copied::Copied,
        // It has ended since.
        None if known => Copied::Nothing,
        _ => Copied::Left,
    }
}

/// Brings together what packets have shown of a flow in the other table and in the copy.
#[inline(always)]
fn merge<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    answers: Record<A>,
    forward: Record<A>,
) -> Copied {
    // SAFETY: records stay valid; their numbers may be written by several CPUs at once, and any of
    // the values will do.
    let Some(reply) = tables.slot(unsafe { forward.as_ref() }.peer) else {
        return Copied::Nothing;
    };
    if !merge_direction(record, forward) || !merge_direction(answers, reply) {
        return Copied::Nothing;
    }
    if tag::state(read_tag(forward)) == tag::HALF {
        // SAFETY: records stay valid until every program that can see them ends.
        let (there, back) = unsafe { (forward.as_ref(), reply.as_ref()) };
        let shown = Segment {
            acknowledged: there.acknowledged,
            ..Segment::default()
        };
        let is_tcp = !there.has(flow_flag::PROTOCOL);
        if tag::state(read_tag(record)) == tag::LIVE || is_tcp && proves(there, back, &shown) {
            prove(tables, forward, reply);
        }
    }
    Copied::Merged
}

/// Adds what packets have shown of a direction in the other table to its copy, if that is what it
/// is.
#[inline(always)]
fn merge_direction<A: Address>(from: Record<A>, mut copy: Record<A>) -> bool {
    use flow_flag::{
        CLOSED_FIRST, COPIED, FIN, FIN_ACKED, GONE, RST, SCALE, SCTP, SEEN, UDP, WATCH, WITHHELD,
    };
    // SAFETY: records stay valid until every program that can see them ends.
    let (from, to) = unsafe { (from.as_ref(), copy.as_mut()) };
    if from.rewrite != to.rewrite || !to.has(COPIED) {
        // Another connection, which has its place.
        return false;
    }
    if from.is_foreign() || to.is_foreign() {
        // Learnt anew from the next packets.
        return true;
    }
    let mut shown = from.flags & (SEEN | FIN | FIN_ACKED | CLOSED_FIRST | GONE | WITHHELD);
    let is_later = later(to.last_seen, from.last_seen) == from.last_seen;
    if is_later {
        // Later packets may have shown that it was not obeyed.
        shown |= from.flags & RST;
        to.last_seen = from.last_seen;
    }
    let first = from.has(SEEN) && !to.has(SEEN);
    let goes_on = match from.has(SCTP) {
        true => is_later && from.next != 0,
        false => goes_beyond(from, to),
    };
    if first || from.has(SEEN) && goes_on {
        to.next = from.next;
        to.acknowledged = from.acknowledged;
        to.window = from.window;
    }
    if first {
        shown |= from.flags & SCALE;
    }
    // Before the first answer it is a time, and of no use to the copy any more.
    if (to.detail == 0 || first) && !from.has(UDP) {
        to.detail = from.detail;
    }
    if shown & !to.flags != 0 {
        // The next packet shows what it comes to.
        set(copy, shown | WATCH);
    }
    true
}

/// Whether one record of a direction has seen a later segment than the other one.
#[inline(always)]
fn goes_beyond<A: Address>(one: &Flow<A>, other: &Flow<A>) -> bool {
    let (latest, before) = (one.acknowledged, other.acknowledged);
    // A SYN acknowledges nothing.
    let acknowledges = before == 0 || latest != 0 && after(latest, before);
    after(one.next, other.next) || one.next == other.next && acknowledges
}
