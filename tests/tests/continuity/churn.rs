//! Endpoints that change a hundred times per second.

use std::array;
use std::thread;
use std::time::{Duration, Instant};

use lb_tests::traffic::Protocol;
use lb_tests::{Balanced, Condition, Family, Request};

use super::support::{Everywhere, Policy, cluster_ip, ground};

const INTERVAL: Duration = Duration::from_millis(10);
/// Changes that are written, and times that each agent writes to its maps because of them. An agent
/// takes changes that come faster than it works together.
const CHANGES: u32 = 250;
const SYNCS: f64 = 10.0;

#[test]
fn endpoint_churn_fails_no_request() {
    let (ground, mut web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    let before = syncs(&ground);
    let mut synced = [0.0; 2];
    let mut next = Instant::now();
    let mut changes = 0;
    while changes < CHANGES || synced.iter().any(|synced| *synced < SYNCS) {
        assert!(
            changes < 100 * CHANGES,
            "of {changes} changes the agents have seen {synced:?}"
        );
        let condition = match changes % 2 {
            0 => Condition::Terminating,
            _ => Condition::Ready,
        };
        web.set_oldest(2, condition);
        web.write(&ground).unwrap();
        changes += 1;
        if changes % 50 == 0 {
            let now = syncs(&ground);
            synced = array::from_fn(|node| now[node] - before[node]);
        }
        next += INTERVAL;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    println!("{changes} changes, which agents wrote in {synced:?} steps");
    load.assert_no_failures();

    // The last change is the one in force.
    web.mark_oldest(&ground, 2, Condition::Terminating).unwrap();
    let last = web.pods().last().unwrap().name().to_owned();
    for _ in 0..10 {
        let request = Request::http(cluster_ip(Family::V4, Protocol::Http));
        assert_eq!(
            request.send(ground.lab.pod("pod-1-1")).unwrap().server,
            last
        );
    }
}

/// How often the agent on each node has written changes.
fn syncs(ground: &Balanced) -> [f64; 2] {
    let metric = "kubeproxy_sync_proxy_rules_duration_seconds_count";
    [1, 2].map(|node| ground.metric(node, metric).unwrap())
}
