//! A flow's two records: an endpoint is picked, places are claimed, both directions are written.

use super::Work;
use crate::{
    abi::{Endpoint, config_flag, endpoint_flag},
    addr::Address,
    flow::{
        Flow, Hop, Rewrite, flow_flag,
        table::{self, Claim, Record, Refused},
        tcp,
    },
    opaque::rolled,
    parse::Tuple,
    rewrite, select,
    service::Route,
    tables::Tables,
    verdict::Reason,
};

/// Ports tried for source NAT before a connection is given up.
const SNAT_TRIES: usize = 8;
/// Distance between them: odd and large, so that they land far from each other.
const SNAT_STRIDE: u32 = 7919;

/// Picks an endpoint and records the flow, both directions or none; [`Work::reason`] says why none.
#[inline(always)]
pub(super) fn insert<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
    tcp_flags: u8,
) -> Option<Record<A>> {
    let config = tables.config();
    let plan = route.plan;
    work.reason = Reason::NotProgrammed;
    let endpoint = tables.endpoint(select::pick(tables, plan, route.policy, &work.tuple)?)?;
    let source_nat = route.source_nat(&work.tuple, endpoint);
    work.other = Tuple {
        source: A::from_mapped(endpoint.address),
        destination: if source_nat {
            config.node()
        } else {
            work.tuple.source
        },
        source_port: endpoint.port,
        destination_port: work.tuple.source_port,
        protocol: work.tuple.protocol,
        pad: [0; 3],
    };
    if work.other.destination.sum() == 0 {
        work.reason = Reason::NoNodeAddress;
        return None;
    }
    if source_nat {
        work.other.destination_port = snat_port(tables, &work.tuple, 0);
    }
    // Neither record has been looked at so far, so that the waits for their memory overlap.
    table::approach(tables, &work.tuple, &work.other);
    let opens = tcp::opens(tcp_flags);
    let Some(forward) = table::claim(tables, &work.tuple, opens, &mut work.refused) else {
        work.reason = match work.refused {
            Refused::Full => Reason::FlowTableFull,
            // It was opened before, or another CPU has just done it.
            _ => Reason::InsertRace,
        };
        return None;
    };
    let Some(reply) = claim_reply(tables, work) else {
        forward.release();
        work.reason = match work.refused {
            Refused::Full => Reason::FlowTableFull,
            _ => Reason::SnatPortsExhausted,
        };
        return None;
    };
    let flags = rewrite::protocol_flag(work.tuple.protocol)
        | if source_nat { flow_flag::SOURCE_NAT } else { 0 }
        | if bypasses(config.flags, endpoint, source_nat) {
            flow_flag::FORWARD
        } else {
            0
        };
    let (there, back) = (forward.record(), reply.record());
    fill(work, there, back, flags, plan.service);
    let now = tables.ticks();
    // SAFETY: claimed records are their claimer's alone until they are published.
    unsafe {
        (*there.as_ptr()).last_seen = now;
        (*back.as_ptr()).last_seen = now;
    }
    reply.publish();
    forward.publish();
    tables.count_connection(plan.service, endpoint.id);
    work.reason = Reason::Opened;
    Some(there)
}

/// Fills the claimed records of a flow, for the packets in [`Work::tuple`] and [`Work::other`].
#[inline(never)]
fn fill<A: Address>(
    work: &Work<A>,
    mut there: Record<A>,
    mut back: Record<A>,
    flags: u16,
    service: u32,
) {
    // SAFETY: claimed records are their claimer's alone until they are published.
    let (there, back) = unsafe { (there.as_mut(), back.as_mut()) };
    write(there, &work.tuple, &work.other, flags);
    write(back, &work.other, &work.tuple, flags | flow_flag::REPLY);
    core::mem::swap(&mut there.peer, &mut back.peer);
    there.service = service;
    back.service = service;
}

/// Claims the record of the answers in [`Work::other`], with a port that no other flow to the
/// endpoint uses.
#[inline(always)]
fn claim_reply<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) -> Option<Claim<A>> {
    for attempt in rolled(SNAT_TRIES) {
        // A client whose address is kept keeps its port too, unless the same client's port already
        // goes to the same endpoint by way of another frontend.
        if attempt != 0 {
            work.other.destination_port = snat_port(tables, &work.tuple, attempt as u32);
        }
        if let Some(claim) = table::claim(tables, &work.other, false, &mut work.refused) {
            return Some(claim);
        }
        if work.refused == Refused::Full {
            return None;
        }
    }
    None
}

/// The port that replaces a client's at an attempt.
#[inline(never)]
fn snat_port<A: Address, T: Tables<A>>(tables: &T, tuple: &Tuple<A>, attempt: u32) -> u16 {
    let config = tables.config();
    let spread = table::hash(tuple, tables.secret()) as u32 >> 8;
    let offset = spread.wrapping_add(attempt.wrapping_mul(SNAT_STRIDE));
    let offset = offset.checked_rem(config.snat_count).unwrap_or(0);
    config.snat_first.wrapping_add(offset) as u16
}

/// Fills a claimed record for packets of `tuple`; `opposite` are the packets that they answer.
#[inline(always)]
fn write<A: Address>(flow: &mut Flow<A>, tuple: &Tuple<A>, opposite: &Tuple<A>, flags: u16) {
    flow.source = tuple.source;
    flow.destination = tuple.destination;
    flow.source_port = tuple.source_port;
    flow.destination_port = tuple.destination_port;
    flow.seen = 0;
    flow.flags = flags;
    flow.rewrite = Rewrite {
        source: opposite.destination,
        destination: opposite.source,
        source_port: opposite.destination_port,
        destination_port: opposite.source_port,
    };
    flow.hop = Hop::default();
}

/// Whether a flow's packets go past the host's stack in both directions. Those with source NAT must:
/// the stack takes no packet from the node's own address. What crosses it is what others may have to
/// translate too (a masquerade for destinations outside the cluster), and what the host itself
/// serves.
#[inline(always)]
fn bypasses(config_flags: u32, endpoint: &Endpoint, source_nat: bool) -> bool {
    if endpoint.flags & endpoint_flag::HOST != 0 {
        return false;
    }
    source_nat
        || config_flags & config_flag::BYPASS != 0
            && endpoint.flags & (endpoint_flag::LOCAL | endpoint_flag::IN_CLUSTER) != 0
}
