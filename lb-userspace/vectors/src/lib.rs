#![forbid(unsafe_code)]
//! The vectors of kube-proxy's behaviour, for tests: rows of `data/kube-proxy.json` and the objects
//! that they mean.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use ipnet::IpNet;
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, SharedName, TrafficPolicy, Weights,
};
use node_lb::plan::{LocalNode, PlanOptions};
use serde::Deserialize;

pub use self::{
    conntrack::{Conntrack, ConntrackFlow, ConntrackTrigger, Delete},
    flows::{Fixture, Flows, Packet, Scenario},
};

mod conntrack;
mod flows;

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The parts of the vector file about plans, first packets and stale flows.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Vectors {
    pub categorize: Vec<Categorize>,
    pub local_ready_counts: Vec<LocalReadyCount>,
    pub flows: Flows,
    pub conntrack: Conntrack,
    pub conntrack_trigger: Vec<ConntrackTrigger>,
}

impl Vectors {
    pub fn load() -> Self {
        serde_json::from_str(include_str!("../data/kube-proxy.json")).expect("vectors parse")
    }
}

/// One service port with endpoints, and the sets and verdicts that follow.
#[derive(Deserialize)]
pub struct Categorize {
    pub id: String,
    pub node: NodeRow,
    pub gates: Gates,
    pub service: ServiceRow,
    pub endpoints: Vec<EndpointRow>,
    pub expect: ExpectedSets,
    #[serde(rename = "expectTopologyMode")]
    pub topology_mode: String,
    pub derived: Derived,
}

impl Categorize {
    /// The Service of the row, with port 80 and an IPv4 cluster IP.
    pub fn service(&self) -> Service {
        let mut service = self.service.model();
        service.cluster_ips = vec!["172.30.1.1".parse().unwrap()];
        service.ports = vec![ServicePort {
            name: SharedName::default(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: self.service.node_port,
        }];
        service
    }

    pub fn slices(&self) -> Vec<EndpointSlice> {
        slices(&self.service().name, &self.endpoints)
    }

    pub fn local_node(&self) -> LocalNode {
        let options = PlanOptions {
            honour_node_hints: self.gates.prefer_same_traffic_distribution,
            ..PlanOptions::default()
        };
        let node = self.node.model();
        LocalNode::new(&node, &node.addresses, &options)
    }
}

#[derive(Deserialize)]
pub struct NodeRow {
    name: String,
    zone: Option<String>,
}

impl NodeRow {
    fn model(&self) -> Node {
        let zone = self.zone.iter();
        Node {
            name: self.name.clone(),
            labels: zone.map(|z| (ZONE_LABEL.into(), z.clone())).collect(),
            addresses: vec!["192.168.0.2".parse().unwrap()],
            ..Node::default()
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Gates {
    prefer_same_traffic_distribution: bool,
}

/// Expected sets; `None` where the service port never uses that policy.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedSets {
    pub cluster: Option<Vec<String>>,
    pub local: Option<Vec<String>>,
    pub all: Vec<String>,
    pub has_any: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Derived {
    #[serde(rename = "clusterIP")]
    pub cluster_ip: ExpectedVerdict,
    pub external: Option<ExpectedVerdict>,
    pub pod_or_host_to_external: Option<ExpectedVerdict>,
    pub health_check: Option<ExpectedHealth>,
    pub no_local_endpoints_metric: NoLocalEndpoints,
}

/// What happens to a packet. `source_nat` is set only if it is forwarded.
#[derive(Debug, Deserialize, PartialEq)]
pub struct ExpectedVerdict {
    pub verdict: String,
    pub endpoints: Vec<String>,
    #[serde(rename = "sourceNAT")]
    pub source_nat: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedHealth {
    pub listening: bool,
    pub local_endpoints: Option<usize>,
    pub status: Option<u16>,
}

#[derive(Deserialize)]
pub struct NoLocalEndpoints {
    pub internal: u8,
    pub external: u8,
}

/// Slices, and the number of local ready endpoints of each Service.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalReadyCount {
    pub id: String,
    pub node: String,
    pub slices: Vec<SliceRow>,
    pub expect_local_ready: BTreeMap<String, usize>,
}

#[derive(Deserialize)]
pub struct SliceRow {
    /// `namespace/name`.
    pub service: String,
    pub ports: BTreeMap<String, u16>,
    endpoints: Vec<EndpointRow>,
}

impl SliceRow {
    pub fn model(&self, index: usize) -> EndpointSlice {
        let service = object_name(&self.service);
        EndpointSlice {
            name: ObjectName::new(
                service.namespace.clone(),
                format!("{}-{index}", service.name),
            ),
            service: service.name.to_string(),
            weight: 1,
            ports: endpoint_ports(&self.ports),
            endpoints: self.endpoints.iter().map(EndpointRow::model).collect(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRow {
    #[serde(default = "default_name")]
    namespace: String,
    #[serde(default = "default_name")]
    name: String,
    #[serde(rename = "type")]
    service_type: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<IpAddr>,
    internal_traffic_policy: Option<String>,
    external_traffic_policy: Option<String>,
    #[serde(default)]
    node_port: u16,
    #[serde(default)]
    ports: Vec<PortRow>,
    #[serde(rename = "externalIPs")]
    external_ips: Vec<IpAddr>,
    #[serde(rename = "loadBalancerVIPs")]
    load_balancer_vips: Vec<IpAddr>,
    #[serde(default)]
    load_balancer_source_ranges: Vec<IpNet>,
    health_check_node_port: u16,
    session_affinity: String,
    #[serde(default)]
    endpoints: Vec<EndpointRow>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PortRow {
    name: String,
    port: u16,
    protocol: String,
    node_port: u16,
}

impl ServiceRow {
    fn model(&self) -> Service {
        Service {
            name: ObjectName::new(self.namespace.clone(), self.name.clone()),
            uid: None,
            created: 0,
            service_type: match self.service_type.as_str() {
                "ClusterIP" => ServiceType::ClusterIp,
                "NodePort" => ServiceType::NodePort,
                "LoadBalancer" => ServiceType::LoadBalancer,
                other => panic!("service type {other}"),
            },
            cluster_ips: self.cluster_ip.into_iter().collect(),
            external_ips: self.external_ips.clone(),
            load_balancer_ips: self.load_balancer_vips.clone(),
            ports: self.ports.iter().map(PortRow::model).collect(),
            internal_traffic_policy: policy(self.internal_traffic_policy.as_deref()),
            external_traffic_policy: policy(self.external_traffic_policy.as_deref()),
            load_balancer_source_ranges: self.load_balancer_source_ranges.clone(),
            health_check_node_port: self.health_check_node_port,
            session_affinity: match self.session_affinity.as_str() {
                "None" => None,
                "ClientIP" => Some(Duration::from_secs(10_800)),
                other => panic!("session affinity {other}"),
            },
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
}

impl PortRow {
    fn model(&self) -> ServicePort {
        ServicePort {
            name: self.name.as_str().into(),
            protocol: protocol(&self.protocol),
            port: self.port,
            node_port: self.node_port,
        }
    }
}

/// An endpoint with its conditions as in the API: absent or null means the default.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointRow {
    ip: IpAddr,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    ports: BTreeMap<String, u16>,
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
    node_name: Option<String>,
    #[serde(default)]
    hints: Hints,
}

#[derive(Default, Deserialize)]
struct Hints {
    zones: Vec<String>,
    nodes: Vec<String>,
}

fn shared(names: &[String]) -> Box<[SharedName]> {
    names.iter().map(|name| name.as_str().into()).collect()
}

impl EndpointRow {
    fn model(&self) -> Endpoint {
        Endpoint {
            address: self.ip,
            ready: self.ready.unwrap_or(true),
            serving: self.serving.unwrap_or(true),
            terminating: self.terminating.unwrap_or(false),
            node_name: self.node_name.as_deref().map(SharedName::from),
            zone_hints: shared(&self.hints.zones),
            node_hints: shared(&self.hints.nodes),
        }
    }

    fn ports(&self) -> BTreeMap<String, u16> {
        match self.port {
            Some(port) => BTreeMap::from([(String::new(), port)]),
            None => self.ports.clone(),
        }
    }
}

/// One slice per endpoint, because each row has its own ports.
fn slices(service: &ObjectName, endpoints: &[EndpointRow]) -> Vec<EndpointSlice> {
    let endpoints = endpoints.iter().enumerate();
    endpoints
        .map(|(index, endpoint)| EndpointSlice {
            name: ObjectName::new(
                service.namespace.clone(),
                format!("{}-{index}", service.name),
            ),
            service: service.name.to_string(),
            weight: 1,
            ports: endpoint_ports(&endpoint.ports()),
            endpoints: vec![endpoint.model()],
        })
        .collect()
}

fn endpoint_ports(ports: &BTreeMap<String, u16>) -> Vec<EndpointPort> {
    let ports = ports.iter();
    ports
        .map(|(name, port)| EndpointPort {
            name: name.as_str().into(),
            protocol: Protocol::Tcp,
            port: *port,
        })
        .collect()
}

pub fn object_name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').expect("namespace/name");
    ObjectName::new(namespace, name)
}

fn default_name() -> String {
    "svc".into()
}

fn policy(text: Option<&str>) -> TrafficPolicy {
    match text {
        Some("Local") => TrafficPolicy::Local,
        Some("Cluster") | None => TrafficPolicy::Cluster,
        Some(other) => panic!("traffic policy {other}"),
    }
}

fn protocol(text: &str) -> Protocol {
    match text {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        other => panic!("protocol {other}"),
    }
}
