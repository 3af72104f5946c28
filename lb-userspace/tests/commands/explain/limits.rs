//! Limits of connections, with and without an agent that knows how many there are.

use node_lb::agent::status::{ConnectionLimit, Status};
use serde_json::json;

use super::{NODE, NODE_CIDR, explain, explain_json};
use crate::{Files, stdout};

const LIMITED: &str = "
apiVersion: v1
kind: Service
metadata:
  namespace: shop
  name: web
  annotations: {node-lb.io/max-connections: \"20\"}
spec:
  clusterIP: 172.30.0.1
  ports: [{port: 80}, {name: quic, port: 80, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}, {name: quic, port: 8080, protocol: UDP}]
endpoints: [{addresses: [10.0.1.9]}]
";

const PACKET: [&str; 4] = ["--from", "203.0.113.9", "--to", "172.30.0.1:80"];

/// Explains beside an agent with so many connections of the Service and of the node.
fn beside_an_agent<T>(in_use: [u32; 2], explain: impl FnOnce(&str) -> T) -> T {
    let limit = |service: Option<&str>, limit, in_use| ConnectionLimit {
        service: service.map(str::to_owned),
        limit,
        long_running: false,
        in_use,
        highest: in_use,
        refused: 0,
        slow_handshakes: 0,
        pressed: false,
    };
    let status = Status {
        connection_limits: vec![
            limit(None, 100, in_use[1]),
            limit(Some("shop/web"), 20, in_use[0]),
        ],
        ..Status::default()
    };
    crate::beside_an_agent(&status, explain)
}

#[test]
fn limits_are_named_with_what_they_would_do_now() {
    let manifests = Files::numbered(&[NODE, LIMITED]);
    fn arguments(socket: &str) -> Vec<&str> {
        let own = ["--max-connections", "100", "--socket", socket];
        [&PACKET[..], &NODE_CIDR, &own].concat()
    }
    let text = beside_an_agent([7, 1], |socket| {
        stdout(&explain(&manifests, &arguments(socket))).to_owned()
    });
    assert!(text.contains("is forwarded (opened)."), "{text}");
    assert!(text.ends_with(
        "The limit of Service shop/web is 20 connections; 7 are open now.
The limit of this node is 100 connections; 1 is open now.
"
    ));
    for (in_use, limits) in [([20, 30], [20, 30]), ([3, 100], [3, 100])] {
        let explained = beside_an_agent(in_use, |socket| {
            explain_json(&manifests, &arguments(socket))
        });
        assert_eq!(explained["verdict"], "reject");
        assert_eq!(explained["reason"], "concurrency-limit");
        assert_eq!(
            explained["limits"],
            json!([
                {"service": "shop/web", "limit": 20, "inUse": limits[0], "exempt": false},
                {"service": null, "limit": 100, "inUse": limits[1], "exempt": false},
            ])
        );
    }
    let udp = beside_an_agent([20, 20], |socket| {
        let mut arguments = arguments(socket);
        arguments[3] = "172.30.0.1:80/udp";
        stdout(&explain(&manifests, &arguments)).to_owned()
    });
    assert!(
        udp.contains("A limit of connections is reached; the client gets ICMP port unreachable.")
    );
}

#[test]
fn without_an_agent_nobody_knows_how_many_there_are() {
    let manifests = Files::numbered(&[NODE, LIMITED]);
    let nowhere = ["--socket", "/nonexistent/agent.sock"];
    let explained = explain(&manifests, &[&PACKET[..], &NODE_CIDR, &nowhere].concat());
    let text = stdout(&explained);
    assert!(text.contains("is forwarded (opened)."), "{text}");
    assert!(text.ends_with(
        "The limit of Service shop/web is 20 connections; no agent answers here that knows how many are open now.
"
    ));
}
