//! Limits of connections that are translated at the socket. They have no flow: the socket itself holds
//! their seats, from the call that translates it until it goes, or goes elsewhere.
//!
//! A socket cannot wait for a seat, and has no handshake of its own here: it takes its seats as the first
//! datagram of a flow does, or is refused.

use super::{
    admit::{KEPT, OVER, REFUSED, asks, count_admitted, count_refused_party},
    classify::schema_of,
};
use crate::{
    abi::{FlowSchema, Plan, SocketSeats, config_flag},
    addr::Address,
    atomic,
    flow::{
        limit::is_audited,
        linger::linger_for,
        load,
        party::{self, ANY, FULL, JOINED, NO_ROOM, Taker, party},
        place::{LevelSeats, Place},
        seats::{Asked, Start, give_back},
    },
    parse::Tuple,
    service,
    tables::Tables,
    verdict::Reason,
    work::Addressed,
};

/// Takes the seats of a socket's connection to an endpoint, by its id: all or none. `held`, which holds
/// nothing, says what they are then. Returns why the socket is refused.
///
/// The source of the tuple is the node's address, as in [`crate::socket::destination`].
#[inline(always)]
pub fn seat_socket<A: Address, T: Tables<A>>(
    tables: &T,
    tuple: &Tuple<A>,
    endpoint: u32,
    held: &mut SocketSeats,
) -> Option<Reason> {
    let frontend = frontend_of(tables, tuple);
    let plan = tables.plan(frontend.service_or_none())?;
    let config = tables.config();
    let schema = match config.flags & config_flag::ADMISSION != 0 {
        true => schema_for(tables, tuple, frontend),
        false => 0,
    };
    let rules = tables.flow_schema(schema).filter(|_| schema != 0);
    // SAFETY: elements of maps stay; a word that the agent stores as a whole.
    let seats = rules.map_or(LevelSeats::default(), |rules| unsafe {
        (&raw const (*rules.as_ptr()).seats).read_volatile()
    });
    let asked = asks(config, plan, seats, Start::Datagram);
    if asked.is_nothing() {
        return hold(held, plan, endpoint, 0);
    }
    if seats.linger() != 0 {
        tables.collect(seats.level());
    }
    let taken = tables.take_seats(asked, schema);
    if taken == REFUSED {
        return Some(Reason::ConcurrencyLimit);
    }
    let asked = asked.of_kept(taken & KEPT != 0);
    let is_over = taken & OVER != 0;
    let place = Place::from_u32(taken);
    let most = if asked.is_exempt() { 0 } else { plan.most };
    if place.counts_at_endpoint() && !tables.enter_endpoint(endpoint, most) {
        give_back(tables, place);
        return Some(Reason::EndpointLimit);
    }
    let mut joined = JOINED;
    if place.level() != 0
        && let Some(rules) = rules
    {
        // SAFETY: elements of maps stay; a word that the agent stores as a whole.
        let most = unsafe { (&raw const (*rules.as_ptr()).rule.most).read_volatile() };
        if most != 0 {
            held.party = party_of(tables, tuple, schema, plan.service);
            joined = join(tables, asked, rules.as_ptr(), most, held.party);
        }
    }
    if joined == FULL {
        held.party = 0;
        leave(tables, place, endpoint);
        return Some(Reason::FlowLimit);
    }
    tables.charge(place, held.party, held.ports, false);
    count_admitted(tables, schema, is_over || joined == OVER_ITS_PART);
    let seats = SocketSeats::holding(place, seats.linger());
    hold(held, plan, endpoint, seats)
}

/// What a socket asks for. Out of line, as [`service::addressed`] is.
#[inline(never)]
fn frontend_of<A: Address, T: Tables<A>>(tables: &T, tuple: &Tuple<A>) -> Addressed {
    service::asked_for(tables, tuple)
}

/// The flow schema that takes its connection. Out of line: what it takes of the stack is free afterwards.
#[inline(never)]
fn schema_for<A: Address, T: Tables<A>>(tables: &T, tuple: &Tuple<A>, frontend: Addressed) -> u32 {
    schema_of(tables, tuple, 0, frontend)
}

/// The party of a connection that a flow schema has taken; 0 if there is no such schema.
#[inline(never)]
fn party_of<A: Address, T: Tables<A>>(
    tables: &T,
    tuple: &Tuple<A>,
    schema: u32,
    service: u32,
) -> u64 {
    tables.flow_schema(schema).map_or(0, |rules| {
        // SAFETY: elements of maps stay; a word that the agent stores as a whole.
        let by = unsafe { (&raw const (*rules.as_ptr()).rule.by).read_volatile() };
        let taker = Taker::new(schema, true);
        party(by, taker, &tuple.source, service, tables.secret())
    })
}

/// Notes that a socket is let in, and with which seats. One that is refused must not seem to be known.
#[inline(always)]
fn hold(held: &mut SocketSeats, plan: &Plan, endpoint: u32, seats: u32) -> Option<Reason> {
    held.service = plan.service;
    held.endpoint = endpoint;
    held.seats = seats;
    None
}

/// Gives back what a socket holds: seats of a level when they have lingered.
#[inline(always)]
pub fn unseat_socket<A: Address, T: Tables<A>>(tables: &T, held: &mut SocketSeats) {
    let (place, moments) = (held.place(), held.linger());
    let SocketSeats {
        party,
        endpoint,
        ports,
        ..
    } = *held;
    *held = SocketSeats::default();
    if party != 0 {
        party::leave(|index| tables.party(index), party);
        tables.charge(place, party, ports, true);
    }
    leave(tables, linger_for(tables, place, moments), endpoint);
}

/// Gives back the seats of a place, and counts the connections of its endpoint less.
#[inline(always)]
fn leave<A: Address, T: Tables<A>>(tables: &T, place: Place, endpoint: u32) {
    give_back(tables, place);
    if place.counts_at_endpoint() {
        load::leave(tables.endpoint_load(endpoint));
    }
}

/// [`join`]'s answer where the socket is counted above what its party may have, which is only audited.
const OVER_ITS_PART: u64 = 4;

/// Counts a socket in its party, which may have so many connections by its schema: [`JOINED`],
/// `OVER_ITS_PART` or [`FULL`].
#[inline(always)]
fn join<A: Address, T: Tables<A>>(
    tables: &T,
    asked: Asked,
    schema: *mut FlowSchema,
    most: u32,
    party: u64,
) -> u64 {
    let own = match asked.is_exempt() {
        true => ANY,
        false => asked.most(most & ANY),
    };
    let mut answer = JOINED;
    let mut joined = tables.enter_party(party, own);
    if joined == FULL {
        let level = tables.seats(asked.place().shared());
        if !level.is_some_and(is_audited) {
            count_refused_party(schema, asked);
            return FULL;
        }
        answer = OVER_ITS_PART;
        joined = tables.enter_party(party, ANY);
    }
    if joined == NO_ROOM {
        // SAFETY: elements of maps stay; the word is a counter.
        unsafe { atomic::add(&raw mut (*schema).uncounted, 1) };
    }
    answer
}
