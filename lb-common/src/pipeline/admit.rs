//! Whether limits let a new connection in: the plain limits of the node and of a Service, without
//! a queue. Beyond them a connection is refused at once.

use crate::{
    abi::{Config, Plan, config_flag, plan_flag},
    addr::Address,
    atomic,
    flow::{
        claim,
        limit::{NODE, is_full, take_anyway, try_take},
        seats::{self, Asked, Place},
        table,
    },
    parse::TCP,
    tables::Tables,
    work::Work,
};

/// What a new flow of a service asks for. No limit is looked at for it. `picks_up` says that its
/// connection is in progress.
#[inline(always)]
pub fn asks(config: &Config, plan: &Plan, picks_up: bool) -> Asked {
    let mut place = Place::of_service(plan.seats);
    if config.flags & config_flag::CONNECTION_LIMIT != 0 && !plan.has(plan_flag::LONG_RUNNING) {
        place = place.and(Place::NODE);
    }
    match place.is_none() {
        true => Asked::NOTHING,
        false => Asked::new(place, plan.has(plan_flag::EXEMPT), picks_up),
    }
}

/// Which limit is in the way of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Service,
    Node,
}

/// Whether a packet that would open a flow is refused at once, because a limit is reached: decided
/// by plain reads. One whose flow exists, or is being opened, is not.
#[inline(always)]
pub(super) fn is_refused<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    plan: &Plan,
    opens: bool,
) -> bool {
    let picks_up = work.tuple.protocol == TCP && !opens;
    let asked = asks(tables.config(), plan, picks_up);
    !asked.is_nothing() && refuses(tables, work, asked)
}

/// The rest of [`is_refused`]. Out of line: most nodes have no limit.
#[inline(never)]
fn refuses<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, asked: Asked) -> bool {
    let Some(full) = in_the_way(tables, asked) else {
        return false;
    };
    let hash = table::hash(&work.tuple, tables.secret());
    if !claim::is_unknown(tables, &work.tuple, hash) {
        return false;
    }
    count_refused(tables, asked, full);
    true
}

/// The limit that is in the way of what a new flow asks for at this moment.
#[inline(always)]
pub fn in_the_way<A: Address, T: Tables<A>>(tables: &T, asked: Asked) -> Option<Full> {
    if asked.is_exempt() || asked.is_recovered() {
        return None;
    }
    let place = asked.place();
    if place.service() != 0 && tables.seats(place.service()).is_some_and(is_full) {
        return Some(Full::Service);
    }
    let node = place.has_node() && tables.seats(NODE).is_some_and(is_full);
    node.then_some(Full::Node)
}

/// [`take`]'s answer where there is no seat.
pub(super) const REFUSED: u32 = u32::MAX;

/// Takes the seats that a new flow asks for, all or none: the number of the [`Place`] that it has
/// now, or [`REFUSED`].
#[inline(never)]
pub(super) fn take<A: Address, T: Tables<A>>(tables: &T, asked: Asked) -> u32 {
    let wanted = asked.place();
    let mut place = Place::NONE;
    if wanted.service() != 0
        && let Some(limit) = tables.seats(wanted.service())
    {
        if asked.is_recovered() {
            take_anyway(limit);
            place = Place::of_service(wanted.service());
        } else if try_take(limit) {
            place = Place::of_service(wanted.service());
        } else if !asked.is_exempt() {
            count_refused(tables, asked, Full::Service);
            return REFUSED;
        }
    }
    if wanted.has_node()
        && let Some(limit) = tables.seats(NODE)
    {
        if asked.is_recovered() {
            take_anyway(limit);
            place = place.and(Place::NODE);
        } else if try_take(limit) {
            place = place.and(Place::NODE);
        } else if !asked.is_exempt() {
            seats::give_back(tables, place);
            count_refused(tables, asked, Full::Node);
            return REFUSED;
        }
    }
    if place != wanted {
        count_exempted(tables, wanted, place);
    }
    place.number()
}

/// Counts a connection that was refused.
#[inline(always)]
fn count_refused<A: Address, T: Tables<A>>(tables: &T, asked: Asked, full: Full) {
    let index = match full {
        Full::Service => asked.place().service(),
        Full::Node => NODE,
    };
    if let Some(seats) = tables.seats(index) {
        // SAFETY: elements of maps stay; the word is a counter.
        unsafe { atomic::add(&raw mut (*seats.as_ptr()).refused, 1) };
    }
}

/// Counts a connection that was let in without some of the seats that it wants.
#[inline(always)]
fn count_exempted<A: Address, T: Tables<A>>(tables: &T, wanted: Place, place: Place) {
    let index = match wanted.service() != place.service() {
        true => wanted.service(),
        false => NODE,
    };
    if let Some(seats) = tables.seats(index) {
        // SAFETY: elements of maps stay; the word is a counter.
        unsafe { atomic::add(&raw mut (*seats.as_ptr()).exempted, 1) };
    }
}
