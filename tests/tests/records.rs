//! One map writer, two memories: for random clusters, every record that it writes is the same in
//! the kernel's maps and in this process' memory, which `explain` and the pipeline's tests read.

use std::{
    env,
    fmt::Debug,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use ipnet::IpNet;
use lb_admission::configuration::InForce;
use lb_datapath::{
    OBJECT, load,
    maps::{Elements, Entries, Maps},
    memory::Storage,
};
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, TrafficPolicy, Weights,
};
use lb_tests::{
    PinRoot,
    map_contents::{self, networks},
};
use node_lb::{
    admission::objects::Objects,
    config::AdmissionMode,
    map_writer::{Key, MapWriter, NodeFacts},
    plan::{LocalNode, PlanOptions, plan},
};

/// The names that Services may have: so few that they are created, changed and deleted often.
const SERVICES: usize = 24;
/// How often the cluster changes.
const ROUNDS: usize = 12;
const NODE: &str = "node-1";
const NODE_ADDRESSES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const POD_NETWORKS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];

#[test]
fn the_kernel_has_the_same_records_as_memory() -> Result<()> {
    // With `RECORDS_SEED` a failure can be repeated.
    let seed = match env::var("RECORDS_SEED") {
        Ok(seed) => seed.parse().context("RECORDS_SEED is no number")?,
        Err(_) => fastrand::u64(..),
    };
    check(&mut Rng::with_seed(seed)).with_context(|| format!("RECORDS_SEED={seed}"))
}

fn check(rng: &mut Rng) -> Result<()> {
    let root = PinRoot::new();
    let loaded = load(OBJECT, &root.pins(1), &[], &Default::default())?;
    let memory = Storage::default();
    let addresses = NODE_ADDRESSES.map(ip);
    let facts = NodeFacts {
        local_addresses: addresses.into(),
        cluster_networks: POD_NETWORKS.map(network).to_vec(),
        maglev_rows: 251,
        ..NodeFacts::default()
    };
    let node = Node {
        name: NODE.into(),
        addresses: addresses.into(),
        ..Node::default()
    };
    let node = LocalNode::new(&node, &addresses, &PlanOptions::default());
    let mut programmers = [
        MapWriter::new(Maps::open(&loaded)?, facts.clone())?,
        MapWriter::empty(memory.maps(), facts),
    ];
    // Nobody comes who has something in these maps.
    programmers[0].finish_adoption();
    let mut names = vec![Vec::new(); SERVICES];
    for round in 0..ROUNDS {
        for _ in 0..rng.usize(1..SERVICES) {
            let number = rng.usize(..SERVICES);
            let (service, slices) = service(rng, number);
            let slices: Vec<_> = slices.iter().collect();
            let plans = match rng.u8(..4) {
                0 => Vec::new(),
                _ => plan(&service, &slices, &node).ports,
            };
            let now: Vec<_> = plans.iter().map(Key::of).collect();
            let gone: Vec<Key> = names[number]
                .iter()
                .filter(|key| !now.contains(key))
                .cloned()
                .collect();
            for writer in &mut programmers {
                for key in &gone {
                    writer.apply(key.clone(), None)?;
                }
                for (key, plan) in now.iter().zip(&plans) {
                    writer.apply(key.clone(), Some(plan))?;
                }
            }
            names[number] = now;
        }
        if rng.u8(..3) == 0 {
            let in_force = admission(rng)?;
            let limits = in_force.limits(rng.u32(1..100_000));
            for writer in &mut programmers {
                writer.set_schemas(&in_force, AdmissionMode::Enforce, &limits)?;
            }
        }
        for writer in &mut programmers {
            writer.settle();
            if round % 3 == 2 {
                writer.tidy();
            }
        }
        let kernel = Maps::open(&loaded)?;
        compare(&kernel, &memory.maps()).with_context(|| format!("after round {round}"))?;
    }
    ensure!(
        !programmers[0].is_empty() && programmers[0].len() == programmers[1].len(),
        "nothing was compared"
    );
    Ok(())
}

/// Some levels and schemas.
fn admission(rng: &mut Rng) -> Result<InForce> {
    let mut text = String::new();
    for level in 0..rng.usize(1..5) {
        text += &format!(
            "---\napiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: level-{level}}}\n\
             spec: {{type: Limited, limited: {{limitResponse: {{type: Reject}}}}}}\n"
        );
        let subject = match rng.u8(..3) {
            0 => format!("{{kind: CIDR, cidr: {{cidr: 10.{}.0.0/16}}}}", rng.u8(..)),
            1 => "{kind: CIDR, cidr: {cidr: 'fd00:10:244:7::/64'}}".to_owned(),
            _ => "{kind: Any}".to_owned(),
        };
        let ingress = ["'*'", "Pod", "Node, External"][rng.usize(..3)];
        let destination = match rng.u8(..3) {
            0 => format!(
                "namespaces: [default], services: [service-{}]",
                rng.usize(..SERVICES)
            ),
            1 => format!("namespaces: ['*'], ports: [{}]", rng.u16(1..)),
            _ => "addresses: [10.96.0.0/17]".to_owned(),
        };
        text += &format!(
            "---\napiVersion: node-lb.io/v1alpha1\nkind: FlowSchema\nmetadata: {{name: schema-{level}}}\n\
             spec: {{priorityLevelConfiguration: {{name: level-{level}}}, rules: \
             [{{subjects: [{subject}], ingress: [{ingress}], destinations: [{{{destination}}}]}}]}}\n"
        );
    }
    let mut objects = Objects::default();
    objects.read([("admission.yaml".into(), Ok(text.clone().into_bytes()))]);
    ensure!(objects.errors.is_empty(), "{:?} in\n{text}", objects.errors);
    Ok(objects.configuration.in_force())
}

fn compare(kernel: &Maps, memory: &Maps) -> Result<()> {
    entries("FRONTENDS4", &*kernel.frontends4, &*memory.frontends4)?;
    entries("FRONTENDS6", &*kernel.frontends6, &*memory.frontends6)?;
    elements("SERVICES", &*kernel.services, &*memory.services)?;
    elements("PLANS", &*kernel.plans, &*memory.plans)?;
    elements("ENDPOINTS", &*kernel.endpoints, &*memory.endpoints)?;
    let (states, in_memory) = (&kernel.endpoint_states, &memory.endpoint_states);
    elements("ENDPOINT_STATES", &**states, &**in_memory)?;
    let (kept, in_memory) = (&kernel.endpoint_memory, &memory.endpoint_memory);
    elements("ENDPOINT_MEMORY", &**kept, &**in_memory)?;
    let (stats, in_memory) = (&kernel.service_stats, &memory.service_stats);
    elements("SERVICE_STATS", &**stats, &**in_memory)?;
    let (shortages, in_memory) = (&kernel.service_shortages, &memory.service_shortages);
    elements("SERVICE_SHORTAGES", &**shortages, &**in_memory)?;
    let (flows, in_memory) = (&kernel.service_flows, &memory.service_flows);
    elements("SERVICE_FLOWS", &**flows, &**in_memory)?;
    let (latencies, in_memory) = (&kernel.service_latencies, &memory.service_latencies);
    elements("SERVICE_LATENCIES", &**latencies, &**in_memory)?;
    let (latencies, in_memory) = (&kernel.endpoint_latencies, &memory.endpoint_latencies);
    elements("ENDPOINT_LATENCIES", &**latencies, &**in_memory)?;
    let (seats, in_memory) = (&kernel.seats, &memory.seats);
    elements("SEATS", &**seats, &**in_memory)?;
    elements("LEVELS", &*kernel.levels, &*memory.levels)?;
    elements("FLOW_SCHEMAS", &*kernel.flow_schemas, &*memory.flow_schemas)?;
    let (classes, in_memory) = (&kernel.destination_classes, &memory.destination_classes);
    elements("DESTINATION_CLASSES", &**classes, &**in_memory)?;
    elements("DECISIONS", &*kernel.decisions, &*memory.decisions)?;
    let sources = |maps: &Maps| networks(&*maps.source_classes);
    let (found, in_memory) = (sources(kernel)?, sources(memory)?);
    ensure!(
        found == in_memory,
        "SOURCE_CLASSES: {found:?}, {in_memory:?}"
    );
    elements("MAGLEV", &*kernel.maglev, &*memory.maglev)?;
    let ranges = |maps: &Maps| networks(&*maps.source_ranges);
    let (kernel, memory) = (ranges(kernel)?, ranges(memory)?);
    ensure!(kernel == memory, "SOURCE_RANGES: {kernel:?}, {memory:?}");
    Ok(())
}

fn elements<T: PartialEq + Debug>(
    map: &str,
    kernel: &dyn Elements<T>,
    memory: &dyn Elements<T>,
) -> Result<()> {
    ensure!(
        kernel.len() == memory.len(),
        "{map} has {} elements, {} in memory",
        kernel.len(),
        memory.len()
    );
    for index in 0..kernel.len() {
        let (kernel, memory) = (kernel.read(index), memory.read(index));
        ensure!(
            kernel == memory,
            "{map}[{index}] is {kernel:?}, {memory:?} in memory"
        );
    }
    Ok(())
}

fn entries<K: Debug, V: Debug>(
    map: &str,
    kernel: &dyn Entries<K, V>,
    memory: &dyn Entries<K, V>,
) -> Result<()> {
    let (kernel, memory) = (
        map_contents::entries(kernel)?,
        map_contents::entries(memory)?,
    );
    ensure!(kernel == memory, "{map}: {kernel:#?}, {memory:#?}");
    Ok(())
}

/// A Service in any of its forms, with its endpoints. Some claim the same addresses.
fn service(rng: &mut Rng, number: usize) -> (Service, Vec<EndpointSlice>) {
    let name = object(&format!("service-{number}"));
    let host = number as u8 + 1;
    let some = |rng: &mut Rng, what: &str| match rng.bool() {
        true => vec![ip(what)],
        false => Vec::new(),
    };
    let ports: Vec<_> = [
        ("web", Protocol::Tcp, 80),
        ("names", Protocol::Udp, 53),
        ("signals", Protocol::Sctp, 3868),
    ]
    .into_iter()
    .take(rng.usize(1..=3))
    .collect();
    let policy = |rng: &mut Rng| match rng.bool() {
        true => TrafficPolicy::Cluster,
        false => TrafficPolicy::Local,
    };
    let both_families = [
        Ipv4Addr::new(10, 96, 0, host).into(),
        Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, host.into()).into(),
    ];
    let ranges = ["198.51.100.0/24", "2001:db8:5::/48", "0.0.0.0/0"];
    let service = Service {
        name: name.clone(),
        uid: None,
        created: 0,
        service_type: match rng.u8(..3) {
            0 => ServiceType::ClusterIp,
            1 => ServiceType::NodePort,
            _ => ServiceType::LoadBalancer,
        },
        cluster_ips: both_families[..rng.usize(1..=2)].to_vec(),
        external_ips: some(rng, "203.0.113.7"),
        load_balancer_ips: some(rng, "203.0.113.8"),
        ports: ports
            .iter()
            .map(|(name, protocol, port)| ServicePort {
                name: (*name).into(),
                protocol: *protocol,
                port: *port,
                node_port: 30_000 + u16::from(host) * 4 + *port % 4,
            })
            .collect(),
        internal_traffic_policy: policy(rng),
        external_traffic_policy: policy(rng),
        load_balancer_source_ranges: ranges[..rng.usize(..=3)]
            .iter()
            .map(|range| network(range))
            .collect(),
        health_check_node_port: 0,
        session_affinity: rng.bool().then(|| Duration::from_secs(rng.u64(1..86_400))),
        algorithm: match rng.bool() {
            true => Algorithm::Random,
            false => Algorithm::Maglev,
        },
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: rng.u32(..3) * 10,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: rng.u8(..4) == 0,
    };
    let slices = [rng.usize(..=12), rng.usize(..=3)]
        .into_iter()
        .enumerate()
        .map(|(index, count)| EndpointSlice {
            name: object(&format!("service-{host}-{index}")),
            service: name.name.to_string(),
            weight: 1,
            ports: ports
                .iter()
                .map(|(name, protocol, port)| EndpointPort {
                    name: (*name).into(),
                    protocol: *protocol,
                    port: 8000 + *port,
                })
                .collect(),
            endpoints: (0..count).map(|_| endpoint(rng, index == 1)).collect(),
        })
        .collect();
    (service, slices)
}

/// An endpoint with one of a hundred addresses: in a pod, on the node itself, or outside the
/// cluster.
fn endpoint(rng: &mut Rng, is_ipv6: bool) -> Endpoint {
    let host = rng.u8(1..100);
    let address = match (is_ipv6, host) {
        (false, 1) => ip(NODE_ADDRESSES[0]),
        (true, 1) => ip(NODE_ADDRESSES[1]),
        (false, 2..10) => Ipv4Addr::new(198, 51, 100, host).into(),
        (false, _) => Ipv4Addr::new(10, 244, 0, host).into(),
        (true, _) => Ipv6Addr::new(0xfd00, 0x10, 0x244, 0, 0, 0, 0, host.into()).into(),
    };
    let terminating = rng.u8(..4) == 0;
    Endpoint {
        address,
        ready: !terminating && rng.u8(..8) != 0,
        serving: rng.u8(..8) != 0,
        terminating,
        node_name: Some(match rng.bool() {
            true => NODE.into(),
            false => "node-2".into(),
        }),
        zone_hints: Box::default(),
        node_hints: Box::default(),
    }
}

fn object(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}

fn ip(address: &str) -> IpAddr {
    address.parse().expect("an address")
}

fn network(network: &str) -> IpNet {
    network.parse().expect("a network")
}
