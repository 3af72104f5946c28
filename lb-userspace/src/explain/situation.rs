//! What decides about connections on a node besides its Services.

use std::{
    collections::{BTreeSet, HashSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use lb_admission::configuration::InForce;
use lb_objects::{Node, Pod};

use crate::{
    admission::pods::identities,
    config::Config,
    map_writer::{NodeFacts, NotInForce, Reserved, Settings},
    memory::ProgrammedTables,
    plan::{FrontendKind, LocalDetector, LocalNode, Plan},
};

/// What decides about connections on a node besides its Services and its configuration. It is cheap
/// to clone.
#[derive(Clone, Debug)]
pub struct Situation {
    /// This node, as its Node object and the configuration have it.
    pub node: Arc<Node>,
    /// The same for the planner.
    pub local_node: Arc<LocalNode>,
    /// The addresses of its devices.
    pub addresses: Arc<BTreeSet<IpAddr>>,
    /// Addresses that Services do not get, but for those of healthCheckNodePorts.
    pub reserved: Arc<Reserved>,
    /// The cluster's ServiceCIDRs.
    pub service_cidrs: Arc<[IpNet]>,
    /// The flow schemas and priority levels; `None` if connections are not classified.
    pub in_force: Option<Arc<InForce>>,
    /// This node's pods, if the schemas ask for them.
    pub pods: Arc<[Arc<Pod>]>,
}

impl Situation {
    /// Tables with these plans, as the agent would write them to the kernel's maps. `facts` are the
    /// node's, and Services serve these healthCheckNodePorts.
    pub fn tables<'a>(
        &self,
        config: &Config,
        facts: NodeFacts,
        plans: impl IntoIterator<Item = &'a Plan>,
        health_checks: impl IntoIterator<Item = u16>,
    ) -> ProgrammedTables {
        let detector = LocalDetector::new(&config.detect_local, &self.node);
        let settings = Settings::new(config, &self.local_node, &detector);
        let mut tables = ProgrammedTables::new(&settings, facts, 0);
        let mut reserved = Reserved::clone(&self.reserved);
        reserved.add_health_checks(health_checks);
        tables.reserve(reserved);
        tables.set_service_cidrs(&self.service_cidrs);
        tables.program(plans);
        tables
    }

    /// The facts about this node that its tables are written with.
    pub fn facts(&self, config: &Config) -> NodeFacts {
        NodeFacts::new(config, &self.node, BTreeSet::clone(&self.addresses))
    }

    /// Has tables classify connections, if they are classified.
    ///
    /// # Errors
    ///
    /// If there is no room for the flow schemas.
    pub fn admit(&self, tables: &mut ProgrammedTables, config: &Config) -> Result<(), NotInForce> {
        let Some(in_force) = &self.in_force else {
            return Ok(());
        };
        let pods = match in_force.asks_for_identity() {
            true => identities(self.pods.iter().map(AsRef::as_ref)),
            false => Default::default(),
        };
        tables.admit(
            in_force,
            config.admission.mode,
            config.max_connections,
            pods,
        )
    }
}

/// Addresses that packets are sent to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// With their ports, and without the scope that an IPv6 address may be written with.
    sockets: HashSet<(IpAddr, u16)>,
    addresses: HashSet<IpAddr>,
}

impl Destinations {
    /// Whether what becomes of a packet to one of them may depend on this plan. Tables with only these
    /// plans decide as tables with all would, as far as all of them have room:
    ///
    /// - The frontend is found by its address and port. Whoever claims these is here, so the same one
    ///   wins; of other frontends, nothing is read.
    /// - A ClusterIP's other ports are refused because it is a ClusterIP, and the report names a Service
    ///   that has it. Whoever has it is here, with the same one first: plans keep their order.
    /// - An address that is no Service's is dropped if it is in a ServiceCIDR, whatever Services there
    ///   are. The range of the ClusterIPs outside all of these may be smaller, but a packet to any other
    ///   address there passes as well as without it.
    /// - A limit of connections is that of the frontend's own Service, its level or the node, and how many
    ///   there are is asked elsewhere.
    pub fn depend_on(&self, plan: &Plan) -> bool {
        plan.left_to_node
            .as_deref()
            .is_some_and(|address| self.contain(address))
            || plan.frontends.iter().any(|frontend| {
                let is_cluster_ip = frontend.kind == FrontendKind::ClusterIp;
                self.contain(&frontend.address)
                    || is_cluster_ip && self.addresses.contains(&frontend.address.ip())
            })
    }

    /// Whether this is one of them.
    pub fn contain(&self, address: &SocketAddr) -> bool {
        self.sockets.contains(&(address.ip(), address.port()))
    }
}

impl FromIterator<SocketAddr> for Destinations {
    fn from_iter<T: IntoIterator<Item = SocketAddr>>(addresses: T) -> Self {
        let mut destinations = Self::default();
        for address in addresses {
            destinations.sockets.insert((address.ip(), address.port()));
            destinations.addresses.insert(address.ip());
        }
        destinations
    }
}
