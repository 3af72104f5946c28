//! A small lab, and requests to its agent.

use anyhow::Result;
use lb_tests::{Balanced, Endpoint, Serve, Topology, traffic::RunningServer};
use serde_json::{Value, json};

/// The ClusterIP of the Service `web`.
pub const CLUSTER_IP: &str = "10.96.0.10";
pub const NODE_PORT: u16 = 30080;

/// One node with two pods.
pub const SMALL: Topology = Topology {
    nodes: 1,
    pods_per_node: 2,
    ..Topology::DEFAULT
};

/// Lets `pod-1-1` serve the Service `web` (lines over TCP), which has a node port.
pub fn serve_web(ground: &Balanced) -> Result<RunningServer> {
    let lab = &ground.lab;
    let pod = lab.pod("pod-1-1");
    let server = Serve::new(pod.name()).tcp(9090).start(pod)?;
    ground.change(|| {
        let service = lab.service("web").cluster_ip(CLUSTER_IP);
        service
            .tcp("lines", 80, 9090)
            .node_port(NODE_PORT)
            .apply()?;
        let slices = lab.endpoints("web").tcp("lines", 9090);
        slices.with(Endpoint::ready(pod)).apply()
    })?;
    Ok(server)
}

/// So many Services with one port and no endpoint.
pub fn many_services(count: u32, port: u16) -> Vec<Value> {
    let service = |number: u32| {
        let [.., a, b] = number.to_be_bytes();
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": format!("many-{number}"), "namespace": "default" },
            "spec": { "clusterIP": format!("10.97.{a}.{b}"), "ports": [{ "port": port }] },
        })
    };
    (0..count).map(service).collect()
}

/// The line of a log that contains this text.
#[track_caller]
pub fn line_with<'a>(log: &'a str, text: &str) -> &'a str {
    let line = log.lines().find(|line| line.contains(text));
    line.unwrap_or_else(|| panic!("no line has {text:?}:\n{log}"))
}
