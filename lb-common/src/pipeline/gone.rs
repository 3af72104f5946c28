//! Endpoints that are gone: their clients get a RST, instead of repeating their segments for a
//! quarter of an hour.

use crate::{
    addr::Address,
    flow::{Flow, Record, flow_flag, stage::idle},
    service,
    tables::Tables,
};

/// Ticks for which a client repeats its data without an answer: three seconds at least. A peer that
/// lives acknowledges within a round trip (RFC 9293, 3.8.6.3).
const PATIENCE: u32 = 24;

/// Whether the endpoint of a flow has left its service and does not answer the client. `record` is
/// the direction of a segment that has been repeated, `peer` the other one.
#[inline(never)]
pub(super) fn is_gone<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    mut peer: Record<A>,
) -> bool {
    // SAFETY: records stay valid; these fields may be written by several CPUs at once and any of
    // the values will do.
    let (flow, answers) = unsafe { (record.as_ref(), peer.as_mut()) };
    // A side that has ended its half may have nothing to send, and half-closed flows have a
    // time-out of their own.
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

/// Whether a flow's endpoint has left the flow's service. False if that is unknown: the service is
/// gone, or another version opened the flow.
#[inline(always)]
fn has_left<A: Address, T: Tables<A>>(tables: &T, flow: &Flow<A>) -> bool {
    let Some(plan) = tables.plan(flow.service_id()) else {
        return false;
    };
    flow.detail != 0 && !service::still_has(tables, plan, flow.detail, flow)
}
