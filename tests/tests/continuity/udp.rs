//! UDP has no end that a flow could follow, so clients with a constant source port must be moved
//! when their endpoint goes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use lb_tests::traffic::{LoadReport, Protocol, RunningLoad};
use lb_tests::{Deployment, FailureKind, Family, Host, Load, Request, patient};

use super::support::{Policy, cluster_ip, ground, load_balancer_ip};

/// When an answer counts as lost: far longer than it takes on a busy machine. When this time has
/// passed after the last change, every client has asked again.
const LOST: Duration = Duration::from_secs(2);

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
    thread::sleep(patient(2 * LOST));
    for load in loads {
        assert_moved(&load.stop().unwrap(), &web);
    }
}

/// A node's own unconnected socket is translated datagram by datagram.
#[test]
fn an_unconnected_socket_of_the_node_outlives_its_pods() {
    for report in roll_beside(Request::udp_unconnected) {
        assert_eq!(report.reconnects, 0, "{report}");
    }
}

/// A node's own connected socket is translated when it connects, and stays with its endpoint until
/// that goes. Then the kernel tells the process, which connects again.
#[test]
fn a_connected_socket_of_the_node_is_told_when_its_pod_goes_and_connects_again() {
    for report in roll_beside(Request::udp) {
        // At most once for each of three pods.
        assert!((1..=3).contains(&report.reconnects), "{report}");
    }
}

/// Replaces all pods while node 2 asks them from one socket of each family.
fn roll_beside(request: fn(SocketAddr) -> Request) -> Vec<LoadReport> {
    let (ground, mut web) = ground(Policy::Cluster);
    let loads: Vec<_> = (41_000..)
        .zip(Family::BOTH)
        .map(|(port, family)| {
            let request = request(cluster_ip(family, Protocol::Udp)).from_port(port);
            start(request, ground.lab.node(2))
        })
        .collect();
    web.roll(&ground).unwrap();
    thread::sleep(patient(2 * LOST));
    let reports = loads.into_iter().map(|load| load.stop().unwrap());
    reports
        .inspect(|report| assert_moved(report, &web))
        .collect()
}

/// Asserts that the present pods have answered, and that at most one datagram per replaced pod was
/// lost: the one under way when its flows were cleared.
#[track_caller]
fn assert_moved(report: &LoadReport, web: &Deployment) {
    let now: BTreeSet<_> = web.pods().map(|pod| pod.name()).collect();
    let answered = report.servers.keys().any(|name| now.contains(&**name));
    assert!(answered, "none of {now:?} answered: {report}");
    let lost = |kind| kind == FailureKind::Timeout;
    let only_lost = report
        .failures
        .iter()
        .all(|(_, failure)| lost(failure.kind));
    assert!(only_lost && report.failed <= 3, "{report}");
}

/// A load that uses one socket for all its requests.
fn start(request: Request, host: &Host) -> RunningLoad {
    let request = request.deadline(patient(LOST));
    let load = Load::new(request).workers(1).persistent();
    load.pause(Duration::from_millis(10)).start(host).unwrap()
}
