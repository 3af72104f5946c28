//! Ageing of the real flow tables by the kernel's clock. Needs root.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lb_common::{
    abi::{Config, Limits},
    addr::{Address, Ip4, Ip6},
    flow::{
        Flow, Rewrite,
        flow_flag::{self, RST, SEEN},
        tag,
    },
};
use lb_datapath::{
    Jiffies, TickRate,
    bpf::{BatchMap, MappedArray},
    hz,
    socket_seats::SeatedSockets,
};
use lb_objects::Protocol;
use lb_tests::{PinRoot, eventually, programs};
use node_lb::{
    config::FlowTimeouts,
    flows::{
        FlowSweeper, FlowTables, Parties, SeatTable, ServiceCounters, Sockets, UdpSockets, timeouts,
    },
};

#[test]
fn jiffies_go_at_the_rate_said() {
    let jiffies = Jiffies::open().unwrap();
    // Each reading is between two of the other clock's, however long it takes.
    let read = || (Instant::now(), jiffies.now().unwrap(), Instant::now());
    let (earliest_start, before, latest_start) = read();
    thread::sleep(Duration::from_millis(400));
    let (earliest_end, after, latest_end) = read();

    let ticks = |time: Duration| time.as_secs_f64() * f64::from(hz());
    let least = ticks(earliest_end - latest_start) * 0.95 - 2.0;
    let most = ticks(latest_end - earliest_start) * 1.05 + 2.0;
    let found = (after - before) as f64;
    assert!(
        (least..=most).contains(&found),
        "{found} jiffies, not {least} to {most}"
    );
}

#[test]
fn jiffies_are_the_kernels() {
    let jiffies = Jiffies::open().unwrap();
    let before = jiffies.now().unwrap();
    let timers = std::fs::read_to_string("/proc/timer_list").unwrap();
    let after = jiffies.now().unwrap();
    let line = timers
        .lines()
        .find_map(|line| line.strip_prefix("jiffies: "));
    let expected: u64 = line.unwrap().trim().parse().unwrap();
    assert!(
        (before..=after).contains(&expected),
        "{before} to {after}, the kernel says {expected}"
    );
}

#[test]
fn flows_in_the_kernels_tables_are_ended() {
    let root = PinRoot::new();
    let pins = root.pins(programs::VERSION);
    let mut loaded = programs::start(&pins, &[]);
    let v4: MappedArray<Flow<Ip4>> = MappedArray::new(&loaded.map("FLOWS4").unwrap()).unwrap();
    let v6: MappedArray<Flow<Ip6>> = MappedArray::new(&loaded.map("FLOWS6").unwrap()).unwrap();
    let rate = TickRate::of_kernel();
    let config = Config {
        hz: rate.hz,
        tick_shift: rate.shift,
        flow_mask4: v4.len() - 1,
        flow_mask6: v6.len() - 1,
        ..Config::default()
    };
    let now = rate.tick(Jiffies::open().unwrap().now().unwrap());
    let ago = |seconds| now.wrapping_sub(rate.ticks(Duration::from_secs(seconds)));
    insert(&v4, 8, SEEN | RST, ago(10));
    insert(&v4, 800, SEEN, ago(50));
    insert(&v6, 80, SEEN | RST, ago(10));
    insert(&v6, 8_000, SEEN, now);

    let seated = SeatedSockets::open(&mut loaded).unwrap();
    let sockets = Sockets {
        udp: UdpSockets::new(BatchMap::new(&loaded.map("SOCKETS").unwrap()).unwrap()),
        seats: Box::new(move |each| seated.for_each(each)),
    };
    let tables = FlowTables { v4, v6 };
    let limits = MappedArray::new(&loaded.map("LIMITS").unwrap()).unwrap();
    limits.write(
        0,
        &Limits {
            timeouts: timeouts(&FlowTimeouts::default(), rate),
            ..Limits::default()
        },
    );
    let counters = ServiceCounters::open(&loaded).unwrap();
    let seats = Arc::new(SeatTable::open(&loaded).unwrap());
    let parties = Parties::open(&loaded).unwrap();
    let sweeper = FlowSweeper::start(
        tables,
        &config,
        limits,
        counters,
        seats,
        parties,
        Some(sockets),
    )
    .unwrap();
    eventually(|| match sweeper.stats().passes {
        passes @ 0..2 => Err(format!("{passes} passes")),
        _ => Ok(()),
    });
    let stats = sweeper.stats();
    drop(sweeper);

    println!("IPv4 {:?}, IPv6 {:?}", stats.v4.scan, stats.v6.scan);
    assert_eq!(stats.removed.expired.total(), 2);
    assert_eq!((stats.v4.flows.total(), stats.v6.flows.total()), (1, 1));
    assert_eq!((stats.v4.occupied, stats.v4.tombs), (2, 2));
    assert_eq!(
        stats
            .removed
            .expired
            .iter()
            .filter(|(p, ..)| *p == Protocol::Udp)
            .count(),
        5
    );
    let v4: MappedArray<Flow<Ip4>> = MappedArray::new(&loaded.map("FLOWS4").unwrap()).unwrap();
    assert_eq!(tag::state(v4.read(8).tag), tag::TOMB);
    assert_eq!(tag::state(v4.read(9).tag), tag::TOMB);
    assert_eq!(tag::state(v4.read(800).tag), tag::LIVE);
}

/// Writes a flow's two records, at `index` and after it, as if a program had written them.
fn insert<A: Address>(records: &MappedArray<Flow<A>>, index: u32, seen: u32, last_seen: u32)
where
    Flow<A>: aya::Pod,
{
    let address = A::from_mapped(Ip6::default());
    let record = |flags, peer| Flow {
        tag: tag::LIVE,
        last_seen,
        source: address,
        destination: address,
        source_port: 1000,
        destination_port: 80,
        flags: flow_flag::NUMBERED | flags | seen,
        rewrite: Rewrite {
            source: address,
            destination: address,
            source_port: 1000,
            destination_port: 8080,
        },
        hop: 0,
        next: 0,
        acknowledged: 0,
        window: 0,
        mark: 0,
        detail: 0,
        peer,
        service: 1,
    };
    records.write(index, &record(0, index + 1));
    records.write(index + 1, &record(flow_flag::REPLY, index));
}
