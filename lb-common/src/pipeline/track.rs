//! What packets show of their flow's connection: how far it has come, and that it lives.

use super::{admit, association, failing, gone};
use crate::{
    addr::Address,
    flow::{
        Flow, Record, flow_flag, foreign, latency,
        record::{clear, flags, in_order, read_tag, set},
        seats::{self, place_of},
        table, tag,
        tcp::{self, after},
    },
    parse::{Segment, tcp_flag},
    tables::Tables,
    work::Work,
};

/// Notes what a packet shows. Writes only what changes.
#[inline(always)]
pub(super) fn track<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, work: &Work<A>) {
    use flow_flag::{MISFIT, NUMBERED, OLD_HOP, PROTOCOL, SEEN, UDP, WATCH};
    // SAFETY: records stay valid; these fields may be written by several CPUs at once and any of
    // the values will do.
    let flow = unsafe { &mut *record.as_ptr() };
    let now = tables.now();
    if flow.last_seen != now {
        flow.last_seen = now;
    }
    let segment = &work.segment;
    let settled = flow.flags & (SEEN | WATCH | MISFIT | NUMBERED | OLD_HOP) == SEEN | NUMBERED;
    if settled && flow.has(PROTOCOL) {
        if flow.has(UDP) || association::continues(flow, segment) {
            return;
        }
    } else if settled
        && !repeats(flow, segment)
        && !tcp::controls(segment.flags)
        && tcp::continues(flow, segment)
    {
        note(flow, segment);
        return;
    }
    watch(tables, record, work);
}

/// Whether a segment brings the data that the one before it brought: its receiver has not
/// acknowledged it.
#[inline(always)]
fn repeats<A: Address>(flow: &Flow<A>, segment: &Segment) -> bool {
    segment.next == flow.next && segment.next != segment.sequence
}

/// Keeps the numbers of a segment.
#[inline(always)]
fn note<A: Address>(flow: &mut Flow<A>, segment: &Segment) {
    // What follows a FIN is what came before it, sent again.
    let ended = flow.has(flow_flag::FIN);
    if flow.next != segment.next && (!ended || after(segment.next, flow.next)) {
        flow.next = segment.next;
        if segment.next != segment.sequence && !flow.has(flow_flag::MISFIT) {
            flow.mark = segment.acknowledged as u16;
        }
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
    // SAFETY: records stay valid until every program that can see them ends.
    if unsafe { peer.as_ref() }.is_foreign() {
        foreign::adopt(peer, tables.now());
    }
    // SAFETY: records stay valid until every program that can see them ends.
    if unsafe { record.as_ref() }.is_foreign() {
        foreign::adopt(record, tables.now());
        set(record, flow_flag::SEEN);
    }
    let began = latency::take(record);
    // SAFETY: records stay valid until every program that can see them ends.
    match unsafe { record.as_ref() }.flags & flow_flag::PROTOCOL {
        0 if refuses(record, peer, &work.segment) => note_refusal(tables, record, peer),
        0 => watch_tcp(tables, record, peer, work),
        flow_flag::SCTP => association::watch(tables, record, peer, work),
        _ => watch_udp(tables, record, peer),
    }
    latency::note(tables, record, peer, began);
    follow_seats(tables, record, peer);
}

/// Has the seats of a flow follow what a packet of the direction `record` has shown.
#[inline(always)]
fn follow_seats<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, peer: Record<A>) {
    // SAFETY: records stay valid, and neither of these changes while they are in use.
    let is_reply = unsafe { record.as_ref() }.has(flow_flag::REPLY);
    let reply = if is_reply { record } else { peer };
    if !place_of(reply).is_none() {
        seats::follow(tables, record, peer, is_reply);
    }
}

/// Closes a flow after its endpoint has refused the connection. `record` is the endpoint's
/// direction.
#[inline(always)]
pub(super) fn note_refusal<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    forward: Record<A>,
) {
    use flow_flag::{RST, WITHHELD};
    let withheld = match failing::is_withheld(tables, forward) {
        true => WITHHELD,
        false => 0,
    };
    set(record, RST | withheld);
}

/// Whether a segment is an endpoint's RST in answer to a SYN.
#[inline(always)]
fn refuses<A: Address>(record: Record<A>, peer: Record<A>, segment: &Segment) -> bool {
    // SAFETY: records stay valid until every program that can see them ends.
    let (flow, other) = unsafe { (record.as_ref(), peer.as_ref()) };
    segment.flags & tcp_flag::RST != 0
        && flow.has(flow_flag::REPLY)
        && is_unanswered(flow, peer)
        && may_reset(flow, other, segment)
}

/// Whether an endpoint has not yet answered the client's SYN. `flow` is the endpoint's direction.
#[inline(always)]
pub(super) fn is_unanswered<A: Address>(flow: &Flow<A>, forward: Record<A>) -> bool {
    use flow_flag::{PICKED_UP, SEEN};
    tag::state(read_tag(forward)) == tag::HALF && !flow.has(SEEN) && !flow.has(PICKED_UP)
}

/// Handles an ICMP error: the SYN before this sequence number, or the INIT that asks for this tag, did not
/// reach the endpoint. `record` is the endpoint's direction.
#[inline(never)]
pub(super) fn track_unreachable<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    next: u32,
) {
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let Some(forward) = tables.slot(flow.peer) else {
        return;
    };
    // SAFETY: records stay valid until every program that can see them ends.
    let syn = unsafe { forward.as_ref() };
    let is_about_syn = flow.has(flow_flag::REPLY)
        && !flow.has(flow_flag::UDP)
        && is_unanswered(flow, forward)
        && next == syn.next;
    if is_about_syn {
        note_refusal(tables, record, forward);
        follow_seats(tables, record, forward);
    }
}

/// A UDP client that sends again after there was an answer. It may be spoofed, but it uses its
/// flow.
#[inline(always)]
fn watch_udp<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, peer: Record<A>) {
    use flow_flag::{REPLY, SEEN, WATCH};
    let flags = flags(record);
    if flags & REPLY == 0 && flags & SEEN != 0 && has(peer, SEEN) {
        prove(tables, record, peer);
        clear(record, WATCH);
    }
    if flags & SEEN == 0 {
        set(record, SEEN);
    }
    if flags & (REPLY | WATCH) == REPLY | WATCH {
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
    use flow_flag::{FIN, FIN_ACKED, GONE, PICKED_UP, RST, SEEN, WATCH};
    // SAFETY: records stay valid; numbers may be written by several CPUs at once and any of the
    // values will do. Flags change under these references, by the functions of `record` only: see
    // `has`.
    let (flow, other) = unsafe { (&mut *record.as_ptr(), peer.as_ref()) };
    let (forward, reply) = in_order(record, peer);
    let segment = &work.segment;
    let half = tag::state(read_tag(forward)) == tag::HALF;
    if segment.flags & tcp_flag::RST != 0 {
        if may_reset(flow, other, segment) {
            note_reset(record, peer);
        }
        return;
    }
    if segment.flags & tcp_flag::SYN != 0 {
        if half && !flow.has(PICKED_UP) {
            watch_syn(tables, record, peer, segment);
        }
        return;
    }
    if fits(flow, other, segment, half) {
        note_fit(record, peer);
    } else if !outlasted(record, peer, tables.now()) {
        return;
    }
    let ends = segment.flags & tcp_flag::FIN != 0 && !has(record, FIN);
    if ends && !tcp::in_window(other, segment.sequence) {
        return;
    }
    let repeated = repeats(flow, segment);
    note(flow, segment);
    if !has(record, SEEN) {
        set(record, SEEN);
    }
    if has(peer, RST) {
        clear(peer, RST);
    }
    if has(peer, FIN) && !has(peer, FIN_ACKED) && segment.acknowledged == other.next {
        set(peer, FIN_ACKED);
    }
    // If clients are to be told at once, the agent marks that the endpoint is gone, or that a deadline
    // has passed. Not in a handshake, because the check stores a time where the endpoint's first number
    // is.
    if !half && (has(record, GONE) || repeated && gone::is_gone(tables, record, peer)) {
        // Its own connection must be marked as well.
        set(record, GONE | RST);
        return;
    }
    if half && proves(flow, other, segment) {
        if !complete(tables, forward, reply) {
            return;
        }
    } else if half && !flow.has(flow_flag::REPLY) {
        return;
    }
    if ends {
        note_end(record, peer, segment);
    }
    if !has(peer, FIN) || has(peer, FIN_ACKED) {
        clear(record, WATCH);
    }
}

/// Notes that what a direction's sender has sent goes on from what was seen before.
#[inline(always)]
pub(super) fn note_fit<A: Address>(record: Record<A>, peer: Record<A>) {
    use flow_flag::MISFIT;
    if has(record, MISFIT) {
        clear(record, MISFIT);
    }
    if has(peer, MISFIT) {
        // Its receiver goes on as before: it was not the sender's.
        clear(peer, MISFIT);
    }
}

/// Notes that a direction's sender has reset the connection.
#[inline(always)]
pub(super) fn note_reset<A: Address>(record: Record<A>, peer: Record<A>) {
    use flow_flag::{EXPIRED, GONE, RST, WATCH};
    set(record, RST);
    if has(record, GONE) {
        // It goes on: an endpoint that has left its service may still be there.
        clear(record, EXPIRED);
    }
    // A side that goes on sending did not accept it.
    set(peer, WATCH);
}

/// Whether a segment may really come from its sender. In a handshake, the client's first
/// acknowledgement does not continue anything that it sent. Later, what one side says also tells
/// what to expect of the other.
#[inline(always)]
fn fits<A: Address>(flow: &Flow<A>, other: &Flow<A>, segment: &Segment, half: bool) -> bool {
    use flow_flag::{REPLY, SEEN};
    let shakes_hands = half && !flow.has(REPLY) && other.has(SEEN);
    let goes_on = flow.has(SEEN) && !shakes_hands && tcp::continues(flow, segment);
    goes_on || (other.has(SEEN) && tcp::answers(other, segment))
}

/// Whether a direction's segments have not fitted for so long, although its receiver did not go on
/// as before, that node-lb must have missed something.
#[inline(always)]
pub(super) fn outlasted<A: Address>(record: Record<A>, peer: Record<A>, now: u32) -> bool {
    use flow_flag::{MISFIT, SEEN, WATCH};
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { &mut *record.as_ptr() };
    if !flow.has(SEEN) {
        return false;
    }
    if flow.has(MISFIT) {
        return (now as u16).wrapping_sub(flow.mark) >= tcp::PATIENCE;
    }
    flow.mark = now as u16;
    set(record, MISFIT);
    // Its next segment shows whether it has accepted this one.
    set(peer, WATCH);
    false
}

/// Whether a RST counts. One that answers a SYN has no number of its own, but acknowledges the SYN.
#[inline(always)]
fn may_reset<A: Address>(flow: &Flow<A>, other: &Flow<A>, segment: &Segment) -> bool {
    use flow_flag::{PICKED_UP, SEEN};
    if !other.has(SEEN) {
        // The client takes its SYN back.
        return segment.sequence == flow.next;
    }
    if !flow.has(SEEN) && !flow.has(PICKED_UP) {
        return segment.flags & tcp_flag::ACK != 0 && segment.acknowledged == other.next;
    }
    tcp::in_window(other, segment.sequence)
}

/// A SYN that came again, or its answer.
#[inline(always)]
fn watch_syn<A: Address, T: Tables<A>>(
    tables: &T,
    record: Record<A>,
    peer: Record<A>,
    segment: &Segment,
) {
    use flow_flag::{MISFIT, REPLY, SCALE, SCALE_SHIFT, SEEN};
    // SAFETY: records stay valid until every program that can see them ends.
    let (flow, other) = unsafe { (&mut *record.as_ptr(), peer.as_ref()) };
    let acknowledges = segment.flags & tcp_flag::ACK != 0;
    let counts = match flow.has(REPLY) {
        true => acknowledges && tcp::acknowledges_syn(other, segment.acknowledged),
        false => !acknowledges && !other.has(SEEN),
    };
    if !counts {
        return;
    }
    if flow.has(REPLY) {
        flow.detail = segment.sequence.wrapping_add(1);
        if has(peer, MISFIT) {
            // What did not fit was not the client's: the endpoint did not take it.
            clear(peer, MISFIT);
        }
        // It is the client's turn. SAFETY: records stay valid; any of the values that CPUs write at
        // once will do.
        unsafe { (*peer.as_ptr()).mark = segment.sequence as u16 };
        failing::note_success(tables, other.detail);
    }
    flow.next = segment.next;
    flow.acknowledged = segment.acknowledged;
    flow.window = segment.window;
    if has(record, SCALE) {
        clear(record, SCALE);
    }
    set(record, SEEN | u32::from(segment.scale) << SCALE_SHIFT);
}

/// Notes that a segment's sender has ended its half of the connection.
#[inline(always)]
fn note_end<A: Address>(record: Record<A>, peer: Record<A>, segment: &Segment) {
    use flow_flag::{CLOSED_FIRST, FIN, FIN_ACKED, REPLY, WATCH};
    let knows = has(peer, FIN_ACKED);
    set(record, FIN | if knows { 0 } else { CLOSED_FIRST });
    set(peer, WATCH);
    if !has(record, REPLY) {
        // SAFETY: records stay valid until every program that can see them ends.
        unsafe { (*peer.as_ptr()).detail = segment.stamp };
    }
}

/// Whether a segment shows that the client has got what the endpoint sent: of a connection from its
/// beginning, that it acknowledges the endpoint's first number; of one that was picked up on its
/// way, that the endpoint answers.
#[inline(always)]
pub(super) fn proves<A: Address>(flow: &Flow<A>, other: &Flow<A>, segment: &Segment) -> bool {
    use flow_flag::{PICKED_UP, REPLY, SEEN};
    let picked_up = flow.has(PICKED_UP);
    if flow.has(REPLY) {
        return picked_up;
    }
    let first = other.detail;
    let acknowledged = segment.acknowledged.wrapping_sub(first);
    other.has(SEEN) && (picked_up || acknowledged <= other.next.wrapping_sub(first))
}

/// Ends a handshake. False if there is no seat for the connection.
#[inline(always)]
pub(super) fn complete<A: Address, T: Tables<A>>(
    tables: &T,
    forward: Record<A>,
    reply: Record<A>,
) -> bool {
    if seats::is_refused(forward) || !admit::has_seats(tables, forward, reply) {
        set(forward, flow_flag::REFUSED);
        return false;
    }
    prove(tables, forward, reply);
    true
}

/// Notes that a connection is established.
#[inline(always)]
pub(super) fn prove<A: Address, T: Tables<A>>(tables: &T, forward: Record<A>, reply: Record<A>) {
    if table::settle(tables, forward) {
        // SAFETY: records stay valid until every program that can see them ends.
        unsafe { (*reply.as_ptr()).detail = 0 };
    }
}

#[inline(always)]
pub(super) fn has<A: Address>(record: Record<A>, flag: u32) -> bool {
    flags(record) & flag != 0
}
