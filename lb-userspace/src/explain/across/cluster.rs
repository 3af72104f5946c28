//! The cluster's objects, and what node-lb would do on each node by them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use lb_admission::configuration::InForce;
use lb_objects::{IpFamily, Node, ObjectName, Pod, Service, SharedName};

use super::{
    super::{Destinations, InUse, Question, Report, Situation},
    journey::{Place, PlaceKind},
};
use crate::{
    config::{Config, MapLimits},
    map_writer::{NodeFacts, NotInForce, Reserved},
    plan::{DetectLocal, LocalNode, plan},
    store::Store,
};

/// The objects of a cluster, and the settings that its agents are taken to have.
pub struct Cluster {
    config: Config,
    /// Services and their slices.
    store: Store,
    nodes: BTreeMap<String, Arc<Node>>,
    service_cidrs: Arc<[IpNet]>,
    api_servers: Vec<SocketAddr>,
    in_force: Option<Arc<InForce>>,
    /// The Services that may have a plan which matters to a packet, by an address or a port of its
    /// destination: there are very many Services and packets.
    by_address: HashMap<IpAddr, Vec<Arc<Service>>>,
    by_port: HashMap<u16, Vec<Arc<Service>>>,
    /// The nodes of nodes' own addresses, and of pods'.
    nodes_by_address: HashMap<IpAddr, String>,
    pods: HashMap<IpAddr, SharedName>,
}

impl Cluster {
    /// `store` has everything the source has. Of the nodes, the one that `config` names also has the
    /// addresses that it adds.
    pub fn new(
        config: Config,
        mut store: Store,
        nodes: impl IntoIterator<Item = Arc<Node>>,
        api_servers: Vec<SocketAddr>,
    ) -> Self {
        let nodes = nodes.into_iter().map(|node| {
            let is_own = node.name == config.node_name;
            let node = match is_own {
                true => Arc::new(config.this_node(Some(&node))),
                false => node,
            };
            (node.name.clone(), node)
        });
        let nodes: BTreeMap<String, Arc<Node>> = nodes.collect();
        let mut nodes_by_address = HashMap::new();
        for (name, node) in &nodes {
            for address in &node.addresses {
                nodes_by_address.entry(*address).or_insert(name.clone());
            }
        }
        let (mut by_address, mut by_port) = (HashMap::new(), HashMap::new());
        for service in store.services() {
            for address in addresses_of(service) {
                let of_address: &mut Vec<_> = by_address.entry(address).or_default();
                of_address.push(service.clone());
            }
            for port in ports_of(service) {
                let of_port: &mut Vec<_> = by_port.entry(port).or_default();
                of_port.push(service.clone());
            }
        }
        Self {
            nodes,
            by_address,
            by_port,
            nodes_by_address,
            service_cidrs: store.take_service_cidrs().unwrap_or_default().into(),
            pods: nodes_of_endpoints(&store),
            config,
            store,
            api_servers,
            in_force: None,
        }
    }

    /// Has connections classified by these flow schemas.
    pub fn set_in_force(&mut self, in_force: InForce) {
        self.in_force = Some(Arc::new(in_force));
    }

    /// Whether what is in force asks whose pods connections come from.
    pub fn asks_for_identity(&self) -> bool {
        let mut in_force = self.in_force.iter();
        in_force.any(|in_force| in_force.asks_for_identity())
    }

    /// Says where a pod is, which need not be an endpoint.
    pub fn add_pod(&mut self, pod: &Pod) {
        if !pod.node.is_empty() {
            for address in &pod.addresses {
                self.place(*address, &pod.node);
            }
        }
    }

    /// Says that a pod with this address is on a node.
    pub fn place(&mut self, address: IpAddr, node: &str) {
        self.pods.insert(address, node.into());
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The Node object of this name.
    pub fn node(&self, name: &str) -> Option<&Arc<Node>> {
        self.nodes.get(name)
    }

    /// The only node, if there is just one.
    pub(super) fn only_node(&self) -> Option<&Arc<Node>> {
        let mut nodes = self.nodes.values();
        nodes.next().filter(|_| nodes.next().is_none())
    }

    /// What node-lb would do on a node with the packet that is asked about. `pods` are the node's, if
    /// [`Self::asks_for_identity`].
    ///
    /// # Errors
    ///
    /// If there is no room for the flow schemas.
    pub fn explain(
        &self,
        node: &Arc<Node>,
        question: &Question,
        pods: Arc<[Arc<Pod>]>,
    ) -> Result<Report, NotInForce> {
        let config = &self.config;
        let addresses: BTreeSet<_> = node.addresses.iter().copied().collect();
        let local_node = LocalNode::new(node, &node.addresses, &config.plan);
        let to = question.to.address;
        let by_address = self.by_address.get(&to.ip()).into_iter().flatten();
        let by_port = self.by_port.get(&to.port()).into_iter().flatten();
        let mut services: Vec<_> = by_address.chain(by_port).collect();
        services.sort_by_key(|service| &service.name);
        services.dedup_by_key(|service| &service.name);
        let plans = services.into_iter().map(|service| {
            let slices: Vec<_> = self.store.slices(&service.name).collect();
            plan(service, &slices, &local_node)
        });
        let plans: Vec<_> = plans.collect();
        let checks = plans.iter().flat_map(|service| &service.health_checks);
        let checks = checks.map(|check| check.port);
        let ports = plans.iter().flat_map(|service| &service.ports);
        let destination = Destinations::from_iter([to]);
        let ports = ports.filter(|plan| destination.depend_on(plan));

        let api_servers = self.api_servers.iter().copied();
        let situation = Situation {
            node: node.clone(),
            local_node: Arc::new(local_node.clone()),
            reserved: Arc::new(Reserved::for_agent(config, addresses.clone(), api_servers)),
            addresses: Arc::new(addresses),
            service_cidrs: self.service_cidrs.clone(),
            in_force: self.in_force.clone(),
            pods,
        };
        let facts = NodeFacts {
            // It does not matter which of a set's endpoints is chosen.
            maglev_rows: 0,
            // What there is room for depends on all Services.
            limits: MapLimits::default(),
            ..situation.facts(config)
        };
        let mut tables = situation.tables(config, facts, ports, checks);
        situation.admit(&mut tables, config)?;
        let decision = question.ask(&mut tables, config.max_connections, &InUse::default());
        Ok(Report::from(&decision))
    }

    /// Where an address is.
    pub fn locate(&self, address: IpAddr) -> Place {
        let place = |kind, node: Option<&str>| Place {
            kind,
            node: node.map(str::to_owned),
        };
        if let Some(node) = self.nodes_by_address.get(&address) {
            return place(PlaceKind::Node, Some(node));
        }
        if let Some(node) = self.pods.get(&address) {
            return place(PlaceKind::Pod, Some(node));
        }
        let is_in = |networks: &[IpNet]| networks.iter().any(|network| network.contains(&address));
        let mut nodes = self.nodes.values();
        match nodes.find(|node| is_in(&node.pod_cidrs)) {
            Some(node) => place(PlaceKind::Pod, Some(&node.name)),
            None if is_in(&self.config.cluster_networks) => place(PlaceKind::Pod, None),
            None => place(PlaceKind::Outside, None),
        }
    }

    /// A name of a device by which pods are told, if they are told by devices.
    pub(super) fn device_of_pods(&self) -> Option<&str> {
        match &self.config.detect_local {
            DetectLocal::BridgeInterface(name) => Some(name),
            // A name that begins like this.
            DetectLocal::InterfaceNamePrefix(prefix) => Some(prefix),
            _ => None,
        }
    }

    /// The nodes that have usable endpoints of a Service.
    pub(super) fn nodes_with_endpoints(
        &self,
        service: &ObjectName,
        family: IpFamily,
    ) -> BTreeSet<String> {
        let endpoints = self
            .store
            .slices(service)
            .flat_map(|slice| &slice.endpoints);
        let usable = endpoints.filter(|endpoint| {
            IpFamily::of(endpoint.address) == family
                && (endpoint.ready || endpoint.serving && endpoint.terminating)
        });
        let nodes = usable.filter_map(|endpoint| endpoint.node_name.as_deref());
        nodes.map(str::to_owned).collect()
    }
}

/// The addresses that a Service asks for, but for those of nodes.
fn addresses_of(service: &Service) -> impl Iterator<Item = IpAddr> {
    let inside = service.cluster_ips.iter();
    let outside = service.external_ips.iter();
    let addresses = inside.chain(outside).chain(&service.load_balancer_ips);
    addresses.copied()
}

/// The ports that it asks for on nodes.
fn ports_of(service: &Service) -> impl Iterator<Item = u16> {
    let node_ports = service.ports.iter().map(|port| port.node_port);
    let health_check = iter::once(service.health_check_node_port);
    node_ports.chain(health_check).filter(|port| *port != 0)
}

/// The nodes that slices name for endpoints. A running pod takes precedence over one that terminates and
/// has still the same address.
fn nodes_of_endpoints(store: &Store) -> HashMap<IpAddr, SharedName> {
    let mut nodes = HashMap::new();
    for service in store.services() {
        for endpoint in store
            .slices(&service.name)
            .flat_map(|slice| &slice.endpoints)
        {
            if let Some(node) = &endpoint.node_name
                && (!endpoint.terminating || !nodes.contains_key(&endpoint.address))
            {
                nodes.insert(endpoint.address, node.clone());
            }
        }
    }
    nodes
}
