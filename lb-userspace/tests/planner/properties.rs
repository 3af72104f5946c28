//! Properties of every plan, checked with random Services and slices.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, SharedName, TrafficPolicy, Weights,
};
use node_lb::plan::{EndpointClass, LocalNode, Plan, PlanOptions, TopologyMode, Verdict, plan};
use proptest::{collection::vec, option, prelude::*, sample::select};

proptest! {
    #[test]
    fn order_of_slices_does_not_matter(
        service in service(),
        (slices, shuffled) in vec(slice(), 0..5).prop_flat_map(|slices| {
            let slices = named(slices);
            (Just(slices.clone()), Just(slices).prop_shuffle())
        }),
    ) {
        prop_assert_eq!(planned(&service, &slices), planned(&service, &shuffled));
    }

    #[test]
    fn classes_partition_the_slots(service in service(), slices in vec(slice(), 0..5)) {
        let endpoints = planned(&service, &named(slices)).endpoints;
        let classes = EndpointClass::ALL.map(|class| endpoints.class(class).to_vec());
        prop_assert_eq!(classes.concat(), endpoints.slots());

        let mut unique = endpoints.slots().to_vec();
        unique.sort_unstable();
        unique.dedup();
        prop_assert_eq!(unique.len(), endpoints.slots().len(), "no endpoint twice");
    }

    #[test]
    fn sets_are_contiguous_and_never_mix_ready_with_terminating(
        service in service(),
        slices in vec(slice(), 0..5),
    ) {
        let plan = planned(&service, &named(slices));
        let endpoints = &plan.endpoints;
        let ready = endpoints.ready().len();
        for set in [endpoints.cluster(), endpoints.local()] {
            if let Some(range) = position(endpoints.slots(), set) {
                prop_assert!(range.end <= ready || range.start >= ready);
            }
        }
    }

    #[test]
    fn local_set_comes_from_the_same_pool_as_cluster_unless_only_terminating_are_local(
        service in service(),
        slices in vec(slice(), 0..5),
    ) {
        let endpoints = planned(&service, &named(slices)).endpoints;
        let local_terminating = endpoints.class(EndpointClass::LocalTerminating);
        let within = |pool: &[SocketAddr]| endpoints.local().iter().all(|e| pool.contains(e));
        prop_assert!(within(endpoints.ready()) || endpoints.local() == local_terminating);
    }

    #[test]
    fn cluster_set_is_empty_only_if_nothing_is_usable(
        service in service(),
        slices in vec(slice(), 0..5),
    ) {
        let plan = planned(&service, &named(slices));
        prop_assert_eq!(plan.endpoints.cluster().is_empty(), !plan.has_any());
        prop_assert_ne!(plan.verdict(TrafficPolicy::Cluster) == Verdict::Forward, !plan.has_any()
            || !plan.uses_cluster());
    }

    #[test]
    fn hinted_classes_are_filled_exactly_in_a_topology_mode(
        service in service(),
        slices in vec(slice(), 0..5),
    ) {
        let endpoints = planned(&service, &named(slices)).endpoints;
        let [_, local, remote, ..] = endpoints.counts();
        prop_assert_eq!(local + remote > 0, endpoints.topology() != TopologyMode::None);
    }

    #[test]
    fn frontends_are_unique_and_of_the_plans_family(service in service()) {
        let plan = planned(&service, &[]);
        for (index, frontend) in plan.frontends.iter().enumerate() {
            prop_assert!(frontend.address.is_ipv4());
            prop_assert!(plan.frontends[..index].iter().all(|f| f.address != frontend.address));
        }
    }
}

fn planned(service: &Service, slices: &[EndpointSlice]) -> Plan {
    let node = Node {
        name: "node-0".into(),
        labels: [("topology.kubernetes.io/zone".into(), "zone-0".into())].into(),
        addresses: vec![ip(250)],
        ..Node::default()
    };
    let local = LocalNode::new(&node, &node.addresses, &PlanOptions::default());
    let slices: Vec<_> = slices.iter().collect();
    plan(service, &slices, &local).ports.swap_remove(0)
}

/// Where `set` lies in `slots`; `None` if it is empty.
fn position(slots: &[SocketAddr], set: &[SocketAddr]) -> Option<std::ops::Range<usize>> {
    let start = slots
        .windows(set.len().max(1))
        .position(|window| window == set)?;
    Some(start..start + set.len())
}

fn service() -> impl Strategy<Value = Service> {
    let service_type = select(vec![
        ServiceType::ClusterIp,
        ServiceType::NodePort,
        ServiceType::LoadBalancer,
    ]);
    // Few addresses, so that kinds share one.
    let addresses = || vec((248..=250u8).prop_map(ip), 0..3);
    let node_port = select(vec![0, 80, 30_080]);
    (
        service_type,
        addresses(),
        addresses(),
        node_port,
        policy(),
        policy(),
    )
        .prop_map(
            |(service_type, external_ips, load_balancer_ips, node_port, internal, external)| {
                Service {
                    name: name("svc"),
                    uid: None,
                    created: 0,
                    service_type,
                    cluster_ips: vec![ip(255)],
                    external_ips,
                    load_balancer_ips,
                    ports: vec![ServicePort {
                        name: SharedName::default(),
                        protocol: Protocol::Tcp,
                        port: 80,
                        node_port,
                    }],
                    internal_traffic_policy: internal,
                    external_traffic_policy: external,
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
            },
        )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
    let port = select(vec![80, 8080]).prop_map(|port| EndpointPort {
        name: SharedName::default(),
        protocol: Protocol::Tcp,
        port,
    });
    (vec(port, 0..3), vec(endpoint(), 0..6)).prop_map(|(ports, endpoints)| EndpointSlice {
        name: name("renamed"),
        service: "svc".into(),
        weight: 1,
        ports,
        endpoints,
    })
}

/// Few addresses, so that duplicates are common.
fn endpoint() -> impl Strategy<Value = Endpoint> {
    let hints =
        |kind: &'static str| vec((0..2u8).prop_map(move |i| format!("{kind}-{i}")), 0..3).boxed();
    let node_name = option::weighted(0.9, (0..3u8).prop_map(|i| format!("node-{i}")));
    let conditions = any::<(bool, bool, bool)>();
    (0..8u8, conditions, node_name, hints("zone"), hints("node")).prop_map(
        |(last, (ready, serving, terminating), node_name, zone_hints, node_hints)| Endpoint {
            address: ip(last),
            ready,
            serving,
            terminating,
            node_name: node_name.map(SharedName::from),
            zone_hints: zone_hints.into_iter().map(SharedName::from).collect(),
            node_hints: node_hints.into_iter().map(SharedName::from).collect(),
        },
    )
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local])
}

fn named(mut slices: Vec<EndpointSlice>) -> Vec<EndpointSlice> {
    for (index, slice) in slices.iter_mut().enumerate() {
        slice.name = name(&format!("svc-{index}"));
    }
    slices
}

fn ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}
