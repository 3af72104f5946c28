//! Which parts of Services and slices are used: the vectors' rules that concern the planner (others
//! concern the translation from Kubernetes), and further rules.

use std::net::SocketAddr;

use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, IpFamily, Node, ObjectName, Protocol,
    RemovedEndpoints, Service, ServicePort, ServiceType, SharedName, TrafficPolicy, Weights,
};
use node_lb::plan::{
    EndpointClass, Frontend, FrontendKind, LocalNode, Plan, PlanOptions, ServicePlan, plan,
};

#[test]
fn running_endpoint_beats_terminating_one_of_the_same_address() {
    let terminating = slice("a", 80, [terminating("10.0.0.1", "node-1")]);
    let running = slice("b", 80, [ready("10.0.0.1", "node-2")]);
    for order in [[&terminating, &running], [&running, &terminating]] {
        let port = first_port(&service(), &order);
        let remote = port.endpoints.class(EndpointClass::RemoteReady);
        assert_eq!(
            remote,
            addresses(["10.0.0.1:80"]),
            "its node counts as well"
        );
        assert_eq!(port.endpoints.slots(), remote);
    }
}

#[test]
fn first_of_two_terminating_and_last_of_two_running_endpoints_count() {
    let two_terminating = slice(
        "a",
        80,
        [
            terminating("10.0.0.1", "node-1"),
            terminating("10.0.0.1", "node-2"),
            ready("10.0.0.2", "node-1"),
            ready("10.0.0.2", "node-2"),
        ],
    );
    let port = first_port(&service(), &[&two_terminating]);
    assert_eq!(port.endpoints.counts(), [0, 0, 0, 1, 1, 0]);
}

#[test]
fn slices_may_map_one_port_name_to_different_numbers() {
    let endpoints = [ready("10.0.0.1", "node-2")];
    let slices = [
        slice("a", 8080, endpoints.clone()),
        slice("b", 9090, endpoints),
    ];
    let port = first_port(&service(), &[&slices[0], &slices[1]]);
    assert_eq!(
        port.cluster_set(),
        addresses(["10.0.0.1:8080", "10.0.0.1:9090"])
    );
}

#[test]
fn ports_are_joined_by_name_and_protocol() {
    let mut slice = slice("a", 8080, [ready("10.0.0.1", "node-2")]);
    slice.ports[0].name = "http".into();
    assert!(!first_port(&service(), &[&slice]).has_any());

    slice.ports[0].name = SharedName::default();
    slice.ports[0].protocol = Protocol::Udp;
    assert!(!first_port(&service(), &[&slice]).has_any());
}

#[test]
fn slices_of_another_family_are_ignored() {
    let slice = slice("a", 80, [ready("2001:db8::1", "node-1")]);
    assert!(!first_port(&service(), &[&slice]).has_any());
}

#[test]
fn endpoints_are_sorted_by_text_within_a_class() {
    let slice = slice(
        "a",
        80,
        [
            ready("10.0.0.9", "node-2"),
            ready("10.0.0.10", "node-2"),
            ready("10.0.0.3", "node-1"),
        ],
    );
    let port = first_port(&service(), &[&slice]);
    let expected = addresses(["10.0.0.3:80", "10.0.0.10:80", "10.0.0.9:80"]);
    assert_eq!(port.endpoints.slots(), expected);
}

#[test]
fn weights_follow_their_endpoints_and_the_services_go_first() {
    let heavy = EndpointSlice {
        weight: 5,
        ..slice(
            "b",
            80,
            [ready("10.0.1.1", "node-2"), ready("10.0.1.2", "big")],
        )
    };
    let plain = slice(
        "a",
        80,
        [ready("10.0.0.2", "node-1"), ready("10.0.0.1", "big")],
    );
    let mut weighted = service();
    weighted.weights.set_node("big".into(), 3);
    weighted.weights.set_address("10.0.0.2".parse().unwrap(), 9);
    let plan = first_port(&weighted, &[&heavy, &plain]);
    let slots = plan.endpoints.slots().iter().map(ToString::to_string);
    let weights = plan.endpoints.weights().iter().copied();
    assert_eq!(
        slots.zip(weights).collect::<Vec<_>>(),
        [
            ("10.0.0.2:80".to_owned(), 9), // the local one goes first
            ("10.0.0.1:80".to_owned(), 3),
            ("10.0.1.1:80".to_owned(), 5),
            ("10.0.1.2:80".to_owned(), 3),
        ]
    );
    let same = first_port(&service(), &[&heavy]);
    assert_eq!(same.endpoints.weights(), [0; 0], "all have the same");
    let removed = EndpointSlice { weight: 1, ..heavy };
    assert_eq!(first_port(&service(), &[&removed]), same);
}

#[test]
fn a_part_of_a_weight_is_one_beside_whole_ones() {
    let slice = slice(
        "a",
        80,
        [
            ready("10.0.0.1", "node-2"),
            ready("10.0.0.2", "node-2"),
            terminating("10.0.0.3", "node-2"),
        ],
    );
    let scaled = |service: &Service, parts: [u16; 3]| {
        let mut endpoints = first_port(service, &[&slice]).endpoints;
        let [first, second, _] = addresses(["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"])[..]
        else {
            unreachable!();
        };
        endpoints.scale(|endpoint| match endpoint {
            one if *one == first => parts[0],
            one if *one == second => parts[1],
            _ => parts[2],
        });
        endpoints.weights().to_vec()
    };
    assert_eq!(scaled(&service(), [10, 3, 10]), [10, 3, 10]);
    assert_eq!(scaled(&service(), [10; 3]), [0; 0], "all have the same");
    let mut weighted = service();
    weighted
        .weights
        .set_address("10.0.0.2".parse().unwrap(), 256);
    assert_eq!(scaled(&weighted, [1, 10, 10]), [1, 2560, 10]);
    weighted.weights.set_address("10.0.0.2".parse().unwrap(), 5);
    assert_eq!(scaled(&weighted, [10, 2, 10]), [0; 0], "so they have again");
}

#[test]
fn only_families_with_a_cluster_ip_are_planned() {
    let service = Service {
        service_type: ServiceType::LoadBalancer,
        cluster_ips: vec!["fd00::1".parse().unwrap()],
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        load_balancer_ips: vec!["192.0.2.1".parse().unwrap()],
        ..service()
    };
    let planned = planned(&service, &[]);
    assert_eq!(planned.ports.len(), 1);
    assert_eq!(planned.ports[0].family, IpFamily::V6);
    assert_eq!(
        *planned.ports[0].frontends,
        [frontend(FrontendKind::ClusterIp, "[fd00::1]:80")]
    );
    assert!(!planned.ports[0].externally_accessible);
}

#[test]
fn dual_stack_service_is_planned_per_family() {
    let mut service = load_balancer();
    service.cluster_ips.push("fd00::1".parse().unwrap());
    let slices = [
        slice("a", 80, [ready("10.0.0.1", "node-1")]),
        slice("b", 80, [ready("fd00:10::1", "node-2")]),
    ];
    let planned = planned(&service, &[&slices[0], &slices[1]]);
    let sets: Vec<_> = planned.ports.iter().map(Plan::cluster_set).collect();
    assert_eq!(
        sets,
        [addresses(["10.0.0.1:80"]), addresses(["[fd00:10::1]:80"])]
    );
    let ready: Vec<_> = planned
        .health_checks
        .iter()
        .map(|h| h.local_ready)
        .collect();
    assert_eq!(ready, [1, 0]);
}

#[test]
fn frontends_of_a_load_balancer() {
    let mut service = load_balancer();
    service.external_ips = vec!["198.51.100.7".parse().unwrap()];
    service.ports[0].node_port = 30_080;
    assert_eq!(
        *first_port(&service, &[]).frontends,
        [
            frontend(FrontendKind::ClusterIp, "172.30.1.1:80"),
            frontend(FrontendKind::LoadBalancerIp, "192.0.2.1:80"),
            frontend(FrontendKind::ExternalIp, "198.51.100.7:80"),
            frontend(FrontendKind::NodePort, "192.168.0.2:30080"),
        ]
    );
}

#[test]
fn an_address_that_is_load_balancer_ip_and_external_ip_keeps_its_source_ranges() {
    let mut service = load_balancer();
    service.external_ips = service.load_balancer_ips.clone();
    let port = first_port(&service, &[]);
    assert_eq!(
        port.frontends[1..],
        [frontend(FrontendKind::LoadBalancerIp, "192.0.2.1:80")]
    );
}

#[test]
fn external_ips_outside_the_networks_allowed_are_not_served() {
    let service = Service {
        external_ips: ["198.51.100.7", "203.0.113.7"]
            .map(|ip| ip.parse().unwrap())
            .into(),
        ..service()
    };
    let options = PlanOptions {
        external_ip_networks: vec!["198.51.100.0/24".parse().unwrap()],
        ..PlanOptions::default()
    };
    let node = node();
    let node = LocalNode::new(&node, &node.addresses, &options);
    assert_eq!(
        *plan(&service, &[], &node).ports[0].frontends,
        [
            frontend(FrontendKind::ClusterIp, "172.30.1.1:80"),
            frontend(FrontendKind::ExternalIp, "198.51.100.7:80")
        ]
    );
}

/// NodeLocal DNSCache: an address of the cluster's DNS on a device of each node.
#[test]
fn dns_at_a_cluster_ip_that_is_the_nodes_own_is_left_to_the_node() {
    let port = |port, protocol| ServicePort {
        port,
        protocol,
        name: format!("{protocol}-{port}").into(),
        node_port: 30_053,
    };
    let service = Service {
        ports: vec![
            port(53, Protocol::Udp),
            port(53, Protocol::Tcp),
            port(9153, Protocol::Tcp),
        ],
        ..service()
    };
    let node = Node {
        addresses: vec!["192.168.0.2".parse().unwrap()],
        ..node()
    };
    let on_node = |addresses: &[&str]| {
        let addresses: Vec<_> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        let local = LocalNode::new(&node, &addresses, &PlanOptions::default());
        plan(&service, &[], &local).ports
    };
    let node_port = frontend(FrontendKind::NodePort, "192.168.0.2:30053");
    let cluster_ip = |port| frontend(FrontendKind::ClusterIp, &format!("172.30.1.1:{port}"));
    for plan in &on_node(&["192.168.0.2", "172.30.1.1"])[..2] {
        assert_eq!(*plan.frontends, [node_port], "{}", plan.name);
        let left = plan.left_to_node.as_deref().copied();
        assert_eq!(left, Some("172.30.1.1:53".parse().unwrap()));
    }
    // Its metrics are asked through the Service, as with kube-proxy.
    let metrics = &on_node(&["192.168.0.2", "172.30.1.1"])[2];
    assert_eq!(*metrics.frontends, [cluster_ip(9153), node_port]);
    assert_eq!(metrics.left_to_node, None);

    let plan = &on_node(&["192.168.0.2", "172.30.1.2", "169.254.20.10"])[0];
    assert_eq!(*plan.frontends, [cluster_ip(53), node_port]);
    assert_eq!(plan.left_to_node, None);
}

#[test]
fn external_ips_can_be_switched_off_but_keep_a_port_accessible() {
    let service = Service {
        external_ips: vec!["198.51.100.7".parse().unwrap()],
        ..service()
    };
    let options = PlanOptions {
        allow_external_ips: false,
        ..PlanOptions::default()
    };
    let node = node();
    let node = LocalNode::new(&node, &node.addresses, &options);
    let port = &plan(&service, &[], &node).ports[0];
    assert_eq!(
        *port.frontends,
        [frontend(FrontendKind::ClusterIp, "172.30.1.1:80")]
    );
    assert!(port.externally_accessible);
}

#[test]
fn load_balancer_without_any_address_ignores_external_policy_local() {
    let service = Service {
        load_balancer_ips: Vec::new(),
        ..load_balancer()
    };
    let slice = slice("a", 80, [ready("10.0.0.1", "node-2")]);
    let port = first_port(&service, &[&slice]);
    assert!(!port.uses_local());
    assert!(
        port.external_lacks_local(),
        "kube-proxy's metric counts it all the same"
    );
}

#[test]
fn external_policy_local_means_nothing_on_an_internal_service() {
    let service = Service {
        external_traffic_policy: TrafficPolicy::Local,
        ..service()
    };
    assert_eq!(
        first_port(&service, &[]).external_policy,
        TrafficPolicy::Cluster
    );
}

#[test]
fn health_check_port_needs_a_load_balancer_with_policy_local() {
    assert_eq!(planned(&load_balancer(), &[]).health_checks[0].port, 32_000);
    for without in [
        Service {
            service_type: ServiceType::NodePort,
            ..load_balancer()
        },
        Service {
            external_traffic_policy: TrafficPolicy::Cluster,
            ..load_balancer()
        },
        Service {
            health_check_node_port: 0,
            ..load_balancer()
        },
    ] {
        assert_eq!(planned(&without, &[]).health_checks, []);
    }
}

#[test]
fn health_check_counts_addresses_of_ready_local_endpoints_once() {
    let mut two_ports = slice(
        "a",
        80,
        [
            ready("10.0.0.1", "node-1"),
            ready("10.0.0.2", "node-2"),
            terminating("10.0.0.3", "node-1"),
        ],
    );
    two_ports.ports.push(EndpointPort {
        name: "not a service port".into(),
        protocol: Protocol::Tcp,
        port: 81,
    });
    let health = planned(&load_balancer(), &[&two_ports]).health_checks[0];
    assert_eq!((health.local_ready, health.status()), (1, 200));
}

#[test]
fn source_ranges_in_force() {
    for (ranges, expected) in [
        (&[][..], &[][..]),
        (&["203.0.113.0/25"], &["203.0.113.0/25"]),
        (&["203.0.113.9/25"], &["203.0.113.0/25"]),
        // Only the other family's.
        (&["2001:db8::/32"], &[]),
        (&["203.0.113.0/25", "2001:db8::/32"], &["203.0.113.0/25"]),
        // All of a family.
        (&["203.0.113.0/25", "0.0.0.0/0"], &[]),
        (&["203.0.113.0/25", "::/0"], &["203.0.113.0/25"]),
        // This node's IP is inside, so the load balancer IP may be the source.
        (&["192.168.0.0/16"], &["192.0.2.1/32", "192.168.0.0/16"]),
    ] {
        let service = Service {
            load_balancer_source_ranges: ranges.iter().map(|r| r.parse().unwrap()).collect(),
            ..load_balancer()
        };
        let in_force = first_port(&service, &[]).source_ranges;
        let in_force: Vec<_> = in_force.iter().map(ToString::to_string).collect();
        assert_eq!(in_force, expected, "{ranges:?}");
    }
}

#[test]
fn serving_endpoints_of_udp_ports_are_known_whatever_else_holds() {
    let not_serving = Endpoint {
        serving: false,
        ..ready("10.0.0.3", "node-2")
    };
    let unready = Endpoint {
        ready: false,
        ..ready("10.0.0.2", "node-2")
    };
    let mut slice = slice(
        "a",
        80,
        [terminating("10.0.0.1", "node-2"), unready, not_serving],
    );
    slice.ports[0].protocol = Protocol::Udp;
    let mut service = service();
    service.ports[0].protocol = Protocol::Udp;
    let port = first_port(&service, &[&slice]);
    let serving = addresses(["10.0.0.1:80", "10.0.0.2:80"]);
    assert_eq!(port.remaining, Some(serving.into()));
}

#[test]
fn tcp_endpoints_remain_as_long_as_they_are_listed_where_that_is_asked() {
    let unready = Endpoint {
        ready: false,
        serving: false,
        ..ready("10.0.0.2", "node-2")
    };
    let slice = slice("a", 80, [ready("10.0.0.1", "node-2"), unready]);
    let mut service = service();
    assert_eq!(first_port(&service, &[&slice]).remaining, None);
    service.removed_endpoints = RemovedEndpoints::Reset;
    let listed = addresses(["10.0.0.1:80", "10.0.0.2:80"]);
    assert_eq!(
        first_port(&service, &[&slice]).remaining,
        Some(listed.into())
    );
}

#[test]
fn terminating_endpoints_in_use_are_those_of_sets_without_ready_ones() {
    let here = terminating("10.0.0.1", "node-1");
    let away = terminating("10.0.0.2", "node-2");
    let ready_away = ready("10.0.0.3", "node-2");
    let ready_here = ready("10.0.0.4", "node-1");
    let in_use = |service: &Service, endpoints: [&Endpoint; 3]| {
        let slice = slice("a", 80, endpoints.map(Clone::clone));
        first_port(service, &[&slice]).terminating_in_use()
    };
    let internal = service();
    assert_eq!(in_use(&internal, [&here, &away, &here]), 2);
    assert_eq!(in_use(&internal, [&here, &away, &ready_away]), 0);

    // The Local set falls back on its own. The Cluster set, for short-circuited traffic, need not.
    let external = load_balancer();
    assert_eq!(in_use(&external, [&here, &away, &ready_away]), 1);
    assert_eq!(in_use(&external, [&here, &away, &ready_here]), 0);
    assert_eq!(in_use(&external, [&here, &away, &away]), 2);
    assert_eq!(in_use(&external, [&away, &ready_away, &ready_away]), 0);
}

fn first_port(service: &Service, slices: &[&EndpointSlice]) -> Plan {
    planned(service, slices).ports.swap_remove(0)
}

fn planned(service: &Service, slices: &[&EndpointSlice]) -> ServicePlan {
    let node = node();
    let local = LocalNode::new(&node, &node.addresses, &PlanOptions::default());
    plan(service, slices, &local)
}

fn node() -> Node {
    Node {
        name: "node-1".into(),
        addresses: vec!["192.168.0.2".parse().unwrap()],
        ..Node::default()
    }
}

fn service() -> Service {
    Service {
        name: name("svc"),
        uid: None,
        created: 0,
        service_type: ServiceType::ClusterIp,
        cluster_ips: vec!["172.30.1.1".parse().unwrap()],
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: vec![ServicePort {
            name: SharedName::default(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: 0,
        }],
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        load_balancer_source_ranges: Vec::new(),
        health_check_node_port: 0,
        session_affinity: None,
        algorithm: Algorithm::Random,
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: 0,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: false,
    }
}

fn load_balancer() -> Service {
    Service {
        service_type: ServiceType::LoadBalancer,
        load_balancer_ips: vec!["192.0.2.1".parse().unwrap()],
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: 32_000,
        ..service()
    }
}

fn slice<const N: usize>(slice: &str, port: u16, endpoints: [Endpoint; N]) -> EndpointSlice {
    EndpointSlice {
        name: name(slice),
        service: "svc".into(),
        weight: 1,
        ports: vec![EndpointPort {
            name: SharedName::default(),
            protocol: Protocol::Tcp,
            port,
        }],
        endpoints: endpoints.into(),
    }
}

fn ready(address: &str, node: &str) -> Endpoint {
    Endpoint {
        address: address.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        node_name: Some(node.into()),
        zone_hints: Box::default(),
        node_hints: Box::default(),
    }
}

fn terminating(address: &str, node: &str) -> Endpoint {
    Endpoint {
        ready: false,
        terminating: true,
        ..ready(address, node)
    }
}

fn frontend(kind: FrontendKind, address: &str) -> Frontend {
    Frontend {
        kind,
        address: address.parse().unwrap(),
    }
}

fn addresses<const N: usize>(texts: [&str; N]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}
