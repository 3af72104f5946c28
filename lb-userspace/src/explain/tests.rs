//! Tables with few Services against tables with all.

use std::{collections::BTreeSet, fs, net::SocketAddr, sync::Arc};

use clap::Parser as _;
use lb_objects::Object;
use serde_json::Value;

use super::{Destinations, InUse, Question, Report, Situation, Target};
use crate::{
    config::{Config, Flags},
    map_writer::Reserved,
    plan::{LocalNode, Plan, plan},
    source::{Event, dir},
    store::Store,
};

#[derive(clap::Parser)]
struct Settings {
    #[command(flatten)]
    flags: Flags,
}

/// The node's own addresses. One is a ClusterIP as well.
const OWN: [&str; 3] = ["192.0.2.2", "10.96.0.53", "2001:db8::2"];

/// Services that have, or want, each other's addresses.
const SERVICES: &str = "
kind: Node
apiVersion: v1
metadata: {name: node-1}
spec: {podCIDRs: [10.0.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: a}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  externalIPs: [198.51.100.7]
  externalTrafficPolicy: Local
  healthCheckNodePort: 30081
  ports:
  - {name: web, port: 80, nodePort: 30080}
  - {name: dns, port: 53, protocol: UDP}
  - {name: sig, port: 90, protocol: SCTP}
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: b}
spec: {clusterIP: 10.96.0.2, externalIPs: [198.51.100.7, 192.0.2.2, 10.96.0.1], ports: [{name: web, port: 80}, {name: x, port: 30081}]}
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: c}
spec: {clusterIP: 10.96.0.1, ports: [{name: other, port: 81}, {name: same, port: 80}]}
---
kind: Service
apiVersion: v1
metadata: {namespace: kube-system, name: dns}
spec: {clusterIP: 10.96.0.53, ports: [{name: dns, port: 53, protocol: UDP}]}
---
kind: Service
apiVersion: v1
metadata: {namespace: far, name: one}
spec: {clusterIP: 172.31.0.1, ports: [{port: 80}]}
---
kind: Service
apiVersion: v1
metadata: {namespace: far, name: two}
spec: {clusterIP: 172.31.0.200, ports: [{port: 90, protocol: SCTP}]}
---
kind: Service
apiVersion: v1
metadata: {namespace: six, name: six}
spec: {clusterIP: 'fd00::1', ports: [{port: 80}]}
---
kind: ServiceCIDR
apiVersion: networking.k8s.io/v1
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: a-1, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{name: web, port: 8080}, {name: sig, port: 9090, protocol: SCTP}]
endpoints: [{addresses: [10.0.0.7], nodeName: node-1}, {addresses: [10.0.1.7]}]
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: c-1, labels: {kubernetes.io/service-name: c}}
addressType: IPv4
ports: [{name: other, port: 8081}, {name: same, port: 8082}]
endpoints: [{addresses: [10.0.1.9]}]
";

#[test]
fn services_that_do_not_matter_change_nothing() {
    let ips = [
        "10.96.0.1",
        "10.96.0.2",
        "10.96.0.9",
        "10.96.0.53",
        "172.31.0.1",
        "172.31.0.99",
        "172.31.0.200",
        "198.51.100.7",
        "203.0.113.1",
        "192.0.2.2",
        "fd00::1",
        "2001:db8::2",
    ];
    let mut reasons = BTreeSet::new();
    for settings in [&[][..], &["--sctp=off"]] {
        let (config, situation, plans, checks) = cluster(settings);
        let tables = |plans: &mut dyn Iterator<Item = &Plan>| {
            situation.tables(&config, situation.facts(&config), plans, checks.clone())
        };
        let mut all = tables(&mut plans.iter());
        for ip in ips.map(|ip| ip.parse().unwrap()) {
            for port in [53, 80, 81, 90, 30080, 30081] {
                let to = SocketAddr::new(ip, port);
                let destination = Destinations::from_iter([to]);
                let which = || plans.iter().filter(|plan| destination.depend_on(plan));
                assert!(which().count() < plans.len(), "{to}");
                let mut few = tables(&mut which());
                for question in questions(to) {
                    let ask = |tables| {
                        let decision = question.ask(tables, 0, &InUse::default());
                        serde_json::to_value(Report::from(&decision)).unwrap()
                    };
                    let (by_few, by_all): (Value, Value) = (ask(&mut few), ask(&mut all));
                    assert_eq!(by_few, by_all, "{question:?}");
                    reasons.insert(by_all["reason"].as_str().unwrap().to_owned());
                }
            }
        }
    }
    // The questions come to all of these.
    let expected = [
        "no-endpoints",
        "no-such-service",
        "not-service",
        "opened",
        "other-protocol",
        "unknown-port",
    ];
    assert!(reasons.iter().eq(&expected), "{reasons:?}");
}

/// From a pod, from the node and from outside.
fn questions(to: SocketAddr) -> Vec<Question> {
    let sources = match to.is_ipv4() {
        true => ["10.0.0.9", "192.0.2.2", "203.0.113.9"],
        false => ["fd00:10::9", "2001:db8::2", "2001:db8:1::9"],
    };
    let mut questions = Vec::new();
    for from in sources {
        for protocol in ["tcp", "udp", "sctp"] {
            questions.push(Question {
                from: from.parse().unwrap(),
                to: format!("{to}/{protocol}").parse::<Target>().unwrap(),
                interface: None,
            });
        }
    }
    questions
}

/// Settings of node-1.
pub fn config(settings: &[&str]) -> Config {
    let arguments = ["node-lb", "--source=dir:/", "--node=node-1"];
    let settings = Settings::parse_from(arguments.iter().chain(settings));
    Config::try_from(settings.flags).unwrap()
}

/// The objects of a manifest.
pub fn objects(manifest: &str) -> Vec<Object> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("all.yaml"), manifest).unwrap();
    let (objects, problems) = dir::load(directory.path()).unwrap();
    assert!(problems.is_empty(), "{problems:?}");
    objects
}

/// What node-1 knows of a cluster with these objects, and of nothing else.
pub fn store(objects: Vec<Object>) -> Store {
    let mut store = Store::new("node-1");
    store.apply(objects.into_iter().map(Event::Apply));
    store.apply([Event::Synced]);
    store
}

/// The plans in the order of names, and the healthCheckNodePorts.
fn cluster(settings: &[&str]) -> (Config, Situation, Vec<Plan>, Vec<u16>) {
    let config = config(settings);
    let mut store = store(objects(SERVICES));
    let own: Vec<_> = OWN.iter().map(|ip| ip.parse().unwrap()).collect();
    let node = config.this_node(store.node().map(AsRef::as_ref));
    let local_node = LocalNode::new(&node, &own, &config.plan);
    let mut services: Vec<_> = store.services().collect();
    services.sort_by_key(|service| &service.name);
    let plans = services.iter().map(|service| {
        let slices: Vec<_> = store.slices(&service.name).collect();
        plan(service, &slices, &local_node)
    });
    let plans: Vec<_> = plans.collect();
    let checks = plans.iter().flat_map(|service| &service.health_checks);
    let checks = checks.map(|check| check.port).collect();
    let ports = plans.into_iter().flat_map(|service| service.ports);
    let own: BTreeSet<_> = own.into_iter().collect();
    let ports = ports.collect();
    let situation = Situation {
        node: Arc::new(node),
        local_node: Arc::new(local_node),
        reserved: Arc::new(Reserved::for_agent(&config, own.clone(), [])),
        addresses: Arc::new(own),
        service_cidrs: store.take_service_cidrs().unwrap_or_default().into(),
        in_force: None,
        pods: Arc::default(),
    };
    (config, situation, ports, checks)
}
