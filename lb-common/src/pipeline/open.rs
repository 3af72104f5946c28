//! The first packet of a connection: its flow, or why it opens none.

use super::{
    admit,
    answer::answer,
    classify::classify,
    failing::{Failure, note_failure},
    martian::left_to_kernel,
    park::park,
    record::begin,
    resize::copied_index,
    unknown::keep_back,
};
use crate::{
    abi::config_flag,
    addr::Address,
    answer::Message,
    flow::{
        Record,
        end::{made_way, replaced, replaces},
        flow_flag,
        record::look,
        resize::{self, NONE, RACED},
        slots::Purpose,
        table, tcp,
    },
    frame::Frame,
    opaque::rolled,
    parse::{Network, tcp_flag},
    service::{self, Decision, Route},
    tables::{NextHop, Tables},
    verdict::{Reason, Verdict},
    work::{Addressed, Refusal, Work},
};

/// How often to look for a flow that another CPU is opening for the same packet, which takes less:
/// bits of a random number, of which some are always set. (The verifier knows what a mask bounds.)
const LOOKS: u32 = 0x3f;
const LEAST_LOOKS: u32 = 0x08;
/// Attempts to open a flow when another CPU gets in the way, or an old flow.
const ATTEMPTS: usize = 16;

/// The flow of a connection's first packet: a new one or, where the packet has come before, the one
/// that it opened then. If there is none, [`Work::refusal`] and [`Work::reason`] say why.
#[inline(always)]
pub(super) fn open<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &F,
    work: &mut Work<A>,
) -> Option<Record<A>> {
    let ifindex = frame.ifindex();
    work.avoided = 0;
    work.frontend = service::addressed(tables, &work.tuple);
    if !work.frontend.is_some()
        && service::unknown(tables, &work.tuple, work.segment.flags) == Some(Reason::UnknownPort)
    {
        work.frontend = Addressed::UNKNOWN_PORT;
    }
    if (work.frontend.is_some() || work.frontend.is_unknown_port())
        && let Some(reason) = left_to_kernel(tables, frame, work)
    {
        work.refusal = Refusal::Pass;
        work.reason = reason;
        return None;
    }
    for _ in rolled(ATTEMPTS) {
        let mut index = copied_index(tables, work);
        if index == NONE && !work.frontend.is_some() {
            if work.frontend.is_unknown_port() {
                work.refusal = Refusal::Reject;
                work.reason = Reason::UnknownPort;
                return None;
            }
            // Checked at once, because on some nodes this is most of what arrives.
            if tcp::opens(work.segment.flags) {
                make_way(tables, work);
            }
            work.refusal = Refusal::Pass;
            work.reason = Reason::NotService;
            return None;
        }
        if index == NONE {
            index = tables.open_index(work, ifindex);
        }
        if index == BEGUN {
            if tables.config().flags & config_flag::TUNNELS != 0 {
                use_tunnel_source(tables, work);
            }
            index = tables.finish_index(work);
        }
        if index != RACED {
            let record = tables.slot(u32::try_from(index).ok()?)?;
            return Some(look(record).1);
        }
    }
    work.refusal = Refusal::Drop;
    work.reason = Reason::InsertRace;
    tables.count_refusal(work.opening.service, work.reason);
    None
}

/// The first half of opening a flow: the index of the flow's record if there is one, `BEGUN` if
/// it is for [`Tables::finish_index`] to record it, [`RACED`] if another CPU or an old flow was in
/// the way, or [`NONE`].
#[inline(always)]
pub fn open_index<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, ifindex: u32) -> u64 {
    let flags = work.segment.flags;
    let opens = tcp::opens(flags);
    classify(tables, work, ifindex);
    let decision = service::decide_for(tables, &work.tuple, ifindex, work.frontend);
    let (service, refusal, reason) = match decision {
        _ if service::is_left_to_another(tables, &work.tuple, flags) => {
            // The SYN of a connection of ours may have come again.
            if opens && let Some(index) = joined(tables, work, Purpose::Open) {
                return index;
            }
            (0, Refusal::Pass, Reason::NotService)
        }
        // A reset opens nothing; its connection is gone here, perhaps the kernel knows it.
        Decision::Forward(_) if flags & tcp_flag::RST != 0 => {
            (0, Refusal::Pass, Reason::StrayReset)
        }
        Decision::Forward(route) if admit::is_barred(tables, work, route.plan, opens) => {
            (route.plan.service, work.refusal, work.reason)
        }
        Decision::Forward(route) => {
            let index = insert_or_join(tables, work, &route);
            if index != NONE {
                return index;
            }
            let refusal = match work.reason.is_limit() {
                true => work.refusal,
                false => Refusal::Drop,
            };
            (route.plan.service, refusal, work.reason)
        }
        Decision::Reject(service, reason) => (service, Refusal::Reject, reason),
        Decision::Drop(service, reason) => (service, Refusal::Drop, reason),
    };
    if opens && refusal == Refusal::Pass {
        make_way(tables, work);
    } else if opens && !reason.is_limit() {
        // The packet may have come before, and opened a flow then.
        let purpose = match reason {
            Reason::NoEndpoints => Purpose::Afresh,
            _ => Purpose::Open,
        };
        if let Some(index) = joined(tables, work, purpose) {
            return index;
        }
    }
    work.refusal = refusal;
    work.reason = reason;
    if refusal != Refusal::Pass {
        tables.count_refusal(service, reason);
    }
    NONE
}

/// Has source NAT towards an endpoint behind a tunnel use the node's address on that tunnel, as a
/// masquerade does: the tunnel's other end takes packets from no other source (WireGuard's allowed
/// addresses), or has no way back to it through the tunnel.
///
/// It is here, between the two halves of opening a flow, because only the hook's own program may
/// look up routes.
#[inline(never)]
fn use_tunnel_source<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) {
    if work.opening.flags & flow_flag::SOURCE_NAT == 0 {
        return;
    }
    let Work { other, hop, .. } = work;
    let found = tables.next_hop(other.protocol, &other.destination, &other.source, hop);
    if found == NextHop::None {
        return;
    }
    if let Some(source) = tables.tunnel_source(work.hop.ifindex) {
        let address = source.address::<A>();
        if address.sum() != 0 {
            work.other.destination = address;
            work.other_hash = table::hash(&work.other, tables.secret());
        }
    }
}

/// Index of a record that is not visible yet.
const BEGUN: u64 = u64::MAX - 1;

/// The flow that a SYN has opened before, unless it makes way for a purpose.
#[inline(always)]
fn joined<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    purpose: Purpose,
) -> Option<u64> {
    let index = tables.find_index(&work.tuple);
    let known = u32::try_from(index).ok()?;
    if replaces(tables, known, &work.segment, purpose) {
        return None;
    }
    work.reason = Reason::ToEndpoint;
    Some(index)
}

/// Opens a flow or, where the packet has come before or comes to another CPU at the same moment,
/// joins the one that it opened there.
#[inline(always)]
fn insert_or_join<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, route: &Route) -> u64 {
    if begin(tables, work, route) {
        return BEGUN;
    }
    if work.reason != Reason::InsertRace {
        return NONE;
    }
    let index = await_flow(tables, work);
    if index == NONE {
        return RACED;
    }
    if tcp::opens(work.segment.flags) && moves_on(tables, work, route, index) {
        // Called from here, since less of the stack is left further in.
        replaced(tables, index as u32);
        return RACED;
    }
    work.reason = Reason::ToEndpoint;
    index
}

/// The flow of a packet that had one a moment ago, or is getting one. Two CPUs with the same packet
/// may both have given up. They wait for different times, or they would give up again and again.
#[inline(never)]
fn await_flow<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> u64 {
    let looks = tables.random() & LOOKS | LEAST_LOOKS;
    for _ in rolled(looks as usize) {
        let index = tables.find_index(&work.tuple);
        if index != NONE {
            return index;
        }
    }
    NONE
}

/// Whether a SYN on a flow goes to another endpoint: the flow's own one is gone, or has not
/// answered. If so, the flow has been ended.
#[inline(never)]
fn moves_on<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
    index: u64,
) -> bool {
    let purpose = Purpose::from_u32(judge(tables, work, route, index) as u32);
    let moves = made_way(tables, index as u32, &work.segment, purpose);
    if moves {
        leave_endpoint(tables, work);
    }
    moves
}

/// Judges the flow at `index`, to which a SYN has come: what the flow makes way for, because its
/// endpoint is gone, or has not answered. [`Work::memory`] keeps the endpoint to avoid then.
///
/// It returns before the flow is ended: in Linux 6.1, there is no room on the stack for both.
#[inline(never)]
fn judge<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
    index: u64,
) -> u64 {
    work.memory = 0;
    let Some(record) = tables.slot(index as u32) else {
        return Purpose::Plain as u64;
    };
    let (_, record) = look(record);
    // SAFETY: records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let endpoint = flow.detail;
    // The endpoint of a flow that another version opened is not known.
    let is_known = endpoint != 0 && !flow.is_foreign();
    let serves = flow.service_id() == route.plan.service
        && (!is_known || service::still_has(tables, route.plan, endpoint, flow));
    // The segment that a flow was picked up with was no SYN that an endpoint had to answer.
    if !flow.has(flow_flag::PICKED_UP) {
        let silent = if is_known && serves { SILENT } else { 0 };
        work.memory = u64::from(endpoint) | silent;
    }
    match serves {
        true => Purpose::Again as u64,
        false => Purpose::Afresh as u64,
    }
}

/// In [`Work::memory`], beside the endpoint that a connection leaves: it has not answered.
const SILENT: u64 = 1 << 32;

/// Notes which endpoint a connection has left, as [`judge`] has found.
#[inline(never)]
fn leave_endpoint<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) {
    let left = work.memory as u32;
    if left != 0 {
        work.avoided = left;
        if work.memory & SILENT != 0 {
            note_failure(tables, left, Failure::Silent);
        }
    }
}

/// The verdict on a packet that opened no flow.
#[inline(always)]
pub(super) fn refuse<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
) -> Verdict {
    if work.refusal == Refusal::Park {
        park(tables, frame, work);
    }
    match work.refusal {
        Refusal::Pass => Verdict::pass(work.reason),
        Refusal::Drop | Refusal::Park => Verdict::drop(work.reason),
        Refusal::Reject => {
            work.answerer = work.tuple.destination;
            work.message = match work.reason {
                reason if reason.is_limit() => admit::message(tables, work),
                _ => Message::port_unreachable::<A>(),
            };
            answer(tables, frame, network, work)
        }
    }
}

/// The verdict on a packet without a flow that leaves the node; `index` is what [`copied_index`]
/// says.
#[inline(always)]
pub(super) fn leave_unopened<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
    index: u64,
) -> Verdict {
    if index != NONE {
        // It has a flow, which is not available at the moment.
        return Verdict::drop(Reason::InsertRace);
    }
    match unopened(tables, work) {
        None => {}
        Some(reason @ (Reason::UnknownPort | Reason::NoSuchService)) => {
            work.reason = reason;
            return keep_back(tables, frame, network, work);
        }
        Some(reason) => return Verdict::drop(reason),
    }
    if tcp::opens(work.segment.flags) {
        // Source NAT by other rules, such as kube-proxy's, takes ports of closed flows.
        make_way(tables, work);
    }
    Verdict::pass(Reason::NotService)
}

/// Why a packet of no flow must not leave the node.
#[inline(never)]
fn unopened<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> Option<Reason> {
    let Some(decision) = service::decide(tables, &work.tuple, 0) else {
        return service::unknown(tables, &work.tuple, work.segment.flags);
    };
    match decision {
        _ if service::is_left_to_another(tables, &work.tuple, tcp_flag::SYN) => None,
        Decision::Drop(_, reason) => Some(reason),
        _ => None,
    }
}

/// Makes way for a connection that goes to an endpoint past its Services, or from a port that
/// others' source NAT has chosen: a closed flow must not translate its answers, which look like the
/// flow's.
#[inline(never)]
fn make_way<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) {
    work.other = work.tuple.reversed();
    if let Ok(index) = u32::try_from(tables.find_index(&work.other)) {
        replaces(tables, index, &work.segment, Purpose::Past);
    } else {
        resize::leave_closed(tables, &work.other);
    }
}
