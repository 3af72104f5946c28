//! `node-lb explain` as an operator runs it: manifests in, JSON or sentences out.

use std::{net::IpAddr, process::Output};

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::{Files, stderr};

mod across;
mod levels;
mod limits;
mod live;
mod text;

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.0.0.0/24, 'fd00:10::/64']}
status:
  addresses:
  - {type: InternalIP, address: 192.168.0.2}
  - {type: InternalIP, address: '2001:db8::2'}
";

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec:
  type: LoadBalancer
  clusterIP: 172.30.0.1
  clusterIPs: [172.30.0.1, 'fd00::1']
  ipFamilies: [IPv4, IPv6]
  externalTrafficPolicy: Local
  externalIPs: [198.51.100.7]
  loadBalancerSourceRanges: [203.0.113.0/25]
  ports:
  - {name: http, port: 80, protocol: TCP, nodePort: 30080}
  - {name: quic, port: 80, protocol: UDP, nodePort: 30080}
  - {name: sig, port: 80, protocol: SCTP, nodePort: 30080}
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
ports:
- {name: http, port: 8080, protocol: TCP}
- {name: sig, port: 8080, protocol: SCTP}
endpoints:
- {addresses: [10.0.1.1], nodeName: node-2}
- {addresses: [10.0.0.1], nodeName: node-1}
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
- {addresses: ['fd00:20::1'], nodeName: node-2}
";

const DB: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: db}
spec:
  clusterIP: 172.30.0.2
  sessionAffinity: ClientIP
  ports: [{port: 5432}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  namespace: shop
  name: db-1
  labels: {kubernetes.io/service-name: db}
addressType: IPv4
ports: [{name: '', port: 5432, protocol: TCP}]
endpoints:
- addresses: [10.0.1.9]
  conditions: {ready: false, serving: true, terminating: true}
";

const RANGE: &str = "
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [172.30.0.0/24]}
";

/// The command in the directory of the manifests.
const EXPLAIN: [&str; 5] = ["explain", "--source", "dir:.", "--node", "node-1"];
/// Pods are recognised by the Node object's podCIDRs.
const NODE_CIDR: [&str; 2] = ["--detect-local-mode", "NodeCIDR"];
const BOTH: [&str; 2] = ["10.0.0.1:8080", "10.0.1.1:8080"];

#[test]
fn json_follows_source_destination_and_detector() {
    let manifests = Files::numbered(&[NODE, WEB, DB, RANGE]);
    for (from, to, expected) in [
        (
            "203.0.113.9",
            "172.30.0.1:80",
            web("ClusterIP", "Cluster", &BOTH, true),
        ),
        (
            "10.0.0.7",
            "172.30.0.1:80/tcp",
            web("ClusterIP", "Cluster", &BOTH, false),
        ),
        (
            "192.168.0.2",
            "172.30.0.1:80",
            web("ClusterIP", "Cluster", &BOTH, true),
        ),
        // externalTrafficPolicy Local: this node's endpoint, except for pods and the node itself.
        (
            "203.0.113.9",
            "192.168.0.2:30080",
            web("NodePort", "Local", &BOTH[..1], false),
        ),
        (
            "203.0.113.9",
            "192.0.2.10:80",
            web("LoadBalancerIP", "Local", &BOTH[..1], false),
        ),
        (
            "203.0.113.9",
            "198.51.100.7:80",
            web("ExternalIP", "Local", &BOTH[..1], false),
        ),
        (
            "10.0.0.7",
            "192.168.0.2:30080",
            web("NodePort", "Cluster", &BOTH, false),
        ),
        (
            "192.168.0.2",
            "192.168.0.2:30080",
            web("NodePort", "Cluster", &BOTH, true),
        ),
        // One of them is the client itself. Its address changes only if it is chosen.
        (
            "10.0.0.1",
            "198.51.100.7:80",
            web("ExternalIP", "Cluster", &BOTH, false),
        ),
        (
            "fd00:10::7",
            "[fd00::1]:80",
            web("ClusterIP", "Cluster", &["[fd00:20::1]:8080"], false),
        ),
        (
            "203.0.113.200",
            "192.0.2.10:80",
            refused(
                "drop",
                "source-range",
                "shop/web:http",
                "LoadBalancerIP",
                "Local",
            ),
        ),
        (
            "2001:db8:c::9",
            "[2001:db8::2]:30080",
            refused(
                "drop",
                "no-local-endpoints",
                "shop/web:http",
                "NodePort",
                "Local",
            ),
        ),
        (
            "203.0.113.9",
            "172.30.0.1:80/udp",
            refused(
                "reject",
                "no-endpoints",
                "shop/web:quic",
                "ClusterIP",
                "Cluster",
            ),
        ),
        (
            "203.0.113.9",
            "172.30.0.1:80/sctp",
            forwarded("shop/web:sig", "ClusterIP", "Cluster", &BOTH, true),
        ),
        (
            "203.0.113.9",
            "172.30.0.1:81",
            unknown("reject", "unknown-port"),
        ),
        ("127.0.0.1", "172.30.0.1:81", passed("martian-source")),
        (
            "203.0.113.9",
            "172.30.0.9:80",
            unknown("drop", "no-such-service"),
        ),
        (
            "203.0.113.9",
            "172.30.0.9:80/sctp",
            unknown("drop", "no-such-service"),
        ),
        (
            "203.0.113.9",
            "172.30.0.2:80/sctp",
            unknown("reject", "unknown-port"),
        ),
        ("203.0.113.9", "172.31.0.9:80", passed("not-service")),
        (
            "127.0.0.1",
            "172.30.0.1:80",
            refused(
                "pass",
                "martian-source",
                "shop/web:http",
                "ClusterIP",
                "Cluster",
            ),
        ),
        (
            "203.0.113.9",
            "172.30.0.2:5432",
            forwarded("shop/db", "ClusterIP", "Cluster", &["10.0.1.9:5432"], true),
        ),
    ] {
        let explained = explain_json(
            &manifests,
            &[&["--from", from, "--to", to], &NODE_CIDR[..]].concat(),
        );
        let (origin, protocol) = (from_where(from), protocol(to));
        let expected = with(expected, origin, protocol);
        let asked = (&explained["from"], &explained["to"]);
        let address = to.split('/').next().unwrap();
        assert_eq!(asked, (&json!(from), &json!(address)));
        assert_eq!(without_details(explained), expected, "{from} to {to}");
    }
}

/// Where an address is, as the Node object has it.
fn from_where(from: &str) -> &'static str {
    let from: IpAddr = from.parse().unwrap();
    let is_in = |network: &str| network.parse::<IpNet>().unwrap().contains(&from);
    if is_in("10.0.0.0/24") || is_in("fd00:10::/64") {
        "pod"
    } else if is_in("192.168.0.2/32") || is_in("2001:db8::2/128") {
        "node"
    } else {
        "outside"
    }
}

/// The protocol in the name of a destination.
fn protocol(to: &str) -> &'static str {
    match to.split_once('/') {
        None | Some((_, "tcp")) => "TCP",
        Some((_, "udp")) => "UDP",
        Some(_) => "SCTP",
    }
}

/// Without what the text says as well, whose tests say more of it.
fn without_details(mut explained: Value) -> Value {
    const DETAILS: [&str; 10] = [
        "from",
        "to",
        "nodeAddress",
        "algorithm",
        "affinitySeconds",
        "terminating",
        "shortCircuit",
        "sourceRanges",
        "sourceNATExceptions",
        "otherPortsOf",
    ];
    let fields = explained.as_object_mut().unwrap();
    fields.retain(|name, _| !DETAILS.contains(&&**name));
    explained
}

/// What is known of the packet itself, besides what becomes of it.
fn with(mut explained: Value, origin: &str, protocol: &str) -> Value {
    explained["origin"] = json!(origin);
    explained["protocol"] = json!(protocol);
    explained
}

#[test]
fn the_only_endpoint_reaches_itself_through_the_node() {
    let one = WEB.replace("- {addresses: [10.0.1.1], nodeName: node-2}\n", "");
    let manifests = Files::numbered(&[NODE, &one]);
    let to_itself = ["--from", "10.0.0.1", "--to", "172.30.0.1:80"];
    let explained = explain_json(&manifests, &to_itself);
    assert_eq!(explained["sourceNAT"], true, "without a detector, too");
}

#[test]
fn settings_decide_as_for_the_agent() {
    let manifests = Files::numbered(&[NODE, WEB]);
    let source_nat = |arguments: &[&str]| {
        let pod = ["--from", "10.0.0.7", "--to", "172.30.0.1:80"];
        explain_json(&manifests, &[&pod, arguments].concat())["sourceNAT"].clone()
    };
    assert_eq!(source_nat(&[]), false, "in the Node's podCIDR");
    assert_eq!(source_nat(&["--cluster-cidr", "10.0.0.0/8"]), false);
    assert_eq!(source_nat(&["--cluster-cidr", "10.9.0.0/16"]), true);
    assert_eq!(source_nat(&["--masquerade-all"]), true);
    let prefix = [
        "--detect-local-mode",
        "InterfaceNamePrefix",
        "--pod-interface-name-prefix",
        "veth",
    ];
    assert_eq!(source_nat(&prefix), true, "by no interface");
    assert_eq!(
        source_nat(&[&prefix[..], &["--interface", "eth0"]].concat()),
        true
    );
    assert_eq!(
        source_nat(&[&prefix[..], &["--interface", "veth7"]].concat()),
        false
    );
}

/// As with Calico's IPAM or the VPC CNI of AWS, whose Nodes have no podCIDR.
#[test]
fn a_node_without_networks_of_pods_is_warned_of() {
    let bare = NODE.replace("spec: {podCIDRs: [10.0.0.0/24, 'fd00:10::/64']}\n", "");
    let manifests = Files::numbered(&[&bare, WEB]);
    let packet = ["--from", "10.0.0.7", "--to", "172.30.0.1:80"];
    let output = explain(&manifests, &packet);
    let warned = stderr(&output);
    for part in [
        "Node node-1 no podCIDR",
        "--cluster-cidr",
        "config.cluster-cidr",
    ] {
        assert!(warned.contains(part), "{warned}");
    }
    let told = [&packet[..], &["--detect-local-mode", "none"]].concat();
    let output = explain(&manifests, &told);
    assert_eq!(stderr(&output), "");
}

/// NodeLocal DNSCache.
#[test]
fn what_the_node_answers_itself_is_left_to_it() {
    let dns = "\
kind: Service
apiVersion: v1
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: 172.30.0.53
  ports: [{name: dns, port: 53, protocol: UDP}]
";
    let manifests = Files::numbered(&[NODE, dns]);
    let arguments = ["--from", "10.0.0.1", "--to", "172.30.0.53:53/udp"];
    let cached = [&arguments[..], &["--node-address", "172.30.0.53"]].concat();
    let mut expected = with(passed("not-service"), "pod", "UDP");
    expected["leftToNode"] = json!("kube-system/kube-dns:dns");
    let explained = explain_json(&manifests, &cached);
    assert_eq!(without_details(explained), expected);
    assert_eq!(
        explain_json(&manifests, &arguments)["verdict"],
        json!("reject")
    );
}

#[test]
fn unknown_ports_are_left_alone_if_that_is_said() {
    let manifests = Files::numbered(&[NODE, WEB, RANGE]);
    for to in ["172.30.0.1:81", "172.30.0.9:80"] {
        let packet = ["--from", "203.0.113.9", "--to", to];
        let ignoring = [&packet[..], &["--unknown-service-ports=ignore"]].concat();
        let expected = with(passed("not-service"), "outside", "TCP");
        let explained = explain_json(&manifests, &ignoring);
        assert_eq!(without_details(explained), expected);
    }
}

#[test]
fn sctp_passes_if_that_is_said() {
    let manifests = Files::numbered(&[NODE, WEB, RANGE]);
    for (to, expected) in [
        ("172.30.0.1:80/sctp", passed("other-protocol")),
        ("198.51.100.7:80/sctp", passed("other-protocol")),
        ("172.30.0.9:80/sctp", unknown("drop", "no-such-service")),
    ] {
        let packet = ["--from", "203.0.113.9", "--to", to, "--sctp=off"];
        let expected = with(expected, "outside", "SCTP");
        let explained = explain_json(&manifests, &packet);
        assert_eq!(without_details(explained), expected, "{to}");
    }
}

#[test]
fn what_cannot_work_fails_with_a_reason() {
    let manifests = Files::numbered(&[NODE]);
    for (arguments, code, reason) in [
        (&["--to", "192.0.2.1:80"][..], 2, "--from"),
        (&["--from", "192.0.2.1"], 2, "--to"),
        (&["--from", "here", "--to", "192.0.2.1:80"], 2, "--from"),
        (&["--from", "192.0.2.1", "--to", "192.0.2.1"], 2, "IP:PORT"),
        (
            &["--from", "192.0.2.1", "--to", "192.0.2.1:80/icmp"],
            2,
            "unknown protocol",
        ),
        (
            &["--from", "192.0.2.1", "--to", "[2001:db8::1]:80"],
            1,
            "IP family",
        ),
    ] {
        let output = explain(&manifests, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let stderr = stderr(&output);
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn json_has_all_that_the_text_says() {
    let manifests = Files::numbered(&[NODE, WEB, DB, RANGE]);
    let details = |from, to| {
        let packet = ["--from", from, "--to", to];
        explain_json(&manifests, &[&packet[..], &NODE_CIDR].concat())
    };
    let itself = details("10.0.0.1", "198.51.100.7:80");
    assert_eq!(itself["sourceNATExceptions"], json!(["10.0.0.1:8080"]));
    assert_eq!(itself["shortCircuit"], true);
    assert_eq!(itself["algorithm"], "random");
    let terminating = details("203.0.113.9", "172.30.0.2:5432");
    assert_eq!(terminating["terminating"], true);
    assert_eq!(terminating["affinitySeconds"], 10_800);
    assert_eq!(terminating["nodeAddress"], "192.168.0.2");
    let refused = details("203.0.113.200", "192.0.2.10:80");
    assert_eq!(refused["sourceRanges"], json!(["203.0.113.0/25"]));
    let unknown = details("203.0.113.9", "172.30.0.1:81");
    assert_eq!(unknown["otherPortsOf"], "shop/web");
}

/// Only from the node itself, where networks of that kind are named, and while sockets are translated.
#[test]
fn a_node_port_at_localhost_is_for_the_node() {
    let manifests = Files::numbered(&[NODE, WEB]);
    let named = "--nodeport-addresses=127.0.0.0/8";
    let ask = |from, arguments: &[&str]| {
        let asked = ["--from", from, "--to", "127.0.0.1:30080"];
        let arguments = [&EXPLAIN[..], &asked, arguments].concat();
        let (json, _) = manifests.json(&arguments);
        (
            json["verdict"].clone(),
            json["reason"].clone(),
            json["endpoints"].clone(),
        )
    };
    let served = (json!("forward"), json!("socket-translated"), json!(BOTH));
    let passed = (json!("pass"), json!("not-service"), json!([]));
    assert_eq!(ask("192.168.0.2", &[named]), served);
    assert_eq!(ask("203.0.113.9", &[named]), passed);
    assert_eq!(ask("192.168.0.2", &[]), passed);
    assert_eq!(ask("192.168.0.2", &[named, "--socket-lb=off"]), passed);
}

fn web(frontend: &str, policy: &str, endpoints: &[&str], source_nat: bool) -> Value {
    forwarded("shop/web:http", frontend, policy, endpoints, source_nat)
}

fn forwarded(
    service: &str,
    frontend: &str,
    policy: &str,
    endpoints: &[&str],
    source_nat: bool,
) -> Value {
    json!({
        "verdict": "forward",
        "reason": "opened",
        "service": service,
        "frontend": frontend,
        "policy": policy,
        "endpoints": endpoints,
        "sourceNAT": source_nat,
    })
}

fn refused(verdict: &str, reason: &str, service: &str, frontend: &str, policy: &str) -> Value {
    json!({
        "verdict": verdict,
        "reason": reason,
        "service": service,
        "frontend": frontend,
        "policy": policy,
        "endpoints": [],
        "sourceNAT": false,
    })
}

/// To no port of any Service, which is why it goes nowhere.
fn unknown(verdict: &str, reason: &str) -> Value {
    let mut explained = passed(reason);
    explained["verdict"] = json!(verdict);
    explained
}

fn passed(reason: &str) -> Value {
    json!({
        "verdict": "pass",
        "reason": reason,
        "service": null,
        "frontend": null,
        "policy": null,
        "endpoints": [],
        "sourceNAT": false,
    })
}

fn explain_json(manifests: &Files, arguments: &[&str]) -> Value {
    let (explained, output) = manifests.json(&[&EXPLAIN, arguments].concat());
    assert_eq!(stderr(&output), "");
    explained
}

fn explain(manifests: &Files, arguments: &[&str]) -> Output {
    manifests.run(&[&EXPLAIN, arguments].concat())
}
