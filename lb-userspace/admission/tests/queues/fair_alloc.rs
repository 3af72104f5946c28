//! Upstream's examples of max-min fairness: what clients get that want so many seats at once.

use lb_admission::queueset::Policy;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    support::{POLICIES, level, simulate},
    vectors,
};

const SECOND: u64 = 1_000_000_000;

#[derive(Deserialize)]
struct Case {
    demands: Vec<u32>,
    capacity: u32,
    alloc: Vec<f64>,
}

#[test]
fn clients_get_what_max_min_fairness_gives_them() {
    let cases: Vec<Case> = vectors::at("/e_queueset/fairAlloc");
    assert_eq!(cases.len(), 5);
    for Case {
        demands,
        capacity,
        alloc,
    } in cases
    {
        for policy in POLICIES {
            let seats = averages(policy, &demands, capacity);
            for (index, (seats, expected)) in seats.iter().zip(&alloc).enumerate() {
                let what = format!("{policy:?}, client {index} of {demands:?}: {seats}");
                assert!((seats - expected).abs() <= 0.1 * expected, "{what}");
            }
            assert_eq!(seats.len(), alloc.len());
        }
    }
}

/// The seats that clients hold on average, who want so many all the time. Each has a queue.
fn averages(policy: Policy, demands: &[u32], capacity: u32) -> Vec<f64> {
    let wants = |(hash, &threads): (usize, &u32)| -> Option<Value> {
        (threads > 0).then(|| {
            json!({
                "hash": hash, "threads": threads, "calls": 200, "exec_ns": SECOND / 10,
                "think_ns": 1,
            })
        })
    };
    let clients: Vec<Value> = demands.iter().enumerate().filter_map(wants).collect();
    let mut seats = Vec::new();
    if !clients.is_empty() {
        let workload = json!({
            "level": "tested", "duration_ns": 10 * SECOND, "currentLimit": capacity,
            "clients": clients,
        });
        let report = simulate(policy, None, &[level("tested", 1, 8, 1)], 100, workload);
        seats.extend(report.clients.iter().map(|client| client.average_seats[0]));
    }
    let mut seats = seats.into_iter();
    let of_client = |&threads: &u32| match threads {
        0 => 0.0,
        _ => seats.next().expect("one for each client"),
    };
    demands.iter().map(of_client).collect()
}
