//! The first packet of a connection: its flow, or why it opens none.

use super::{Work, icmp::answer, record::insert};
use crate::{
    addr::Address,
    answer::Message,
    flow::{
        Record, Stage, end, flow_flag,
        stage::{idle, later},
        table, tcp,
    },
    frame::Frame,
    opaque::rolled,
    parse::{Network, tcp_flag},
    service::{self, Decision, Route},
    tables::Tables,
    verdict::{Reason, Verdict},
};

/// How often to look for a flow that another CPU is opening for the same packet: longer than that
/// takes.
const LOOKS: usize = 64;
/// Attempts to open a flow when another CPU gets in the way, or an old flow.
const ATTEMPTS: usize = 2;
/// Ticks that a SYN has been without an answer when the same SYN goes to another endpoint: a quarter
/// of a second at least. Clients wait for longer before they send it again (RFC 6298, 2.1).
const SILENCE: u32 = 3;

/// What becomes of a packet that opens no flow.
#[repr(u32)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Refusal {
    /// None of our business.
    #[default]
    Pass,
    /// The client is told.
    Reject,
    Drop,
}

/// The flow of a connection's first packet: a new one or, where the packet has come before, the one
/// that it opened then. If there is none, [`Work::refusal`] and [`Work::reason`] say why.
#[inline(always)]
pub(super) fn open<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    ifindex: u32,
) -> Option<Record<A>> {
    let index = tables.open_index(work, ifindex);
    tables.slot(u32::try_from(index).ok()?)
}

/// The work behind opening a flow: the index of the flow's record, or one that no table has.
#[inline(always)]
pub fn open_index<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, ifindex: u32) -> u64 {
    let Some(record) = find_or_insert(tables, work, ifindex) else {
        return u64::MAX;
    };
    // SAFETY: live records stay valid until every program that can see them ends.
    match tables.slot(unsafe { record.as_ref() }.peer) {
        // SAFETY: as above. Its peer's peer is the record itself.
        Some(peer) => u64::from(unsafe { peer.as_ref() }.peer),
        None => u64::MAX,
    }
}

#[inline(always)]
fn find_or_insert<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    ifindex: u32,
) -> Option<Record<A>> {
    let flags = work.segment.flags;
    let (service, refusal, reason) = match service::decide(tables, &work.tuple, ifindex) {
        Decision::Pass => (0, Refusal::Pass, Reason::NotService),
        _ if service::is_left_to_another(tables, &work.tuple, flags) => {
            // Our own connection's SYN may have come again.
            if tcp::opens(flags)
                && let Some(record) = table::find_rarely(tables, &work.tuple)
                && !end::reopens(tables, record)
            {
                work.reason = Reason::ToEndpoint;
                return Some(record);
            }
            (0, Refusal::Pass, Reason::NotService)
        }
        // A reset opens nothing; its connection is gone here, perhaps the kernel knows it.
        Decision::Forward(_) if flags & tcp_flag::RST != 0 => {
            (0, Refusal::Pass, Reason::StrayReset)
        }
        Decision::Forward(route) => {
            if let Some(record) = insert_or_join(tables, work, &route) {
                return Some(record);
            }
            (route.plan.service, Refusal::Drop, work.reason)
        }
        Decision::Reject(service, reason) => (service, Refusal::Reject, reason),
        Decision::Drop(service, reason) => (service, Refusal::Drop, reason),
    };
    if refusal == Refusal::Pass {
        if tcp::opens(flags) {
            make_way(tables, work);
        }
    } else if tcp::opens(flags) {
        // The packet may have come before, and opened a flow then.
        if let Some(record) = table::find_rarely(tables, &work.tuple)
            && !end::reopens(tables, record)
            && !(reason == Reason::NoEndpoints && ends_silent(tables, record))
        {
            work.reason = Reason::ToEndpoint;
            return Some(record);
        }
    }
    work.refusal = refusal;
    work.reason = reason;
    if refusal != Refusal::Pass {
        tables.count_refusal(service, reason);
    }
    None
}

/// Opens a flow or, where the packet has come before or comes to another CPU at the same moment, joins
/// the one that it opened there.
#[inline(always)]
fn insert_or_join<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
) -> Option<Record<A>> {
    work.avoided = 0;
    for _ in rolled(ATTEMPTS) {
        if let Some(record) = insert(tables, work, route) {
            return Some(record);
        }
        if work.reason != Reason::InsertRace {
            return None;
        }
        if let Some(record) = await_flow(tables, work)
            && !(tcp::opens(work.segment.flags) && moves_on(tables, work, route, record))
        {
            work.reason = Reason::ToEndpoint;
            return Some(record);
        }
    }
    None
}

/// The flow of a packet that had one a moment ago, or is getting one.
#[inline(never)]
fn await_flow<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> Option<Record<A>> {
    for _ in rolled(LOOKS) {
        if let Some(record) = table::find_rarely(tables, &work.tuple) {
            return Some(record);
        }
    }
    None
}

/// Whether a SYN on a flow goes to another endpoint: the flow's own is gone, or has not answered. The
/// flow is gone then.
#[inline(never)]
fn moves_on<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
    record: Record<A>,
) -> bool {
    let now = tables.now();
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    if flow.has(flow_flag::REPLY) {
        return false;
    }
    let endpoint = flow.detail;
    let serves = flow.service == route.plan.service
        && service::still_has(tables, route.plan, endpoint, flow);
    let picked_up = flow.has(flow_flag::PICKED_UP);
    let mut silent = false;
    let moves = end::end_if(tables, record, |stage, there, back| {
        silent = idle(later(there.last_seen, back.last_seen), now) >= SILENCE;
        match stage {
            // What was taken for a connection under way begins here.
            Stage::Unreplied => !serves || silent || picked_up,
            // Whoever still talks to an endpoint that is going has not sent the SYN.
            _ => !serves && silent,
        }
    });
    if moves && (silent || !serves) {
        work.avoided = endpoint;
    }
    moves
}

/// Whether a flow whose endpoint is gone has been silent for a moment; it is gone then, too.
#[inline(always)]
fn ends_silent<A: Address, T: Tables<A>>(tables: &T, record: Record<A>) -> bool {
    let now = tables.now();
    end::end_if(tables, record, |_, there, back| {
        idle(later(there.last_seen, back.last_seen), now) >= SILENCE
    })
}

/// The verdict on a packet that opened no flow.
#[inline(always)]
pub(super) fn refuse<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
) -> Verdict {
    match work.refusal {
        Refusal::Pass => Verdict::pass(work.reason),
        Refusal::Drop => Verdict::drop(work.reason),
        Refusal::Reject => {
            work.answerer = work.tuple.destination;
            work.message = Message::port_unreachable::<A>();
            answer(tables, frame, network, work)
        }
    }
}

/// Why a packet of no flow must not leave the node.
#[inline(never)]
pub(super) fn unopened<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> Option<Reason> {
    match service::decide(tables, &work.tuple, 0) {
        _ if service::is_left_to_another(tables, &work.tuple, tcp_flag::SYN) => None,
        Decision::Drop(_, reason) => Some(reason),
        _ => None,
    }
}

/// Makes way for a connection that goes to an endpoint past its Services: a closed flow must not
/// translate its answers, which look like the flow's.
#[inline(always)]
fn make_way<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) {
    work.other = work.tuple.reversed();
    if let Some(record) = table::find_rarely(tables, &work.other) {
        end::end_if(tables, record, |stage, _, _| stage == Stage::Closed);
    }
}
