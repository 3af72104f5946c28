//! Ending flows whose connection is over, before the agent finds them.

use super::{
    flow_flag,
    table::{Record, Slots, kill},
    tcp::Stage,
};
use crate::addr::Address;

/// Whether a SYN on a found flow opens a new connection instead; the old flow is gone then.
#[inline(always)]
pub fn reopens<A: Address, S: Slots<A>>(slots: &S, record: Record<A>) -> bool {
    // SAFETY: live records stay valid until every program that can see them ends.
    let reply = unsafe { record.as_ref() }.has(flow_flag::REPLY);
    !reply && end_if(slots, record, Stage::may_reopen)
}

/// Takes a flow out of sight if its stage is one of those; whether it was.
#[inline(always)]
pub fn end_if<A: Address, S: Slots<A>>(
    slots: &S,
    record: Record<A>,
    ends: impl Fn(Stage) -> bool,
) -> bool {
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let Some(peer) = slots.slot(flow.peer) else {
        return false;
    };
    let (forward, reply) = match flow.has(flow_flag::REPLY) {
        true => (peer, record),
        false => (record, peer),
    };
    // SAFETY: as above; peers live and die together.
    let seen = unsafe { (forward.as_ref().seen, reply.as_ref().seen) };
    if !ends(Stage::of(seen.0, seen.1)) {
        return false;
    }
    // Whoever takes the forward record out of sight takes the other one too.
    if kill(forward) {
        kill(reply);
    }
    true
}
