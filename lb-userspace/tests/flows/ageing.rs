//! When flows end, and what the sweeper counts.

use std::cell::RefCell;

use lb_common::flow::{
    Stage,
    flow_flag::{CLOSED_FIRST, FIN, FIN_ACKED, RST, SEEN},
    record, tag,
};
use lb_objects::Protocol;

use super::table::{NewFlow, Sweeping, Table};

/// Flags of a direction that has ended, if the other side knows it.
const ENDED: u32 = SEEN | FIN | FIN_ACKED;

#[test]
fn each_stage_ends_after_its_timeout() {
    for (flow, stage, seconds) in [
        (NewFlow::tcp(1).half().seen(SEEN, 0), Stage::Unreplied, 60),
        (
            NewFlow::tcp(1).half().seen(SEEN, SEEN),
            Stage::Handshake,
            60,
        ),
        (NewFlow::tcp(1).seen(SEEN, SEEN), Stage::Established, 86_400),
        (
            NewFlow::tcp(1).seen(SEEN | FIN, SEEN),
            Stage::HalfClosed,
            3_600,
        ),
        (
            NewFlow::tcp(1).seen(ENDED, SEEN | FIN),
            Stage::HalfClosed,
            3_600,
        ),
        (NewFlow::tcp(1).seen(ENDED, ENDED), Stage::Closed, 5),
        (NewFlow::tcp(1).seen(SEEN, SEEN | RST), Stage::Closed, 5),
        // The endpoint may remember the node's port.
        (
            NewFlow::tcp(1)
                .source_nat()
                .seen(ENDED, ENDED | CLOSED_FIRST),
            Stage::Closed,
            60,
        ),
        // It does not if the client closed first.
        (
            NewFlow::tcp(1)
                .source_nat()
                .seen(ENDED | CLOSED_FIRST, ENDED),
            Stage::Closed,
            5,
        ),
        (
            NewFlow::tcp(1)
                .source_nat()
                .seen(ENDED, ENDED | CLOSED_FIRST | RST),
            Stage::Closed,
            5,
        ),
        (NewFlow::udp(1).half().seen(SEEN, 0), Stage::Unreplied, 30),
        (
            NewFlow::udp(1).half().seen(SEEN, SEEN),
            Stage::Handshake,
            30,
        ),
        (NewFlow::udp(1).seen(SEEN, SEEN), Stage::Established, 120),
    ] {
        let protocol = if flow.udp {
            Protocol::Udp
        } else {
            Protocol::Tcp
        };
        for start in [0, 1_000, u32::MAX - 2] {
            let table = Table::new(64);
            let mut sweeping = Sweeping::new(&table);
            let flow = flow.at(start);
            table.open(&flow).unwrap();

            sweeping.pass(start.wrapping_add(seconds));
            assert!(table.has(&flow), "{flow:?}");
            assert_eq!(sweeping.stats.flows.of(protocol, stage), 1, "{flow:?}");
            assert_eq!(sweeping.services.of(flow.service), 1);
            assert_eq!(table.flows(), 1, "{flow:?}");
            assert_eq!(table.half_open(), i32::from(flow.half), "{flow:?}");

            sweeping.pass(start.wrapping_add(seconds + 1));
            assert!(!table.has(&flow), "{flow:?}");
            assert_eq!(sweeping.removed.expired.of(protocol, stage), 1, "{flow:?}");
            assert_eq!(table.count(tag::TOMB), 2, "both directions are free");
            assert_eq!(sweeping.stats.flows.total(), 0);
            assert_eq!(table.flows(), 0, "{flow:?}");
            assert_eq!(table.half_open(), 0, "{flow:?}");
        }
    }
}

#[test]
fn a_packet_of_either_direction_keeps_a_flow() {
    for reply_is_later in [false, true] {
        let table = Table::new(64);
        let mut sweeping = Sweeping::new(&table);
        let flow = NewFlow::udp(1).seen(SEEN, SEEN);
        table.open(&flow).unwrap();
        let (mut forward, mut reply) = table.pair(&flow).unwrap();
        let later = if reply_is_later {
            &mut reply
        } else {
            &mut forward
        };
        // SAFETY: no other thread uses the table.
        unsafe { later.as_mut() }.last_seen = 100;

        sweeping.pass(220);
        assert!(table.has(&flow));
        sweeping.pass(221);
        assert!(!table.has(&flow));
    }
}

#[test]
fn a_flow_ended_by_a_program_is_freed() {
    let table = Table::new(64);
    let mut sweeping = Sweeping::new(&table);
    let flow = NewFlow::tcp(1);
    let record = table.open(&flow).unwrap();
    table.end(record);

    let dead = || table.count(tag::DEAD);
    sweeping.pass_with(1, || assert_eq!(dead(), 2, "not before the grace period"));
    assert_eq!((dead(), table.count(tag::TOMB)), (0, 2));
    assert!(table.open(&flow).is_some());
}

#[test]
fn half_a_flow_is_ended_when_the_other_half_does_not_come() {
    for killed in [0, 1] {
        let table = Table::new(64);
        let mut sweeping = Sweeping::new(&table);
        let (flow, whole) = (NewFlow::tcp(1), NewFlow::tcp(2));
        table.open(&flow).unwrap();
        table.open(&whole).unwrap();
        let (forward, reply) = table.pair(&flow).unwrap();
        record::kill([forward, reply][killed], 0);

        let mut passes = 0;
        while sweeping.removed.orphans == 0 {
            passes += 1;
            assert!(passes <= 3, "half {killed} left alone");
            sweeping.pass(1);
            assert!(
                passes > 1 || sweeping.removed.orphans == 0,
                "the other half may be on its way"
            );
        }
        assert_eq!(table.count(tag::LIVE), 2);
        assert!(table.has(&whole));
        sweeping.pass(1);
        assert_eq!(sweeping.removed.orphans, 1);
    }
}

#[test]
fn a_flow_that_is_seen_as_it_begins_and_as_it_ends_is_whole() {
    let table = Table::new(64);
    let sweeping = RefCell::new(Sweeping::new(&table));
    let pass = || sweeping.borrow_mut().pass(1);
    let (before, flow) = (NewFlow::tcp(1), NewFlow::tcp(2));
    let opened = table.open(&before).unwrap();
    table.end_slowly(opened, || {
        // From now on halves are looked for.
        pass();
        table
            .open_slowly(&flow, || {
                if table.has_answers(&flow) {
                    pass();
                }
            })
            .unwrap();
    });
    let (forward, _) = table.pair(&flow).unwrap();
    table.end_slowly(forward, pass);
    assert_eq!(sweeping.borrow().removed.orphans, 0);
}

#[test]
fn a_claim_that_is_never_published_is_freed() {
    let table = Table::new(64);
    let mut sweeping = Sweeping::new(&table);
    let flow = NewFlow::tcp(1);
    table.claim_only(&flow);

    sweeping.pass(1);
    assert_eq!(sweeping.removed.leaked_claims, 0, "it may be published yet");
    sweeping.pass(2);
    assert_eq!(sweeping.removed.leaked_claims, 1);
    assert_eq!(table.count(tag::BUSY), 0);
    assert!(table.open(&flow).is_some());
}

#[test]
fn closed_flows_end_sooner_in_a_crowded_table() {
    let table = Table::new(1024);
    let mut sweeping = Sweeping::new(&table);
    let closed = [
        NewFlow::tcp(0).seen(SEEN | RST, SEEN),
        NewFlow::tcp(0)
            .source_nat()
            .seen(ENDED, ENDED | CLOSED_FIRST),
    ];
    let wanted = (0..450).flat_map(|n| {
        closed.map(|flow| NewFlow {
            client: n * 2 + u32::from(flow.source_nat),
            ..flow
        })
    });
    let flows: Vec<_> = wanted.filter(|flow| table.open(flow).is_some()).collect();
    assert!(flows.len() * 2 > 1024 * 8 / 10, "{} flows", flows.len());

    sweeping.pass(2);
    assert!(flows.iter().all(|flow| table.has(flow)));
    sweeping.pass(2);
    assert_eq!(table.count(tag::LIVE), 0);
}

#[test]
fn two_hundred_thousand_closed_flows_are_gone_in_a_pass() {
    const FLOWS: u32 = 200_000;
    let table = Table::new(1 << 20);
    let mut sweeping = Sweeping::new(&table);
    let opened = open_closed(&table, 0..FLOWS, 0);
    assert!(
        opened > FLOWS as usize * 999 / 1000,
        "{opened} flows found room"
    );

    sweeping.pass(6);
    assert_eq!(sweeping.removed.expired.total(), opened as u64);
    assert_eq!((table.count(tag::LIVE), table.count(tag::SWEPT)), (0, 0));
    // Each direction's record is read once, and both once more to end the flow.
    let reads = sweeping.reads();
    assert!(
        reads <= opened as u64 * 4,
        "{reads} reads of {opened} flows"
    );
    sweeping.pass(7);
    sweeping.pass(8);
    assert_eq!(table.count(tag::CLEAN), 1 << 20);
}

/// A hundred thousand flows end per second, for longer than any closed flow stays: as many end as
/// open, and no pass reads more because of earlier ones.
#[test]
fn a_hundred_thousand_flows_a_second_end_as_they_come() {
    const RATE: u32 = 100_000;
    const SECONDS: u32 = 10;
    /// The timeout of a closed flow in seconds, and one more for the pass after it.
    const STAY: usize = 5 + 1;
    let table = Table::new(1 << 21);
    let mut sweeping = Sweeping::new(&table);
    let mut opened = Vec::new();
    for second in 0..SECONDS {
        let batch = open_closed(&table, second * RATE..(second + 1) * RATE, second);
        assert!(
            batch > RATE as usize * 99 / 100,
            "second {second}: {batch} flows found room"
        );
        opened.push(batch);
        let live = table.count(tag::LIVE);
        sweeping.pass(second);
        let reads = sweeping.reads();
        assert!(
            reads <= live as u64 * 2,
            "second {second}: {reads} reads of {live} records"
        );
        let flows = table.count(tag::LIVE) / 2;
        let recent: usize = opened.iter().rev().take(STAY).sum();
        assert!(
            flows <= recent,
            "second {second}: {flows} flows are left, {recent} may be"
        );
        let ended = sweeping.removed.expired.total();
        let all: usize = opened.iter().sum();
        assert_eq!(ended, (all - flows) as u64, "second {second}");
    }
    let all: usize = opened.iter().sum();
    sweeping.pass(SECONDS + STAY as u32);
    assert_eq!(sweeping.removed.expired.total(), all as u64);
    assert_eq!((table.count(tag::LIVE), table.count(tag::SWEPT)), (0, 0));
}

/// Opens flows that both sides closed at second `at`. Returns how many found room.
fn open_closed(table: &Table, clients: std::ops::Range<u32>, at: u32) -> usize {
    let flows = clients.map(|n| NewFlow::tcp(n).seen(ENDED, ENDED).at(at));
    flows.filter(|flow| table.open(flow).is_some()).count()
}
