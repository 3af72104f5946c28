//! UDP has no end that a flow could follow: clients whose source port stays must be moved when
//! their endpoint goes.

use std::thread;
use std::time::Duration;

use lb_tests::traffic::{Protocol, RunningLoad};
use lb_tests::{Family, Host, Load, Request};

use super::support::{Policy, assert_flawless, cluster_ip, ground, load_balancer_ip};

#[test]
fn a_client_with_a_fixed_port_outlives_its_pods() {
    let (ground, mut web) = ground(Policy::Cluster);
    let lab = &ground.lab;
    let (client, pod): (&Host, &Host) = (lab.client(), lab.pod("pod-2-1"));
    let mut loads = Vec::new();
    for (number, family) in (0..).zip(Family::BOTH) {
        let outside = load_balancer_ip(family, Protocol::Udp);
        let inside = cluster_ip(family, Protocol::Udp);
        loads.push(start(
            Request::udp(outside).from_port(40_000 + number),
            client,
        ));
        loads.push(start(Request::udp(inside).from_port(40_000 + number), pod));
        loads.push(start(
            Request::udp_unconnected(inside).from_port(41_000 + number),
            pod,
        ));
    }
    web.roll(&ground).unwrap();
    thread::sleep(Duration::from_millis(500));
    for load in loads {
        assert_flawless(&load.stop().unwrap());
    }
}

/// A node's own socket is translated when it is connected, and stays with its endpoint until that
/// goes.
#[test]
fn a_socket_of_the_node_outlives_its_pods() {
    let (ground, mut web) = ground(Policy::Cluster);
    let node = ground.lab.node(2);
    let inside = cluster_ip(Family::V4, Protocol::Udp);
    let unconnected = start(Request::udp_unconnected(inside).from_port(41_000), node);
    web.roll(&ground).unwrap();
    thread::sleep(Duration::from_millis(500));
    assert_flawless(&unconnected.stop().unwrap());
}

/// One socket for all its requests.
fn start(request: Request, host: &Host) -> RunningLoad {
    let load = Load::new(request).workers(1).persistent();
    load.pause(Duration::from_millis(10)).start(host).unwrap()
}
