//! Endpoints that change a hundred times a second.

use std::thread;
use std::time::{Duration, Instant};

use lb_tests::traffic::Protocol;
use lb_tests::{Condition, Family, Request};

use super::support::{Everywhere, Policy, cluster_ip, ground};

const INTERVAL: Duration = Duration::from_millis(10);
const TIME: Duration = Duration::from_secs(3);

#[test]
fn endpoint_churn_fails_no_request() {
    let (ground, mut web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    let start = Instant::now();
    let mut next = start;
    let mut changes = 0;
    while start.elapsed() < TIME {
        let condition = match changes % 2 {
            0 => Condition::Terminating,
            _ => Condition::Ready,
        };
        web.set_oldest(2, condition);
        web.write(&ground).unwrap();
        changes += 1;
        next += INTERVAL;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    assert!(
        changes > 200,
        "only {changes} changes: this machine is too busy to tell"
    );
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
