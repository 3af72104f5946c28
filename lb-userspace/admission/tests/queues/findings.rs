//! Harm that simulations of the first rules for connections showed, and that it is gone. Each test
//! says what the same simulation gave then.

use lb_admission::{
    controller::{Controller, Event},
    level::{Level, LevelKind},
    queueset::{Arrival, Policy},
    simulate::{Replay, Report, Settings, report::FlowReport, run_trace},
};
use serde_json::{Value, json};

use crate::support::{level, simulate};

const SECOND: u64 = 1_000_000_000;

/// Runs sources of the level `tested`, whose connections wait for a second.
fn run(levels: &[Level], seats: u32, seconds: u64, sources: Value) -> Report {
    let workload = json!({
        "level": "tested", "duration_ns": seconds * SECOND, "sources": sources,
    });
    simulate(Policy::Connections, Some(SECOND), levels, seats, workload)
}

fn borrows_without_limit(mut level: Level) -> Level {
    if let LevelKind::Limited(limited) = &mut level.kind {
        limited.borrowing_limit_percent = None;
    }
    level
}

/// Then: never more than 1,900 of 2,000 seats in use, and 183 of the new flows' 345 connections
/// refused, although they wanted two seats each and their fair share is five.
#[test]
fn first_seats_are_kept_for_flows_and_no_more_than_there_are() {
    let levels = [level("tested", 1, 128, 6)];
    // Four hundred flows want twice what there is.
    let report = run(
        &levels,
        2000,
        3600,
        json!([
            {"name": "old", "flows": 400, "connections_per_second": 40.0, "hold_ns": 100 * SECOND,
             "random_holds": true},
            {"name": "new", "flows": 5, "connections_per_second": 0.1, "hold_ns": 100 * SECOND,
             "random_holds": true, "start_ns": 240 * SECOND},
        ]),
    );
    let (used, new) = (report.levels[0].max_seats_in_use, &report.sources[1]);
    println!("{used} of 2000 seats in use, {new:?}");
    assert!(used >= 1990, "{used}");
    assert!(new.executions > 300 && new.rejections < 10, "{new:?}");
}

/// Then: 300 SYNs a second had 31 % of the quiet flows' connections refused with never more than
/// 480 of 1,000 seats in use; 2,000 SYNs a second 59 % with 412.
#[test]
fn handshakes_of_a_flood_cost_the_flood_alone() {
    for rate in [300.0, 2000.0] {
        let report = run(
            &[level("tested", 1, 128, 6)],
            1000,
            30,
            json!([
                {"name": "flood", "connections_per_second": rate, "hold_ns": 3 * SECOND,
                 "handshake_ns": 3 * SECOND},
                {"name": "quiet", "flows": 10, "connections_per_second": 100.0, "hold_ns": SECOND,
                 "handshake_ns": SECOND / 100},
            ]),
        );
        let [flood, quiet] = &report.sources[..] else {
            panic!("{report:?}");
        };
        println!("{rate}: {quiet:?}");
        assert_eq!(quiet.rejections, 0, "{quiet:?}");
        assert!(quiet.wait_ns.p99 < SECOND / 100, "{quiet:?}");
        assert!(
            flood.rejections > 0 && flood.average_seats[0] < 260.0,
            "{flood:?}"
        );
    }
}

/// Then: 50 seats with one queue, and 95 with 64.
#[test]
fn a_flow_alone_uses_the_whole_level() {
    for (queues, hand_size) in [(1, 1), (64, 8)] {
        let sources = json!([
            {"name": "all", "connections_per_second": 400.0, "hold_ns": SECOND},
        ]);
        let report = run(&[level("tested", 1, queues, hand_size)], 100, 30, sources);
        let used = report.levels[0].max_seats_in_use;
        println!("{queues} queues: {used} of 100 seats in use");
        assert_eq!(used, 100, "{queues} queues");
    }
}

/// Then: no such limit. A cap of the queue, half of the seats, bound no flow with two queues.
#[test]
fn a_flow_has_no_more_connections_than_it_may() {
    for (queues, hand_size) in [(0, 0), (64, 8)] {
        let mut tested = level("tested", 1, queues, hand_size);
        if let LevelKind::Limited(limited) = &mut tested.kind {
            limited.connections.max_connections_per_flow = Some(20);
        }
        let report = run(
            &[tested],
            100,
            30,
            json!([
                {"name": "greedy", "connections_per_second": 400.0, "hold_ns": SECOND},
                {"name": "other", "connections_per_second": 10.0, "hold_ns": SECOND},
            ]),
        );
        let [greedy, other] = &report.sources[..] else {
            panic!("{report:?}");
        };
        println!(
            "{queues} queues: {:.1} seats, {other:?}",
            greedy.average_seats[0]
        );
        assert!(
            (19.0..=20.0).contains(&greedy.average_seats[0]),
            "{greedy:?}"
        );
        assert_eq!(other.rejections, 0, "{other:?}");
        assert_eq!(greedy.rejections, report.levels[0].rejections.flow_limit);
    }
}

/// Then: 140 tunnels with a nominal limit of 103, because short connections vouched for them, and
/// the node held 242 of 210 seats when the lender wanted its own back.
#[test]
fn short_connections_do_not_vouch_for_tunnels() {
    let mut lender = level("lender", 107, 64, 6);
    lender.lendable_percent = 90;
    let borrower = borrows_without_limit(level("tested", 103, 64, 6));
    let report = run(
        &[lender, borrower],
        210,
        600,
        json!([
            {"name": "churn", "flows": 20, "connections_per_second": 300.0, "hold_ns": SECOND / 5,
             "random_holds": true},
            {"name": "tunnels", "flows": 3, "connections_per_second": 1.0,
             "hold_ns": 3600 * SECOND},
            {"name": "lender", "level": "lender", "flows": 20, "connections_per_second": 200.0,
             "hold_ns": SECOND, "random_holds": true, "start_ns": 300 * SECOND},
        ]),
    );
    // None of them ends.
    let tunnels = report.sources[1].executions;
    let [borrower, lender] = &report.levels[..] else {
        panic!("{report:?}");
    };
    let together = borrower.seats.iter().zip(&lender.seats);
    let node = together.map(|(one, other)| one.in_use + other.in_use).max();
    println!("{tunnels} tunnels, nominal limit 103; at most {node:?} of 210 seats of the node");
    assert!(tunnels <= 104, "{tunnels}");
    assert!(node <= Some(215), "{node:?}");
    assert!(
        borrower.max_seats_in_use > 120,
        "churn does borrow: {}",
        borrower.max_seats_in_use
    );
}

/// Then: 990 adjustments within ten seconds of overload.
#[test]
fn an_overload_has_limits_adjusted_once_in_a_period() {
    let mut lender = level("lender", 1, 64, 6);
    lender.lendable_percent = 50;
    let borrower = borrows_without_limit(level("tested", 1, 64, 6));
    let levels = [lender, borrower];
    let mut controller = Controller::new(&levels, 200, Policy::Connections, 0).unwrap();
    let tested = controller.find("tested").unwrap();
    let mut adjustments = 0;
    let mut held = Vec::new();
    for millisecond in 0..10_000 {
        let now = millisecond * 1_000_000;
        while let Some((at, event)) = controller.fire(now) {
            adjustments += u32::from(event == Event::Adjusted);
            while let Some((_, dispatch)) = controller.dispatch(at) {
                held.push(dispatch.grant);
            }
        }
        let arrival = Arrival::connection(millisecond * 7919, 1, 0, Some(now + SECOND));
        controller.arrive(tested, arrival, now);
        while let Some((_, dispatch)) = controller.dispatch(now) {
            held.push(dispatch.grant);
        }
    }
    println!("{adjustments} adjustments in ten seconds");
    // Twenty periods, and one more within each.
    assert!((19..=40).contains(&adjustments), "{adjustments}");
}

/// Then: all of the flow's 290 connections refused, for as many seconds after it had held eight
/// seats for 300 s.
#[test]
fn a_flow_that_held_much_long_ago_is_served_again_soon() {
    let mut arrivals = Vec::new();
    for number in 0..8 {
        arrivals.push((number * 1000, "greedy".to_owned(), 300 * SECOND));
    }
    // Eight others want little meanwhile, and three times all there is afterwards.
    for other in 0..8 {
        let mut arrive = |at: u64| {
            arrivals.push((at + other * 1_000_000, format!("other {other}"), SECOND));
        };
        (0..300).for_each(|second| arrive(second * SECOND));
        (0..1800).for_each(|number| arrive(300 * SECOND + number * SECOND / 6));
    }
    for number in 0..290 {
        arrivals.push((301 * SECOND + number * SECOND, "greedy".to_owned(), SECOND));
    }
    let all = 8 + 290;
    let greedy = flow(
        &replay(&[level("tested", 1, 64, 1)], 16, arrivals),
        "greedy",
    );
    println!("{greedy:?}");
    assert_eq!(greedy.executions + greedy.rejections, all);
    assert!(greedy.rejections < 20, "{greedy:?}");
}

/// Then: 41 of 1,954 connections timed out with 894 seats free, because they went to queues whose
/// own seats were all taken, at 50 seats for a queue. With 50 half-open places, all were refused.
#[test]
fn connections_go_to_queues_that_can_serve_them() {
    for (queues, hand_size, half_open, handshake) in
        [(8, 2, None, 0), (16, 3, Some(50), 999 * SECOND)]
    {
        let mut tested = level("tested", 1, queues, hand_size);
        if let LevelKind::Limited(limited) = &mut tested.kind {
            limited.connections.max_half_open_seats = half_open;
        }
        let report = run(
            &[tested],
            1000,
            20,
            json!([
                {"name": "holders", "connections_per_second": 10.0, "hold_ns": 1000 * SECOND,
                 "handshake_ns": handshake},
                {"name": "quiet", "flows": 20, "connections_per_second": 100.0,
                 "hold_ns": SECOND / 100, "handshake_ns": SECOND / 200, "start_ns": SECOND},
            ]),
        );
        let quiet = &report.sources[1];
        println!("{queues} queues: {quiet:?}");
        assert_eq!((quiet.executions, quiet.rejections), (1954, 0), "{quiet:?}");
    }
}

fn flow(report: &Report, name: &str) -> FlowReport {
    let flows = &report.levels[0].top_flows;
    let found = flows.iter().find(|flow| flow.name == name);
    found.unwrap_or_else(|| panic!("{flows:?}")).clone()
}

/// Replays arrivals: when, of which flow, and for how long.
fn replay(levels: &[Level], seats: u32, mut arrivals: Vec<(u64, String, u64)>) -> Report {
    arrivals.sort();
    let lines = arrivals
        .iter()
        .map(|(at, flow, hold)| format!("{at},{flow},{hold}\n"));
    let trace: String = lines.collect();
    let controller = Controller::new(levels, seats, Policy::Connections, 0).unwrap();
    let tested = controller.find("tested").unwrap();
    let settings = Settings {
        policy: Policy::Connections,
        queue_wait: Some(SECOND),
    };
    let replay = Replay {
        level: Some(tested),
        classes: None,
    };
    run_trace(controller, settings, &replay, trace.as_bytes()).unwrap()
}
