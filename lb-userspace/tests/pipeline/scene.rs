//! A node with one Service, and packets through it.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use lb_common::{
    abi::{config_flag, device_flag},
    flow::{Ethernet, Hop, Seats, limit::NODE},
};
use lb_datapath::memory::Route;
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, IpFamily, Node, ObjectName, Protocol,
    RemovedEndpoints, Service, ServicePort, ServiceType, SharedName, TrafficPolicy, Weights,
};
use lb_packet::{
    Chunk, Header, SCTP, TCP, UDP, chunk,
    tcp_flag::{ACK, FIN, RST, SYN},
};
use node_lb::{
    config::PortRange,
    map_writer::{NodeFacts, Settings},
    memory::ProgrammedTables,
    plan::{FrontendKind, LocalDetector, LocalNode, NodePortAddresses, Plan, PlanOptions, plan},
};
use proptest::{collection::vec, prelude::*, sample::select};

/// Ports for source NAT.
pub const SNAT: PortRange = PortRange {
    first: 10_000,
    last: 29_999,
};
/// The Ethernet addresses of forwarded frames.
pub const LEFT: Ethernet = Ethernet {
    to: [2, 0, 0, 0, 0, 3],
    from: [2, 0, 0, 0, 0, 4],
};
/// Length of Maglev lookup tables.
pub const MAGLEV_ROWS: u32 = 251;
/// MTU of the link by which frames leave.
pub const MTU: u16 = 1500;

const NODE_NAME: &str = "node-1";

/// A Service with one port in one family, on a node with a default route.
#[derive(Clone, Debug)]
pub struct Scene {
    pub family: IpFamily,
    /// [`TCP`], [`UDP`] or [`SCTP`].
    pub protocol: u8,
    /// The kind of address that clients use.
    pub frontend: FrontendKind,
    pub internal: TrafficPolicy,
    pub external: TrafficPolicy,
    pub endpoints: Vec<Place>,
    /// Of the endpoints from the first one on; all others have the usual one.
    pub weights: Vec<u16>,
    /// Whether the node's own sockets reach the node port at loopback addresses.
    pub localhost: bool,
    /// The endpoint that is gone; the others keep their places.
    pub absent: Option<usize>,
    pub affinity: Option<Duration>,
    /// `loadBalancerSourceRanges`.
    pub source_ranges: Vec<IpNet>,
    pub client: Client,
    pub bypass: bool,
    pub ports: PortRange,
    pub flow_records: u32,
    pub algorithm: Algorithm,
    pub hash_balance_factor: u16,
    /// The port at which the Service is reached.
    pub port: u16,
    pub limits: Limits,
}

/// Limits of connections; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub node: u32,
    pub service: u32,
    pub endpoint: u32,
    /// Whether the Service's connections skip the node's limit.
    pub long_running: bool,
    /// Whether the cluster depends on the Service.
    pub essential: bool,
}

/// Where an endpoint is, and what it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Local,
    Remote,
    LocalTerminating,
    RemoteTerminating,
    /// In the host's network.
    Host,
}

/// The client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Outside,
    Pod,
    /// The pod that is the first endpoint; the node itself if that is in the host's network.
    FirstEndpoint,
}

impl Scene {
    /// A ClusterIP with one remote endpoint and a client outside: source NAT and a next hop.
    pub fn new(family: IpFamily, protocol: u8) -> Self {
        Self {
            family,
            protocol,
            frontend: FrontendKind::ClusterIp,
            internal: TrafficPolicy::Cluster,
            external: TrafficPolicy::Cluster,
            endpoints: vec![Place::Remote],
            weights: Vec::new(),
            localhost: false,
            absent: None,
            affinity: None,
            source_ranges: Vec::new(),
            client: Client::Outside,
            bypass: true,
            ports: SNAT,
            flow_records: 1024,
            algorithm: Algorithm::Random,
            hash_balance_factor: 0,
            port: 80,
            limits: Limits::default(),
        }
    }

    /// Both families and all protocols.
    pub fn each() -> impl Iterator<Item = Self> {
        [IpFamily::V4, IpFamily::V6]
            .into_iter()
            .flat_map(|family| [TCP, UDP, SCTP].map(|protocol| Self::new(family, protocol)))
    }

    /// Scenes in which the Service has a candidate for the client.
    pub fn any() -> impl Strategy<Value = Self> {
        let kinds = vec![
            FrontendKind::ClusterIp,
            FrontendKind::LoadBalancerIp,
            FrontendKind::ExternalIp,
            FrontendKind::NodePort,
        ];
        let policy = || select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
        let place = select(vec![
            Place::Local,
            Place::Remote,
            Place::LocalTerminating,
            Place::RemoteTerminating,
            Place::Host,
        ]);
        let client = select(vec![Client::Outside, Client::Pod, Client::FirstEndpoint]);
        (
            select(vec![IpFamily::V4, IpFamily::V6]),
            select(vec![TCP, UDP, SCTP]),
            select(kinds),
            (policy(), policy()),
            vec(place, 1..6),
            client,
            any::<bool>(),
        )
            .prop_map(
                |(family, protocol, frontend, policies, endpoints, client, bypass)| Self {
                    frontend,
                    internal: policies.0,
                    external: policies.1,
                    endpoints,
                    client,
                    bypass,
                    ..Self::new(family, protocol)
                },
            )
            .prop_filter("a candidate", |scene| !scene.candidates().is_empty())
    }

    pub fn tables(&self) -> ProgrammedTables {
        let node = self.local_node();
        let pods: Vec<IpNet> = ["10.0.0.0/8", "fd00:10::/64"]
            .map(|network| network.parse().unwrap())
            .to_vec();
        let settings = Settings {
            node: &node,
            detector: &LocalDetector::Networks(pods.clone()),
            flags: [
                (true, config_flag::SCTP),
                (self.bypass, config_flag::BYPASS),
                (self.limits.node != 0, config_flag::CONNECTION_LIMIT),
            ]
            .into_iter()
            .filter_map(|(set, flag)| set.then_some(flag))
            .sum(),
            ports: self.ports,
        };
        let facts = NodeFacts {
            local_addresses: node_addresses().into_iter().collect(),
            cluster_networks: pods,
            maglev_rows: MAGLEV_ROWS,
            ..NodeFacts::default()
        };
        let mut tables = ProgrammedTables::new(&settings, facts, self.flow_records);
        tables.program(&[self.plan()]);
        let limit = Seats {
            limit: self.limits.node,
            ..Seats::default()
        };
        tables.set_seats(NODE, &limit);
        let ifindex = tables.add_device("eth0", device_flag::XDP_TARGET);
        for everywhere in ["0.0.0.0/0", "::/0"] {
            tables.add_route(everywhere.parse().unwrap(), Route::To(hop(ifindex)));
        }
        tables
    }

    pub fn plan(&self) -> Plan {
        let slices = self.slices();
        let slices: Vec<_> = slices.iter().collect();
        plan(&self.service(), &slices, &self.local_node())
            .ports
            .swap_remove(0)
    }

    /// The address that clients connect to.
    pub fn target(&self) -> SocketAddr {
        let plan = self.plan();
        let mut frontends = plan.frontends.iter();
        frontends
            .find(|f| f.kind == self.frontend)
            .expect("a frontend")
            .address
    }

    /// The endpoints that may serve the client, by kube-proxy's rules alone.
    pub fn candidates(&self) -> Vec<SocketAddr> {
        let plan = self.plan();
        let policy = match self.frontend {
            FrontendKind::ClusterIp => self.internal,
            _ if self.client == Client::Outside => self.external,
            _ => TrafficPolicy::Cluster,
        };
        match policy {
            TrafficPolicy::Cluster => plan.endpoints.cluster().to_vec(),
            TrafficPolicy::Local => plan.endpoints.local().to_vec(),
        }
    }

    /// Whether the client's address is replaced on the way to `endpoint`, by kube-proxy's rules
    /// alone.
    pub fn source_nat(&self, endpoint: IpAddr) -> bool {
        let client = self.client(1).ip();
        let masquerade = match self.frontend {
            FrontendKind::ClusterIp => self.client == Client::Outside,
            _ => self.external == TrafficPolicy::Cluster,
        };
        let needed = masquerade || client == self.node() || client == endpoint;
        needed && endpoint != self.node()
    }

    pub fn client(&self, port: u16) -> SocketAddr {
        let address = match self.client {
            Client::Outside => self.ip("203.0.113.9", "2001:db8:c::9"),
            Client::Pod => self.ip("10.0.9.9", "fd00:10::9:9"),
            Client::FirstEndpoint => self.endpoint(0).ip(),
        };
        SocketAddr::new(address, port)
    }

    pub fn endpoint(&self, index: usize) -> SocketAddr {
        let address = match (self.endpoints[index], self.family) {
            (Place::Host, _) => self.node(),
            (_, IpFamily::V4) => IpAddr::from([10, 0, 1, index as u8]),
            (_, IpFamily::V6) => IpAddr::from([0xfd00, 0x10, 0, 0, 0, 0, 1, index as u16]),
        };
        SocketAddr::new(address, 8080 + index as u16)
    }

    pub fn node(&self) -> IpAddr {
        self.ip("192.168.0.2", "2001:db8::2")
    }

    fn ip(&self, v4: &str, v6: &str) -> IpAddr {
        match self.family {
            IpFamily::V4 => v4.parse().unwrap(),
            IpFamily::V6 => v6.parse().unwrap(),
        }
    }

    /// A packet of the scene's protocol, as an IP payload.
    pub fn segment(&self, from: SocketAddr, to: SocketAddr, flags: u8, data: &[u8]) -> Vec<u8> {
        match self.protocol {
            TCP => lb_packet::tcp(from, to, flags, data),
            UDP => lb_packet::udp(from, to, data),
            SCTP => {
                let (tag, chunk) = like(flags);
                let mut value = chunk.value.clone();
                value.extend(data);
                lb_packet::sctp(from, to, tag, &[chunk.with(&value)])
            }
            protocol => panic!("protocol {protocol}"),
        }
    }

    pub fn frame(&self, from: SocketAddr, to: SocketAddr, flags: u8, data: &[u8]) -> Vec<u8> {
        let segment = self.segment(from, to, flags, data);
        Header::new(from.ip(), to.ip()).frame(self.protocol, &segment)
    }

    /// The first packet of a connection from the client's port.
    pub fn opening(&self, port: u16) -> Vec<u8> {
        self.frame(self.client(port), self.target(), SYN, b"hello")
    }

    fn local_node(&self) -> LocalNode {
        let node = Node {
            name: NODE_NAME.into(),
            addresses: node_addresses(),
            ..Node::default()
        };
        let mut networks: Vec<IpNet> = node.addresses.iter().copied().map(Into::into).collect();
        if self.localhost {
            networks.extend(["127.0.0.0/8", "::1/128"].map(|net| net.parse::<IpNet>().unwrap()));
        }
        let options = PlanOptions {
            node_port_addresses: NodePortAddresses::Networks(networks),
            essential: self
                .limits
                .essential
                .then(|| name("web"))
                .into_iter()
                .collect(),
            ..PlanOptions::default()
        };
        LocalNode::new(&node, &node.addresses, &options)
    }

    fn service(&self) -> Service {
        Service {
            name: name("web"),
            uid: None,
            created: 0,
            service_type: ServiceType::LoadBalancer,
            cluster_ips: vec![self.ip("172.30.0.1", "fd00:30::1")],
            external_ips: vec![self.ip("198.51.100.7", "2001:db8:e::7")],
            load_balancer_ips: vec![self.ip("192.0.2.10", "2001:db8:b::10")],
            ports: vec![ServicePort {
                name: SharedName::default(),
                protocol: self.protocol(),
                port: self.port,
                node_port: 30_080,
            }],
            internal_traffic_policy: self.internal,
            external_traffic_policy: self.external,
            load_balancer_source_ranges: self.source_ranges.clone(),
            health_check_node_port: 0,
            session_affinity: self.affinity,
            algorithm: self.algorithm,
            weights: Weights::default(),
            slow_start: None,
            removed_endpoints: RemovedEndpoints::Keep,
            max_connections: self.limits.service,
            hash_balance_factor: self.hash_balance_factor,
            max_connections_per_endpoint: self.limits.endpoint,
            long_running: self.limits.long_running,
        }
    }

    /// One slice per endpoint, because each has its own port.
    fn slices(&self) -> Vec<EndpointSlice> {
        let places = self.endpoints.iter().enumerate();
        places
            .filter(|(index, _)| self.absent != Some(*index))
            .map(|(index, place)| {
                let address = self.endpoint(index);
                let terminating =
                    matches!(place, Place::LocalTerminating | Place::RemoteTerminating);
                let remote = matches!(place, Place::Remote | Place::RemoteTerminating);
                EndpointSlice {
                    name: name(&format!("web-{index}")),
                    service: "web".into(),
                    weight: self.weights.get(index).copied().unwrap_or(1),
                    ports: vec![EndpointPort {
                        name: SharedName::default(),
                        protocol: self.protocol(),
                        port: address.port(),
                    }],
                    endpoints: vec![Endpoint {
                        address: address.ip(),
                        ready: !terminating,
                        serving: true,
                        terminating,
                        node_name: Some(if remote { "node-2" } else { NODE_NAME }.into()),
                        zone_hints: Box::default(),
                        node_hints: Box::default(),
                    }],
                }
            })
            .collect()
    }

    fn protocol(&self) -> Protocol {
        match self.protocol {
            TCP => Protocol::Tcp,
            SCTP => Protocol::Sctp,
            _ => Protocol::Udp,
        }
    }
}

/// The verification tag and the chunk of an SCTP packet that does what a TCP segment with these flags does.
/// Both sides ask for the tag 7.
fn like(flags: u8) -> (u32, Chunk) {
    match flags & (SYN | FIN | RST) {
        SYN if flags & ACK == 0 => (0, Chunk::asking_for(chunk::INIT, 7)),
        SYN => (7, Chunk::asking_for(chunk::INIT_ACK, 7)),
        FIN => (7, Chunk::new(chunk::SHUTDOWN).with(&[0; 4])),
        RST => (7, Chunk::new(chunk::ABORT)),
        _ => (7, Chunk::new(chunk::DATA).with(&[0; 12])),
    }
}

pub fn hop(ifindex: u32) -> Hop {
    Hop {
        ifindex,
        ethernet: LEFT,
        mtu: MTU,
        ..Hop::default()
    }
}

fn node_addresses() -> Vec<IpAddr> {
    ["192.168.0.2", "2001:db8::2"]
        .map(|ip| ip.parse().unwrap())
        .to_vec()
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}
