//! Who is planned again after a change, and at which cost.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use lb_common::abi::Config;
use lb_datapath::memory::MemoryTables;
use lb_objects::{
    Kind, Node, ObjectName, ObjectRef,
    kubernetes::{Outcome, translate_json},
};
use prometheus::IntCounter;
use serde_json::{Value, json};

use super::{Catalog, Condition, LocalNode, MANY, MapWriter, NodeFacts, Progress, Store, Syncer};
use crate::{
    metrics::Metrics,
    plan::{NodePortAddresses, PlanOptions, ServicePlan},
    source::Event,
};

const NODE_IP: &str = "192.0.2.1";

/// An agent's store and sync, with maps in memory.
struct Agent {
    store: Store,
    syncer: Syncer,
    catalog: Arc<Catalog>,
    plannings: IntCounter,
    node: Node,
    addresses: BTreeSet<IpAddr>,
    now: Instant,
}

impl Agent {
    fn new() -> Self {
        let tables = MemoryTables::new(Config::default(), <_>::default(), 64);
        let node = Node {
            name: "node-1".to_owned(),
            addresses: vec![ip(NODE_IP)],
            ..Node::default()
        };
        let addresses = BTreeSet::from([ip(NODE_IP)]);
        let writer = MapWriter::empty(tables.maps(), facts(&node, &addresses));
        let (catalog, plannings) = (Arc::new(Catalog::new()), counter());
        let local = local_node(&node, &addresses);
        let progress = Arc::<Progress>::default();
        Self {
            store: Store::new("node-1"),
            syncer: Syncer::new(
                writer,
                local,
                catalog.clone(),
                progress,
                Condition::default(),
                plannings.clone(),
            ),
            catalog,
            plannings,
            node,
            addresses,
            now: Instant::now(),
        }
    }

    /// Has the store take objects over, and syncs what has changed.
    fn apply(&mut self, objects: impl IntoIterator<Item = Value>) {
        let events = objects.into_iter().map(|object| {
            let kind = match object["kind"].as_str() {
                Some("Service") => Kind::Service,
                _ => Kind::EndpointSlice,
            };
            let json = serde_json::to_vec(&object).unwrap();
            match translate_json(kind, &json).unwrap().translated.outcome {
                Outcome::Use(object) => Event::Apply(object),
                other => panic!("{other:?}"),
            }
        });
        self.store.apply(events.chain([Event::Synced]));
        let services = self.store.take_changes().services;
        self.syncer.sync(&self.store, services, self.now);
    }

    /// Gives the node an address, and says how many Services that has planned again.
    fn gains(&mut self, address: &str) -> u64 {
        self.addresses.insert(ip(address));
        self.node_changed()
    }

    /// Takes an address from it; likewise.
    fn loses(&mut self, address: &str) -> u64 {
        self.addresses.remove(&ip(address));
        self.node_changed()
    }

    /// Changes the Node object; likewise.
    fn becomes(&mut self, change: impl FnOnce(&mut Node)) -> u64 {
        change(&mut self.node);
        self.node_changed()
    }

    fn node_changed(&mut self) -> u64 {
        let local = local_node(&self.node, &self.addresses);
        let facts = facts(&self.node, &self.addresses);
        let concerned = self.syncer.set_node(local, facts, &self.store);
        let before = self.plannings.get();
        self.syncer.sync(&self.store, concerned, self.now);
        self.plannings.get() - before
    }

    /// Lets a second pass, and says how many Services are planned again because it has.
    fn wait(&mut self) -> u64 {
        self.now += Duration::from_secs(1);
        let before = self.plannings.get();
        let due = self.syncer.due(self.now);
        self.syncer.sync(&self.store, due, self.now);
        self.plannings.get() - before
    }

    /// The weights of a Service's endpoints, which are those that verification wants.
    fn weights(&mut self, name: &str) -> Vec<u16> {
        let service = ObjectName::new("default", name);
        assert!(self.syncer.verify(&self.store, &service));
        let planned = self.planned(name);
        planned.ports[0].endpoints.weights().to_vec()
    }

    fn slow_starting(&self) -> i64 {
        let metrics = Metrics::new();
        self.syncer.measure(&metrics, self.now);
        metrics.slow_starting.get()
    }

    fn planned(&self, name: &str) -> Arc<ServicePlan> {
        self.catalog.get(&ObjectName::new("default", name)).unwrap()
    }
}

#[test]
fn after_many_services_there_is_memory_to_give_back() {
    let mut agent = Agent::new();
    let services = |count: u16| (0..count).map(|number| service(&format!("s{number}"), number));
    agent.apply(services(10));
    assert!(!agent.syncer.has_garbage(Duration::ZERO));
    agent.apply(services(MANY as u16));
    assert!(
        !agent.syncer.has_garbage(Duration::from_secs(60)),
        "just now"
    );
    assert!(agent.syncer.has_garbage(Duration::ZERO));
    assert!(!agent.syncer.has_garbage(Duration::ZERO), "it was told");
}

#[test]
fn a_change_of_the_node_concerns_those_whose_plans_depend_on_it() {
    let mut agent = Agent::new();
    // 100 Services, of which 10 have a node port, one an endpoint of this node's own network, and
    // one source ranges.
    agent.apply((0..100_u16).flat_map(|number| {
        let mut service = service(&format!("s{number}"), number);
        if number < 10 {
            service["spec"]["type"] = json!("NodePort");
            service["spec"]["ports"][0]["nodePort"] = json!(30_000 + number);
        }
        if number == 99 {
            service["spec"]["type"] = json!("LoadBalancer");
            service["spec"]["loadBalancerSourceRanges"] = json!(["192.0.2.0/24"]);
        }
        let address = match number {
            50 => "192.0.2.77",
            _ => "10.1.0.7",
        };
        [service, slice(&format!("s{number}"), &[address])]
    }));
    assert_eq!(agent.plannings.get(), 100);

    // A pod comes: its veth has an address, link-local as always.
    assert_eq!(agent.gains("fe80::1"), 0);
    assert_eq!(agent.loses("fe80::1"), 0);
    // Labels and taints that no rule reads.
    let label = |node: &mut Node| drop(node.labels.insert("a".into(), "b".into()));
    assert_eq!(agent.becomes(label), 0);
    assert_eq!(agent.becomes(|node| node.taints.push("t".into())), 0);

    // An address that accepts node ports, and one that an endpoint has as well.
    assert_eq!(agent.gains("198.51.100.1"), 10);
    let addresses = |plan: &ServicePlan| plan.ports[0].frontends.len();
    assert_eq!(
        addresses(&agent.planned("s3")),
        3,
        "cluster IP and two node ports"
    );
    assert_eq!(agent.gains("192.0.2.77"), 11);

    // What the node IP and the zone decide.
    let other_ip = |node: &mut Node| node.addresses = vec![ip("198.51.100.1")];
    assert_eq!(agent.becomes(other_ip), 1);
    let zone = "topology.kubernetes.io/zone";
    let zone = |node: &mut Node| drop(node.labels.insert(zone.into(), "z".into()));
    assert_eq!(agent.becomes(zone), 100);
    let pods = |node: &mut Node| node.pod_cidrs = vec!["10.1.0.0/16".parse().unwrap()];
    assert_eq!(agent.becomes(pods), 100);
}

#[test]
fn an_endpoint_that_is_the_node_itself_follows_its_addresses() {
    let mut agent = Agent::new();
    agent.apply([service("web", 1), slice("web", &["192.0.2.77"])]);
    assert_eq!(agent.gains("192.0.2.77"), 1);
    // It has gone elsewhere since.
    agent.apply([slice("web", &["10.1.0.7"])]);
    assert_eq!(agent.loses("192.0.2.77"), 0);
}

#[test]
fn a_dns_service_is_left_to_the_node_while_that_has_its_cluster_ip() {
    let mut agent = Agent::new();
    let mut dns = service("dns", 10);
    dns["spec"]["ports"][0]["port"] = json!(53);
    agent.apply([dns, slice("dns", &["10.1.0.7"])]);
    agent.apply([service("web", 11), slice("web", &["10.1.0.7"])]);
    let is_left = |agent: &Agent| agent.syncer.left_to_node().count() == 1;
    assert!(!is_left(&agent));
    assert_eq!(agent.gains("10.96.0.10"), 1);
    assert!(is_left(&agent) && agent.planned("dns").ports[0].frontends.is_empty());
    // No other address changes that, and no change of endpoints.
    assert_eq!(agent.gains("10.96.0.11"), 0);
    agent.apply([slice("dns", &["10.1.0.8"])]);
    assert!(is_left(&agent));
    assert_eq!(agent.loses("10.96.0.10"), 1);
    assert!(!is_left(&agent) && agent.planned("dns").ports[0].frontends.len() == 1);
}

#[test]
fn an_endpoint_in_slow_start_has_its_service_planned_at_each_step() {
    let mut web = service("web", 1);
    web["metadata"]["annotations"] = json!({"node-lb.io/slow-start": "20"});
    let mut agent = Agent::new();
    agent.apply([web.clone(), slice("web", &["10.1.0.7"])]);
    agent.apply([service("db", 2), slice("db", &["10.1.0.7"])]);
    let both = slice("web", &["10.1.0.7", "10.1.0.8"]);
    agent.apply([both.clone(), slice("db", &["10.1.0.7", "10.1.0.8"])]);
    assert_eq!(agent.weights("web"), [10, 1]);
    assert!(agent.weights("db").is_empty());
    assert_eq!(agent.slow_starting(), 1);

    let plannings: Vec<_> = (0..8).map(|_| agent.wait()).collect();
    assert_eq!(plannings, [0, 0, 0, 1, 0, 1, 0, 1]);
    assert_eq!(agent.weights("web"), [10, 4]);
    let plannings: u64 = (8..60).map(|_| agent.wait()).sum();
    assert_eq!(plannings, 6);
    assert!(agent.weights("web").is_empty());
    assert_eq!(agent.slow_starting(), 0);

    agent.apply([slice("web", &["10.1.0.7"])]);
    agent.apply([both.clone()]);
    assert_eq!(agent.weights("web"), [10, 1], "anew");
    let mut next = Agent::new();
    next.apply([web, both]);
    assert!(
        next.weights("web").is_empty(),
        "to the next agent both are old"
    );
    let name = ObjectName::new("default", "web");
    let deleted = ObjectRef {
        kind: Kind::Service,
        name,
    };
    agent.store.apply([Event::Delete(deleted)]);
    agent.apply([]);
    assert_eq!(agent.slow_starting(), 0);
}

/// Steps that look at all addresses for each address would take minutes.
#[test]
fn a_hundred_thousand_addresses_are_no_more_than_a_hundred_thousand() {
    let mut agent = Agent::new();
    let begun = Instant::now();
    let mut web = service("web", 1);
    let addresses = (0..100_000).map(|number| Ipv4Addr::from_bits(0x0b00_0001 + number));
    let addresses: Vec<_> = addresses.map(|address| address.to_string()).collect();
    web["spec"]["externalIPs"] = json!(addresses);
    agent.apply([web.clone(), slice("web", &["10.1.0.7"])]);
    let before = agent.planned("web");
    assert_eq!(before.ports[0].frontends.len(), 100_001);

    // Endpoints come and go: addresses are not even looked at.
    agent.apply([slice("web", &["10.1.0.8"])]);
    let after = agent.planned("web");
    assert_ne!(before.ports[0].endpoints, after.ports[0].endpoints);
    assert!(Arc::ptr_eq(
        &before.ports[0].frontends,
        &after.ports[0].frontends
    ));

    web["spec"]["externalIPs"] = json!(addresses[1..]);
    agent.apply([web]);
    assert_eq!(agent.planned("web").ports[0].frontends.len(), 100_000);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

fn local_node(node: &Node, addresses: &BTreeSet<IpAddr>) -> LocalNode {
    let options = PlanOptions {
        node_port_addresses: NodePortAddresses::Networks(Vec::new()),
        ..PlanOptions::default()
    };
    let addresses: Vec<_> = addresses.iter().copied().collect();
    LocalNode::new(node, &addresses, &options)
}

fn facts(node: &Node, addresses: &BTreeSet<IpAddr>) -> NodeFacts {
    NodeFacts {
        local_addresses: addresses.clone(),
        cluster_networks: node.pod_cidrs.clone(),
        maglev_rows: 0,
        ..NodeFacts::default()
    }
}

fn service(name: &str, number: u16) -> Value {
    let [high, low] = number.to_be_bytes();
    json!({
        "kind": "Service",
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "clusterIP": Ipv4Addr::new(10, 96, high, low),
            "ports": [{ "name": "http", "port": 80 }],
        },
    })
}

/// Endpoints of this node.
fn slice(service: &str, addresses: &[&str]) -> Value {
    let endpoint = |address| json!({ "addresses": [address], "nodeName": "node-1" });
    json!({
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": service,
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn counter() -> IntCounter {
    IntCounter::new("planned", "Services").unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
