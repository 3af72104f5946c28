//! The objects of a source at one moment, for commands that answer without an agent.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::Context as _;
use lb_objects::{AsWritten, Node, Object, ObjectName, Pod};

use crate::{
    agent::own_addresses,
    config::{Config, SourceSpec},
    explain::{Situation, across::Cluster},
    map_writer::{NodeFacts, Reserved},
    memory::ProgrammedTables,
    plan::{LocalNode, ServicePlan, Undetected, plan},
    source::{Event, dir},
    store::Store,
};

mod api;

/// The present objects of a source, and this node as configured.
pub struct Snapshot {
    store: Store,
    node: Node,
    addresses: BTreeSet<IpAddr>,
    local_node: LocalNode,
    /// Where the API server is, if it is the source.
    api_servers: Vec<SocketAddr>,
}

impl Snapshot {
    /// Reads the source once. What it refuses is reported on standard error.
    ///
    /// # Errors
    /// If the source cannot be read at all.
    pub fn load(config: &Config) -> anyhow::Result<Self> {
        let (events, api_servers) = read(config)?;
        let store = store_of(config, events);

        if store.node().is_none() {
            warn(&format_args!(
                "no Node {:?} in the source: only what --node-address says is known of this node",
                config.node_name
            ));
        }
        let node = config.this_node(store.node().map(AsRef::as_ref));
        if node.addresses.is_empty() {
            warn(&"no address of this node is known, so node ports are accepted nowhere");
        }
        let addresses = addresses(&node, &store);
        let local: Vec<_> = addresses.iter().copied().collect();
        Ok(Self {
            local_node: LocalNode::new(&node, &local, &config.plan),
            addresses,
            api_servers,
            node,
            store,
        })
    }

    /// The same on the node itself: it has all addresses of its devices, and if nothing else names
    /// its own, those that are `known`.
    pub fn on_this_node(mut self, config: &Config, known: Vec<IpAddr>) -> Self {
        if self.node.addresses.is_empty() {
            self.node.addresses = known;
        }
        self.addresses = own_addresses();
        let local: Vec<_> = self.addresses.iter().copied().collect();
        self.local_node = LocalNode::new(&self.node, &local, &config.plan);
        self
    }

    /// This node, as its object and the configuration have it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What decides besides Services, without connection admission.
    pub fn situation(&mut self, config: &Config) -> Situation {
        let service_cidrs = self.store.take_service_cidrs().unwrap_or_default();
        let (own, api_servers) = (self.addresses.clone(), self.api_servers.iter().copied());
        Situation {
            node: Arc::new(self.node.clone()),
            local_node: Arc::new(self.local_node.clone()),
            addresses: Arc::new(self.addresses.clone()),
            reserved: Arc::new(Reserved::for_agent(config, own, api_servers)),
            service_cidrs: service_cidrs.into(),
            in_force: None,
            pods: Arc::default(),
        }
    }

    /// Tables with what the agent would write to the kernel's maps in this situation, Maglev tables of
    /// so many rows among it. Service ports without room are reported on standard error.
    pub fn tables(
        &self,
        config: &Config,
        situation: &Situation,
        maglev_rows: u32,
    ) -> ProgrammedTables {
        if let Some(undetected) = Undetected::on(&self.node, &config.detect_local) {
            warn(&undetected);
        }
        let facts = NodeFacts {
            maglev_rows,
            ..situation.facts(config)
        };
        let plans = self.plans();
        let checks = plans.iter().flat_map(|service| &service.health_checks);
        let ports = plans.iter().flat_map(|service| &service.ports);
        let tables = situation.tables(config, facts, ports, checks.map(|check| check.port));
        for (key, error) in tables.not_programmed() {
            warn(&format_args!("{key} is not programmed: {error}"));
        }
        tables
    }

    /// The API server's objects of connection admission, if they are asked for.
    pub fn admission(&mut self) -> Vec<Arc<AsWritten>> {
        self.store.take_admission().unwrap_or_default()
    }

    /// This node's pods. Without an answer of the API server, standard error says so.
    ///
    /// # Errors
    /// If that could not even be asked.
    pub fn pods(&mut self, config: &Config) -> anyhow::Result<Vec<Arc<Pod>>> {
        match config.source {
            SourceSpec::Dir(_) => Ok(self.store.take_pods().unwrap_or_default()),
            SourceSpec::Kubernetes => super::block_on(api::pods(config, &config.node_name))?,
        }
    }

    /// The plan of every Service, sorted by name.
    pub fn plans(&self) -> Vec<ServicePlan> {
        let mut services: Vec<_> = self.store.services().collect();
        services.sort_by_key(|service| &service.name);
        services
            .into_iter()
            .map(|service| {
                let slices: Vec<_> = self.store.slices(&service.name).collect();
                plan(service, &slices, &self.local_node)
            })
            .collect()
    }
}

/// The objects of the whole cluster, and those of connection admission.
pub struct Everything {
    pub cluster: Cluster,
    /// The API server's, if they are asked for, or those of the directory.
    pub admission: Vec<Arc<AsWritten>>,
    /// The pods of the directory; the API server is asked for them one by one.
    pods: Vec<Arc<Pod>>,
}

impl Everything {
    /// Reads the source once. What it refuses is reported on standard error.
    ///
    /// # Errors
    /// If the source cannot be read at all.
    pub fn load(config: &Config) -> anyhow::Result<Self> {
        let (events, api_servers) = read(config)?;
        let (mut nodes, mut pods) = (Vec::new(), Vec::new());
        for event in &events {
            match event {
                Event::Apply(Object::Node(node)) => nodes.push(node.clone()),
                Event::Apply(Object::Pod(pod)) => pods.push(pod.clone()),
                _ => {}
            }
        }
        if config.source == SourceSpec::Kubernetes {
            nodes = super::block_on(api::nodes(config))??;
        }
        let mut store = store_of(config, events);
        let admission = store.take_admission().unwrap_or_default();
        let mut cluster = Cluster::new(config.clone(), store, nodes, api_servers);
        pods.iter().for_each(|pod| cluster.add_pod(pod));
        Ok(Self {
            cluster,
            admission,
            pods,
        })
    }

    /// The pods of a node. Without an answer of the API server, standard error says so.
    ///
    /// # Errors
    /// If that could not even be asked.
    pub fn pods_of(&self, node: &str) -> anyhow::Result<Vec<Arc<Pod>>> {
        let config = self.cluster.config();
        match config.source {
            SourceSpec::Dir(_) => {
                let pods = self.pods.iter().filter(|pod| pod.node == node);
                Ok(pods.cloned().collect())
            }
            SourceSpec::Kubernetes => super::block_on(api::pods(config, node))?,
        }
    }

    /// A pod. The cluster knows from now on where it is.
    ///
    /// # Errors
    /// If there is none of this name with addresses of its own, or that cannot be asked.
    pub fn pod(&mut self, name: &ObjectName) -> anyhow::Result<Arc<Pod>> {
        let config = self.cluster.config();
        let pod = match config.source {
            SourceSpec::Dir(_) => {
                let mut pods = self.pods.iter();
                pods.find(|pod| pod.name == *name).cloned()
            }
            SourceSpec::Kubernetes => super::block_on(api::pod(config, name))??,
        };
        let pod = pod.with_context(|| {
            format!(
                "the source has no pod {name} with addresses of its own; for a pod in its node's network, \
                 give the node's address as --from"
            )
        })?;
        self.cluster.add_pod(&pod);
        Ok(pod)
    }
}

/// Everything the source has for the node in the configuration, and where the API server is, if it is
/// the source.
fn read(config: &Config) -> anyhow::Result<(Vec<Event>, Vec<SocketAddr>)> {
    match &config.source {
        SourceSpec::Dir(path) => {
            let (objects, problems) = dir::load(path)?;
            problems.iter().for_each(|problem| warn(problem));
            let events = objects.into_iter().map(Event::Apply);
            Ok((events.collect(), Vec::new()))
        }
        SourceSpec::Kubernetes => {
            let events = super::block_on(api::listed(config))??;
            Ok((events, super::block_on(config.api_access.addresses())??))
        }
    }
}

fn store_of(config: &Config, events: Vec<Event>) -> Store {
    let mut store = Store::new(&config.node_name);
    store.apply(events);
    store.apply([Event::Synced]);
    store
}

/// The addresses of the Node object; on the node itself, also the ClusterIPs that are its own: a
/// DNS cache has some.
fn addresses(node: &Node, store: &Store) -> BTreeSet<IpAddr> {
    let mut known: BTreeSet<IpAddr> = node.addresses.iter().copied().collect();
    let here = own_addresses();
    if !here.is_disjoint(&known) {
        let services = store.services();
        let cluster_ips = services.flat_map(|service| service.cluster_ips.iter());
        known.extend(cluster_ips.filter(|ip| here.contains(*ip)));
    }
    known
}

fn warn(what: &dyn std::fmt::Display) {
    eprintln!("warning: {what}");
}
