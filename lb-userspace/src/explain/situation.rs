//! What decides about connections on a node besides its Services.

use std::{collections::BTreeSet, net::IpAddr, net::SocketAddr, sync::Arc};

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

/// Whether what becomes of a packet to `destination` may depend on this plan. Tables with only these
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
pub fn matters(plan: &Plan, destination: SocketAddr) -> bool {
    let (ip, port) = (destination.ip(), destination.port());
    // Without the scope that an IPv6 address may be written with.
    let is_it = |address: &SocketAddr| address.ip() == ip && address.port() == port;
    plan.left_to_node.as_deref().is_some_and(is_it)
        || plan.frontends.iter().any(|frontend| {
            let is_cluster_ip = frontend.kind == FrontendKind::ClusterIp;
            is_it(&frontend.address) || is_cluster_ip && frontend.address.ip() == ip
        })
}
