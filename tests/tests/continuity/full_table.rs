//! A full flow table refuses new flows, and counts them. Existing flows go on.

use std::time::Duration;

use lb_common::verdict::Reason;
use lb_tests::traffic::{Loads, Protocol};
use lb_tests::{Family, Load, Request, patient};

use super::support::{Policy, ground_with, load_balancer_ip};

#[test]
fn a_full_table_costs_only_new_flows() {
    let arguments = ["--xdp-mode=native", "--flow-table-size=1024"];
    let (ground, _web) = ground_with(Policy::Cluster, &arguments);
    let client = ground.lab.client();
    let established = Load::new(Request::http(load_balancer_ip(Family::V4, Protocol::Http)))
        .workers(50)
        .persistent()
        .pause(Duration::from_millis(20));
    let mut loads = Loads::beside(ground.lab.router()).unwrap();
    loads.start(client, established).unwrap();

    // Each request is a flow of its own, and none ends soon. The deadline is far longer than an
    // answer takes on a busy machine, so a request that fails was refused.
    let flood = Request::udp(load_balancer_ip(Family::V4, Protocol::Udp));
    let flood = Load::new(flood.deadline(patient(Duration::from_secs(2))))
        .workers(64)
        .at_least(700)
        .run_for(Duration::from_secs(4), client)
        .unwrap();
    let established = loads.stop().unwrap();
    established.assert_flawless();
    established.assert_no_reconnects();
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
