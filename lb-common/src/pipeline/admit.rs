//! Whether limits let a new connection in: those of a Service, and of its priority level or, where
//! there are no flow schemas, of the node. Beyond them a connection is refused at once.

use core::ptr::NonNull;

use crate::{
    abi::{Config, FlowSchema, Plan, RejectAnswer, config_flag, plan_flag},
    addr::Address,
    answer::Message,
    atomic,
    flow::{
        Record, claim, flow_flag,
        limit::{
            Seats, has_queues, is_audited, is_full, is_pressed, take_anyway, take_audited, try_take,
        },
        party::{self, ANY, FULL, HANDSHAKE, JOINED},
        place::{LevelSeats, Place},
        queue::{self, Line},
        record::{self, read_tag},
        seats::{self, Asked, Full, Start, place_of},
        table, tag,
    },
    parse::{SCTP, TCP},
    tables::Tables,
    verdict::Reason,
    work::{Refusal, Work},
};

/// What a new flow of a service asks for, beside these seats of a priority level; level 0 means that no
/// flow schema concerns it. No limit is looked at for it.
#[inline(always)]
pub fn asks(config: &Config, plan: &Plan, seats: LevelSeats, start: Start) -> Asked {
    let mut place = Place::of_service(plan.seats);
    if config.flags & config_flag::ADMISSION != 0 {
        place = place.and(seats.place());
    } else if config.flags & config_flag::CONNECTION_LIMIT != 0
        && !plan.has(plan_flag::LONG_RUNNING)
    {
        place = place.and(Place::NODE);
    }
    match place.is_none() {
        true => Asked::NOTHING,
        false => Asked::new(place, plan.has(plan_flag::EXEMPT), start),
    }
}

/// Whether a packet that would open a flow is refused at once, or has to wait, because a limit is reached:
/// decided by plain reads. [`Work::refusal`] and [`Work::reason`] say so then. One whose flow exists, or
/// is being opened, is not.
#[inline(always)]
pub(super) fn is_barred<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    plan: &Plan,
    opens: bool,
) -> bool {
    let start = work.start(opens);
    let asked = asks(tables.config(), plan, work.seats, start);
    !asked.is_nothing() && bars(tables, work, asked)
}

/// The rest of [`is_barred`]. Out of line: most nodes have no limit.
#[inline(never)]
fn bars<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, asked: Asked) -> bool {
    let Some(mut full) = tables.in_the_way(asked) else {
        return false;
    };
    if full != Full::Service && tables.collect(asked.place().level()) {
        match tables.in_the_way(asked) {
            None => return false,
            Some(still) => full = still,
        }
    }
    let hash = table::hash(&work.tuple, tables.secret());
    if !claim::is_unknown(tables, &work.tuple, hash) {
        return false;
    }
    if full == Full::Queue {
        refuse(tables, work, Reason::Parked);
        return true;
    }
    count_refused(tables, asked, full, work.schema);
    refuse(tables, work, Reason::ConcurrencyLimit);
    true
}

/// Notes that a connection is refused, or has to wait, because a limit is reached.
#[inline(always)]
pub(super) fn refuse<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, reason: Reason) {
    work.reason = reason;
    work.refusal = match reason {
        Reason::Parked => Refusal::Park,
        _ => refusal(tables, work),
    };
}

/// The limit that is in the way of what a new flow asks for at this moment.
#[inline(always)]
pub fn in_the_way<A: Address, T: Tables<A>>(tables: &T, asked: Asked) -> Option<Full> {
    if asked.is_exempt() || asked.is_recovered() {
        return None;
    }
    let place = asked.place();
    let is_in_the_way =
        |seats: NonNull<Seats>, width| is_full(seats, width, 0) && !is_audited(seats);
    if place.service() != 0
        && tables
            .seats(place.service())
            .is_some_and(|seats| is_in_the_way(seats, 1))
    {
        return Some(Full::Service);
    }
    if !place.has_shared() {
        return None;
    }
    let (seats, width) = (tables.seats(place.shared())?, place.width());
    match line(tables, asked, seats) {
        Line::None => is_in_the_way(seats, width).then_some(Full::Shared),
        Line::Empty { kept } => is_full(seats, width, kept).then_some(Full::Queue),
        Line::Waiting => (is_full(seats, width, 0) || !asked.has_turn()).then_some(Full::Queue),
    }
}

/// Who waits before the seats of a connection's level, if it may wait, too. No seats are kept from one
/// whose turn it is, nor from an essential Service's.
#[inline(always)]
fn line<A: Address, T: Tables<A>>(tables: &T, asked: Asked, level: NonNull<Seats>) -> Line {
    let line = match asked.is_handshake() && has_queues(level) {
        true => queue::line(tables, asked.place().level()),
        false => Line::None,
    };
    match line {
        Line::Empty { .. } if asked.has_turn() || asked.is_exempt() => Line::Empty { kept: 0 },
        line => line,
    }
}

/// [`take_seats`]'s answer where there is no seat.
pub(super) const REFUSED: u32 = u32::MAX;
/// [`take_seats`]'s answer where the connection has to wait for one.
pub(super) const WAITS: u32 = u32::MAX - 1;
/// A bit beside the number of a [`Place`]: its seats are to be taken at the end of the handshake.
pub(super) const LATER: u32 = 1 << 31;
/// A bit beside the number of a [`Place`]: it is above a limit that is only audited.
pub(super) const OVER: u32 = 1 << 30;
/// A bit beside the number of a [`Place`]: its seat is one of those that are kept for parties without any.
pub(super) const KEPT: u32 = 1 << 29;

/// Takes the seats that a new flow of a flow schema asks for, all or none: the number of the
/// [`Place`] that it has now, perhaps with [`LATER`], [`OVER`] or [`KEPT`], or [`REFUSED`] or [`WAITS`].
#[inline(always)]
pub fn take_seats<A: Address, T: Tables<A>>(tables: &T, asked: Asked, schema: u32) -> u32 {
    let wanted = asked.place();
    if asked.is_handshake() && is_under_pressure(tables, wanted) {
        match tables.in_the_way(asked) {
            None => return wanted.number() | LATER,
            Some(Full::Queue) => return WAITS,
            Some(full) => count_refused(tables, asked, full, schema),
        }
        return REFUSED;
    }
    let mut place = Place::NONE;
    if wanted.service() != 0
        && let Some(limit) = tables.seats(wanted.service())
    {
        if asked.is_recovered() {
            take_anyway(limit, 1);
            place = Place::of_service(wanted.service());
        } else if try_take(limit, 1, 0) {
            place = Place::of_service(wanted.service());
        } else if !asked.is_exempt() {
            count_refused(tables, asked, Full::Service, schema);
            return REFUSED;
        }
    }
    let mut beside = 0;
    if wanted.has_shared()
        && let Some(limit) = tables.seats(wanted.shared())
    {
        let line = line(tables, asked, limit);
        let reserved = match line {
            Line::Empty { kept } => kept,
            _ => 0,
        };
        let comes_next = line != Line::Waiting || asked.has_turn() || asked.is_exempt();
        if asked.is_recovered() {
            take_anyway(limit, wanted.width());
            place = place.and(wanted.only_shared());
        } else if comes_next && try_take(limit, wanted.width(), reserved) {
            place = place.and(wanted.only_shared());
            beside = kept(tables, asked, limit);
        } else if is_audited(limit) {
            take_audited(limit, wanted.width());
            beside = OVER;
            place = place.and(wanted.only_shared());
        } else if !asked.is_exempt() {
            seats::give_back(tables, place);
            if line != Line::None {
                return WAITS;
            }
            count_refused(tables, asked, Full::Shared, schema);
            return REFUSED;
        }
    }
    if place != wanted {
        count_exempted(tables, wanted, place);
    }
    place.number() | beside
}

/// Whether one of a place's limits is pressed.
#[inline(always)]
fn is_under_pressure<A: Address, T: Tables<A>>(tables: &T, place: Place) -> bool {
    place.service() != 0 && tables.seats(place.service()).is_some_and(is_pressed)
        || place.has_shared() && tables.seats(place.shared()).is_some_and(is_pressed)
}

/// Whether a connection may go on whose handshake is complete: it has its seats, or takes them now.
/// `forward` and `reply` are its flow's directions.
#[inline(always)]
pub(super) fn has_seats<A: Address, T: Tables<A>>(
    tables: &T,
    forward: Record<A>,
    reply: Record<A>,
) -> bool {
    !seats::is_yet_to_take(forward) || take_late(tables, forward, reply)
}

/// The rest of [`has_seats`]. Out of line: flows have their seats unless a limit is pressed.
#[inline(never)]
fn take_late<A: Address, T: Tables<A>>(tables: &T, forward: Record<A>, reply: Record<A>) -> bool {
    let (seen, place) = (read_tag(reply), place_of(reply));
    if tag::state(seen) != tag::LIVE || seats::may_be_copy(tables, record::flags(reply)) {
        // Another CPU has taken them, or the agent has it looked at again.
        return true;
    }
    // SAFETY: records stay valid, and what is read does not change while they are in use.
    let there = unsafe { forward.as_ref() };
    let plan = tables.plan(there.service_id());
    let is_exempt = plan.is_some_and(|plan| plan.has(plan_flag::EXEMPT));
    let asked = Asked::late(place, is_exempt, there.has(flow_flag::PICKED_UP));
    let most = match asked.is_exempt() || asked.is_recovered() {
        true => 0,
        false => plan.map_or(0, |plan| plan.most),
    };
    // Before the seats: later there is no room on the stack for it in Linux 6.1.
    if place.counts_at_endpoint() && !tables.enter_endpoint(there.detail, most) {
        return tag::state(read_tag(reply)) != tag::LIVE;
    }
    let taken = tables.take_seats(asked, 0);
    if taken == REFUSED {
        leave_endpoint(tables, reply, place);
        // Another CPU may have had the last one for the same flow.
        return tag::state(read_tag(reply)) != tag::LIVE;
    }
    let asked = asked.of_kept(taken & KEPT != 0);
    let taken = Place::from_u32(taken);
    let (index, ports) = seats::client_of(reply);
    let is_member = taken.level() != 0;
    if is_member {
        let joined = join(tables, asked, there.taker().schema(), index, ports);
        if seats::charged(tables, taken, ports, joined) == FULL {
            seats::give_back(tables, taken);
            leave_endpoint(tables, reply, place);
            return false;
        }
    }
    if taken != place || !record::advance(reply, seen, tag::SEATED) {
        seats::give_back(tables, taken);
        leave_endpoint(tables, reply, place);
        if is_member {
            seats::part(tables, taken, index, ports);
        }
    }
    true
}

/// Counts the connections of a flow's endpoint less, if they are counted for this place; `reply` is the
/// endpoint's direction.
#[inline(always)]
fn leave_endpoint<A: Address, T: Tables<A>>(tables: &T, reply: Record<A>, place: Place) {
    if place.counts_at_endpoint() {
        let (forward, ports) = seats::client_of(reply);
        tables.leave_endpoint(forward, ports);
    }
}

/// [`KEPT`] if the seat of a level that was taken just now is one of those that are kept for parties without
/// any. One that was taken with a handshake is not: the others were enough, or the agent has given it.
#[inline(never)]
fn kept<A: Address, T: Tables<A>>(tables: &T, asked: Asked, level: NonNull<Seats>) -> u32 {
    if asked.is_handshake() || !has_queues(level) {
        return 0;
    }
    match queue::seats_kept(tables, asked.place().level()).checked_sub(1) {
        Some(others) if is_full(level, 1, others) => KEPT,
        _ => 0,
    }
}

/// [`join`]'s answer where a flow is counted above what its party may have, which is only audited.
pub(super) const JOINED_OVER: u64 = 4;

/// Counts a flow that asks for seats in its party: [`JOINED`], [`JOINED_OVER`], [`FULL`] or, if that is
/// for the end of its handshake, [`party::LATER`]; for [`seats::charged`], which is due then. `forward` is
/// the index of its client's direction, which is filled in, and `ports` are what [`seats::client_of`]
/// says.
#[inline(never)]
pub(super) fn join<A: Address, T: Tables<A>>(
    tables: &T,
    asked: Asked,
    schema: u32,
    forward: u32,
    ports: u32,
) -> u64 {
    let Some(schema) = known(tables, schema).map(NonNull::as_ptr) else {
        return JOINED;
    };
    // SAFETY: elements of maps stay; a word that the agent stores as a whole.
    let most = unsafe { (&raw const (*schema).rule.most).read_volatile() };
    let is_let_in = asked.is_exempt() || asked.is_recovered();
    let handshake = match asked.is_handshake() {
        true => HANDSHAKE,
        false => 0,
    };
    let own = match is_let_in {
        true => ANY,
        false => asked.most(most & ANY),
    } | handshake;
    let mut joined = tables.join_party(forward, ports, own);
    let mut counted = JOINED;
    if joined == FULL && !is_let_in {
        let level = tables.seats(asked.place().shared());
        if !level.is_some_and(is_audited) {
            count_refused_party(schema, asked);
            return FULL;
        }
        counted = JOINED_OVER;
        joined = tables.join_party(forward, ports, ANY | own & HANDSHAKE);
    }
    match joined & party::ANSWERS {
        party::LATER => return party::LATER,
        JOINED => {}
        // SAFETY: elements of maps stay; the word is a counter.
        _ => unsafe { atomic::add(&raw mut (*schema).uncounted, 1) },
    }
    counted | joined & !party::ANSWERS
}

/// Counts a connection that was refused because its party is full.
#[inline(always)]
pub(super) fn count_refused_party(schema: *mut FlowSchema, asked: Asked) {
    // SAFETY: elements of maps stay; the words are counters.
    unsafe {
        let counter = match asked.is_of_kept() {
            true => &raw mut (*schema).refused,
            false => &raw mut (*schema).refused_parties,
        };
        atomic::add(counter, 1);
    }
}

/// How the client of a connection is told that there is no seat for it, for [`Work::reason`].
#[inline(always)]
pub(super) fn refusal<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> Refusal {
    match answer_of(tables, work) {
        RejectAnswer::Drop => Refusal::Drop,
        _ => Refusal::Reject,
    }
}

/// What it is told.
#[inline(always)]
pub(super) fn message<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> Message {
    match work.tuple.protocol {
        TCP | SCTP => match answer_of(tables, work) {
            RejectAnswer::Icmp => Message::prohibited::<A>(),
            _ => Message::refusal(work.segment.next),
        },
        _ => Message::port_unreachable::<A>(),
    }
}

/// What a flow schema has its clients told, for [`Work::reason`].
#[inline(never)]
fn answer_of<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> RejectAnswer {
    let answers = known(tables, work.schema).map_or(0, |schema| {
        // SAFETY: elements of maps stay; a word that the agent stores as a whole.
        unsafe { (&raw const (*schema.as_ptr()).answers).read_volatile() }
    });
    RejectAnswer::of(answers, work.reason)
}

/// A flow schema by its number, if that is one.
#[inline(always)]
fn known<A: Address, T: Tables<A>>(tables: &T, schema: u32) -> Option<NonNull<FlowSchema>> {
    match schema {
        0 => None,
        number => tables.flow_schema(number),
    }
}

/// Counts a connection that was let in.
#[inline(always)]
pub(super) fn count_admitted<A: Address, T: Tables<A>>(tables: &T, schema: u32, is_over: bool) {
    if let Some(schema) = known(tables, schema) {
        let schema = schema.as_ptr();
        // SAFETY: elements of maps stay; the words are counters.
        unsafe {
            atomic::add(&raw mut (*schema).admitted, 1);
            if is_over {
                atomic::add(&raw mut (*schema).over, 1);
            }
        }
    }
}

/// Counts a connection that was refused.
#[inline(always)]
fn count_refused<A: Address, T: Tables<A>>(tables: &T, asked: Asked, full: Full, schema: u32) {
    let index = match full {
        Full::Service => asked.place().service(),
        Full::Shared | Full::Queue => asked.place().shared(),
    };
    if let Some(seats) = tables.seats(index) {
        // SAFETY: elements of maps stay; the word is a counter.
        unsafe { atomic::add(&raw mut (*seats.as_ptr()).refused, 1) };
    }
    if full == Full::Shared
        && let Some(schema) = known(tables, schema)
    {
        // SAFETY: elements of maps stay; the word is a counter.
        unsafe { atomic::add(&raw mut (*schema.as_ptr()).refused, 1) };
    }
}

/// Counts a connection that was let in without some of the seats that it wants.
#[inline(always)]
fn count_exempted<A: Address, T: Tables<A>>(tables: &T, wanted: Place, place: Place) {
    let index = match wanted.service() != place.service() {
        true => wanted.service(),
        false => wanted.shared(),
    };
    if let Some(seats) = tables.seats(index) {
        // SAFETY: elements of maps stay; the word is a counter.
        unsafe { atomic::add(&raw mut (*seats.as_ptr()).exempted, 1) };
    }
}
