//! Endpoints that are gone: a client whose segments nobody answers any more is told, instead of
//! sending them again for a quarter of an hour.

use crate::{
    addr::Address,
    flow::{Flow, Record, flow_flag, stage::idle},
    service,
    tables::Tables,
};

/// Ticks for which a client repeats its data without an answer: three seconds at least. A peer that
/// lives acknowledges within a round trip (RFC 9293, 3.8.6.3).
const PATIENCE: u32 = 24;

/// Whether the endpoint of a flow has left its service and leaves the client without an answer.
/// `record` is of the direction of a segment that has come again, `peer` of the other one.
#[inline(never)]
pub(super) fn is_gone<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    mut peer: Record<A>,
) -> bool {
    // SAFETY: records stay valid; these fields may be written by several CPUs at once and any of
    // the values will do.
    let (flow, answers) = unsafe { (record.as_ref(), peer.as_mut()) };
    // Who has ended its half may have nothing to say, and has a time-out of its own.
    let both = flow.flags | answers.flags;
    if flow.has(flow_flag::REPLY) || both & (flow_flag::FIN | flow_flag::RST) != 0 {
        return false;
    }
    let now = tables.now();
    // An established connection has no other use for this.
    let since = answers.detail;
    if since == 0 || idle(answers.last_seen, now) <= idle(since, now) {
        answers.detail = now.max(1);
        return false;
    }
    idle(since, now) >= PATIENCE && has_left(tables, flow)
}

/// Whether a flow's endpoint is none of its service's any more. Of a service that is gone nobody
/// knows, nor which endpoint it is of a flow that another version opened.
#[inline(always)]
fn has_left<A: Address, T: Tables<A>>(tables: &T, flow: &Flow<A>) -> bool {
    let Some(plan) = tables.plan(flow.service) else {
        return false;
    };
    flow.detail != 0 && !service::still_has(tables, plan, flow.detail, flow)
}
