//! This node's object and those of others: health for load balancers, and topology hints.

use std::net::SocketAddr;

use anyhow::ensure;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use lb_tests::{Cluster, Family, control_plane::service, http_get};
use serde_json::json;

use super::support::{WEB, cluster, cluster_ip, serve, servers_at};

/// The taint of the cluster autoscaler on a node that it is about to remove.
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

#[test]
fn load_balancers_leave_a_node_that_is_to_go_and_hints_keep_traffic_in_its_zone() {
    let mut cluster = cluster();
    serve(&mut cluster, WEB, 2, json!({}));
    topology_hints(&mut cluster);
    autoscaler_taint(&mut cluster);
    deletion(&mut cluster);
}

/// Each node is a zone of its own here and has one of the two pods.
fn topology_hints(cluster: &mut Cluster) {
    let services = cluster.client().of::<Service>();
    let spec = json!({ "selector": { "app": WEB }, "trafficDistribution": "PreferSameZone" });
    let made = services.create(service("nearby", spec)).unwrap();
    let target = SocketAddr::new(cluster_ip(&made, Family::V4), 80);
    let each = cluster.until(|cluster| {
        let slices = cluster.client().of::<EndpointSlice>();
        let slices = slices.list("kubernetes.io/service-name=nearby")?;
        let endpoints = slices
            .iter()
            .flat_map(|slice| slice.endpoints.iter().flatten());
        let mut endpoints = endpoints.peekable();
        ensure!(endpoints.peek().is_some(), "no endpoints");
        for endpoint in endpoints {
            let zones = endpoint
                .hints
                .as_ref()
                .and_then(|hints| hints.for_zones.as_ref());
            ensure!(zones.is_some_and(|zones| zones.len() == 1), "{endpoint:?}");
        }
        let lab = cluster.lab();
        let each = [
            servers_at(lab.pod("pod-1-1"), target)?,
            servers_at(lab.pod("pod-2-1"), target)?,
        ];
        ensure!(each.iter().all(|servers| servers.len() == 1), "{each:?}");
        Ok(each)
    });
    let [one, two] = each.unwrap();
    assert_ne!(one, two, "each zone has a server of its own");
}

fn autoscaler_taint(cluster: &mut Cluster) {
    healthz(cluster, 200);
    let nodes = cluster.client().nodes();
    let taint = json!({ "key": TAINT, "value": "1", "effect": "NoSchedule" });
    let tainted = json!({ "spec": { "taints": [taint] } });
    nodes.patch("node-1", tainted).unwrap();
    healthz(cluster, 503);
    nodes
        .patch("node-1", json!({ "spec": { "taints": null } }))
        .unwrap();
    healthz(cluster, 200);
}

fn deletion(cluster: &mut Cluster) {
    let nodes = cluster.client().nodes();
    // A finalizer holds it, as a cloud's node controller does: it is marked for deletion, but not
    // gone.
    let held = json!({ "metadata": { "finalizers": ["node-lb.test/hold"] } });
    nodes.patch("node-1", held).unwrap();
    nodes.delete("node-1").unwrap();
    healthz(cluster, 503);
    let livez = at_port(cluster, "/livez").unwrap();
    assert_eq!(livez.status, 200, "the agent itself is well: {livez:?}");

    let let_go = json!({ "metadata": { "finalizers": null } });
    nodes.patch("node-1", let_go).unwrap();
    cluster
        .until(|cluster| {
            let left = cluster.client().nodes().get("node-1")?;
            ensure!(left.is_none(), "node-1 is there still");
            Ok(())
        })
        .unwrap();
    cluster
        .kubelets
        .register(cluster.ground.lab.node(1))
        .unwrap();
    healthz(cluster, 200);
}

/// Waits until the agent on node 1 answers load balancers with this code.
#[track_caller]
fn healthz(cluster: &mut Cluster, code: u16) {
    cluster
        .until(|cluster| {
            let answer = at_port(cluster, "/healthz")?;
            ensure!(answer.status == code, "{answer:?}");
            Ok(())
        })
        .unwrap();
}

fn at_port(cluster: &Cluster, path: &str) -> anyhow::Result<lb_tests::HttpAnswer> {
    let lab = cluster.lab();
    http_get::get(lab.client(), lab.node(1).at(Family::V4, 10256), path)
}
