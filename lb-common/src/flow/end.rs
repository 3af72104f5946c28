//! Ends flows before the agent finds them: those that a new connection replaces, and those that are
//! over and in its way.

use super::{
    Flow, Record, Stage, flow_flag,
    record::{self, in_order, look, read_tag},
    seats,
    slots::{Purpose, Slots},
    stage::{holds_port, idle, later},
    tag, tcp,
};
use crate::{addr::Address, parse::Segment};

/// Ticks that a SYN has been without an answer when the same SYN goes to another endpoint: a
/// quarter of a second at least. Clients wait for longer before they send it again (RFC 6298, 2.1).
pub const SILENCE: u32 = 3;
/// Ticks that a connection has been silent when a SYN with its addresses and ports begins another
/// one, if its endpoint is gone. A client that still talks to that endpoint has not sent the SYN.
const PAUSE: u32 = 1;

/// Whether the flow of the record at `index` makes way for `purpose`. If so, it has been ended.
#[inline(always)]
pub fn made_way<A: Address, S: Slots<A>>(
    slots: &S,
    index: u32,
    segment: &Segment,
    purpose: Purpose,
) -> bool {
    let ended = slots.gives_way(index, segment, purpose);
    if ended {
        // Here, where enough of the stack is left.
        slots.leave_ended(index);
    }
    ended
}

/// Whether the flow of the record at `index` makes way for a new one with the same addresses and
/// ports. If so, it has been ended, in the other table too.
#[inline(always)]
pub fn replaces<A: Address, S: Slots<A>>(
    slots: &S,
    index: u32,
    segment: &Segment,
    purpose: Purpose,
) -> bool {
    let ended = made_way(slots, index, segment, purpose);
    if ended {
        replaced(slots, index);
    }
    ended
}

/// Ends a flow in the other table, if there is one, that has just ended in this one for a new flow.
#[inline(always)]
pub fn replaced<A: Address, S: Slots<A>>(slots: &S, index: u32) {
    if slots.other_mask() != 0 {
        slots.end_other(index);
    }
}

/// The step behind [`made_way`].
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
    let (_, record) = look(record);
    // SAFETY: records stay valid, and these flags do not change.
    let flow = unsafe { record.as_ref() };
    let (is_reply, picked_up) = (flow.has(flow_flag::REPLY), flow.has(flow_flag::PICKED_UP));
    let now = slots.now();
    let ended = end_if(slots, record, |stage, forward, reply| {
        let closed = stage == Stage::Closed;
        let silence = idle(later(forward.last_seen, reply.last_seen), now);
        match purpose {
            Purpose::Plain => false,
            Purpose::Open => closed && !is_reply,
            // The endpoint has forgotten the connection, or takes the SYN even so.
            Purpose::Port => {
                let held = holds_port(forward.flags, reply.flags);
                closed && (!held || tcp::wakes(forward, reply.detail, segment))
            }
            // What seemed to be a connection in progress begins with the SYN.
            Purpose::Again => {
                !is_reply && stage == Stage::Unreplied && (picked_up || silence >= SILENCE)
            }
            Purpose::Afresh => {
                !is_reply && (stage == Stage::Unreplied || closed || silence >= PAUSE)
            }
            Purpose::Past => closed,
            Purpose::Nothing => slots.timeouts().is_some_and(|timeouts| {
                silence > timeouts.of_flow(stage, forward.flags, reply.flags)
            }),
        }
    });
    let is_wanted = is_reply && matches!(purpose, Purpose::Plain | Purpose::Port);
    // The answers of a stale UDP flow stay for a while.
    if ended || !is_wanted || flow.has(flow_flag::UDP) {
        return ended;
    }
    if is_left(slots, record) {
        seats::kill(slots, record, now);
    }
    !tag::in_use(read_tag(record))
}

/// Ends a flow if that holds for its stage and its two directions. Returns whether it did.
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
    let (tag, forward) = look(forward);
    // SAFETY: records stay valid until every program that can see them ends.
    let (there, back) = unsafe { (forward.as_ref(), reply.as_ref()) };
    // The agent ends a stale UDP flow before its answers, and another flow may have taken the
    // record.
    are_paired(there, back)
        && ends(Stage::of(tag, there.flags, back.flags), there, back)
        && end(slots, forward, reply, tag)
}

/// Whether the client's direction of a flow was ended, but the endpoint's, `reply`, not yet. The
/// agent ends one after the other, and may be delayed in between. A new flow that needs the record
/// for its own answers does not wait for it.
#[inline(always)]
fn is_left<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>) -> bool {
    // SAFETY: records stay valid until every program that can see them ends.
    let back = unsafe { reply.as_ref() };
    let Some(forward) = slots.slot(back.peer) else {
        return false;
    };
    let (tag, forward) = look(forward);
    // A flow that is being opened shows the endpoint's direction first. SAFETY: records stay valid
    // until every program that can see them ends.
    !tag::in_use(tag)
        && tag::state(tag) != tag::BUSY
        && are_paired(unsafe { forward.as_ref() }, back)
}

/// Whether two records that name each other are, or were, of one flow.
#[inline(always)]
fn are_paired<A: Address>(forward: &Flow<A>, reply: &Flow<A>) -> bool {
    let to = &forward.rewrite;
    to.destination == reply.source && to.destination_port == reply.source_port
}

/// Ends both directions of a flow if the client's still has this tag. Returns whether it had.
#[inline(always)]
pub fn end<A: Address, S: Slots<A>>(
    slots: &S,
    forward: Record<A>,
    reply: Record<A>,
    tag: u32,
) -> bool {
    let now = slots.now();
    // The CPU that ends the client's direction ends the other one too.
    if !record::kill_if(forward, tag, now) {
        return false;
    }
    seats::kill(slots, reply, now);
    count_ended(slots, forward, tag);
    true
}

/// [`end`] for a half-open flow that gives way to a newer one, so that its records may be replaced
/// soon.
#[inline(always)]
pub fn evict<A: Address, S: Slots<A>>(
    slots: &S,
    forward: Record<A>,
    reply: Record<A>,
    tag: u32,
) -> bool {
    let moment = slots.moment();
    if !record::evict_if(forward, tag, moment) {
        return false;
    }
    seats::evict(slots, reply, moment);
    count_ended(slots, forward, tag);
    true
}

/// Counts a flow that has just ended, and whose client's direction had this tag.
#[inline(always)]
fn count_ended<A: Address, S: Slots<A>>(slots: &S, forward: Record<A>, tag: u32) {
    // SAFETY: records stay valid, and a dead one keeps its fields.
    let service = unsafe { forward.as_ref() }.service_id();
    slots.count_flows(service, -1);
    if tag::state(tag) == tag::HALF {
        slots.count_half_open(service, -1);
    }
}
