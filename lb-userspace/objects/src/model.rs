//! The cluster in the form that the planner reads.

use std::{collections::BTreeMap, fmt, net::IpAddr, ops::Deref, sync::Arc, time::Duration};

use ipnet::IpNet;
use uuid::Uuid;

use crate::{SharedName, Weights};

/// Namespace and name of an object. All copies share one in memory, because very many things have
/// one: it is cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName(Arc<NameParts>);

/// The parts of an [`ObjectName`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameParts {
    pub namespace: SharedName,
    pub name: Box<str>,
}

impl ObjectName {
    /// A name of these parts. The namespace of a Node is empty.
    pub fn new(namespace: impl Into<SharedName>, name: impl Into<Box<str>>) -> Self {
        Self(Arc::new(NameParts {
            namespace: namespace.into(),
            name: name.into(),
        }))
    }

    /// The name that is written as `NAMESPACE/NAME`; `None` if that is not two names.
    pub fn parse(text: &str) -> Option<Self> {
        let (namespace, name) = text.split_once('/')?;
        let are_names = !namespace.is_empty() && !name.is_empty() && !name.contains('/');
        are_names.then(|| Self::new(namespace, name))
    }
}

impl Deref for ObjectName {
    type Target = NameParts;

    fn deref(&self) -> &NameParts {
        &self.0
    }
}

impl fmt::Debug for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

/// Layer 4 protocol of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// As the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// The protocol of this name, as the API has it: `TCP`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// The protocol with this number in IP headers.
    pub fn from_number(number: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.number() == number)
    }

    /// Its number in IP headers (IANA's protocol numbers).
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// `spec.type` of a Service. ExternalName Services never reach the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

/// `internalTrafficPolicy` or `externalTrafficPolicy`; anything but `Local` means `Cluster`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    Cluster,
    Local,
}

impl TrafficPolicy {
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Local];

    /// As the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// How an endpoint is chosen for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// At random.
    Random,
    /// By the connection's addresses and ports, on all nodes alike.
    Maglev,
    /// Of two endpoints drawn at random, the one with fewer connections open on this node.
    LeastConnections,
    /// Of two endpoints drawn at random, the one that answers sooner, for the connections that it has.
    LeastLatency,
}

impl Algorithm {
    /// All of them, the default first.
    pub const ALL: [Self; 4] = [
        Self::Random,
        Self::Maglev,
        Self::LeastConnections,
        Self::LeastLatency,
    ];

    /// As the Service's annotation has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Maglev => "maglev",
            Self::LeastConnections => "least-connections",
            Self::LeastLatency => "least-latency",
        }
    }

    /// Whether the connections that endpoints have open take part in the choice.
    pub fn goes_by_load(self) -> bool {
        matches!(self, Self::LeastConnections | Self::LeastLatency)
    }
}

/// What happens to a TCP connection when its endpoint leaves the Service but still answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovedEndpoints {
    /// The connection goes on, as with kube-proxy.
    #[default]
    Keep,
    /// The connection is reset when the client sends again.
    Reset,
}

/// A Service with at least one cluster IP, both families together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub name: ObjectName,
    /// `metadata.uid`, by which Events about the Service are found; manifests have none.
    pub uid: Option<Uuid>,
    /// `metadata.creationTimestamp` in seconds since 1970; 0 where there is none, as in manifests.
    pub created: i64,
    pub service_type: ServiceType,
    /// At most one per family.
    pub cluster_ips: Vec<IpAddr>,
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress` addresses in VIP mode.
    pub load_balancer_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    pub internal_traffic_policy: TrafficPolicy,
    pub external_traffic_policy: TrafficPolicy,
    pub load_balancer_source_ranges: Vec<IpNet>,
    /// Zero means none.
    pub health_check_node_port: u16,
    /// `sessionAffinity: ClientIP` and its timeout.
    pub session_affinity: Option<Duration>,
    pub algorithm: Algorithm,
    /// With [`Algorithm::Maglev`]: how many connections an endpoint may have open before others get its new
    /// ones, in percent of the mean; 0 means any number.
    pub hash_balance_factor: u16,
    pub weights: Weights,
    /// Over what time the share of an endpoint that becomes ready grows; `None`: it is whole at once.
    pub slow_start: Option<Duration>,
    pub removed_endpoints: RemovedEndpoints,
    /// The most connections on a node; 0 means no limit.
    pub max_connections: u32,
    /// The most connections on a node to each endpoint of a port; 0 means no limit.
    pub max_connections_per_endpoint: u32,
    /// Whether its connections do not count against a node's limit.
    pub long_running: bool,
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// May be empty.
    pub name: SharedName,
    pub protocol: Protocol,
    pub port: u16,
    /// Zero means none.
    pub node_port: u16,
}

/// An EndpointSlice of a Service. Its address family is that of its endpoints' addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    pub name: ObjectName,
    /// Name of the owning Service, in the slice's namespace.
    pub service: String,
    pub ports: Vec<EndpointPort>,
    /// Of each of its endpoints, unless the Service gives one another weight.
    pub weight: u16,
    pub endpoints: Vec<Endpoint>,
}

/// A named port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    pub name: SharedName,
    pub protocol: Protocol,
    pub port: u16,
}

/// One endpoint of a slice, with conditions that are nil replaced by their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// `None` never counts as local.
    pub node_name: Option<SharedName>,
    pub zone_hints: Box<[SharedName]>,
    pub node_hints: Box<[SharedName]>,
}

/// This node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// InternalIP addresses before ExternalIP ones, in the object's order.
    pub addresses: Vec<IpAddr>,
    pub pod_cidrs: Vec<IpNet>,
    pub taints: Vec<String>,
    pub deleting: bool,
}

/// A pod that has addresses of its own, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: ObjectName,
    /// Its node; empty if it has none yet.
    pub node: String,
    pub service_account: String,
    pub labels: BTreeMap<String, String>,
    /// Empty until it has been given some, and after it has ended: they may be another pod's then.
    pub addresses: Vec<IpAddr>,
}

/// Networks from which the cluster takes ClusterIPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCidr {
    pub name: ObjectName,
    pub cidrs: Vec<IpNet>,
}

/// An IP address family. The planner treats each family of a Service separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The family of a network.
    pub fn of_net(net: IpNet) -> Self {
        Self::of(net.addr())
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for TrafficPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}
