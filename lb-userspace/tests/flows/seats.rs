//! Seats that the sweeper gives back.

use std::{cell::RefCell, sync::Arc};

use lb_common::flow::{
    Seats,
    flow_flag::{FIN, FIN_ACKED, RST, SEEN, WATCH},
    limit::{LEVELS, NODE},
    place::Place,
    record, seats, tag,
};

use super::table::{NewFlow, Sweeping, Table};

/// Flags of a direction that has ended, if the other side knows it.
const ENDED: u32 = SEEN | FIN | FIN_ACKED;

/// A flow that counts against the node's limit and that of a Service.
fn seated(client: u32) -> NewFlow {
    NewFlow {
        place: Place::NODE.and(Place::of_service(7)),
        ..NewFlow::tcp(client)
    }
}

/// The seats in use, after a check that the endpoint has as many connections.
fn in_use(table: &Table) -> [i32; 2] {
    let [node, service] = [NODE, 7].map(|index| table.seats.read(index).used());
    assert_eq!(
        table.open_at_endpoint(),
        service,
        "connections of the endpoint"
    );
    [node, service]
}

#[test]
fn a_flow_that_expires_gives_its_seats_back() {
    let table = Table::new(64);
    table.open(&seated(1).seen(SEEN, SEEN)).unwrap();
    let mut sweeping = Sweeping::new(&table);
    sweeping.pass(100);
    assert_eq!(in_use(&table), [1; 2]);
    assert_eq!(sweeping.services.seats(NODE), 1);
    table.open(&seated(2).seen(SEEN, SEEN).at(90_000)).unwrap();
    assert_eq!(in_use(&table), [2; 2]);
    sweeping.pass(90_001);
    assert_eq!(in_use(&table), [1; 2]);
    sweeping.pass(90_002);
    assert_eq!(sweeping.services.seats(7), 1);
    assert_eq!(sweeping.services.of(1), 1, "the id of its Service");
}

#[test]
fn a_clients_reset_counts_when_the_endpoint_is_silent() {
    let table = Table::new(64);
    let flow = seated(1).seen(SEEN | RST, SEEN);
    table.open(&flow).unwrap();
    let mut sweeping = Sweeping::new(&table);
    sweeping.timeouts_are(60);
    sweeping.pass(8);
    assert_eq!(in_use(&table), [1; 2]);
    sweeping.pass(9);
    assert_eq!(in_use(&table), [0; 2]);
    assert!(table.has(&flow), "the flow stays for stragglers");
    sweeping.pass(10);
    assert_eq!(in_use(&table), [0; 2], "once");
}

#[test]
fn a_closed_flow_holds_no_seat() {
    let table = Table::new(64);
    for (client, forward, reply) in [(1, ENDED, ENDED), (2, SEEN, SEEN | RST)] {
        // Programs give seats back at once, but not in a table of another size.
        table.open(&seated(client).seen(forward, reply)).unwrap();
    }
    let mut sweeping = Sweeping::new(&table);
    sweeping.pass(1);
    assert_eq!(in_use(&table), [0; 2]);
    assert_eq!(table.count(tag::SEATED), 0);
}

#[test]
fn half_a_flow_gives_its_seats_back() {
    let table = Table::new(64);
    let flow = seated(1).seen(SEEN, SEEN);
    let forward = table.open(&flow).unwrap();
    // As an agent that was killed between the two directions.
    record::kill(forward, 0);
    let mut sweeping = Sweeping::new(&table);
    (1..=4).for_each(|now| sweeping.pass(now));
    assert_eq!(in_use(&table), [0; 2]);
    assert!(!table.has_answers(&flow));
}

#[test]
fn a_program_and_the_sweeper_give_seats_back_once() {
    let table = Table::new(64);
    let flow = seated(1).seen(SEEN, SEEN);
    let forward = table.open(&flow).unwrap();
    let sweeping = RefCell::new(Sweeping::new(&table));
    table.end_slowly(forward, || sweeping.borrow_mut().pass(100_000));
    (100_001..=100_004).for_each(|now| sweeping.borrow_mut().pass(now));
    assert_eq!(in_use(&table), [0; 2]);
}

/// A limit of eight connections of the Service.
fn limited() -> Arc<Table> {
    let table = Table::new(64);
    let limit = Seats {
        limit: 8,
        ..Seats::default()
    };
    table.limits.write(7, &limit);
    table
}

#[test]
fn handshakes_that_stay_open_give_their_seats_back_if_they_are_many() {
    // A quarter of the limit is not many.
    for (many, handshakes) in [(false, 2), (true, 3)] {
        let table = limited();
        table.open(&seated(1).seen(SEEN, SEEN)).unwrap();
        let flows = (2..2 + handshakes).map(|client| match client % 2 {
            0 => seated(client).half().seen(SEEN, 0),
            _ => seated(client).half().seen(SEEN, SEEN),
        });
        assert!(
            flows
                .map(|flow| table.open(&flow))
                .all(|opened| opened.is_some())
        );
        let mut sweeping = Sweeping::new(&table);
        let all = 1 + handshakes as i32;
        sweeping.pass(3);
        assert_eq!(
            (in_use(&table), table.seats.is_pressed(7)),
            ([all; 2], false)
        );
        sweeping.pass(4);
        assert_eq!(sweeping.services.slow_handshakes(7), handshakes);
        let left = if many { 1 } else { all };
        assert_eq!(
            (in_use(&table), table.seats.is_pressed(7)),
            ([left; 2], many)
        );
        assert!(!table.seats.is_pressed(NODE), "it has no limit");
        // A handshake times out after a minute, and others may follow within half of one.
        sweeping.pass(4 + 255);
        assert_eq!((in_use(&table)[0], table.seats.is_pressed(7)), (1, many));
        sweeping.pass(4 + 256);
        assert_eq!((in_use(&table), table.seats.is_pressed(7)), ([1; 2], false));
    }
}

#[test]
fn what_is_no_open_handshake_keeps_its_seats_under_pressure() {
    let table = limited();
    let datagrams = |client| NewFlow {
        place: Place::of_service(7),
        ..NewFlow::udp(client).half().seen(SEEN, SEEN)
    };
    assert!((1..=4).all(|client| table.open(&datagrams(client)).is_some()));
    let mut sweeping = Sweeping::new(&table);
    sweeping.pass(20);
    assert_eq!(in_use(&table)[1], 4);
    assert!(!table.seats.is_pressed(7));

    let handshake = |client| seated(client).half().seen(SEEN, 0);
    assert!((5..=7).all(|client| table.open(&handshake(client)).is_some()));
    table.open(&handshake(8).at(15)).unwrap();
    sweeping.pass(20);
    assert!(table.seats.is_pressed(7));
    assert_eq!(in_use(&table), [0, 4], "the datagrams");
}

/// A client, or whoever forges its address, sends its SYN again and again.
#[test]
fn a_handshake_that_goes_on_and_on_is_slow() {
    let table = limited();
    let flows = (1..=3).map(|client| {
        let handshake = seated(client).half().seen(SEEN, 0);
        table.open(&handshake).unwrap()
    });
    let flows: Vec<_> = flows.collect();
    let mut sweeping = Sweeping::new(&table);
    let mut pass = |now| {
        for flow in &flows {
            // SAFETY: nobody else uses the table.
            unsafe { (*flow.as_ptr()).last_seen = now };
        }
        sweeping.pass(now);
        table.seats.is_pressed(7)
    };
    assert_eq!([1, 7, 8].map(&mut pass), [false, false, true]);
    assert_eq!(in_use(&table), [0; 2]);
}

/// As newer handshakes replace the oldest, none gets old enough to be slow.
#[test]
fn a_flood_beyond_the_budget_of_half_open_flows_puts_a_limit_under_pressure() {
    for (budget, is_pressed) in [(12, false), (10, true)] {
        let table = limited();
        let handshake = |client| seated(client).half().seen(SEEN, 0).at(7);
        assert!((1..=5).all(|client| table.open(&handshake(client)).is_some()));
        let mut sweeping = Sweeping::new(&table).with_half_open_budget(budget);
        sweeping.pass(8);
        assert_eq!(
            (in_use(&table), table.seats.is_pressed(7)),
            ([if is_pressed { 0 } else { 5 }; 2], is_pressed)
        );
    }
}

/// A host whose address was forged answers with a reset. One by the endpoint is no sign of a flood.
#[test]
fn handshakes_that_the_client_resets_put_a_limit_under_pressure() {
    for (forward, reply, is_pressed) in [(SEEN | RST, SEEN, true), (SEEN, SEEN | RST, false)] {
        let table = limited();
        let handshake = |client| seated(client).half().seen(forward, reply).at(7);
        assert!((1..=5).all(|client| table.open(&handshake(client)).is_some()));
        let mut sweeping = Sweeping::new(&table);
        sweeping.timeouts_are(60);
        sweeping.pass(8);
        assert_eq!(
            (in_use(&table), table.seats.is_pressed(7)),
            ([0; 2], is_pressed)
        );
        // It counts until it gives its seats back.
        table.open(&handshake(6)).unwrap();
        sweeping.pass(17);
        let slow = table.seats.slow_handshakes(7);
        assert_eq!(slow, u32::from(is_pressed));
        sweeping.pass(18);
        assert_eq!(table.seats.slow_handshakes(7), 0);
    }
}

#[test]
fn a_level_has_the_patience_that_its_object_says() {
    let table = limited();
    let level = 5;
    table.seats.limit_level(level, 8);
    let index = LEVELS + level;
    let mut now = 0;
    let mut is_pressed = |slow| {
        now += 1_000;
        let of = |limit| if limit == index { slow } else { 0 };
        table.seats.press(now, of);
        table.seats.is_pressed(index)
    };
    assert_eq!([2, 3, 5].map(&mut is_pressed), [false, true, true]);
    table.seats.set_patience(level, Some(4));
    assert_eq!([3, 4, 5].map(&mut is_pressed), [false, false, true]);
    table.seats.set_patience(level, None);
    assert_eq!([2, 3].map(&mut is_pressed), [false, true]);
}

#[test]
fn an_established_flow_without_its_seats_is_looked_at_again() {
    let table = Table::new(64);
    let flow = seated(1).seen(SEEN, SEEN);
    table.open(&flow).unwrap();
    let (_, reply) = table.pair(&flow).unwrap();
    let mut sweeping = Sweeping::new(&table);
    sweeping.pass(1);
    assert_eq!(record::flags(reply) & WATCH, 0);
    seats::release(&*table, reply);
    assert_eq!(in_use(&table), [0; 2]);
    sweeping.pass(2);
    assert_eq!(record::flags(reply) & WATCH, WATCH);
    // As the endpoint's next packet does.
    seats::follow(&*table, reply, table.pair(&flow).unwrap().0, true);
    assert_eq!(in_use(&table), [1; 2]);
}
