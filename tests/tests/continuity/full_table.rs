//! A flow table that is full refuses what is new, and counts it; what is there goes on.

use std::time::Duration;

use lb_common::verdict::Reason;
use lb_tests::traffic::Protocol;
use lb_tests::{Family, Load, Request};

use super::support::{Policy, assert_flawless, ground_with, load_balancer_ip};

#[test]
fn a_full_table_costs_only_new_flows() {
    let arguments = ["--xdp-mode=native", "--flow-table-size=1024"];
    let (ground, _web) = ground_with(Policy::Cluster, &arguments);
    let client = ground.lab.client();
    let established = Load::new(Request::http(load_balancer_ip(Family::V4, Protocol::Http)))
        .workers(50)
        .persistent()
        .pause(Duration::from_millis(20))
        .start(client)
        .unwrap();

    // Each request is a flow of its own, and none of them ends soon. The deadline is far beyond what
    // an answer takes on a busy machine, so that who fails was refused.
    let flood = Request::udp(load_balancer_ip(Family::V4, Protocol::Udp));
    let flood = Load::new(flood.deadline(Duration::from_secs(1)))
        .workers(128)
        .run_for(Duration::from_secs(4), client)
        .unwrap();
    let established = established.stop().unwrap();
    assert_flawless(&established);
    assert_eq!(established.reconnects, 0, "{established}");
    assert!(
        flood.ok > 500 && flood.failed > 0,
        "the table was never full: {flood}"
    );
    let refused = ground.packets(1, Reason::FlowTableFull).unwrap();
    assert!(
        refused >= flood.failed,
        "{refused} are counted of {}",
        flood.failed
    );
}
