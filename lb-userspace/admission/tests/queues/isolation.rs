//! Which flows suffer from others: the integration scenarios of API Priority and Fairness,
//! including the two that its own tests skip as flaky. In virtual time they are exact.

use lb_admission::{queueset::Policy, simulate::Report};
use serde_json::{Value, json};

use crate::support::{POLICIES, level, simulate};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;

/// Clients that open one connection after another, more than fit into ten seconds.
fn clients(level: &str, hash: u64, threads: u32, exec_ns: u64) -> Value {
    let calls = 10 * SECOND / exec_ns + 1;
    json!({
        "level": level, "hash": hash, "threads": threads, "calls": calls, "exec_ns": exec_ns,
        "think_ns": 1,
    })
}

/// A flow that opens connections whatever happens to them.
fn source(level: &str, name: &str, rate: f64, hold_ns: u64) -> Value {
    json!({
        "level": level, "name": name, "connections_per_second": rate, "hold_ns": hold_ns,
        "random_holds": true,
    })
}

/// Runs clients of three levels with these shares for ten seconds.
fn ten_seconds(policy: Policy, seats: u32, levels: [u32; 3], clients: [Value; 2]) -> Report {
    let [elephants, mice, others] = levels;
    let levels = [
        level("elephants", elephants, 100, 1),
        level("mice", mice, 100, 1),
        level("others", others, 100, 1),
    ];
    let workload = json!({"level": "elephants", "duration_ns": 10 * SECOND, "clients": clients});
    simulate(policy, None, &levels, seats, workload)
}

#[test]
fn many_clients_of_one_level_take_nothing_from_few_of_another() {
    for policy in POLICIES {
        let clients = [
            clients("elephants", 1, 51, 50 * MILLISECOND),
            clients("mice", 2, 3, 50 * MILLISECOND),
        ];
        let report = ten_seconds(policy, 2, [1, 1, 245], clients);
        let [elephants, mice] = &report.clients[..] else {
            panic!("{report:?}");
        };
        assert_eq!(
            (elephants.rejections, mice.rejections),
            (0, 0),
            "{policy:?}"
        );
        // Each has one seat, which is always in use.
        for client in [elephants, mice] {
            assert!(
                (0.95..=1.0).contains(&client.average_seats[0]),
                "{policy:?} {client:?}"
            );
        }
    }
}

#[test]
fn levels_use_their_seats_and_no_more() {
    // Five seats each, as in upstream's TestConcurrencyIsolation, with its bounds.
    for policy in POLICIES {
        let clients = [
            clients("elephants", 1, 55, 200 * MILLISECOND),
            clients("mice", 2, 3, 200 * MILLISECOND),
        ];
        let report = ten_seconds(policy, 20, [100, 100, 245], clients);
        let [elephants, mice] = &report.clients[..] else {
            panic!("{report:?}");
        };
        assert_eq!(
            (elephants.rejections, mice.rejections),
            (0, 0),
            "{policy:?}"
        );
        let utilisation = elephants.average_seats[0] / 5.0;
        assert!((utilisation - 1.0).abs() < 0.05, "{policy:?} {elephants:?}");
        let utilisation = mice.average_seats[0] / 5.0;
        assert!(
            (utilisation - 3.0 / 5.0).abs() < 0.05,
            "{policy:?} {mice:?}"
        );
    }
}

/// Asserts that sources got 90 % of their seats, for holds from those of requests to those of
/// tunnels.
fn check_not_drowned(within: bool) {
    for policy in POLICIES {
        for hold in [10 * MILLISECOND, SECOND] {
            // 100 seats each, or 200 for both.
            let capacity = 100.0 / (hold as f64 / 1e9);
            let (levels, other) = match within {
                true => (vec![level("busy", 2, 128, 6)], "busy"),
                false => (
                    vec![level("busy", 1, 128, 6), level("calm", 1, 128, 6)],
                    "calm",
                ),
            };
            let busy_seats = if within { 150.0 } else { 100.0 };
            let workload = json!({
                "level": "busy",
                "duration_ns": 100 * hold,
                "sources": [
                    source("busy", "noisy", 4.0 * capacity, hold),
                    source(other, "quiet", 0.5 * capacity, hold),
                ],
            });
            let report = simulate(policy, Some(SECOND), &levels, 200, workload);
            let [noisy, quiet] = &report.sources[..] else {
                panic!("{report:?}");
            };
            let what = format!("{policy:?}, {hold} ns, {noisy:?}, {quiet:?}");
            assert!(noisy.average_seats[0] >= 0.9 * busy_seats, "{what}");
            assert!(quiet.average_seats[0] >= 0.9 * 50.0, "{what}");
            assert_eq!(quiet.rejections, 0, "{what}");
            assert!(noisy.rejections > 0, "{what}");
        }
    }
}

#[test]
fn a_level_cannot_be_drowned_out_by_another() {
    check_not_drowned(false);
}

#[test]
fn a_flow_cannot_be_drowned_out_by_another_of_its_level() {
    check_not_drowned(true);
}
