//! healthCheckNodePort, asked as an outer load balancer does.

use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::traffic::Protocol;
use lb_tests::{
    Balanced, Condition, FailureKind, Family, HttpAnswer, Request, Serve, eventually, http_get,
    manifests::node_object,
};
use serde_json::Value;

use super::support::{
    HEALTH_CHECK_NODE_PORT, Policy, ground, ground_with, load_balancer_ip, service,
};

const WEIGHT: &str = "x-load-balancing-endpoint-weight";

#[test]
fn only_ready_local_endpoints_count_while_terminating_ones_still_serve() {
    let (ground, mut web) = ground(Policy::Local);
    expect(&ground, 1, 200, 2);
    expect(&ground, 2, 200, 1);

    web.mark_oldest(&ground, 1, Condition::Terminating).unwrap();
    expect(&ground, 1, 200, 1);
    web.mark_oldest(&ground, 2, Condition::Terminating).unwrap();
    expect(&ground, 1, 503, 0);
    expect(&ground, 2, 200, 1);
    for family in Family::BOTH {
        let reply = request(family).send(ground.lab.client()).unwrap();
        assert!(["web-1", "web-2"].contains(&&*reply.server), "{reply:?}");
    }

    web.remove_oldest(&ground, 2).unwrap();
    expect(&ground, 1, 503, 0);
    // Dropped, not rejected, because the outer load balancer is to try another node.
    for family in Family::BOTH {
        let failure = request(family).send(ground.lab.client()).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout, "{failure}");
    }

    web.add(&ground, 1).unwrap();
    expect(&ground, 1, 200, 1);
    for family in Family::BOTH {
        assert_eq!(
            request(family).send(ground.lab.client()).unwrap().server,
            "web-4"
        );
    }
}

#[test]
fn a_port_in_use_is_reported_and_opened_once_free() {
    let (ground, _web) = ground(Policy::Cluster);
    let squatter = Serve::new("squatter").http(HEALTH_CHECK_NODE_PORT);
    let squatter = squatter.start(ground.lab.node(1)).unwrap();
    ground
        .change(|| service(&ground, Policy::Local).apply())
        .unwrap();
    let log = ground.agents[0].log().unwrap();
    assert!(log.contains("default/web: cannot listen on"), "{log}");
    let failed = ground.metric(1, r#"node_lb_health_check_servers{state="failed"}"#);
    assert_eq!(failed.unwrap(), 2.0, "one for each family");
    expect(&ground, 2, 200, 1);

    drop(squatter);
    eventually(|| {
        let found = ask(&ground, 1, Family::V4).map_err(|error| format!("{error:#}"))?;
        (found.headers.contains_key(WEIGHT))
            .then_some(())
            .ok_or(found.body)
    });
    expect(&ground, 1, 200, 2);
}

/// Only the Node object says which addresses are the primary ones.
#[test]
fn servers_listen_on_the_addresses_for_node_ports() {
    let arguments = ["--xdp-mode=native", "--nodeport-addresses=primary"];
    let (ground, _web) = ground_with(Policy::Local, &arguments);
    expect(&ground, 1, 200, 2);
    let loopback = SocketAddr::from(([127, 0, 0, 1], HEALTH_CHECK_NODE_PORT));
    let error = http_get::get(ground.lab.node(1), loopback, "/").unwrap_err();
    assert!(format!("{error:#}").contains("refused"), "{error:#}");
}

/// The node gets another primary address, or its first one late.
#[test]
fn servers_follow_the_addresses_of_the_node() {
    let arguments = ["--xdp-mode=native", "--nodeport-addresses=primary"];
    let (ground, _web) = ground_with(Policy::Local, &arguments);
    expect(&ground, 1, 200, 2);
    let node = ground.lab.node(1);
    node.run("ip addr add 172.30.77.200/24 dev eth0").unwrap();
    let mut object = node_object(node);
    object["status"]["addresses"][0]["address"] = "172.30.77.200".into();
    ground.lab.manifests().apply(&object).unwrap();

    let moved: SocketAddr = ([172, 30, 77, 200], HEALTH_CHECK_NODE_PORT).into();
    let answer = eventually(|| http_get::get(ground.lab.client(), moved, "/"));
    assert_eq!((answer.status, &*answer.headers[WEIGHT]), (200, "2"));
    let error = ask(&ground, 1, Family::V4).unwrap_err();
    assert!(format!("{error:#}").contains("refused"), "{error:#}");
    assert_eq!(ask(&ground, 1, Family::V6).unwrap().status, 200);

    ground.lab.manifests().apply(&node_object(node)).unwrap();
    eventually(|| ask(&ground, 1, Family::V4));
    expect(&ground, 1, 200, 2);
}

#[test]
fn the_port_is_closed_with_the_service() {
    let (ground, _web) = ground(Policy::Local);
    expect(&ground, 1, 200, 2);
    ground
        .change(|| ground.lab.manifests().delete("Service", "web"))
        .unwrap();
    for family in Family::BOTH {
        let error = ask(&ground, 1, family).unwrap_err();
        assert!(format!("{error:#}").contains("refused"), "{error:#}");
    }
}

/// Asserts the answers of node number `node` over both families.
#[track_caller]
fn expect(ground: &Balanced, node: usize, status: u16, endpoints: u64) {
    for family in Family::BOTH {
        let answer = ask(ground, node, family).unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.headers[WEIGHT], endpoints.to_string());
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body["service"]["name"], "web");
        assert_eq!(body["localEndpoints"], endpoints);
        assert_eq!(body["serviceProxyHealthy"], true);
    }
}

fn ask(ground: &Balanced, node: usize, family: Family) -> anyhow::Result<HttpAnswer> {
    let address: SocketAddr = ground.lab.node(node).at(family, HEALTH_CHECK_NODE_PORT);
    http_get::get(ground.lab.client(), address, "/")
}

fn request(family: Family) -> Request {
    let request = Request::http(load_balancer_ip(family, Protocol::Http));
    request.deadline(Duration::from_secs(1))
}
