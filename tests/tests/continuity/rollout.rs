//! Rolling updates: every pod replaced, and no request fails.

use lb_tests::traffic::Protocol;
use lb_tests::{Family, Request};

use super::support::{Everywhere, Policy, assert_refused, cluster_ip, ground, load_balancer_ip};

#[test]
fn a_rolling_update_fails_no_request_under_policy_cluster() {
    let (ground, mut web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    web.roll(&ground).unwrap();
    load.assert_no_failures();
}

#[test]
fn a_rolling_update_fails_no_request_under_policy_local() {
    let (ground, mut web) = ground(Policy::Local);
    let load = Everywhere::start(&ground);
    web.roll(&ground).unwrap();
    load.assert_no_failures();
}

/// Without a readiness gate, all old pods terminate before new ones are ready.
#[test]
fn terminating_pods_serve_while_no_other_can() {
    use lb_tests::Condition;
    let (ground, mut web) = ground(Policy::Local);
    let load = Everywhere::start(&ground);
    web.mark_oldest(&ground, 3, Condition::Terminating).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    web.add_all(&ground, &[1, 2]).unwrap();
    web.remove_oldest(&ground, 3).unwrap();
    load.assert_no_failures();
}

#[test]
fn a_service_scaled_to_zero_refuses_and_recovers_at_once() {
    let (ground, mut web) = ground(Policy::Cluster);
    web.retire(&ground, 3).unwrap();
    let ways = |family| {
        let lab = &ground.lab;
        let outside = |protocol| Request::new(protocol, load_balancer_ip(family, protocol));
        let inside = |protocol| Request::new(protocol, cluster_ip(family, protocol));
        [
            (lab.client(), outside(Protocol::Http)),
            (lab.client(), outside(Protocol::Udp)),
            (lab.pod("pod-1-1"), inside(Protocol::Tcp)),
            (lab.pod("pod-1-1"), inside(Protocol::Udp)),
            (lab.node(1), inside(Protocol::Tcp)),
        ]
    };
    for (from, request) in Family::BOTH.into_iter().flat_map(ways) {
        assert_refused(&request.send(from));
    }
    web.add_all(&ground, &[1, 2]).unwrap();
    for (from, request) in Family::BOTH.into_iter().flat_map(ways) {
        request.send(from).unwrap();
    }
}
