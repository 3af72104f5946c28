//! Computes the desired state of a Service on this node: a pure function of the objects and the
//! options.
//!
//! Every rule of kube-proxy that does not depend on the packet is applied here: which endpoints
//! count and in which class, which addresses accept traffic, which policies are in force. What
//! depends on the packet (ready before terminating, the short circuit, source NAT) is left to the
//! packet pipeline, which finds all it needs in a [`Plan`].

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use lb_objects::{
    Algorithm, EndpointSlice, IpFamily, ObjectName, Protocol, Service, ServicePort, ServiceType,
    SharedName, TrafficPolicy,
};

pub use self::{
    detector::{DetectLocal, LocalDetector, Undetected},
    endpoints::{ClassifiedEndpoints, EndpointClass, TopologyMode},
    frontend::{Frontend, FrontendKind},
    node::{LocalNode, NodePortAddresses, PlanOptions},
    rank::{Importance, Rank, api_server},
};
use self::{endpoints::MergedSlices, frontend::source_ranges};

mod detector;
mod endpoints;
mod frontend;
mod node;
mod rank;
pub mod report;

/// Plans `service` on `node`. `slices` are the EndpointSlices of this Service, in any order.
pub fn plan(service: &Service, slices: &[&EndpointSlice], node: &LocalNode) -> ServicePlan {
    plan_after(None, service, slices, node)
}

/// As [`plan`]. `before` is what the same Service was planned as on the same node, when it had
/// other slices: what they do not decide, its addresses above all, is taken from there.
pub fn plan_after(
    before: Option<&ServicePlan>,
    service: &Service,
    slices: &[&EndpointSlice],
    node: &LocalNode,
) -> ServicePlan {
    let mut planned = ServicePlan {
        service: service.name.clone(),
        // The exact capacity, because there are tens of thousands of plans.
        ports: Vec::with_capacity(service.cluster_ips.len() * service.ports.len()),
        health_checks: Vec::new(),
    };
    let rank = node.rank(service);
    // One text for both families, and for all who keep it: there are very many service ports.
    let name = |(index, port): (usize, &ServicePort)| {
        let known = before.and_then(|before| before.ports.get(index));
        let known = known.map(|before| before.name.clone());
        known.unwrap_or_else(|| Arc::new(ServicePortName::new(service, port)))
    };
    let names: Vec<_> = service.ports.iter().enumerate().map(name).collect();
    // A family without a cluster IP ignores the Service completely.
    for cluster_ip in &service.cluster_ips {
        let family = IpFamily::of(*cluster_ip);
        let slices = MergedSlices::new(slices, family);
        let before = before.and_then(|before| before.ports.get(planned.ports.len()..));
        let before = |index| before?.get(index);
        let source_ranges = match before(0) {
            Some(before) => before.source_ranges.clone(),
            None => source_ranges(service, family, node),
        };
        let ports = service.ports.iter().enumerate().map(|(index, port)| Plan {
            name: names[index].clone(),
            family,
            rank,
            frontends: match before(index) {
                Some(before) => before.frontends.clone(),
                None => frontend::frontends(service, *cluster_ip, port, node),
            },
            left_to_node: match before(index) {
                Some(before) => before.left_to_node.clone(),
                None => frontend::left_to_node(*cluster_ip, port, node).map(Box::new),
            },
            internal_policy: service.internal_traffic_policy,
            external_policy: external_policy(service),
            externally_accessible: frontend::externally_accessible(service, family, port),
            endpoints: slices.classify(port, &service.weights, node),
            remaining: slices.remaining(port, service.removed_endpoints),
            source_ranges: source_ranges.clone(),
            session_affinity: service.session_affinity,
            algorithm: service.algorithm,
            hash_balance_factor: match service.algorithm {
                Algorithm::Maglev => service.hash_balance_factor,
                _ => 0,
            },
            slow_start: service.slow_start,
            max_connections: service.max_connections,
            max_connections_per_endpoint: service.max_connections_per_endpoint,
            long_running: service.long_running,
        });
        planned.ports.extend(ports);
        planned
            .health_checks
            .extend(health_check_port(service).map(|port| HealthCheck {
                family,
                port,
                local_ready: slices.local_ready(node),
            }));
    }
    planned
}

/// The plan of one Service on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlan {
    pub service: ObjectName,
    /// One per family and service port. The order of families is that of the Service's cluster IPs.
    pub ports: Vec<Plan>,
    /// One per family, if a health check node port of the Service is to be served.
    pub health_checks: Vec<HealthCheck>,
}

/// The desired state of one service port in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: Arc<ServicePortName>,
    pub family: IpFamily,
    /// Its Service's.
    pub rank: Rank,
    /// Where the port is reached, node ports once per address that accepts them.
    pub frontends: Arc<[Frontend]>,
    /// The ClusterIP and port, if they are not among these because the node itself answers there: a
    /// DNS cache on each node (NodeLocal DNSCache).
    pub left_to_node: Option<Box<SocketAddr>>,
    /// Rules the cluster IP.
    pub internal_policy: TrafficPolicy,
    /// The policy of all other frontends. Local only if the Service as a whole is externally
    /// accessible.
    pub external_policy: TrafficPolicy,
    /// Whether this port has a node port, or a load balancer IP or externalIP of this family.
    pub externally_accessible: bool,
    pub endpoints: ClassifiedEndpoints,
    /// The endpoints to which flows go on, usable or not, sorted: for UDP those that still serve,
    /// for TCP those that still belong to the Service. Flows to all others are stale. `None` if all
    /// flows are left to end on their own.
    pub remaining: Option<Box<[SocketAddr]>>,
    /// The only sources [`FrontendKind::LoadBalancerIp`] frontends accept; empty means all.
    pub source_ranges: Arc<[IpNet]>,
    /// How long a client sticks to its endpoint after its last new connection.
    pub session_affinity: Option<Duration>,
    pub algorithm: Algorithm,
    /// Of Maglev alone: how many connections an endpoint may have open before others get its new ones, in
    /// percent of the mean; 0 means any number.
    pub hash_balance_factor: u16,
    /// Over what time the share of an endpoint that becomes ready grows; `None`: it is whole at once.
    pub slow_start: Option<Duration>,
    /// The most connections that its Service may have on this node; 0 means no limit.
    pub max_connections: u32,
    /// The most connections that each endpoint of this port may have from this node; 0 means no limit.
    pub max_connections_per_endpoint: u32,
    /// Whether they do not count against the node's limit.
    pub long_running: bool,
}

impl Plan {
    /// The policy that rules traffic from outside to a frontend of this kind. Local pods and the
    /// node itself always get the Cluster policy on external frontends.
    pub fn policy(&self, kind: FrontendKind) -> TrafficPolicy {
        match kind.is_external() {
            true => self.external_policy,
            false => self.internal_policy,
        }
    }

    /// The Service's address of this family inside the cluster; `None` if it is left to the node.
    pub fn cluster_ip(&self) -> Option<IpAddr> {
        let mut frontends = self.frontends.iter();
        let own = frontends.find(|frontend| frontend.kind == FrontendKind::ClusterIp);
        own.map(|frontend| frontend.address.ip())
    }

    /// The Service's own port, whatever the frontends' are; 0 if there is no frontend that has it.
    pub fn port(&self) -> u16 {
        let mut frontends = self.frontends.iter();
        let own = frontends.find(|frontend| frontend.kind != FrontendKind::NodePort);
        let own = own.map(|frontend| &frontend.address);
        own.or(self.left_to_node.as_deref())
            .map_or(0, SocketAddr::port)
    }

    /// Whether its connections have to be counted: those of its Service, and at each endpoint.
    pub fn is_counted(&self) -> bool {
        self.max_connections != 0
            || self.max_connections_per_endpoint != 0
            || self.long_running
            || self.algorithm.goes_by_load()
            || self.hash_balance_factor != 0
    }

    /// Whether any traffic can need the Cluster set. Externally accessible ports always need it, if
    /// only for short-circuited traffic.
    pub fn uses_cluster(&self) -> bool {
        self.internal_policy == TrafficPolicy::Cluster || self.externally_accessible
    }

    /// Whether any traffic can need the Local set.
    pub fn uses_local(&self) -> bool {
        self.internal_policy == TrafficPolicy::Local
            || (self.external_policy == TrafficPolicy::Local && self.externally_accessible)
    }

    /// The Cluster set; empty if the port does not use it.
    pub fn cluster_set(&self) -> &[SocketAddr] {
        match self.uses_cluster() {
            true => self.endpoints.cluster(),
            false => &[],
        }
    }

    /// The Local set; empty if the port does not use it.
    pub fn local_set(&self) -> &[SocketAddr] {
        match self.uses_local() {
            true => self.endpoints.local(),
            false => &[],
        }
    }

    /// The set of a policy; empty if the port does not use it.
    pub fn set(&self, policy: TrafficPolicy) -> &[SocketAddr] {
        match policy {
            TrafficPolicy::Cluster => self.cluster_set(),
            TrafficPolicy::Local => self.local_set(),
        }
    }

    /// Whether an endpoint in the cluster is usable, on this node or not.
    pub fn has_any(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// What happens to a new connection under `policy`.
    pub fn verdict(&self, policy: TrafficPolicy) -> Verdict {
        if !self.set(policy).is_empty() {
            Verdict::Forward
        } else if self.has_any() {
            Verdict::Drop
        } else {
            Verdict::Reject
        }
    }

    /// Whether connections to the cluster IP are dropped because there are no local endpoints.
    pub fn internal_lacks_local(&self) -> bool {
        self.lacks_local(self.internal_policy)
    }

    /// Whether connections to external frontends are dropped because there are no local endpoints.
    /// A port without an external address so far counts as well.
    pub fn external_lacks_local(&self) -> bool {
        self.lacks_local(self.external_policy)
    }

    /// How many terminating endpoints serve because no others are ready (KEP-1669): those in the
    /// used sets that have fallen back to them.
    pub fn terminating_in_use(&self) -> usize {
        let endpoints = &self.endpoints;
        let local = EndpointClass::LocalTerminating;
        if self.uses_cluster() && endpoints.ready().is_empty() {
            endpoints.slots().len() // then all are terminating, those of this node too
        } else if self.uses_local() && self.local_set() == endpoints.class(local) {
            endpoints.class(local).len()
        } else {
            0
        }
    }

    fn lacks_local(&self, policy: TrafficPolicy) -> bool {
        policy == TrafficPolicy::Local && self.local_set().is_empty() && self.has_any()
    }
}

/// What happens to the first packet of a connection to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Forward,
    /// No endpoint is usable anywhere: the client is told at once, by ICMP port unreachable.
    Reject,
    /// Other nodes have endpoints. Without an answer, an external load balancer moves to another
    /// node after its health check, instead of refusing the client.
    Drop,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Reject => "reject",
            Self::Drop => "drop",
        })
    }
}

/// Identity of a service port, the same for both families.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    pub service: ObjectName,
    /// The port's name, which may be empty.
    pub port: SharedName,
    pub protocol: Protocol,
}

impl ServicePortName {
    fn new(service: &Service, port: &ServicePort) -> Self {
        Self {
            service: service.name.clone(),
            port: port.name.clone(),
            protocol: port.protocol,
        }
    }
}

impl fmt::Display for ServicePortName {
    /// `namespace/name:port`, without the colon if the port has no name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.port {
            "" => self.service.fmt(f),
            port => write!(f, "{}:{port}", self.service),
        }
    }
}

/// The health check node port of a Service in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub family: IpFamily,
    pub port: u16,
    /// Distinct addresses of ready endpoints on this node. Terminating ones do not count although
    /// they still get traffic, so that the load balancer moves away early.
    pub local_ready: usize,
}

impl HealthCheck {
    /// The HTTP status that the port answers while the agent is healthy.
    pub fn status(&self) -> u16 {
        match self.local_ready {
            0 => 503,
            _ => 200,
        }
    }
}

/// The externalTrafficPolicy in force. Local has no meaning on a Service without external
/// addresses.
fn external_policy(service: &Service) -> TrafficPolicy {
    let accessible = match service.service_type {
        ServiceType::LoadBalancer | ServiceType::NodePort => true,
        ServiceType::ClusterIp => !service.external_ips.is_empty(),
    };
    match accessible {
        true => service.external_traffic_policy,
        false => TrafficPolicy::Cluster,
    }
}

/// The health check node port to serve. The field has a meaning only on a LoadBalancer with
/// externalTrafficPolicy Local.
fn health_check_port(service: &Service) -> Option<u16> {
    let serves = service.service_type == ServiceType::LoadBalancer
        && service.external_traffic_policy == TrafficPolicy::Local
        && service.health_check_node_port != 0;
    serves.then_some(service.health_check_node_port)
}
