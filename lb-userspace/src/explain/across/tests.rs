//! Ways through a cluster of three nodes.

use std::sync::Arc;

use lb_common::verdict::Reason;
use lb_objects::Object;

use super::{Asked, Assumption, Cluster, Journey, Leg, PlaceKind, Problem, Step, Translator, walk};
use crate::explain::{
    Question, Report, Verdict,
    tests::{config, objects, store},
};

/// Three nodes. `far` has only endpoints on node-2, `mine` only one, on node-1, and `host` the node
/// node-3 itself. `lost` has some on a node that is none, and outside.
const OBJECTS: &str = "
kind: Node
apiVersion: v1
metadata: {name: node-1}
spec: {podCIDRs: [10.0.1.0/24, 'fd00:1::/64']}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: '2001:db8::1'}]}
---
kind: Node
apiVersion: v1
metadata: {name: node-2}
spec: {podCIDRs: [10.0.2.0/24, 'fd00:2::/64']}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}, {type: InternalIP, address: '2001:db8::2'}]}
---
kind: Node
apiVersion: v1
metadata: {name: node-3}
spec: {podCIDRs: [10.0.3.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.3}]}
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: far}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, 'fd00:96::1']
  ipFamilies: [IPv4, IPv6]
  ports: [{name: web, port: 80, nodePort: 30081}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: far-4, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints: [{addresses: [10.0.2.7], nodeName: node-2}]
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: far-6, labels: {kubernetes.io/service-name: far}}
addressType: IPv6
ports: [{name: web, port: 8080}]
endpoints: [{addresses: ['fd00:2::7'], nodeName: node-2}]
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: local}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  clusterIP: 10.96.0.2
  ports: [{port: 80, nodePort: 30082}]
status: {loadBalancer: {ingress: [{ip: 198.51.100.2}]}}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: local-1, labels: {kubernetes.io/service-name: local}}
addressType: IPv4
ports: [{name: '', port: 8080}]
endpoints:
- {addresses: [10.0.2.8], nodeName: node-2}
- {addresses: [10.0.3.8], nodeName: node-3, conditions: {ready: false}}
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: mine}
spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: mine-1, labels: {kubernetes.io/service-name: mine}}
addressType: IPv4
ports: [{name: '', port: 8080}]
endpoints: [{addresses: [10.0.1.9], nodeName: node-1}]
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: host}
spec: {type: NodePort, clusterIP: 10.96.0.4, ports: [{port: 80, nodePort: 30084}]}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: host-1, labels: {kubernetes.io/service-name: host}}
addressType: IPv4
ports: [{name: '', port: 9100}]
endpoints: [{addresses: [192.0.2.3], nodeName: node-3}]
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: lost}
spec: {clusterIP: 10.96.0.5, ports: [{port: 80}]}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: lost-1, labels: {kubernetes.io/service-name: lost}}
addressType: IPv4
ports: [{name: '', port: 8080}]
endpoints: [{addresses: [10.0.9.1], nodeName: node-9}, {addresses: [10.0.8.1]}, {addresses: [203.0.113.80]}]
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: again}
spec: {clusterIP: 10.96.0.6, ports: [{port: 80}]}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: again-1, labels: {kubernetes.io/service-name: again}}
addressType: IPv4
ports: [{name: '', port: 30081}]
endpoints: [{addresses: [192.0.2.3], nodeName: node-3}]
---
kind: Service
apiVersion: v1
metadata: {namespace: shop, name: circle}
spec: {clusterIP: 10.96.0.7, externalIPs: [192.0.2.2, 192.0.2.3], ports: [{port: 7}]}
---
kind: EndpointSlice
apiVersion: discovery.k8s.io/v1
metadata: {namespace: shop, name: circle-1, labels: {kubernetes.io/service-name: circle}}
addressType: IPv4
ports: [{name: '', port: 7}]
endpoints: [{addresses: [192.0.2.2], nodeName: node-2}, {addresses: [192.0.2.3], nodeName: node-3}]
";

const CLUSTER_CIDR: &str = "--cluster-cidr=10.0.0.0/16,fd00::/16";

fn cluster(settings: &[&str]) -> Cluster {
    let objects = objects(OBJECTS);
    let nodes = objects.iter().filter_map(|object| match object {
        Object::Node(node) => Some(node.clone()),
        _ => None,
    });
    let nodes: Vec<_> = nodes.collect();
    Cluster::new(config(settings), store(objects), nodes, Vec::new())
}

fn question(from: &str, to: &str) -> Question {
    Question {
        from: from.parse().unwrap(),
        to: to.parse().unwrap(),
        interface: None,
    }
}

fn try_journey(
    cluster: &Cluster,
    from: &str,
    to: &str,
    via: Option<&str>,
) -> anyhow::Result<Journey> {
    let mut ask = |node: &Arc<_>, question: &Question| {
        Ok(Some(cluster.explain(node, question, Arc::default())?))
    };
    let asked = Asked {
        ask: &mut ask,
        is_live: false,
    };
    walk(cluster, &question(from, to), via, asked)
}

fn journey(settings: &[&str], from: &str, to: &str, via: Option<&str>) -> Journey {
    try_journey(&cluster(settings), from, to, via).unwrap()
}

fn decision(step: &Step) -> &Report {
    step.decision.as_ref().unwrap()
}

/// The only way on.
fn only(step: &Step) -> &Leg {
    match &step.onward[..] {
        [leg] => leg,
        legs => panic!("{legs:?}"),
    }
}

/// Checks that a leg ends at a pod on another node, where the packet, from this source, is nobody's.
fn arrives(leg: &Leg, node: &str, from: &str) {
    assert_eq!(leg.place.node.as_deref(), Some(node));
    assert_eq!(leg.from, Some(from.parse().unwrap()));
    let then = leg.then.as_ref().unwrap();
    assert_eq!(then.node, node);
    assert_eq!(
        decision(then).from,
        from.parse::<std::net::IpAddr>().unwrap()
    );
    assert_eq!(decision(then).to, leg.to);
    assert_eq!(decision(then).reason, Reason::NotService);
    assert_eq!(then.onward, []);
}

#[test]
fn a_pod_reaches_a_pod_of_another_node_with_its_own_address() {
    for (from, to, endpoint) in [
        ("10.0.1.5", "10.96.0.1:80", "10.0.2.7:8080"),
        ("fd00:1::5", "[fd00:96::1]:80", "[fd00:2::7]:8080"),
    ] {
        let way = journey(&[CLUSTER_CIDR], from, to, None);
        assert_eq!(way.client.node.as_deref(), Some("node-1"));
        assert_eq!(way.first.node, "node-1");
        let leg = only(&way.first);
        assert_eq!(leg.to, endpoint.parse().unwrap());
        arrives(leg, "node-2", from);
        // Answers to a pod of node-1 come by node-1.
        assert_eq!(
            (leg.answer, &leg.problems[..]),
            (Some(Translator::Flow), &[][..])
        );
        let nodes = vec!["node-1".to_owned(), "node-2".to_owned()];
        let assumed = [
            Assumption::SameSettings { nodes },
            Assumption::NodeAddresses,
            Assumption::NothingElseTranslates,
        ];
        assert_eq!(way.assumed, assumed);
    }
}

#[test]
fn a_node_port_replaces_the_source_so_that_answers_come_back() {
    for to in ["192.0.2.3:30081", "198.51.100.1:80"] {
        let way = journey(&[CLUSTER_CIDR], "203.0.113.9", to, Some("node-3"));
        assert_eq!(
            (way.client.kind, way.client.node),
            (PlaceKind::Outside, None)
        );
        let leg = only(&way.first);
        arrives(leg, "node-2", "192.0.2.3");
        assert_eq!(leg.problems, []);
        assert!(way.assumed.contains(&Assumption::NoTunnel));
    }
    // The node port's address says which node it is.
    let way = journey(&[CLUSTER_CIDR], "203.0.113.9", "192.0.2.3:30081", None);
    assert_eq!(way.first.node, "node-3");
}

#[test]
fn local_endpoints_keep_the_source_and_nodes_without_any_name_the_others() {
    let serving = journey(&[CLUSTER_CIDR], "203.0.113.9", "192.0.2.2:30082", None);
    let leg = only(&serving.first);
    assert_eq!(leg.from, Some("203.0.113.9".parse().unwrap()));
    assert_eq!(leg.place.node.as_deref(), Some("node-2"));
    assert_eq!((&leg.then, &leg.problems[..]), (&None, &[][..]));
    assert!(!serving.assumed.contains(&Assumption::NothingElseTranslates));

    // node-3 has one that is not ready.
    for node in ["node-1", "node-3"] {
        let way = journey(&[], "203.0.113.9", "198.51.100.2:80", Some(node));
        assert_eq!(decision(&way.first).reason, Reason::NoLocalEndpoints);
        let nodes = vec!["node-2".to_owned()];
        assert_eq!(way.first.problems, [Problem::EndpointsElsewhere { nodes }]);
        assert_eq!(way.first.onward, []);
    }
    // A pod goes on to another node.
    let way = journey(&[CLUSTER_CIDR], "10.0.1.5", "198.51.100.2:80", None);
    arrives(only(&way.first), "node-2", "10.0.1.5");
}

#[test]
fn a_pod_that_reaches_itself_does_so_with_its_nodes_address() {
    let way = journey(&[CLUSTER_CIDR], "10.0.1.9", "10.96.0.3:80", None);
    let leg = only(&way.first);
    assert_eq!(leg.from, Some("192.0.2.1".parse().unwrap()));
    assert_eq!((&leg.then, &leg.problems[..]), (&None, &[][..]));
    assert!(!way.assumed.contains(&Assumption::NoTunnel));
}

#[test]
fn an_endpoint_in_its_nodes_network_is_the_node() {
    let way = journey(&[CLUSTER_CIDR], "10.0.1.5", "10.96.0.4:80", None);
    let leg = only(&way.first);
    assert_eq!(leg.place.kind, PlaceKind::Node);
    arrives(leg, "node-3", "10.0.1.5");
    // On that node itself nothing goes on.
    let way = journey(&[CLUSTER_CIDR], "203.0.113.9", "192.0.2.3:30084", None);
    let leg = only(&way.first);
    assert_eq!(
        (leg.from, &leg.then),
        (Some("203.0.113.9".parse().unwrap()), &None)
    );
    // A node's own process is connected to the endpoint.
    let way = journey(&[CLUSTER_CIDR], "192.0.2.1", "10.96.0.4:80", None);
    assert_eq!(only(&way.first).answer, Some(Translator::Socket));
    let way = journey(&["--socket-lb=off"], "192.0.2.1", "10.96.0.4:80", None);
    assert_eq!(only(&way.first).answer, Some(Translator::Flow));
}

/// Without a detector, a ClusterIP keeps the sources of clients outside.
#[test]
fn answers_that_do_not_come_back_are_a_problem() {
    let settings = ["--detect-local-mode=none"];
    let way = journey(&settings, "203.0.113.9", "10.96.0.1:80", Some("node-3"));
    let leg = only(&way.first);
    arrives(leg, "node-2", "203.0.113.9");
    assert_eq!(leg.problems, [Problem::AnswerAstray]);
    // By the endpoint's node it comes back.
    let way = journey(&settings, "203.0.113.9", "10.96.0.1:80", Some("node-2"));
    assert_eq!(only(&way.first).problems, []);
}

/// A pod's node leaves node ports of others alone.
#[test]
fn another_nodes_node_port_is_decided_there() {
    let way = journey(&[CLUSTER_CIDR], "10.0.1.5", "192.0.2.3:30081", None);
    assert_eq!(way.first.node, "node-1");
    assert_eq!(decision(&way.first).verdict, Verdict::Pass);
    let leg = only(&way.first);
    assert_eq!((leg.answer, &leg.problems[..]), (None, &[][..]));
    let then = leg.then.as_ref().unwrap();
    assert_eq!(then.node, "node-3");
    assert_eq!(decision(then).verdict, Verdict::Forward);
    arrives(only(then), "node-2", "192.0.2.3");
    // externalTrafficPolicy Local sends pods on with their own address, past that node.
    let way = journey(&[CLUSTER_CIDR], "10.0.1.5", "192.0.2.3:30082", None);
    let then = only(&way.first).then.as_ref().unwrap();
    let onward = only(then);
    arrives(onward, "node-2", "10.0.1.5");
    assert_eq!(onward.problems, [Problem::AnswerAstray]);
}

#[test]
fn an_endpoint_may_be_a_services_address_again() {
    let way = journey(&[CLUSTER_CIDR], "10.0.1.5", "10.96.0.6:80", None);
    let then = only(&way.first).then.as_ref().unwrap();
    assert_eq!(then.node, "node-3");
    assert_eq!(decision(then).service.as_deref(), Some("shop/far:web"));
    let leg = only(then);
    arrives(leg, "node-2", "192.0.2.3");
    assert_eq!(leg.problems, []);
}

#[test]
fn a_circle_ends() {
    let way = journey(&[CLUSTER_CIDR], "10.0.1.5", "10.96.0.7:7", None);
    let text = serde_json::to_string(&way).unwrap();
    assert!(text.contains("tooManyNodes"), "{text}");
}

#[test]
fn endpoints_on_no_known_node_are_told() {
    let way = journey(&[CLUSTER_CIDR], "10.0.1.5", "10.96.0.5:80", None);
    let leg = |address: &str| {
        let mut legs = way.first.onward.iter();
        let to = address.parse().unwrap();
        legs.find(|leg| leg.to == to).unwrap()
    };
    let named = leg("10.0.9.1:8080");
    let node = "node-9".to_owned();
    let problems = &named.then.as_ref().unwrap().problems;
    assert_eq!(*problems, [Problem::NoNodeObject { node }]);
    let unnamed = leg("10.0.8.1:8080");
    assert_eq!((unnamed.place.kind, &unnamed.then), (PlaceKind::Pod, &None));
    assert_eq!(unnamed.problems, [Problem::NodeUnknown]);
    let outside = leg("203.0.113.80:8080");
    assert_eq!(
        (outside.place.kind, &outside.problems[..]),
        (PlaceKind::Outside, &[][..])
    );
}

#[test]
fn a_node_without_an_address_of_the_family_cannot_replace_the_source() {
    let settings = [CLUSTER_CIDR];
    let to = "[fd00:96::1]:80";
    let way = journey(&settings, "2001:db8:9::9", to, Some("node-3"));
    let leg = only(&way.first);
    assert_eq!((leg.from, &leg.then), (None, &None));
    assert_eq!(leg.problems, [Problem::NoNodeAddress]);
}

#[test]
fn pods_are_told_by_their_devices_if_that_is_said() {
    let settings = [
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-interface-name-prefix=veth",
    ];
    let way = journey(&settings, "10.0.1.5", "10.96.0.1:80", None);
    arrives(only(&way.first), "node-2", "10.0.1.5");
    let name = "veth".to_owned();
    assert!(way.assumed.contains(&Assumption::Device { name }));
}

#[test]
fn where_a_packet_comes_first_must_be_known() {
    let cluster = cluster(&[CLUSTER_CIDR]);
    let said = |from, to, via| {
        let error = try_journey(&cluster, from, to, via).unwrap_err();
        error.to_string()
    };
    let outside = said("203.0.113.9", "198.51.100.1:80", None);
    assert!(outside.contains("name it with --via NODE"), "{outside}");
    let inside = said("10.0.1.5", "198.51.100.1:80", Some("node-2"));
    assert!(inside.contains("10.0.1.5 is on node node-1"), "{inside}");
    let unknown = said("203.0.113.9", "198.51.100.1:80", Some("node-7"));
    assert!(unknown.contains("no Node \"node-7\""), "{unknown}");
}

#[test]
fn who_does_not_answer_is_named() {
    let cluster = cluster(&[CLUSTER_CIDR]);
    let mut ask = |node: &Arc<lb_objects::Node>, question: &Question| {
        let answers = node.name == "node-1";
        let report = cluster.explain(node, question, Arc::default())?;
        Ok(Some(report).filter(|_| answers))
    };
    let asked = Asked {
        ask: &mut ask,
        is_live: true,
    };
    let way = walk(&cluster, &question("10.0.1.5", "10.96.0.1:80"), None, asked).unwrap();
    let then = only(&way.first).then.as_ref().unwrap();
    let node = "node-2".to_owned();
    assert_eq!(
        (&then.decision, &then.problems[..]),
        (&None, &[Problem::NoAnswer { node }][..])
    );
    assert_eq!(way.assumed, [Assumption::NothingElseTranslates]);
    let json = serde_json::to_string(&way).unwrap();
    assert_eq!(serde_json::from_str::<Journey>(&json).unwrap(), way);
}
