//! Parties: counted less by the sweeper, and shown.

use lb_common::{
    abi::FlowSchema,
    flow::{
        flow_flag::{FIN, FIN_ACKED, RST, SEEN},
        limit::LEVELS,
        party::{PartyRule, Taker, party_by},
        place::{LevelSeats, Place},
    },
};
use node_lb::flows::holders::{Holder, Holders, Whose};

use super::table::{NewFlow, Sweeping, Table, View};

const SCHEMA: u32 = 5;
const LEVEL: u32 = 9;

/// A flow that counts against the limit of a level, and in a party of its flow schema.
fn member(client: u32) -> NewFlow {
    NewFlow {
        place: Place::of_level(LEVEL, 1),
        taker: Taker::new(SCHEMA, false),
        ..NewFlow::tcp(client).seen(SEEN, SEEN)
    }
}

fn table() -> std::sync::Arc<Table> {
    let table = Table::new(64);
    set_rule(&table, 100);
    table
}

/// Sets how many connections a party may have. All clients of the schema are one party.
fn set_rule(table: &Table, most: u32) {
    let schema = FlowSchema {
        rule: PartyRule { most, by: 0 },
        ..FlowSchema::default()
    };
    table.schemas.write(SCHEMA, &schema);
}

#[test]
fn a_flow_that_expires_leaves_its_party() {
    let table = table();
    table.open(&member(1)).unwrap();
    table.open(&member(2).at(90_000)).unwrap();
    assert_eq!(table.members(), [2]);
    let mut sweeping = Sweeping::new(&table);
    sweeping.pass(90_001);
    assert_eq!(table.members(), [1]);
}

#[test]
fn a_wide_flow_gives_all_its_seats_back() {
    let table = table();
    let wide = |client, width| NewFlow {
        place: Place::of_level(LEVEL, width),
        ..member(client)
    };
    table.open(&wide(1, 10)).unwrap();
    let used = || table.seats.read(LEVELS + LEVEL).used();
    let mut sweeping = Sweeping::new(&table);
    sweeping.pass(100);
    assert_eq!(sweeping.services.seats(LEVELS + LEVEL), 10);
    table.open(&wide(2, 3).at(90_000)).unwrap();
    assert_eq!((used(), table.members()), (13, vec![2]));
    sweeping.pass(90_001);
    assert_eq!((used(), table.members()), (3, vec![1]));
    table
        .open(&wide(3, 7).half().seen(SEEN, 0).at(90_000))
        .unwrap();
    sweeping.pass(90_004);
    assert_eq!(sweeping.services.slow_handshakes(LEVELS + LEVEL), 7);
}

#[test]
fn the_seats_of_a_closed_flow_linger() {
    const ENDED: u32 = SEEN | FIN | FIN_ACKED;
    for (forward, reply) in [(ENDED, ENDED), (SEEN | RST, SEEN)] {
        let table = table();
        let schema = FlowSchema {
            // Twenty ticks.
            seats: LevelSeats::new(LEVEL, 1).lingering(160),
            ..table.schemas.read(SCHEMA)
        };
        table.schemas.write(SCHEMA, &schema);
        let ended = |client| member(client).seen(forward, reply).at(10);
        table.open(&ended(1)).unwrap();
        // Nobody knows whether this one's client is real.
        table.open(&ended(2).half()).unwrap();
        let mut sweeping = Sweeping::new(&table);
        sweeping.timeouts_are(60);
        for now in [19, 29] {
            sweeping.pass(now);
            assert_eq!(table.members(), [1], "{forward}");
        }
        sweeping.pass(30);
        assert!(table.members().is_empty(), "{forward}");
    }
}

#[test]
fn flows_that_were_there_before_the_rule_are_counted() {
    let table = table();
    set_rule(&table, 0);
    for client in 1..=3 {
        table.open(&member(client)).unwrap();
    }
    assert!(table.members().is_empty());
    let mut sweeping = Sweeping::new(&table);
    assert!(!table.parties.are_counted());
    set_rule(&table, 2);
    assert!(table.parties.are_counted());
    sweeping.pass(1);
    let counted = sweeping.services.take_parties();
    let seated: Vec<_> = counted.values().map(|count| count.seated).collect();
    assert_eq!(seated, [3]);
}

#[test]
fn slow_handshakes_of_a_pressed_party_hold_no_seats() {
    let table = table();
    set_rule(&table, 8);
    for client in 1..=3 {
        table.open(&member(client).half().seen(SEEN, 0)).unwrap();
    }
    table.open(&member(4)).unwrap();
    assert_eq!(table.members(), [4]);
    let mut sweeping = Sweeping::new(&table);
    sweeping.pass(3);
    assert_eq!(table.members(), [4], "not slow yet");
    sweeping.pass(4);
    assert_eq!(table.members(), [1], "the one that is established");
}

#[test]
fn those_who_hold_seats_are_counted_by_what_their_flows_have_in_common() {
    let table = table();
    for client in 1..=5 {
        table.open(&member(client)).unwrap();
    }
    table.open(&member(6).half().seen(SEEN, 0)).unwrap();
    // Without a seat.
    table.open(&NewFlow::tcp(7).seen(SEEN, SEEN)).unwrap();
    let held = |by, limit| {
        let mut holders = Holders::default();
        holders.add(&View::new(&table), |schema| {
            assert_eq!(schema, SCHEMA);
            Some(PartyRule { most: 0, by })
        });
        holders.largest(limit)
    };
    let (all, more) = held(0, 1);
    let holder = |whose| Holder {
        schema: SCHEMA,
        whose,
    };
    assert_eq!((all[0].0, more), (holder(Whose::Schema), false));
    assert_eq!((all[0].1.seats, all[0].1.handshakes), (6, 1));
    let (all, _) = held(party_by::SERVICE, 9);
    assert_eq!(all[0].0, holder(Whose::Service(1)));
    // All clients have one address here.
    let (all, _) = held(24, 9);
    assert!(matches!(all[0].0.whose, Whose::Source(network) if network.prefix_len() == 24));
    assert_eq!((all.len(), all[0].1.seats), (1, 6));
    assert_eq!(held(32, 0), (vec![], true));
}
