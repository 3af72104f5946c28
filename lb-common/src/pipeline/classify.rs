//! Which flow schema takes a new connection, and with that which priority level it belongs to.
//!
//! The agent has compiled the schemas' rules: a frontend's entry names the class of the destination,
//! and a class names the schema for each origin. Only where some rule depends on the source's
//! address, the address is looked up.

use crate::{
    abi::config_flag,
    addr::Address,
    flow::{party::Taker, place::LevelSeats},
    parse::Tuple,
    service::{self, Origin},
    tables::Tables,
    work::{Addressed, Work},
};

/// Notes the flow schema of a connection, and its seats, that its first packet asks for.
#[inline(always)]
pub(super) fn classify<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, ifindex: u32) {
    work.schema = 0;
    work.seats = LevelSeats::default();
    work.taker = Taker::default();
    work.most = 0;
    if tables.config().flags & config_flag::ADMISSION != 0 {
        take_class(tables, work, ifindex);
    }
}

/// The rest of [`classify`]. Out of line: most nodes have no schemas.
#[inline(never)]
fn take_class<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>, ifindex: u32) {
    work.schema = schema_of(tables, &work.tuple, ifindex, work.frontend);
    if work.schema != 0
        && let Some(schema) = tables.flow_schema(work.schema)
    {
        // SAFETY: elements of maps stay; a word that the agent stores as a whole.
        work.seats = unsafe { (&raw const (*schema.as_ptr()).seats).read_volatile() };
        // SAFETY: as above, but word by word.
        let rule = unsafe { (&raw const (*schema.as_ptr()).rule).read_volatile() };
        // Where the source is matters to parties only.
        let is_inside =
            rule.most != 0 && service::origin(tables, &work.tuple, ifindex) != Origin::Outside;
        work.taker = Taker::new(work.schema, is_inside).with_card(work.has_turn >> 1);
        work.most = rule.most;
    }
}

/// Number of the flow schema that takes a connection to a frontend; 0 means none.
#[inline(always)]
pub fn schema_of<A: Address, T: Tables<A>>(
    tables: &T,
    tuple: &Tuple<A>,
    ifindex: u32,
    frontend: Addressed,
) -> u32 {
    let Some(class) = tables.destination_class(frontend.class()) else {
        return 0;
    };
    let mut decision = class.decision;
    if class.set != 0 && class.count != 0 {
        let source = tables.source_class(class.set, tuple.source.to_mapped());
        // The class may be younger than the trie's entry that was found.
        let index = class.first.wrapping_add(source.min(class.count - 1));
        decision = match tables.decision(index) {
            Some(decision) => decision,
            None => return 0,
        };
    }
    match decision.of_all() {
        Some(schema) => schema,
        None => decision.of(service::origin(tables, tuple, ifindex) as u32),
    }
}
