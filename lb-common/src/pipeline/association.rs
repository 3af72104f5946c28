//! What a packet shows of its SCTP association (RFC 9260): something only if it bears the tag that its
//! receiver has asked for in the handshake. A blind attacker does not know the tag.

use super::track::{complete, has, is_unanswered, note_fit, note_refusal, note_reset, outlasted};
use crate::{
    addr::Address,
    flow::{
        Flow, Record, flow_flag,
        record::{clear, in_order, read_tag, set},
        tag, tcp,
    },
    parse::{Segment, tcp_flag},
    pipeline::failing,
    tables::Tables,
    work::Work,
};

/// Whether a packet goes on from those before it, and changes nothing.
#[inline(always)]
pub(super) fn continues<A: Address>(flow: &Flow<A>, segment: &Segment) -> bool {
    segment.acknowledged == flow.acknowledged && !tcp::controls(segment.flags)
}

/// Looks closely at a packet that may change the stage of its association.
#[inline(always)]
pub(super) fn watch<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    peer: Record<A>,
    work: &Work<A>,
) {
    use flow_flag::{FIN, FIN_ACKED, GONE, MISFIT, PICKED_UP, REPLY, RST, SEEN, WATCH};
    let (forward, reply) = in_order(record, peer);
    let segment = &work.segment;
    let half = tag::state(read_tag(forward)) == tag::HALF;
    if segment.flags & tcp_flag::SYN != 0 {
        if half && !has(record, PICKED_UP) {
            shake_hands(tables, record, peer, segment);
        }
        return;
    }
    let is_last = segment.flags & tcp_flag::RST != 0;
    // Before the endpoint has asked for a tag, the client knows none.
    let knows = !half || has(record, PICKED_UP);
    if is_expected(record, peer, segment, knows && !is_last) {
        note_fit(record, peer);
    } else if is_last || !knows || !outlasted(record, peer, tables.now()) || !has(peer, MISFIT) {
        return;
    } else {
        // Both sides have other tags now, so they have begun anew.
        forget(record);
    }
    if is_last && segment.flags & tcp_flag::FIN != 0 {
        // Obeyed only by who has acknowledged the shutdown.
        if has(record, FIN_ACKED) {
            set(peer, FIN_ACKED);
        }
        return;
    }
    if is_last {
        // SAFETY: records stay valid until every program that can see them ends.
        let flow = unsafe { record.as_ref() };
        match flow.has(REPLY) && is_unanswered(flow, peer) {
            true => note_refusal(tables, record, peer),
            false => note_reset(record, peer),
        }
        return;
    }
    learn(record, peer, segment);
    if !has(record, SEEN) {
        set(record, SEEN);
    }
    if has(peer, RST) {
        clear(peer, RST);
    }
    if !half && has(record, GONE) {
        set(record, GONE | RST);
        return;
    }
    let is_reply = has(record, REPLY);
    let proves = match is_reply {
        true => has(record, PICKED_UP),
        false => has(peer, SEEN),
    };
    if half && proves {
        if !complete(tables, forward, reply) {
            return;
        }
    } else if half && !is_reply {
        return;
    }
    if segment.flags & tcp_flag::FIN != 0 {
        set(record, FIN);
        if segment.flags & tcp_flag::ACK != 0 && has(peer, FIN) {
            set(peer, FIN_ACKED);
        }
    }
    clear(record, WATCH);
}

/// Whether a packet bears a tag that it may bear. One whose sender knows no association has the tag of
/// the packet that it is an answer to. Any will do if its sender `knows` the tag, and nobody else.
#[inline(always)]
fn is_expected<A: Address>(
    record: Record<A>,
    peer: Record<A>,
    segment: &Segment,
    knows: bool,
) -> bool {
    use flow_flag::{REPLY, SEEN};
    // SAFETY: records stay valid; numbers may be written by several CPUs at once and any of the
    // values will do.
    let (flow, other) = unsafe { (record.as_ref(), peer.as_ref()) };
    let tag = segment.acknowledged;
    if segment.window != 0 {
        return flow.next != 0 && tag == flow.next;
    }
    // The endpoint keeps nothing while it waits for its cookie, so each INIT ACK has a tag of its own.
    let has_answered = other.flags & (REPLY | SEEN) == REPLY | SEEN;
    let is_earlier = has_answered && tag == other.detail;
    tag != 0 && (tag == other.next || is_earlier || other.next == 0 && knows)
}

/// Forgets the tag that packets of the other direction bear.
#[inline(always)]
fn forget<A: Address>(record: Record<A>) {
    // SAFETY: records stay valid; numbers may be written by several CPUs at once and any of the values
    // will do.
    unsafe { (*record.as_ptr()).next = 0 };
}

/// Keeps the tag of a packet.
#[inline(always)]
fn learn<A: Address>(record: Record<A>, peer: Record<A>, segment: &Segment) {
    // SAFETY: records stay valid; numbers may be written by several CPUs at once and any of the
    // values will do.
    let (flow, other) = unsafe { (&mut *record.as_ptr(), &mut *peer.as_ptr()) };
    flow.acknowledged = segment.acknowledged;
    if other.next != segment.acknowledged {
        other.next = segment.acknowledged;
    }
}

/// An INIT that came again, or its answer.
#[inline(always)]
fn shake_hands<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    peer: Record<A>,
    segment: &Segment,
) {
    use flow_flag::{MISFIT, REPLY, SEEN};
    // SAFETY: records stay valid until every program that can see them ends.
    let (flow, other) = unsafe { (&mut *record.as_ptr(), peer.as_ref()) };
    let is_answer = segment.flags & tcp_flag::ACK != 0;
    let counts = match flow.has(REPLY) {
        true => is_answer && segment.acknowledged == other.next,
        false => !is_answer && !other.has(SEEN),
    };
    if !counts || segment.next == 0 {
        return;
    }
    if flow.has(REPLY) {
        flow.detail = flow.next;
        if other.has(MISFIT) {
            clear(peer, MISFIT);
        }
        failing::note_success(tables, other.detail);
    }
    flow.next = segment.next;
    flow.acknowledged = segment.acknowledged;
    set(record, SEEN);
}
