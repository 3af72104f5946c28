//! An agent's connection to a real API server: how many there are, and what becomes of one whose
//! peer vanishes without a word.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use lb_tests::{Cluster, Family, Node, control_plane::service, patient};
use serde_json::json;

use super::support::{WEB, answers, cluster, cluster_ip, serve};

/// 35 s until it is noticed, some until the next try, and what a busy machine takes.
const BOUND: Duration = Duration::from_secs(60);

#[test]
fn a_connection_whose_peer_vanishes_is_given_up_and_http2_needs_only_one() {
    let mut cluster = cluster();
    serve(&mut cluster, WEB, 1, json!({}));
    // The front speaks HTTP/1.1: a connection for each kind that is watched.
    vanish(&mut cluster, "http1", 4);
    let address = cluster.control_plane.address();
    cluster.control_plane.agent_kubeconfig(address).unwrap();
    cluster.ground.kill_agents().unwrap();
    cluster.ground.start_agents().unwrap();
    vanish(&mut cluster, "http2", 1);
}

/// Has the connections of node 1's agent, `expected` ones, lose all packets, and waits until it
/// follows again.
#[track_caller]
fn vanish(cluster: &mut Cluster, name: &str, expected: usize) {
    let ports = cluster
        .until(|cluster| {
            let ports = connections(cluster.lab().node(1))?;
            ensure!(ports.len() == expected, "{name}: connections {ports:?}");
            Ok(ports)
        })
        .unwrap();
    let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
    let ports = ports.join(", ");
    let rules = format!(
        "table inet vanish {{
            chain input {{ type filter hook input priority -300; tcp dport {{ {ports} }} drop; }}
            chain output {{ type filter hook output priority -300; tcp sport {{ {ports} }} drop; }}
        }}"
    );
    cluster.lab().node(1).feed("nft -f -", &rules).unwrap();
    let began = Instant::now();
    let services = cluster.client().of::<Service>();
    let spec = json!({ "selector": { "app": WEB } });
    let made = services.create(service(name, spec)).unwrap();
    let target = SocketAddr::new(cluster_ip(&made, Family::V4), 80);
    answers(cluster, target, 1);
    let took = began.elapsed();
    println!("{name}: followed again after {took:.1?}");
    assert!(took < patient(BOUND), "{name}: {took:?}");
    let node = cluster.lab().node(1);
    node.run("nft delete table inet vanish").unwrap();
}

/// The ports of the node's own TCP connections to another host: only the agent has any.
fn connections(node: &Node) -> Result<BTreeSet<u16>> {
    let shown = node.run("ss -Htn state established ( dport = :6443 or dport = :7443 )")?;
    let ports = shown.lines().map(|line| {
        let local = line.split_whitespace().nth(2).context("no local address")?;
        let (_, port) = local.rsplit_once(':').context("no port")?;
        Ok(port.parse()?)
    });
    ports.collect()
}
