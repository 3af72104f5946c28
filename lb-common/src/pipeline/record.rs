//! Writes a flow's two records: chooses an endpoint, claims the places, and fills both directions.

use super::{
    admit::{self, JOINED_OVER, LATER, OVER, REFUSED, WAITS},
    failing::turns_away,
    half_open::{enter, give_port, is_pressed},
    room::find_room,
};
use crate::{
    abi::{Config, Endpoint, config_flag, endpoint_flag},
    addr::Address,
    atomic,
    flow::{
        Flow, Record, Rewrite,
        claim::{self, Claim, Refused},
        flow_flag, load, party,
        place::Place,
        record::read_tag,
        resize,
        seats::{charged, client_of, give_back},
        slots::Purpose,
        table, tag, tcp,
    },
    opaque::rolled,
    parse::Tuple,
    rewrite, select,
    service::Route,
    tables::Tables,
    verdict::Reason,
    work::{Opening, Refusal, Work},
};

/// Ports tried for source NAT before a connection is given up. All but closed flows keep theirs,
/// and of those half let it go; half-open flows do where there are too many of them.
const SNAT_TRIES: usize = 16;
/// Spreads numbers that follow each other: 2^32 divided by the golden ratio.
const GOLDEN: u32 = 0x9e37_79b9;

/// Chooses an endpoint and claims the client's record of a flow. Returns whether that worked; if
/// not, [`Work::reason`] says why.
#[inline(always)]
pub(super) fn begin<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
) -> bool {
    try_begin(tables, work, route).is_some()
}

#[inline(always)]
fn try_begin<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
) -> Option<()> {
    let config = tables.config();
    let plan = route.plan;
    let opens = tcp::opens(work.segment.flags);
    let picks_up = !tcp::begins(work.tuple.protocol, work.segment.flags);
    if picks_up && is_pressed(tables, plan.service) {
        // A flood of such segments must not end other flows.
        work.reason = Reason::StraySegment;
        return None;
    }
    if tables.is_at_share(plan.service) {
        work.reason = Reason::FlowTableFull;
        return None;
    }
    let number = draw(tables, work);
    work.reason = Reason::NotProgrammed;
    let mut index = select::pick(tables, plan, route.policy, &work.tuple, number)?;
    if !picks_up {
        index = select::within_bound(tables, plan, route.policy, index);
    }
    if opens && turns_away(tables, tables.endpoint(index)?.id, work.avoided) {
        let first = index;
        index = tables.elsewhere(plan.set(route.policy), first, work.avoided);
        if index != first && plan.affinity_seconds != 0 {
            let endpoint = tables.endpoint(index)?.id;
            select::remember(tables, plan, route.policy, &work.tuple, endpoint);
        }
    }
    work.opening.most = 0;
    if plan.most != 0 {
        index = find_room(tables, work, route, index)?;
    }
    let endpoint = tables.endpoint(index)?;
    let source_nat = route.source_nat(&work.tuple, endpoint);
    answers(work, config, endpoint, source_nat);
    if work.other.destination.sum() == 0 {
        work.reason = Reason::NoNodeAddress;
        return None;
    }
    let mut flags = flow_flag::NUMBERED | rewrite::protocol_flag(work.tuple.protocol);
    if source_nat {
        flags |= flow_flag::SOURCE_NAT;
        work.other.destination_port = next_port(tables, config, endpoint.id, 1);
    }
    if bypasses(config.flags, endpoint, source_nat) {
        flags |= flow_flag::FORWARD;
    }
    if picks_up {
        flags |= flow_flag::PICKED_UP;
    }
    work.opening = Opening {
        forward: 0,
        endpoint: endpoint.id,
        service: plan.service,
        most: work.opening.most,
        flags,
        asked: admit::asks(config, plan, work.seats, work.start(opens)),
    };
    // Neither record has been looked at so far, so that the waits for their memory overlap.
    approach(tables, work);
    let purpose = match tcp::opens(work.segment.flags) {
        true => Purpose::Open,
        false => Purpose::Plain,
    };
    let segment = &work.segment;
    let claimed = claim::claim(
        tables,
        &work.tuple,
        work.hash,
        segment,
        purpose,
        &mut work.refused,
    );
    let Some(forward) = claimed else {
        work.reason = match work.refused {
            Refused::Full => Reason::FlowTableFull,
            // It was opened before, or another CPU is opening it.
            _ => Reason::InsertRace,
        };
        return None;
    };
    work.opening.forward = forward.index();
    Some(())
}

/// The number that chooses a connection's endpoint: a keyed hash, so that a connection with a lost
/// record finds its endpoint again while the set is unchanged.
#[inline(never)]
fn draw<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) -> u32 {
    work.hash = table::hash(&work.tuple, tables.secret());
    (work.hash >> 32) as u32
}

/// Has the processor fetch the records that are about to be claimed.
#[inline(never)]
fn approach<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) {
    work.other_hash = table::hash(&work.other, tables.secret());
    tables.approach(work.hash, work.other_hash);
}

/// Records the flow that `begin` has begun, both directions or none: the index of the client's
/// record, or one that no table has. [`Work::refusal`] and [`Work::reason`] say why there is none.
#[inline(always)]
pub fn finish_index<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) -> u64 {
    match finish(tables, work) {
        Some(()) => u64::from(work.opening.forward),
        None => u64::MAX,
    }
}

#[inline(always)]
fn finish<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) -> Option<()> {
    let Opening {
        forward: index,
        endpoint,
        service,
        most,
        flags,
        asked,
    } = work.opening;
    let source_nat = flags & flow_flag::SOURCE_NAT != 0;
    let forward = Claim::of(tables, index)?;
    let Some(reply) = claim_reply(tables, work, endpoint, source_nat) else {
        forward.release();
        work.refusal = Refusal::Drop;
        work.reason = match work.refused {
            Refused::Full => Reason::FlowTableFull,
            _ => Reason::SnatPortsExhausted,
        };
        tables.count_refusal(service, work.reason);
        return None;
    };
    let place = match asked.is_nothing() {
        true => 0,
        false => tables.take_seats(asked, work.schema),
    };
    if place == REFUSED || place == WAITS {
        reply.release();
        forward.release();
        let reason = match place {
            WAITS => Reason::Parked,
            _ => Reason::ConcurrencyLimit,
        };
        return refuse(tables, work, reason);
    }
    let (there, back) = (forward.record(), reply.record());
    let now = tables.now();
    let hop = match source_nat {
        true => tables.endpoint_memory(endpoint).map_or(0, |shared| {
            // SAFETY: a word of a map's element, of which any value will do.
            unsafe { (&raw const (*shared.as_ptr()).hop).read_volatile() }
        }),
        false => 0,
    };
    // SAFETY: claimed records are their claimer's alone until they are published.
    unsafe {
        (*there.as_ptr()).detail = endpoint;
        (*there.as_ptr()).hop = hop;
        (*there.as_ptr()).last_seen = now;
        (*back.as_ptr()).last_seen = now;
    }
    fill(work, there, back, flags, service);
    // SAFETY: as above.
    unsafe { (*back.as_ptr()).detail = tables.stopwatch() };
    let mut is_over = place & OVER != 0;
    let is_later = place & LATER != 0;
    let place = Place::from_u32(place);
    if place.is_none() {
        reply.publish(tag::LIVE);
    } else {
        let mut is_seated = !is_later;
        // SAFETY: as above.
        unsafe {
            (*back.as_ptr()).service = place.beside(service);
            (*back.as_ptr()).flags |= place.in_flags();
        }
        if is_seated && place.counts_at_endpoint() && !tables.enter_endpoint(endpoint, most) {
            give_back(tables, place);
            reply.release();
            forward.release();
            return refuse(tables, work, Reason::EndpointLimit);
        }
        if is_seated && work.most != 0 && place.level() != 0 {
            let (index, ports) = client_of(back);
            let joined = admit::join(tables, asked, work.schema, index, ports);
            let joined = charged(tables, place, ports, joined);
            is_seated = matches!(joined, party::JOINED | JOINED_OVER);
            is_over |= joined == JOINED_OVER;
            if !is_seated {
                give_back(tables, place);
                if place.counts_at_endpoint() {
                    load::leave(tables.endpoint_load(endpoint));
                }
            }
            if joined == party::FULL {
                reply.release();
                forward.release();
                return refuse(tables, work, Reason::FlowLimit);
            }
        }
        if !is_seated {
            // SAFETY: as above.
            unsafe { (*there.as_ptr()).flags |= flow_flag::LATE };
        }
        reply.publish(if is_seated { tag::SEATED } else { tag::LIVE });
    }
    if !asked.is_nothing() {
        admit::count_admitted(tables, work.schema, is_over);
    }
    let published = tag::with_state(read_tag(there), tag::HALF);
    forward.publish(tag::HALF);
    tables.count_flows(service, 1);
    let ended = enter(tables, work, service, index, published);
    if let Ok(ended) = u32::try_from(ended) {
        tables.leave_ended(ended);
    }
    tables.count_connection(service, endpoint);
    work.reason = Reason::Opened;
    Some(())
}

/// Refuses a connection, or has it wait, because a limit is reached.
#[inline(always)]
fn refuse<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, reason: Reason) -> Option<()> {
    admit::refuse(tables, work, reason);
    tables.count_refusal(work.opening.service, reason);
    None
}

/// Writes what identifies the endpoint's answers into [`Work::other`].
#[inline(never)]
fn answers<A: Address>(work: &mut Work<A>, config: &Config, endpoint: &Endpoint, source_nat: bool) {
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
}

/// Fills the claimed records of a flow, for the packets in [`Work::tuple`] and [`Work::other`].
#[inline(never)]
fn fill<A: Address>(
    work: &Work<A>,
    mut there: Record<A>,
    mut back: Record<A>,
    flags: u32,
    service: u32,
) {
    // SAFETY: claimed records are their claimer's alone until they are published.
    let (there, back) = unsafe { (there.as_mut(), back.as_mut()) };
    let segment = &work.segment;
    let shown = flow_flag::SEEN | u32::from(segment.scale) << flow_flag::SCALE_SHIFT;
    write(
        there,
        &work.tuple,
        &work.other,
        flags | shown | flow_flag::WATCH,
    );
    write(back, &work.other, &work.tuple, flags | flow_flag::REPLY);
    there.next = segment.next;
    there.acknowledged = segment.acknowledged;
    there.window = segment.window;
    there.mark = 0;
    back.next = 0;
    back.acknowledged = 0;
    back.window = 0;
    back.mark = 0;
    back.hop = 0;
    core::mem::swap(&mut there.peer, &mut back.peer);
    there.service = work.taker.beside(service);
    there.flags |= work.taker.in_flags();
    back.service = service;
}

/// Claims the record of the answers in [`Work::other`], with a port that no other flow to the
/// endpoint uses.
#[inline(always)]
fn claim_reply<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    endpoint: u32,
    source_nat: bool,
) -> Option<Claim<A>> {
    let purpose = match tcp::opens(work.segment.flags) {
        true => Purpose::Port,
        false => Purpose::Plain,
    };
    for attempt in rolled(SNAT_TRIES) {
        let segment = &work.segment;
        if resize::is_elsewhere(tables, &work.other) {
            work.refused = Refused::Exists;
        } else {
            let claimed = claim::claim(
                tables,
                &work.other,
                work.other_hash,
                segment,
                purpose,
                &mut work.refused,
            );
            if claimed.is_some() {
                return claimed;
            }
        }
        if source_nat && work.refused == Refused::Exists {
            let given = give_port(tables, work, attempt as u32);
            if let Ok(ended) = u32::try_from(given) {
                tables.leave_ended(ended);
                continue;
            }
        }
        // If a client's address is kept, so is its port, unless the same client's port already goes
        // to the same endpoint through another frontend.
        if source_nat || work.refused == Refused::Exists {
            // A port in use is likely one of many in a row, of another Service with the same
            // endpoint.
            let further = 1 << attempt;
            work.other.destination_port = next_port(tables, tables.config(), endpoint, further);
            approach(tables, work);
        }
    }
    None
}

/// A port to replace a client's towards an endpoint, `further` ahead of the one before: ports are
/// handed out in turn, so that the next one is that which has been free for longest.
#[inline(never)]
fn next_port<A: Address, T: Tables<A>>(
    tables: &T,
    config: &Config,
    endpoint: u32,
    further: u32,
) -> u16 {
    let turn = tables.endpoint_memory(endpoint).map_or(0, |shared| {
        // SAFETY: a word of a map's element that is only added to.
        unsafe { atomic::fetch_add(&raw mut (*shared.as_ptr()).ports, further) }
    });
    // The turn begins at a secret port, which differs between Services with the same endpoint.
    let begin = (config.secret[1] as u32).wrapping_add(endpoint.wrapping_mul(GOLDEN));
    let turn = turn.wrapping_add(begin).wrapping_add(further - 1);
    let offset = turn.checked_rem(config.snat_count).unwrap_or(0);
    config.snat_first.wrapping_add(offset) as u16
}

/// Fills a claimed record for packets of `tuple`; `opposite` are the packets that they answer.
#[inline(always)]
fn write<A: Address>(flow: &mut Flow<A>, tuple: &Tuple<A>, opposite: &Tuple<A>, flags: u32) {
    flow.source = tuple.source;
    flow.destination = tuple.destination;
    flow.source_port = tuple.source_port;
    flow.destination_port = tuple.destination_port;
    flow.flags = flags;
    flow.rewrite = Rewrite {
        source: opposite.destination,
        destination: opposite.source,
        source_port: opposite.destination_port,
        destination_port: opposite.source_port,
    };
}

/// Whether a flow's packets bypass the host's stack in both directions. Those with source NAT must:
/// the stack takes no packet from the node's own address. Those that cross it are packets that
/// other rules may have to translate (a masquerade for destinations outside the cluster), and
/// packets that the host itself serves.
#[inline(always)]
pub fn bypasses(config_flags: u32, endpoint: &Endpoint, source_nat: bool) -> bool {
    if endpoint.flags & endpoint_flag::HOST != 0 {
        return false;
    }
    source_nat
        || config_flags & config_flag::BYPASS != 0
            && endpoint.flags & (endpoint_flag::LOCAL | endpoint_flag::IN_CLUSTER) != 0
}
