//! `node-lb plan` as an operator runs it: manifests in, JSON or a table out.

use std::{fs, process::Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Files, node_lb, stderr, stdout};

const NODE: &str = "
apiVersion: v1
kind: Node
metadata:
  name: node-1
  labels: {topology.kubernetes.io/zone: zone-a}
status:
  addresses:
  - {type: InternalIP, address: 192.168.0.2}
  - {type: InternalIP, address: '2001:db8::2'}
";

const LOAD_BALANCER: &str = "
apiVersion: v1
kind: Service
metadata:
  namespace: shop
  name: web
  annotations: {node-lb.io/removed-endpoints: reset}
spec:
  type: LoadBalancer
  clusterIP: 172.30.0.1
  clusterIPs: [172.30.0.1, 'fd00::1']
  ipFamilies: [IPv4, IPv6]
  externalTrafficPolicy: Local
  healthCheckNodePort: 32000
  loadBalancerSourceRanges: [203.0.113.0/25]
  sessionAffinity: ClientIP
  ports:
  - {name: http, port: 80, protocol: TCP, nodePort: 30080}
status:
  loadBalancer:
    ingress: [{ip: 192.0.2.10}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: web-4
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.0.1.1], nodeName: node-2, conditions: {ready: true}}
- addresses: [10.0.0.1]
  nodeName: node-1
  conditions: {ready: false, serving: true, terminating: true}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: web-6
  labels: {kubernetes.io/service-name: web}
addressType: IPv6
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: ['fd00:10::1'], nodeName: node-2}
";

const CLUSTER_IP: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: db}
spec:
  clusterIP: 172.30.0.2
  ports: [{port: 5432}]
";

/// The command in the directory of the manifests.
const PLAN: [&str; 3] = ["plan", "--source", "dir:."];

#[test]
fn json_has_an_object_per_service_port_with_both_families() {
    let manifests = Files::numbered(&[NODE, LOAD_BALANCER, CLUSTER_IP]);
    let (ports, output) = plan_json(&manifests, &["--node", "node-1"]);
    assert_eq!(stderr(&output), "");
    let frontend = |kind: &str, address: &str, policy: &str, verdict: &str| json!({"kind": kind, "address": address, "policy": policy, "verdict": verdict});
    let external = |kind, address, verdict| frontend(kind, address, "Local", verdict);
    let internal = |address, verdict| frontend("ClusterIP", address, "Cluster", verdict);
    let mut filtered = external("LoadBalancerIP", "192.0.2.10:80", "forward");
    filtered["sourceRanges"] = json!(["203.0.113.0/25"]);
    assert_eq!(
        ports,
        json!([
            {
                "namespace": "shop",
                "name": "db",
                "port": "",
                "protocol": "TCP",
                "clusterEndpoints": [],
                "localEndpoints": null,
                "hasEndpoints": false,
                "frontends": [internal("172.30.0.2:5432", "reject")],
                "sessionAffinitySeconds": null,
                "healthCheck": null,
            },
            {
                "namespace": "shop",
                "name": "web",
                "port": "http",
                "protocol": "TCP",
                "clusterEndpoints": ["10.0.1.1:8080", "[fd00:10::1]:8080"],
                "localEndpoints": ["10.0.0.1:8080"],
                "hasEndpoints": true,
                "frontends": [
                    internal("172.30.0.1:80", "forward"),
                    filtered,
                    external("NodePort", "192.168.0.2:30080", "forward"),
                    internal("[fd00::1]:80", "forward"),
                    external("NodePort", "[2001:db8::2]:30080", "drop"),
                ],
                "sessionAffinitySeconds": 10800,
                "healthCheck": {"port": 32000, "status": 503, "localEndpoints": 0},
            },
        ])
    );
}

#[test]
fn table_reads_as_an_explanation() {
    let manifests = Files::numbered(&[NODE, LOAD_BALANCER, CLUSTER_IP]);
    let output = manifests.run(&[&PLAN[..], &["--node", "node-1"]].concat());
    assert_eq!(
        stdout(&output),
        "\
shop/db TCP
  ClusterIP       172.30.0.2:5432  Cluster  reject: no usable endpoint anywhere
  Cluster set     empty

shop/web:http TCP
  ClusterIP       172.30.0.1:80        Cluster  forward to 1 endpoint
  LoadBalancerIP  192.0.2.10:80        Local    forward to 1 endpoint; only from 203.0.113.0/25
  NodePort        192.168.0.2:30080    Local    forward to 1 endpoint
  ClusterIP       [fd00::1]:80         Cluster  forward to 1 endpoint
  NodePort        [2001:db8::2]:30080  Local    drop: usable endpoints are on other nodes only
  Cluster set     10.0.1.1:8080, [fd00:10::1]:8080
  Local set       10.0.0.1:8080
  Affinity        client IP, for 3h
  Health check    IPv4 port 32000 answers 503: 0 endpoints ready on this node
  Health check    IPv6 port 32000 answers 503: 0 endpoints ready on this node
  Note            no endpoint of this node is ready, so the Local set is its terminating ones
  Note            local pods and this node itself use the Cluster set on external frontends
  Note            connections to endpoints that leave are reset
"
    );
}

#[test]
fn what_the_cluster_policy_does_to_local_pods_needs_no_note() {
    let open = LOAD_BALANCER
        .replace(
            "externalTrafficPolicy: Local",
            "externalTrafficPolicy: Cluster",
        )
        .replace("  healthCheckNodePort: 32000\n", "");
    let manifests = Files::numbered(&[NODE, &open]);
    let output = manifests.run(&[&PLAN[..], &["--node", "node-1"]].concat());
    assert!(stdout(&output).contains("NodePort        192.168.0.2:30080    Cluster  forward"));
    assert!(
        !stdout(&output).contains("local pods"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn node_addresses_stand_in_for_a_missing_node_object() {
    let manifests = Files::numbered(&[LOAD_BALANCER]);
    let node_ports = |arguments: &[&str]| -> Vec<String> {
        let arguments = [&["--node", "node-1"], arguments].concat();
        let (ports, output) = plan_json(&manifests, &arguments);
        assert!(stderr(&output).contains("no Node \"node-1\""));
        let frontends = ports[0]["frontends"].as_array().unwrap().iter();
        frontends
            .filter(|frontend| frontend["kind"] == "NodePort")
            .map(|frontend| frontend["address"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(node_ports(&[]), [""; 0]);
    let addresses = ["--node-address", "192.0.2.1", "--node-address", "192.0.2.2"];
    assert_eq!(
        node_ports(&addresses),
        ["192.0.2.1:30080"],
        "the node IP alone by default"
    );
    assert_eq!(
        node_ports(&[&addresses[..], &["--nodeport-addresses", "0.0.0.0/0"]].concat()),
        ["192.0.2.1:30080", "192.0.2.2:30080"]
    );
}

#[test]
fn configuration_file_gives_way_to_the_command_line() {
    let manifests = Files::numbered(&[NODE, LOAD_BALANCER]);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("node-lb.yaml");
    let path = manifests.path().display();
    fs::write(&file, format!("source: dir:{path}\nnode: node-2\n")).unwrap();

    let healthy = |arguments: &[&str]| {
        let (ports, _) = manifests.json(&[&["plan", "--config"], arguments].concat());
        ports[0]["healthCheck"]["status"].clone()
    };
    let file = file.to_str().unwrap();
    assert_eq!(healthy(&[file]), 200);
    assert_eq!(healthy(&[file, "--node", "node-1"]), 503);
}

#[test]
fn broken_manifests_are_told_and_the_rest_is_planned() {
    let manifests = Files::numbered(&[NODE, CLUSTER_IP, "kind: ["]);
    let (ports, output) = plan_json(&manifests, &["--node", "node-1"]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("2.yaml"));
    assert_eq!(ports[0]["name"], "db");
}

#[test]
fn what_cannot_work_fails_with_a_reason() {
    for (arguments, code, reason) in [
        (&["plan"][..], 1, "--source dir:PATH"),
        (
            &["plan", "--source", "dir:/does/not/exist"],
            1,
            "/does/not/exist",
        ),
        (&["plan", "--source", "/manifests"], 2, "dir:PATH"),
        (
            &["plan", "--config", "/does/not/exist.yaml"],
            1,
            "/does/not/exist.yaml",
        ),
        (&["plan", "--node-address", "here"], 2, "--node-address"),
    ] {
        let output = node_lb(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let stderr = stderr(&output);
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

fn plan_json(manifests: &Files, arguments: &[&str]) -> (Value, Output) {
    manifests.json(&[&PLAN, arguments].concat())
}
