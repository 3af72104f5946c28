//! What packets show of their flow's connection: how far it has come, and that it lives.

use super::Work;
use crate::{
    addr::Address,
    flow::{
        Flow, Record, end, flow_flag,
        record::{clear, in_order, read_tag, set},
        table, tag,
        tcp::{self, after},
    },
    parse::{Segment, tcp_flag},
    tables::Tables,
};

/// Notes what a packet shows. Writes only what changes.
#[inline(always)]
pub(super) fn track<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, work: &Work<A>) {
    use flow_flag::{MISFIT, SEEN, UDP, WATCH};
    // SAFETY: records stay valid; these fields may be written by several CPUs at once and any of the
    // values will do.
    let flow = unsafe { &mut *record.as_ptr() };
    let now = tables.now();
    if flow.last_seen != now {
        flow.last_seen = now;
    }
    let segment = &work.segment;
    let settled = flow.flags & (SEEN | WATCH | MISFIT) == SEEN;
    if settled && flow.flags & UDP != 0 {
        return;
    }
    if settled && !tcp::controls(segment.flags) && tcp::continues(flow, segment) {
        note(flow, segment);
        return;
    }
    watch(tables, record, work);
}

/// Keeps the numbers of a segment.
#[inline(always)]
fn note<A: Address>(flow: &mut Flow<A>, segment: &Segment) {
    // What follows a FIN is what came before it, sent again.
    let ended = flow.has(flow_flag::FIN);
    if flow.next != segment.next && (!ended || after(segment.next, flow.next)) {
        flow.next = segment.next;
    }
    if flow.acknowledged != segment.acknowledged {
        flow.acknowledged = segment.acknowledged;
    }
    if flow.window != segment.window {
        flow.window = segment.window;
    }
}

/// Looks closely at a packet that may change the stage of its connection. Out of line: a connection
/// has few of them.
#[inline(never)]
fn watch<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, work: &Work<A>) {
    // SAFETY: records stay valid until every program that can see them ends.
    let Some(peer) = tables.slot(unsafe { record.as_ref() }.peer) else {
        return;
    };
    // SAFETY: as above.
    match unsafe { record.as_ref() }.has(flow_flag::UDP) {
        true => watch_udp(tables, record, peer),
        false => watch_tcp(tables, record, peer, work),
    }
}

/// A UDP client that sends again after an answer has got it, or goes on without: either way it is no
/// single spoofed packet.
#[inline(always)]
fn watch_udp<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, peer: Record<A>) {
    use flow_flag::{REPLY, SEEN, WATCH};
    // SAFETY: as above.
    let (flow, other) = unsafe { (record.as_ref(), peer.as_ref()) };
    if !flow.has(REPLY) && flow.has(SEEN) && other.has(SEEN) {
        prove(tables, record, peer);
    }
    if !flow.has(SEEN) {
        set(record, SEEN);
    }
    if flow.has(REPLY) {
        clear(record, WATCH);
    }
}

#[inline(always)]
fn watch_tcp<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    peer: Record<A>,
    work: &Work<A>,
) {
    use flow_flag::{CLOSED_FIRST, FIN, FIN_ACKED, MISFIT, MISFITS, REPLY, RST, SEEN, WATCH};
    // SAFETY: records stay valid; numbers may be written by several CPUs at once and any of the values
    // will do.
    let (flow, other) = unsafe { (&mut *record.as_ptr(), peer.as_ref()) };
    let (forward, reply) = in_order(record, peer);
    let segment = &work.segment;
    let seen = read_tag(forward);
    let half = tag::state(seen) == tag::HALF;
    if segment.flags & tcp_flag::RST != 0 {
        if !may_reset(flow, other, segment) {
            return;
        }
        set(record, RST);
        // Whoever goes on talking did not obey it.
        set(peer, WATCH);
        if half {
            end::end(tables, forward, reply, seen);
        }
        return;
    }
    if segment.flags & tcp_flag::SYN != 0 {
        if half {
            watch_syn(record, other, segment);
        }
        return;
    }
    // In a handshake the client's first acknowledgement goes on from nothing that it sent.
    let fits = match !flow.has(SEEN) || half && other.has(SEEN) {
        true => tcp::answers(other, segment),
        false => tcp::continues(flow, segment),
    };
    if !fits && !(flow.has(SEEN) && flow.has(MISFITS)) {
        // Several in a row, and none between them that fits: then it is we who have missed something.
        set(record, if flow.has(MISFIT) { MISFITS } else { MISFIT });
        return;
    }
    if segment.flags & tcp_flag::FIN != 0 {
        if !tcp::in_window(other, segment.sequence) {
            return;
        }
        if !flow.has(FIN) {
            set(record, FIN | if other.has(FIN) { 0 } else { CLOSED_FIRST });
            set(peer, WATCH);
            if !flow.has(REPLY) {
                // SAFETY: as above.
                unsafe { (*peer.as_ptr()).detail = segment.stamp };
            }
        }
    }
    note(flow, segment);
    if !flow.has(SEEN) {
        set(record, SEEN);
    }
    if flow.has(MISFIT) {
        clear(record, MISFIT | MISFITS);
    }
    if other.has(RST) {
        clear(peer, RST);
    }
    if other.has(FIN) && segment.acknowledged == other.next {
        set(peer, FIN_ACKED);
    }
    if half {
        if !proves(flow, other, segment) {
            return;
        }
        prove(tables, forward, reply);
    }
    if !other.has(FIN) || other.has(FIN_ACKED) {
        clear(record, WATCH);
    }
}

/// Whether a RST counts. One that answers a SYN has no number of its own, but acknowledges the SYN.
#[inline(always)]
fn may_reset<A: Address>(flow: &Flow<A>, other: &Flow<A>, segment: &Segment) -> bool {
    if !other.has(flow_flag::SEEN) {
        // The client takes its SYN back.
        return segment.sequence == flow.next;
    }
    if !flow.has(flow_flag::SEEN) && segment.flags & tcp_flag::ACK != 0 {
        return segment.acknowledged == other.next;
    }
    tcp::in_window(other, segment.sequence)
}

/// A SYN that came again, or its answer.
#[inline(always)]
fn watch_syn<A: Address>(record: Record<A>, other: &Flow<A>, segment: &Segment) {
    use flow_flag::{REPLY, SCALE_SHIFT, SEEN};
    // SAFETY: as above.
    let flow = unsafe { &mut *record.as_ptr() };
    let acknowledges = segment.flags & tcp_flag::ACK != 0;
    let counts = match flow.has(REPLY) {
        true => acknowledges && segment.acknowledged == other.next,
        false => !acknowledges && !other.has(SEEN),
    };
    if !counts {
        return;
    }
    flow.next = segment.next;
    flow.acknowledged = segment.acknowledged;
    flow.window = segment.window;
    set(record, SEEN | u32::from(segment.scale) << SCALE_SHIFT);
}

/// Whether a segment shows that the client has got what the endpoint sent: of a connection from its
/// beginning, that it acknowledges the endpoint's first number; of one that was picked up on its way,
/// that the endpoint answers.
#[inline(always)]
fn proves<A: Address>(flow: &Flow<A>, other: &Flow<A>, segment: &Segment) -> bool {
    use flow_flag::{PICKED_UP, REPLY, SEEN};
    let picked_up = flow.has(PICKED_UP);
    match flow.has(REPLY) {
        true => picked_up,
        false => other.has(SEEN) && (picked_up || segment.acknowledged == other.next),
    }
}

/// Notes that a connection is established.
#[inline(always)]
fn prove<A: Address, T: Tables<A>>(tables: &T, forward: Record<A>, reply: Record<A>) {
    if table::settle(tables, forward) {
        clear(forward, flow_flag::WATCH);
        clear(reply, flow_flag::WATCH);
    }
}
