//! The objects of a source at one moment, for commands that answer without an agent.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::bail;
use k8s_openapi::api::core::v1 as core;
use kube::{Api, api::ListParams};
use lb_objects::{
    AsWritten, Kind, Node, Object, Pod,
    kubernetes::{Outcome, translate},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    agent::own_addresses,
    config::{Config, SourceSpec},
    explain::Situation,
    map_writer::{NodeFacts, Reserved},
    memory::ProgrammedTables,
    metrics::Metrics,
    plan::{LocalNode, ServicePlan, Undetected, plan},
    source::{
        Batch, Event, Source as _,
        api::{ApiSource, Connection, within},
        dir,
        health::SourceHealth,
    },
    store::Store,
};

/// How long the API server may take to list everything.
const LIST_DEADLINE: Duration = Duration::from_secs(60);

/// How often to look what keeps it.
const LOOK: Duration = Duration::from_millis(100);

/// How long it may fail to answer. This is enough for a second attempt.
const FAILURE_DEADLINE: Duration = Duration::from_secs(5);

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
        let mut store = Store::new(&config.node_name);
        let events = match &config.source {
            SourceSpec::Dir(path) => {
                let (objects, problems) = dir::load(path)?;
                problems.iter().for_each(|problem| warn(problem));
                objects.into_iter().map(Event::Apply).collect()
            }
            SourceSpec::Kubernetes => super::block_on(listed(config))??,
        };
        let api_servers = match config.source {
            SourceSpec::Kubernetes => super::block_on(config.api_access.addresses())??,
            SourceSpec::Dir(_) => Vec::new(),
        };
        store.apply(events);
        store.apply([Event::Synced]);

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
            SourceSpec::Kubernetes => super::block_on(pods(config))?,
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

/// Everything the API server has.
async fn listed(config: &Config) -> anyhow::Result<Vec<Event>> {
    let metrics = Metrics::new().api;
    let admission = config
        .follows_admission()
        .then(|| Arc::new(SourceHealth::new(Kind::ADMISSION.map(Kind::resource))));
    let source = ApiSource::open(config.api_access.clone(), &config.node_name, metrics).await?;
    let namespaces = config
        .follows_admission()
        .then(|| Arc::new(SourceHealth::new([Kind::Namespace.resource()])));
    let service_cidrs = config
        .follows_service_cidrs()
        .then(|| Arc::new(SourceHealth::new([Kind::ServiceCidr.resource()])));
    let source = source
        .following_admission(admission.clone())
        .following_namespaces(namespaces.clone())
        .following_service_cidrs(service_cidrs.clone());
    // What a cluster need not have, what says that it has all come, and what it is called.
    let admission = admission.map(|health| {
        let kinds = "PriorityLevels and FlowSchemas";
        (health, Event::AdmissionSynced, kinds)
    });
    let namespaces = namespaces.map(|health| (health, Event::NamespacesSynced, "Namespaces"));
    let service_cidrs =
        service_cidrs.map(|health| (health, Event::ServiceCidrsSynced, "ServiceCIDRs"));
    let missing = admission.into_iter().chain(namespaces);
    let mut missing: Vec<_> = missing.chain(service_cidrs).collect();
    let health = source.health();
    let (sender, mut batches) = mpsc::channel::<Batch>(1);
    let start = Instant::now();
    let collect = async {
        let mut events = Vec::new();
        let mut misses_some = true;
        while misses_some || !missing.is_empty() {
            let batch = match timeout(LOOK, batches.recv()).await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(_) => {
                    missing
                        .retain(|(health, _, what)| misses_some || may_come(health, start, what));
                    continue;
                }
            };
            for event in batch.events {
                match event {
                    Event::Synced => misses_some = false,
                    Event::Problems { problems, .. } => {
                        problems.iter().for_each(|problem| warn(problem));
                    }
                    event => {
                        missing.retain(|(_, complete, _)| *complete != event);
                        events.push(event);
                    }
                }
            }
        }
        events
    };
    tokio::select! {
        events = collect => Ok(events),
        ended = Box::new(source).run(sender) => {
            ended?;
            bail!("the API server's lists ended early")
        }
        () = sleep_until(start + LIST_DEADLINE) => {
            bail!("the API server has not listed everything within {LIST_DEADLINE:?}")
        }
        error = lasting_failure(&health, start + FAILURE_DEADLINE) => bail!(error),
    }
}

/// This node's pods, if the API server lists them.
async fn pods(config: &Config) -> anyhow::Result<Vec<Arc<Pod>>> {
    let connection = Connection::open(config.api_access.clone(), Arc::default()).await?;
    let pods: Api<core::Pod> = Api::all(connection.current().client);
    let of_node = ListParams::default().fields(&format!("spec.nodeName={}", config.node_name));
    let listed = match within(FAILURE_DEADLINE, pods.list(&of_node)).await {
        Ok(list) => list.items,
        Err(error) => {
            warn(&format_args!("no pods: {error}"));
            Vec::new()
        }
    };
    let outcomes = listed.iter().map(|pod| translate(pod).outcome);
    let pods = outcomes.filter_map(|outcome| match outcome {
        Outcome::Use(Object::Pod(pod)) => Some(pod),
        _ => None,
    });
    Ok(pods.collect())
}

/// Whether resources that a cluster need not have may still come; if not, says why.
fn may_come(health: &SourceHealth, start: Instant, what: &str) -> bool {
    let is_over = health.some_absent() || start.elapsed() >= FAILURE_DEADLINE;
    let mut errors = health.states().into_iter().filter_map(|state| state.error);
    match errors.next().filter(|_| is_over) {
        Some(error) => {
            warn(&format_args!("no {what}: {error}"));
            false
        }
        None => true,
    }
}

/// Returns the error if there is still one at the deadline.
async fn lasting_failure(health: &SourceHealth, deadline: Instant) -> String {
    sleep_until(deadline).await;
    loop {
        let failed = health.states().into_iter().find_map(|state| state.error);
        if let Some(error) = failed {
            return error;
        }
        sleep_until(Instant::now() + Duration::from_secs(1)).await;
    }
}

fn warn(what: &dyn std::fmt::Display) {
    eprintln!("warning: {what}");
}
