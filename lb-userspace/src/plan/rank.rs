//! Who goes first where Services want the same address, or maps are short of room.

use lb_objects::{ObjectName, Protocol, Service};

/// The Service of the API server itself.
const API_SERVER: (&str, &str) = ("default", "kubernetes");
/// Where the cluster's DNS runs; tenants have no Services there.
const SYSTEM_NAMESPACE: &str = "kube-system";
const DNS_PORT: u16 = 53;

/// A Service's place among all: the lesser one goes first. Where two are equal, names decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank {
    pub importance: Importance,
    /// Seconds since 1970: what existed before goes first.
    pub created: i64,
}

/// Whether the rest of the cluster depends on a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Importance {
    /// The API server, the cluster's DNS, and what `--essential-services` names.
    Essential,
    #[default]
    Ordinary,
}

impl Rank {
    /// The rank of a Service; `essential` are the names of those that are, besides the API server's
    /// and DNS.
    pub fn of(service: &Service, essential: &[ObjectName]) -> Self {
        let is_essential = is_api_server(&service.name)
            || is_cluster_dns(service)
            || essential.contains(&service.name);
        Self {
            importance: match is_essential {
                true => Importance::Essential,
                false => Importance::Ordinary,
            },
            created: service.created,
        }
    }

    pub fn is_essential(&self) -> bool {
        self.importance == Importance::Essential
    }
}

/// The name of the API server's own Service.
pub fn api_server() -> ObjectName {
    let (namespace, name) = API_SERVER;
    ObjectName::new(namespace, name)
}

/// Whether this is `default/kubernetes`.
pub fn is_api_server(name: &ObjectName) -> bool {
    (&*name.namespace, &*name.name) == API_SERVER
}

/// Whether a Service is the cluster's DNS. By what it serves: its name and its labels differ
/// between distributions.
fn is_cluster_dns(service: &Service) -> bool {
    let serves = |protocol| {
        let mut ports = service.ports.iter();
        ports.any(|port| port.port == DNS_PORT && port.protocol == protocol)
    };
    service.name.namespace == SYSTEM_NAMESPACE && serves(Protocol::Udp) && serves(Protocol::Tcp)
}
