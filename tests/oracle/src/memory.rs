//! The pipeline in memory, as a node to compare with the model.

use std::{iter::once, net::IpAddr, time::Duration};

use ipnet::IpNet;
use lb_common::{
    abi::{config_flag, device_flag, plan_flag},
    addr::{Ip4, Ip6},
    flow::{Ethernet, Hop, Seats, limit::NODE as NODE_LIMIT},
    verdict,
};
use lb_datapath::memory::{MemoryFrame, Route};
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, SharedName, TrafficPolicy, Weights,
};
use lb_packet::Mac;
use node_lb::{
    config::PortRange,
    map_writer::{NodeFacts, Settings},
    memory::ProgrammedTables,
    plan::{LocalDetector, LocalNode, PlanOptions, plan},
};

use super::{
    expected::{Action, At, Kept, Outcome, Stats, Tally, kept},
    model::{Address, Model},
    scene::{
        EXTERNAL, EXTERNAL_MAC, NARROW, NARROW_MAC, NARROW_MTU, NARROW_PEER_MAC, PEER_MAC, POD,
        POD_MAC, POD_SIDE_MAC, ROUTER_MAC, SNAT_PORT, Scene,
    },
    service::{EndpointSpec, MAGLEV_ROWS, ServiceSpec, UDP},
    walk::Subject,
};

/// Records in each flow table: more than a walk needs.
const FLOW_RECORDS: u32 = 1024;

const NODE: &str = "node-1";
const ZONE: &str = "zone-1";
const OTHER_ZONE: &str = "zone-2";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A node with the services and settings of a model, and no flows.
pub struct MemoryNode {
    tables: ProgrammedTables,
    services: u32,
    /// Devices by interface index minus one.
    devices: Vec<&'static str>,
    /// What services had counted before the next frame.
    counted: Tally,
}

impl MemoryNode {
    /// The model's node.
    pub fn new(model: &Model) -> Self {
        let scene = model.scene;
        let addresses = [scene.node];
        let node = Node {
            name: NODE.to_owned(),
            labels: once((ZONE_LABEL.to_owned(), ZONE.to_owned())).collect(),
            addresses: addresses.to_vec(),
            ..Node::default()
        };
        let local = LocalNode::new(&node, &addresses, &PlanOptions::default());
        let pods = scene.pods().map(IpNet::from).to_vec();
        let settings = Settings {
            node: &local,
            detector: &LocalDetector::Networks(pods.clone()),
            flags: flags(model),
            ports: PortRange {
                first: SNAT_PORT,
                last: SNAT_PORT + model.ports - 1,
            },
        };
        let facts = NodeFacts {
            local_addresses: addresses.into(),
            cluster_networks: pods,
            maglev_rows: MAGLEV_ROWS,
            ..NodeFacts::default()
        };
        let mut tables = ProgrammedTables::new(&settings, facts, FLOW_RECORDS);
        // Of the cluster's pods, these are on this node.
        let config = &mut tables.config;
        match scene.local {
            IpAddr::V4(pod) => (config.pods4, config.pods4_prefix) = (pod.into(), 32),
            IpAddr::V6(pod) => (config.pods6, config.pods6_prefix) = (pod.into(), 128),
        }
        let services = model.services.iter().enumerate();
        let ports: Vec<_> = services
            .flat_map(|(number, spec)| {
                let name = format!("service-{number}");
                let slices = spec.endpoints.iter();
                let slices: Vec<_> = slices.map(|found| slice(&name, spec, found)).collect();
                let slices: Vec<_> = slices.iter().collect();
                plan(&service(&name, spec, scene), &slices, &local).ports
            })
            .collect();
        tables.program(&ports);
        let limit = Seats {
            limit: model.limit as u32,
            ..Seats::default()
        };
        tables.set_seats(NODE_LIMIT, &limit);
        let mut node = Self {
            services: ports.len() as u32,
            devices: Vec::new(),
            counted: Tally::default(),
            tables,
        };
        node.connect(scene);
        node
    }

    /// Adds devices and routes.
    fn connect(&mut self, scene: Scene) {
        let target = device_flag::XDP_TARGET;
        let mut add = |device, flags| {
            self.devices.push(device);
            self.tables.add_device(device, flags)
        };
        let [external, narrow, pod] = [add(EXTERNAL, target), add(NARROW, target), add(POD, 0)];
        let by = |ifindex, (to, from): (Mac, Mac), mtu| {
            Route::To(Hop {
                ifindex,
                ethernet: Ethernet { to, from },
                mtu,
                ..Hop::default()
            })
        };
        for (address, route) in [
            (scene.local, by(pod, (POD_MAC, POD_SIDE_MAC), 1500)),
            (scene.remote, by(external, (PEER_MAC, EXTERNAL_MAC), 1500)),
            (
                scene.narrow,
                by(narrow, (NARROW_PEER_MAC, NARROW_MAC), NARROW_MTU),
            ),
            (scene.unresolved, Route::Unresolved(external)),
            (scene.unroutable, Route::None),
            (scene.node, Route::None),
        ] {
            self.tables.add_route(address.into(), route);
        }
        for everywhere in ["0.0.0.0/0", "::/0"] {
            let router = by(external, (ROUTER_MAC, EXTERNAL_MAC), 1500);
            self.tables
                .add_route(everywhere.parse().expect("a network"), router);
        }
    }

    fn ifindex(&self, device: &str) -> u32 {
        let mut devices = self.devices.iter();
        let index = devices.position(|found| *found == device);
        index.expect("a device of the node's") as u32 + 1
    }

    /// What services have counted since the last call.
    fn newly_counted(&mut self) -> Stats {
        let tables = &self.tables;
        let services = 1..=self.services;
        self.counted
            .newly(services.map(|service| (tables.stats(service), tables.shortages(service))))
    }
}

/// The [`config_flag`]s of a node.
pub fn flags(model: &Model) -> u32 {
    let bypass = if model.bypass { config_flag::BYPASS } else { 0 };
    let limited = match model.limit {
        0 => 0,
        _ => config_flag::CONNECTION_LIMIT,
    };
    bypass | limited
}

impl Subject for MemoryNode {
    fn seats(&self) -> i32 {
        self.tables.seats(NODE_LIMIT).used()
    }

    fn run(&mut self, at: At, device: &str, frame: &[u8]) -> Outcome {
        let ifindex = self.ifindex(device);
        let mut frame = MemoryFrame::<false>::new(frame.to_vec(), ifindex);
        let verdict = match at {
            At::Xdp | At::XdpVirtual => self.tables.xdp().ingress(&mut frame),
            At::TcIngress => self.tables.tc().ingress(&mut frame),
            At::TcEgress => self.tables.tc().egress(&mut frame),
        };
        let goes_back = verdict.ifindex == ifindex && at.is_xdp();
        Outcome {
            action: match verdict.action {
                verdict::Action::Pass => Action::Pass,
                verdict::Action::Drop => Action::Drop,
                verdict::Action::Redirect if goes_back => Action::Transmit,
                verdict::Action::Redirect | verdict::Action::Resolve => Action::Redirect,
                verdict::Action::Answer => Action::Transmit.at(at),
            },
            frame: frame.into_bytes(),
            counted: vec![(at.hook(), verdict.reason, 1)],
            stats: self.newly_counted(),
        }
    }

    fn kept(&self, protocol: u8, from: Address, to: Address) -> Option<Kept> {
        match from.0 {
            IpAddr::V4(_) => kept(self.tables.flows::<Ip4>().live(), protocol, from, to),
            IpAddr::V6(_) => kept(self.tables.flows::<Ip6>().live(), protocol, from, to),
        }
    }
}

fn service(name: &str, spec: &ServiceSpec, scene: Scene) -> Service {
    let (_, _, port) = spec.frontends[0];
    let policy = |flag| match spec.flags & flag {
        0 => TrafficPolicy::Cluster,
        _ => TrafficPolicy::Local,
    };
    let affinity = Duration::from_secs(spec.affinity_seconds.into());
    let ranges = spec.source_ranges.iter();
    Service {
        name: object(name),
        uid: None,
        created: 0,
        service_type: ServiceType::LoadBalancer,
        cluster_ips: vec![scene.cluster_ip],
        external_ips: vec![scene.external_ip],
        load_balancer_ips: vec![scene.load_balancer],
        ports: vec![ServicePort {
            name: SharedName::default(),
            protocol: protocol(spec),
            port,
            node_port: port,
        }],
        internal_traffic_policy: policy(plan_flag::INTERNAL_LOCAL),
        external_traffic_policy: policy(plan_flag::EXTERNAL_LOCAL),
        load_balancer_source_ranges: ranges.map(|(address, _)| (*address).into()).collect(),
        health_check_node_port: 0,
        session_affinity: (!affinity.is_zero()).then_some(affinity),
        algorithm: match spec.maglev {
            true => Algorithm::Maglev,
            false => Algorithm::Random,
        },
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: 0,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: false,
    }
}

/// The slice with one endpoint of a service. No two of them have the same port.
fn slice(name: &str, spec: &ServiceSpec, endpoint: &EndpointSpec) -> EndpointSlice {
    let class = endpoint.class;
    let zone = match class.is_hinted() {
        true => ZONE,
        false => OTHER_ZONE,
    };
    let hinted = spec.flags & plan_flag::HINTED != 0;
    EndpointSlice {
        name: object(&format!("{name}-{}", endpoint.port)),
        service: name.to_owned(),
        weight: 1,
        ports: vec![EndpointPort {
            name: SharedName::default(),
            protocol: protocol(spec),
            port: endpoint.port,
        }],
        endpoints: vec![Endpoint {
            address: endpoint.address,
            ready: !class.is_terminating(),
            serving: true,
            terminating: class.is_terminating(),
            node_name: Some(match class.is_local() {
                true => NODE.into(),
                false => "node-2".into(),
            }),
            zone_hints: hinted.then(|| zone.into()).into_iter().collect(),
            node_hints: Box::default(),
        }],
    }
}

fn protocol(spec: &ServiceSpec) -> Protocol {
    match spec.protocol {
        UDP => Protocol::Udp,
        _ => Protocol::Tcp,
    }
}

fn object(name: &str) -> ObjectName {
    ObjectName::new("default", name)
}
