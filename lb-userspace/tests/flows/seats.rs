//! Seats that the sweeper gives back.

use std::cell::RefCell;

use lb_common::flow::{
    flow_flag::{FIN, FIN_ACKED, RST, SEEN},
    limit::NODE,
    seats::Place,
    tag,
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

fn in_use(table: &Table) -> [i32; 2] {
    [NODE, 7].map(|index| table.seats.read(index).used())
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
    lb_common::flow::record::kill(forward, 0);
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
