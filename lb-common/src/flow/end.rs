//! Ending flows before the agent finds them: those that a new connection replaces, and those that are
//! over and in its way.

use super::{
    Flow, Record, Stage, flow_flag,
    record::{self, in_order, read_tag},
    stage::{holds_port, idle, later},
    table::{Purpose, Slots},
    tcp,
};
use crate::{addr::Address, parse::Segment};

/// Whether the flow of the record at `index` makes way for `purpose`; it is gone then.
#[inline(always)]
pub fn gives_way<A: Address, S: Slots<A>>(
    slots: &S,
    index: u32,
    segment: &Segment,
    purpose: Purpose,
) -> bool {
    let Some(record) = slots.slot(index) else {
        return false;
    };
    let now = slots.now();
    end_if(slots, record, |stage, forward, reply| {
        let closed = stage == Stage::Closed;
        match purpose {
            Purpose::Plain => false,
            Purpose::Open => closed && !is_reply(record),
            // The endpoint has forgotten the connection, or takes the SYN all the same.
            Purpose::Port => {
                let held = holds_port(forward.flags, reply.flags);
                closed && (!held || tcp::wakes(forward, reply.detail, segment))
            }
            Purpose::Nothing => {
                let timeout = slots.timeouts().of_flow(stage, forward.flags, reply.flags);
                idle(later(forward.last_seen, reply.last_seen), now) > timeout
            }
        }
    })
}

/// Whether a SYN on a found flow opens a new connection instead; the old flow is gone then.
#[inline(always)]
pub fn reopens<A: Address, S: Slots<A>>(slots: &S, record: Record<A>) -> bool {
    !is_reply(record) && end_if(slots, record, |stage, _, _| stage == Stage::Closed)
}

#[inline(always)]
fn is_reply<A: Address>(record: Record<A>) -> bool {
    // SAFETY: records stay valid, and this flag does not change.
    unsafe { record.as_ref() }.has(flow_flag::REPLY)
}

/// Takes a flow out of sight if that is true of its stage and its two directions; whether it was.
#[inline(always)]
pub fn end_if<A: Address, S: Slots<A>>(
    slots: &S,
    record: Record<A>,
    ends: impl FnOnce(Stage, &Flow<A>, &Flow<A>) -> bool,
) -> bool {
    // SAFETY: records stay valid until every program that can see them ends.
    let Some(peer) = slots.slot(unsafe { record.as_ref() }.peer) else {
        return false;
    };
    let (forward, reply) = in_order(record, peer);
    let tag = read_tag(forward);
    // SAFETY: as above; peers live and die together.
    let (there, back) = unsafe { (forward.as_ref(), reply.as_ref()) };
    ends(Stage::of(tag, there.flags, back.flags), there, back) && end(slots, forward, reply, tag)
}

/// Takes both directions of a flow out of sight if the client's still has this tag; whether it had.
#[inline(always)]
pub fn end<A: Address, S: Slots<A>>(
    slots: &S,
    forward: Record<A>,
    reply: Record<A>,
    tag: u32,
) -> bool {
    let now = slots.now();
    // Whoever takes the client's direction out of sight takes the other one too.
    if !record::kill_if(forward, tag, now) {
        return false;
    }
    record::kill(reply, now);
    if super::tag::state(tag) == super::tag::HALF {
        // SAFETY: as above; a dead record keeps its fields.
        slots.count_half_open(unsafe { forward.as_ref() }.service, -1);
    }
    true
}
