//! Flows that run into a deadline of their flow schema.

use std::{net::SocketAddr, sync::Arc};

use lb_common::{
    abi::FlowSchema,
    addr::Ip4,
    flow::{
        Deadline, Flow, Record,
        deadline::DEADLINES,
        flow_flag::{EXPIRED, FIN, LATE, RST, SEEN},
        limit::LEVELS,
        party::{PartyRule, Taker},
        place::Place,
        record,
    },
};

use node_lb::flows::Reset;

use super::table::{NewFlow, Sweeping, Table};

const SCHEMA: u32 = 5;
const LEVEL: u32 = 9;
/// Ticks of a deadline.
const LIMIT: u32 = 30;

/// A table with one flow of a schema with deadlines, and a sweeper.
struct Bench {
    table: Arc<Table>,
    sweeping: Sweeping,
    flow: NewFlow,
    there: Record<Ip4>,
    back: Record<Ip4>,
}

impl Bench {
    /// With an established TCP connection that began at tick 0.
    fn new(deadlines: &[Deadline]) -> Self {
        Self::with(NewFlow::tcp(1).seen(SEEN, SEEN), deadlines)
    }

    fn with(flow: NewFlow, deadlines: &[Deadline]) -> Self {
        let table = Table::new(64);
        let flow = NewFlow {
            place: Place::of_level(LEVEL, 1),
            taker: Taker::new(SCHEMA, false),
            ..flow
        };
        let mut schema = FlowSchema {
            rule: PartyRule { most: 100, by: 0 },
            ..FlowSchema::default()
        };
        for deadline in deadlines {
            schema.deadlines[*deadline as usize] = LIMIT;
        }
        table.schemas.write(SCHEMA, &schema);
        table.open(&flow).unwrap();
        let (there, back) = table.pair(&flow).unwrap();
        let mut sweeping = Sweeping::new(&table);
        sweeping.timeouts_are(100_000);
        let mut bench = Self {
            table,
            sweeping,
            flow,
            there,
            back,
        };
        // Neither number is 0, and the endpoint's wraps.
        bench.change(|there, back| (there.next, back.next) = (1000, u32::MAX - 2));
        bench.sweeping.pass(0);
        bench
    }

    /// Changes what the records say, as programs do.
    fn change(&mut self, change: impl FnOnce(&mut Flow<Ip4>, &mut Flow<Ip4>)) {
        // SAFETY: only this thread uses the table.
        unsafe { change(self.there.as_mut(), self.back.as_mut()) };
    }

    /// The client sends data, and the endpoint acknowledges it.
    fn client_says(&mut self, now: u32) {
        self.change(|there, back| {
            there.next = there.next.wrapping_add(5);
            there.mark = back.next as u16;
            back.acknowledged = there.next;
        });
        self.acknowledge(now);
    }

    /// The endpoint sends data, and the client acknowledges it.
    fn endpoint_says(&mut self, now: u32) {
        self.change(|there, back| {
            back.next = back.next.wrapping_add(5);
            there.acknowledged = back.next;
        });
        self.acknowledge(now);
    }

    /// Both sides send something without data.
    fn acknowledge(&mut self, now: u32) {
        self.change(|there, back| (there.last_seen, back.last_seen) = (now, now));
    }

    /// Connections that have run into each deadline.
    fn expired(&self) -> [u64; DEADLINES] {
        self.table.schemas.read(SCHEMA).expired
    }

    /// Passes, while both sides only acknowledge, until the flow has run into a deadline: the tick.
    fn until_expired(&mut self, from: u32) -> Option<(u32, Deadline)> {
        let before = self.expired();
        (from..from + 10 * LIMIT).find_map(|now| {
            self.acknowledge(now);
            self.sweeping.pass(now);
            let expired = self.expired();
            let is_it =
                |deadline: &Deadline| expired[*deadline as usize] != before[*deadline as usize];
            Deadline::ALL.into_iter().find(is_it).map(|it| (now, it))
        })
    }

    fn in_use(&self) -> i32 {
        self.table.seats.read(LEVELS + LEVEL).used()
    }

    #[track_caller]
    fn assert_expired(&self) {
        let marked = [self.there, self.back].map(|record| record::flags(record) & EXPIRED);
        assert_eq!(marked, [EXPIRED; 2]);
        assert_eq!((self.in_use(), self.table.members()), (0, vec![]));
        assert!(
            self.table.has(&self.flow),
            "both sides are still to be told"
        );
        assert_eq!(self.expired().iter().sum::<u64>(), 1);
    }

    #[track_caller]
    fn assert_lives(&self) {
        let marked = [self.there, self.back].map(|record| record::flags(record) & EXPIRED);
        assert_eq!(marked, [0; 2]);
        assert_eq!(self.in_use(), 1);
    }
}

#[test]
fn a_client_that_only_shows_that_it_is_there_is_idle() {
    use Deadline::{ClientIdle, ServerIdle};
    let mut bench = Bench::new(&[ClientIdle]);
    bench.assert_lives();
    // It is asked for something first.
    bench.endpoint_says(10);
    bench.sweeping.pass(10);
    assert_eq!(bench.until_expired(11), Some((11 + LIMIT, ClientIdle)));
    bench.assert_expired();
    // Once.
    assert_eq!(bench.until_expired(100), None);
    bench.assert_expired();

    let mut bench = Bench::new(&[ServerIdle]);
    bench.endpoint_says(10);
    assert_eq!(bench.until_expired(11), None);
    bench.assert_lives();
}

#[test]
fn an_endpoint_that_does_not_answer_is_idle() {
    use Deadline::{ClientIdle, ServerIdle};
    let mut bench = Bench::new(&[ServerIdle]);
    for now in [10, 20, 30] {
        bench.client_says(now);
        bench.endpoint_says(now);
        bench.client_says(now);
        bench.sweeping.pass(now);
    }
    assert_eq!(bench.until_expired(31), Some((31 + LIMIT, ServerIdle)));
    bench.assert_expired();

    let mut bench = Bench::new(&[ClientIdle]);
    bench.client_says(10);
    assert_eq!(bench.until_expired(11), None);
    bench.assert_lives();
}

#[test]
fn who_sends_is_not_idle_and_has_its_lifetime() {
    use Deadline::{ClientIdle, Lifetime, ServerIdle};
    for says in [Bench::client_says, Bench::endpoint_says] {
        let mut bench = Bench::new(&[ClientIdle, ServerIdle]);
        for now in (0..20 * LIMIT).step_by(LIMIT as usize) {
            says(&mut bench, now);
            bench.sweeping.pass(now);
            bench.sweeping.pass(now + LIMIT);
            bench.assert_lives();
        }
        let mut bench = Bench::new(&[ClientIdle, ServerIdle, Lifetime]);
        let ended = (1..).find(|now| {
            says(&mut bench, *now);
            bench.sweeping.pass(*now);
            bench.expired() != [0; DEADLINES]
        });
        let (least, most) = (LIMIT - LIMIT / 10, LIMIT + LIMIT / 10);
        assert!((least..=most + 1).contains(&ended.unwrap()), "{ended:?}");
        assert_eq!(bench.expired()[Lifetime as usize], 1);
        bench.assert_expired();
    }
}

#[test]
fn one_side_may_stay_open_for_a_while() {
    use Deadline::{ClientIdle, HalfClose, ServerIdle};
    let mut bench = Bench::new(&[ClientIdle, HalfClose, ServerIdle]);
    bench.endpoint_says(20);
    bench.sweeping.pass(20);
    bench.change(|there, _| there.flags |= FIN);
    // The other one may go on, but not for longer.
    let ended = (21..).find(|now| {
        bench.endpoint_says(*now);
        bench.sweeping.pass(*now);
        bench.expired() != [0; DEADLINES]
    });
    assert_eq!(ended, Some(21 + LIMIT + 1));
    assert_eq!(bench.expired()[HalfClose as usize], 1);
    bench.assert_expired();
}

#[test]
fn a_handshake_that_takes_too_long_leaves_its_seats() {
    let flow = NewFlow::tcp(1).seen(SEEN, 0).half();
    let mut bench = Bench::with(flow, &[Deadline::Handshake]);
    for now in 1..=LIMIT {
        bench.acknowledge(now);
        bench.sweeping.pass(now);
        assert_eq!(bench.in_use(), 1, "{now}");
    }
    bench.sweeping.pass(LIMIT + 1);
    assert_eq!((bench.in_use(), bench.table.members()), (0, vec![]));
    assert_eq!(record::flags(bench.there) & (LATE | EXPIRED), LATE);
    assert!(bench.table.has(&bench.flow), "it may yet be completed");
    for now in LIMIT + 2..3 * LIMIT {
        bench.sweeping.pass(now);
    }
    assert_eq!(bench.expired()[Deadline::Handshake as usize], 1, "once");
}

#[test]
fn datagrams_end_their_flow() {
    for (deadline, reply) in [(Deadline::ServerIdle, 0), (Deadline::ClientIdle, SEEN)] {
        let other = match deadline {
            Deadline::ServerIdle => Deadline::ClientIdle,
            _ => Deadline::ServerIdle,
        };
        let flow = NewFlow::udp(1).seen(SEEN, reply);
        let mut bench = Bench::with(flow, &[other]);
        bench.sweeping.pass(5 * LIMIT);
        assert!(bench.table.has(&flow) && bench.in_use() == 1);

        let mut bench = Bench::with(flow, &[deadline]);
        bench.sweeping.pass(LIMIT);
        assert!(bench.table.has(&flow) && bench.in_use() == 1);
        bench.sweeping.pass(LIMIT + 1);
        assert!(!bench.table.has(&flow));
        assert_eq!((bench.in_use(), bench.table.members()), (0, vec![]));
        assert_eq!(bench.expired()[deadline as usize], 1);
        assert_eq!(bench.table.flows(), 0);
    }
}

/// Nobody sends anything, so both sides are reset, with the numbers that they expect.
#[test]
fn silent_sides_are_reset_and_their_flow_ends() {
    let mut bench = Bench::new(&[Deadline::ClientIdle]);
    bench.client_says(1);
    bench.endpoint_says(1);
    bench.sweeping.pass(1);
    assert_eq!(bench.sweeping.resets(), []);
    let (end, _) = bench.until_expired(2).unwrap();
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let (client, frontend) = (address("192.0.0.0:2"), address("10.96.0.1:80"));
    let of_client = Reset {
        from: frontend,
        to: client,
        sequence: 2,
        acknowledged: 1005,
    };
    let of_endpoint = Reset {
        from: client,
        to: bench.flow.endpoint(),
        sequence: 1005,
        acknowledged: 2,
    };
    for _ in 0..3 {
        assert_eq!(record::flags(bench.back) & RST, 0, "it may be lost");
        assert_eq!(bench.sweeping.resets(), [of_client, of_endpoint]);
    }
    assert_eq!(bench.sweeping.resets(), []);
    assert_eq!(record::flags(bench.back) & RST, RST);
    // As long as closed connections stay.
    bench.sweeping.timeouts_are(5);
    bench.sweeping.pass(end + 6);
    assert!(!bench.table.has(&bench.flow));

    // Not in the name of another connection.
    let mut bench = Bench::new(&[Deadline::ClientIdle]);
    bench.until_expired(2).unwrap();
    assert_eq!(bench.sweeping.resets().len(), 2);
    bench.table.end(bench.there);
    bench.table.tick(5 * LIMIT);
    bench.table.open(&bench.flow.at(5 * LIMIT)).unwrap();
    assert_eq!(bench.sweeping.resets(), []);
}

#[test]
fn an_audit_counts_and_ends_nothing() {
    use Deadline::{ClientIdle, Handshake};
    for (flow, deadline) in [
        (NewFlow::tcp(1).seen(SEEN, SEEN), ClientIdle),
        (NewFlow::tcp(1).seen(SEEN, 0).half(), Handshake),
        (NewFlow::udp(1).seen(SEEN, SEEN), ClientIdle),
    ] {
        let mut bench = Bench::with(flow, &[ClientIdle, Handshake]);
        let schema = FlowSchema {
            is_audited: 1,
            ..bench.table.schemas.read(SCHEMA)
        };
        bench.table.schemas.write(SCHEMA, &schema);
        for now in 1..5 * LIMIT {
            bench.sweeping.pass(now);
            bench.assert_lives();
        }
        assert_eq!(bench.expired()[deadline as usize], 1, "once");
    }
}

#[test]
fn a_connection_in_the_place_of_another_has_its_own_time() {
    use Deadline::{ClientIdle, Lifetime};
    let mut bench = Bench::new(&[ClientIdle, Lifetime]);
    bench.sweeping.pass(LIMIT / 2);
    let place = bench.back;
    bench.table.end(bench.there);
    // The same client and port, before the next pass.
    bench.table.tick(LIMIT);
    bench.table.open(&bench.flow.at(LIMIT)).unwrap();
    (bench.there, bench.back) = bench.table.pair(&bench.flow).unwrap();
    assert_eq!(bench.back, place);
    let (end, _) = bench.until_expired(LIMIT).unwrap();
    assert!(end > LIMIT + LIMIT - LIMIT / 10, "{end}");
}
