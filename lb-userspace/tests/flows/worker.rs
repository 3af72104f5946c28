//! The sweeper's thread: it makes passes on its own, and carries out requests at once.

use std::{
    iter,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use lb_common::{
    abi::Config,
    addr::Ip6,
    flow::{
        Flow, Timeouts,
        flow_flag::{RST, SEEN},
        slots::Slots as _,
        tag,
    },
};
use node_lb::{
    config::FlowTimeouts,
    flows::{
        Counters, FlowSweeper, FlowTables, Kernel, Parties, Records, SeatTable, Stale,
        stats::Counted, timeouts,
    },
};

use super::table::{NewFlow, RATE, Table, View};

/// The pause between passes is at least a second, so what waits for the next pass is never done
/// within this time.
const AT_ONCE: Duration = Duration::from_millis(900);
/// How often a test is repeated: a machine may stop for so long that what is done at once seems to
/// have waited.
const TRIES: usize = 20;

#[test]
fn passes_happen_by_themselves() {
    let table = Table::new(64);
    let (over, live) = (NewFlow::tcp(1).seen(SEEN | RST, 0), NewFlow::udp(2).at(5));
    table.open(&over).unwrap();
    table.open(&live).unwrap();
    let sweeper = start(&table, 6, || {});

    wait(|| sweeper.stats().passes >= 2);
    assert!(table.has(&live) && !table.has(&over));
    let stats = sweeper.stats();
    assert_eq!(stats.removed.expired.total(), 1);
    assert_eq!(
        stats.services.iter().collect::<Vec<_>>(),
        [(live.service, 1)]
    );
    assert_eq!((stats.v4.records, stats.v4.occupied), (64, 2));
}

#[test]
fn stale_flows_are_ended_at_once() {
    let table = Table::new(64);
    let flows = [1, 2, 3].map(|service| NewFlow {
        service,
        ..NewFlow::udp(service)
    });
    for flow in &flows[1..] {
        table.open(flow).unwrap();
    }
    let sweeper = start(&table, 0, || {});
    wait(|| sweeper.stats().passes == 1);

    let mut stale = Stale::default();
    stale.add(1, []);
    stale.add(2, [flows[1].endpoint()]);
    let mut ended = 0;
    at_once(|| {
        // Answers of the previous flow may still be let through.
        let client = 10 + ended as u32;
        let flow = NewFlow { client, ..flows[0] };
        table.open(&flow).unwrap();
        sweeper.publication().end_stale(stale.clone());
        wait(|| !table.has(&flow));
        ended += 1;
    });
    assert!(table.has(&flows[1]) && table.has(&flows[2]));
    wait(|| sweeper.stats().removed.stale_udp == ended);
    // Without the forward record, the answers end with the second pass that sees them.
    wait(|| table.count(tag::SWEPT) == 0);
    wait(|| table.count(tag::LIVE) == 4);
}

#[test]
fn a_flow_that_a_program_was_opening_is_ended_too() {
    let table = Table::new(64);
    let flow = NewFlow::udp(1);
    let graces = Arc::new(AtomicU32::new(0));
    let opened = {
        let (table, graces) = (table.clone(), graces.clone());
        move || {
            if graces.fetch_add(1, Ordering::SeqCst) == 0 {
                // The program had chosen the endpoint before it was removed.
                table.open(&flow).unwrap();
            }
        }
    };
    let sweeper = start(&table, 0, opened);
    wait(|| sweeper.stats().passes == 1);
    let mut stale = Stale::default();
    stale.add(flow.service, []);
    sweeper.publication().end_stale(stale);

    wait(|| sweeper.stats().removed.stale_udp == 1);
    assert!(graces.load(Ordering::SeqCst) > 0 && !table.has(&flow));
}

#[test]
fn a_flow_to_an_endpoint_that_has_just_come_is_spared_by_requests_that_do_not_know_it() {
    let table = Table::new(64);
    let flow = NewFlow::udp(1);
    let sweeper = Arc::new(OnceLock::<FlowSweeper>::new());
    let published = Arc::new(AtomicU32::new(0));
    let publish = {
        let (table, sweeper, published) = (table.clone(), sweeper.clone(), published.clone());
        move || {
            // Between the first and the second check.
            if published.fetch_add(1, Ordering::SeqCst) == 0 {
                let publication = sweeper.get().unwrap().publication();
                table.open(&flow).unwrap();
                let mut stale = Stale::default();
                stale.add(flow.service, [flow.endpoint()]);
                publication.end_stale(stale);
            }
        }
    };
    sweeper.set(start(&table, 0, publish)).unwrap();
    let sweeper = sweeper.get().unwrap();
    wait(|| sweeper.stats().passes == 1);
    let mut stale = Stale::default();
    stale.add(flow.service, []);
    sweeper.publication().end_stale(stale);

    wait(|| published.load(Ordering::SeqCst) > 0 && sweeper.stats().passes >= 3);
    assert!(table.has(&flow));
}

/// Records that a flood leaves behind become free within moments, and do not lessen the share of
/// Services.
#[test]
fn records_that_have_just_ended_lessen_no_share() {
    let table = Table::new(64);
    for client in 1..=20 {
        let record = table.open(&NewFlow::tcp(client).half()).unwrap();
        table.end(record);
    }
    table.open(&NewFlow::udp(30)).unwrap();
    let shares = Arc::new(OnceLock::new());
    let told = shares.clone();
    let told = move |shares| {
        let _ = told.set(shares);
    };
    let _sweeper = start_with(&table, 0, || {}, told);
    wait(|| shares.get().is_some());
    assert_eq!(shares.get(), Some(&[1 << 15; 2]), "half, which is the most");
}

#[test]
fn it_stops_when_dropped() {
    at_once(|| {
        let sweeper = start(&Table::new(64), 0, || {});
        wait(|| sweeper.stats().passes == 1);
        drop(sweeper);
    });
}

#[test]
fn a_mask_larger_than_the_table_is_refused() {
    let config = Config {
        flow_mask4: 127,
        flow_mask6: 63,
        ..Config::default()
    };
    let tables = FlowTables {
        v4: View::new(&Table::new(64)),
        v6: NoFlows::new(),
    };
    let kernel = Kernel {
        half_open_budget: u32::MAX,
        tick: Box::new(|| Ok(0)),
        grace: Box::new(|| {}),
        counters: Arc::new(Uncounted),
        set_timeouts: Box::new(|_| {}),
        seats: Arc::new(SeatTable::in_memory()),
        parties: Arc::new(Parties::in_memory()),
        set_shares: Box::new(|_| {}),
        reset: Box::new(|_| Ok(())),
        sockets: None,
    };
    let error =
        FlowSweeper::start_with(tables, &config, Timeouts::default(), RATE, kernel).unwrap_err();
    assert!(error.to_string().contains("FLOWS4"), "{error}");
}

fn start(table: &Arc<Table>, now: u32, grace: impl Fn() + Send + 'static) -> FlowSweeper {
    start_with(table, now, grace, |_| {})
}

fn start_with(
    table: &Arc<Table>,
    now: u32,
    grace: impl Fn() + Send + 'static,
    set_shares: impl Fn([u16; 2]) + Send + 'static,
) -> FlowSweeper {
    let config = Config {
        flow_mask4: table.mask(),
        flow_mask6: 63,
        secret: table.secret(),
        ..Config::default()
    };
    let tables = FlowTables {
        v4: View::new(table),
        v6: NoFlows::new(),
    };
    let kernel = Kernel {
        half_open_budget: u32::MAX,
        tick: Box::new(move || Ok(now)),
        grace: Box::new(grace),
        counters: Arc::new(Uncounted),
        set_timeouts: Box::new(|_| {}),
        seats: Arc::new(SeatTable::in_memory()),
        parties: Arc::new(Parties::in_memory()),
        set_shares: Box::new(set_shares),
        reset: Box::new(|_| Ok(())),
        sockets: None,
    };
    let timeouts = timeouts(&FlowTimeouts::default(), RATE);
    FlowSweeper::start_with(tables, &config, timeouts, RATE, kernel).unwrap()
}

/// Repeats `work` until it is done at once.
fn at_once(mut work: impl FnMut()) {
    let took = iter::repeat_with(|| {
        let start = Instant::now();
        work();
        start.elapsed()
    });
    let took: Vec<_> = took
        .take(TRIES)
        .take_while(|took| *took >= AT_ONCE)
        .collect();
    assert!(took.len() < TRIES, "never at once: {took:?}");
}

/// Far longer than anything here takes, for machines that are busy with other tests.
fn wait(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An empty table of the other family.
struct NoFlows([AtomicU32; 64]);

impl NoFlows {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(tag::CLEAN)))
    }
}

/// Counters that no test reads.
struct Uncounted;

impl Counters for Uncounted {
    fn count(&self, _service: u32, _more: Counted) {}

    fn read(&self) -> Vec<Counted> {
        Vec::new()
    }

    fn correct(&self, service: u32, _read: Counted, _counted: Counted) {
        panic!("service {service} was not read");
    }
}

impl Records<Ip6> for NoFlows {
    fn len(&self) -> u32 {
        64
    }

    fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        assert_eq!(
            offset, 0,
            "record {index} is free, so that only its tag is of interest"
        );
        &self.0[index as usize]
    }

    fn read(&self, index: u32) -> Flow<Ip6> {
        panic!("record {index} is free")
    }
}
