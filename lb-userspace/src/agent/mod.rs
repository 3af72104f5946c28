//! The agent: follows the cluster's objects and the node's devices, and keeps the kernel's maps,
//! programs and health answers equal to them.

mod attachments;
mod kernel;
mod observe;
pub mod status;
mod sync;

use std::{
    collections::BTreeSet,
    future,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use self::{
    attachments::Attachments, kernel::Kernel, observe::Observer, status::Status, sync::Syncer,
};
use crate::{
    config::{Config, SocketLb},
    datapath::{
        devices::{Event as DeviceEvent, Watcher},
        preflight,
    },
    flows::{FlowSweeper, Stats},
    health::{
        addresses::ListenAddresses,
        clock::SystemClock,
        proxy::{HealthEndpoints, ProxyHealth},
        service::{Options, ServiceHealthServers},
    },
    http::{self, Handler, Limits, LocalServer, Server},
    metrics::{Metrics, MetricsEndpoints, Sample},
    model::IpFamily,
    plan::{LocalDetector, LocalNode, NodePortAddresses},
    program::{NodeFacts, Programmer},
    source::{Event, Source, SourceSpec, dir::DirSource},
    store::Store,
};

/// How long a change may wait before the agent counts as stuck, halved: kube-proxy's syncPeriod.
const SYNC_PERIOD: Duration = Duration::from_secs(30);
/// Without a change for this long, the agent tidies up.
const QUIET: Duration = Duration::from_secs(1);
/// Batches of events from the source that may wait.
const EVENT_QUEUE: usize = 64;
/// Questions about the agent's state that may wait.
const QUESTION_QUEUE: usize = 16;

/// Runs the agent until it is told to stop. Programs and maps stay in the kernel, and traffic goes on.
///
/// # Errors
///
/// If the node cannot run the data plane, or something fails that no retry can mend.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let sockets = config.datapath.socket_lb != SocketLb::Off;
    let ready = preflight::check(&config.datapath.bpf_root, sockets).map_err(|unmet| {
        let unmet: Vec<_> = unmet.iter().map(|unmet| format!("- {unmet}")).collect();
        anyhow::anyhow!("this node cannot run node-lb:\n{}", unmet.join("\n"))
    })?;
    if ready.mounted_bpf_fs {
        tracing::warn!(
            "the BPF file system was not mounted and now is; in a container, mount the host's, or \
             nothing outlives the container"
        );
    }
    let watcher = Watcher::start().await?;
    let kernel = Kernel::start(&config)?;
    Agent::new(config, kernel, watcher)?
        .run(ready.cgroup2)
        .await
}

/// The agent's state.
struct Agent {
    config: Config,
    kernel: Kernel,
    watcher: Watcher,
    attachments: Attachments,
    store: Store,
    node: LocalNode,
    syncer: Syncer,
    /// Runs once the settings are written.
    sweeper: Option<FlowSweeper>,
    metrics: Arc<Metrics>,
    proxy_health: Arc<ProxyHealth>,
    service_health: ServiceHealthServers,
    /// Servers that run once the first state is in the maps.
    servers: JoinSet<()>,
    in_sync_since: Option<SystemTime>,
}

impl Agent {
    fn new(config: Config, kernel: Kernel, watcher: Watcher) -> anyhow::Result<Self> {
        let store = Store::new(config.node_name.clone());
        let local_addresses = watcher.devices().local_addresses();
        let node = local_node(&config, &store, &local_addresses);
        let detector = LocalDetector::new(&config.detect_local, &config.this_node(None));
        let facts = facts(&config, &store, &local_addresses);
        let programmer = Programmer::new(kernel.maps()?, facts).context("cannot read the maps")?;
        let metrics = Arc::new(Metrics::new());
        let proxy_health = Arc::new(ProxyHealth::new(SYNC_PERIOD, SystemClock));
        let listen = listen_addresses(&config, &node, &local_addresses);
        let service_health =
            ServiceHealthServers::new(Options::new(listen), proxy_health.clone(), &metrics);
        Ok(Self {
            attachments: Attachments::new(
                &config.datapath,
                config.this_node(None).addresses,
                detector,
            )?,
            syncer: Syncer::new(programmer),
            sweeper: None,
            servers: JoinSet::new(),
            in_sync_since: None,
            config,
            kernel,
            watcher,
            store,
            node,
            metrics,
            proxy_health,
            service_health,
        })
    }

    async fn run(mut self, cgroup_root: Option<PathBuf>) -> anyhow::Result<()> {
        if self.kernel.is_configured() {
            // By an agent that knew the Node, which this one does not yet: what depends on it stays.
            self.follow_local_state()?;
        } else {
            self.configure()?;
        }
        self.sweeper = Some(self.kernel.sweep_flows(&self.config.timeouts)?);
        self.attachments
            .follow(&self.kernel, self.watcher.devices())?;
        self.attachments.sweep(&self.kernel)?;
        let datapath = &self.config.datapath;
        self.attachments
            .sockets(&self.kernel, datapath, cgroup_root.as_deref())?;

        let (ask, mut status_asked) = mpsc::channel::<oneshot::Sender<Status>>(QUESTION_QUEUE);
        let _local = self.serve_locally(ask)?;
        let (ask, mut sample_asked) = mpsc::channel::<oneshot::Sender<Sample>>(QUESTION_QUEUE);
        let observer = Observer::new(self.kernel.loaded.map("COUNTERS")?, ask)?;
        self.metrics.set_kernel_source(Arc::new(observer));

        let (sender, mut events) = mpsc::channel(EVENT_QUEUE);
        let mut source = tokio::spawn(source(&self.config.source)?.run(sender));
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut quiet = tokio::time::interval(QUIET);
        loop {
            tokio::select! {
                Some(batch) = events.recv() => {
                    let mut batches = vec![batch];
                    while let Ok(more) = events.try_recv() {
                        batches.push(more);
                    }
                    self.objects_changed(batches.into_iter().flatten().collect()).await?;
                }
                changed = self.watcher.next() => match changed {
                    Ok(changes) => self.devices_changed(&changes).await?,
                    Err(error) => {
                        tracing::warn!("cannot follow the node's devices: {error}");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                },
                // Who asked and does not wait any more needs no answer.
                Some(reply) = status_asked.recv() => drop(reply.send(self.status().await)),
                Some(reply) = sample_asked.recv() => drop(reply.send(self.sample())),
                _ = quiet.tick() => self.syncer.idle(QUIET),
                ended = &mut source => {
                    return ended.context("the source panicked")?.context("the source gave up");
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        tracing::info!("stopping; programs and maps stay, and traffic goes on");
        Ok(())
    }

    /// Takes over changed objects.
    async fn objects_changed(&mut self, events: Vec<Event>) -> anyhow::Result<()> {
        let since = Instant::now();
        let first = !self.store.is_synced();
        self.store.apply(events);
        self.metrics
            .source_problems
            .set(self.store.problems().count() as i64);
        if !self.store.is_synced() {
            return Ok(());
        }
        let changes = self.store.take_changes();
        for family in [IpFamily::V4, IpFamily::V6] {
            self.proxy_health.queued(family);
        }
        let mut services = changes.services;
        if changes.node || first {
            self.proxy_health
                .set_node(Some(&self.config.this_node(self.this_node())));
            self.node_changed()?;
            if first {
                self.service_health = self.health_servers();
            }
            services = self
                .store
                .services()
                .map(|service| service.name.clone())
                .collect();
        }
        self.sync(services, since).await;
        if first {
            self.syncer.programmer().finish_adoption();
            self.in_sync_since = Some(SystemTime::now());
            self.serve();
            tracing::info!(
                service_ports = self.syncer.programmer().len(),
                seconds = since.elapsed().as_secs_f64(),
                "the first state is in the maps"
            );
        }
        Ok(())
    }

    /// Follows the node's devices, addresses and routes.
    async fn devices_changed(&mut self, changes: &[DeviceEvent]) -> anyhow::Result<()> {
        let since = Instant::now();
        if changes.contains(&DeviceEvent::NextHopsChanged) {
            self.kernel.next_hops_changed();
        }
        if changes
            .iter()
            .all(|change| *change == DeviceEvent::NextHopsChanged)
        {
            return Ok(());
        }
        for change in changes {
            if let DeviceEvent::Removed(device) = change {
                self.attachments.forget(device.index);
            }
        }
        if let Err(error) = self
            .attachments
            .follow(&self.kernel, self.watcher.devices())
        {
            tracing::warn!("cannot follow the node's devices: {error:#}");
        }
        let addresses = changes.iter().any(|change| {
            matches!(
                change,
                DeviceEvent::AddressAdded { .. } | DeviceEvent::AddressRemoved { .. }
            )
        });
        if addresses && !self.store.is_synced() {
            self.follow_local_state()?;
        } else if addresses && self.node_changed()? {
            let services: Vec<_> = self
                .store
                .services()
                .map(|service| service.name.clone())
                .collect();
            self.sync(services, since).await;
        }
        Ok(())
    }

    /// Takes over what needs no Node object.
    fn follow_local_state(&self) -> anyhow::Result<()> {
        self.kernel.next_hops_changed();
        self.kernel
            .set_local_addresses(&self.watcher.devices().local_addresses())
    }

    /// Takes over what the Node object and the devices say; whether plans have to be made again.
    fn node_changed(&mut self) -> anyhow::Result<bool> {
        let addresses = self.watcher.devices().local_addresses();
        self.kernel.set_local_addresses(&addresses)?;
        let node = local_node(&self.config, &self.store, &addresses);
        let facts = facts(&self.config, &self.store, &addresses);
        let changed = self.syncer.programmer().set_facts(facts) || node != self.node;
        self.node = node;
        self.configure()?;
        Ok(changed)
    }

    /// Writes the node's settings.
    fn configure(&self) -> anyhow::Result<()> {
        let node = self.config.this_node(self.this_node());
        let detector = LocalDetector::new(&self.config.detect_local, &node);
        self.kernel
            .set_local_addresses(&self.watcher.devices().local_addresses())?;
        self.kernel.configure(&self.config, &self.node, &detector)
    }

    /// Writes Services; when this returns, the maps have them and the health answers say so.
    async fn sync(
        &mut self,
        services: impl IntoIterator<Item = crate::model::ObjectName>,
        since: Instant,
    ) {
        let stale = self.syncer.sync(&self.store, &self.node, services);
        if let (Some(sweeper), false) = (&self.sweeper, stale.is_empty()) {
            sweeper.end_stale_udp(stale);
        }
        if let Some(health) = self.syncer.changed_health() {
            for problem in self.service_health.sync(health).await {
                tracing::warn!("{problem}");
            }
        }
        for family in [IpFamily::V4, IpFamily::V6] {
            self.proxy_health.updated(family);
        }
        self.syncer.measure(&self.metrics, since);
    }

    /// No server yet, for the addresses that this node has by now.
    fn health_servers(&self) -> ServiceHealthServers {
        let addresses = self.watcher.devices().local_addresses();
        let listen = listen_addresses(&self.config, &self.node, &addresses);
        ServiceHealthServers::new(
            Options::new(listen),
            self.proxy_health.clone(),
            &self.metrics,
        )
    }

    /// Starts the servers that speak for the whole agent.
    fn serve(&mut self) {
        let health = HealthEndpoints::new(self.proxy_health.clone(), &self.metrics);
        let metrics = MetricsEndpoints::new(self.metrics.clone());
        let config = &self.config;
        let servers = &mut self.servers;
        let purpose = "process health checks";
        servers.spawn(serve(config.healthz_bind_address, purpose, health));
        servers.spawn(serve(config.metrics_bind_address, "metrics", metrics));
    }

    /// Answers local commands.
    fn serve_locally(
        &self,
        ask: mpsc::Sender<oneshot::Sender<Status>>,
    ) -> anyhow::Result<LocalServer> {
        let path = &self.config.socket;
        let started = http::bind_unix(path).and_then(|listener| {
            LocalServer::start(listener, Arc::new(status::endpoint(ask)), Limits::default())
        });
        started.with_context(|| format!("cannot listen on {}; try --socket", path.display()))
    }

    async fn status(&mut self) -> Status {
        let devices = self.attachments.devices().values();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: self.config.node_name.clone(),
            source: self.config.source.to_string(),
            in_sync_since: self.in_sync_since.map(status::timestamp),
            last_sync: self.syncer.last_sync().map(status::timestamp),
            services: self.syncer.services(),
            service_ports: self.syncer.programmer().len(),
            not_programmed: self.syncer.not_programmed().collect(),
            devices: devices.map(Into::into).collect(),
            source_problems: self.store.problems().map(ToString::to_string).collect(),
            health_checks: status::HealthChecks {
                listening: self.service_health.listening().await.len(),
                problems: self
                    .service_health
                    .problems()
                    .await
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            },
            flows: self
                .flow_stats()
                .map(|stats| status::FlowTable::both(&stats)),
        }
    }

    /// What metrics say of the data plane, but for packets.
    fn sample(&mut self) -> Sample {
        let flows = self.flow_stats();
        let devices = self.attachments.devices().values();
        Sample {
            packets: Vec::new(),
            services: self.syncer.connections(),
            devices: devices.filter_map(attachments::Attached::mode).collect(),
            flows: flows
                .as_ref()
                .map(|stats| stats.v4.flows.total() + stats.v6.flows.total()),
            flow_table_size: flows
                .as_ref()
                .map(|stats| u64::from(stats.v4.records / 2 + stats.v6.records / 2)),
        }
    }

    /// What the latest pass over the flow tables saw, if there has been one.
    fn flow_stats(&self) -> Option<Arc<Stats>> {
        let stats = self.sweeper.as_ref()?.stats();
        (stats.passes > 0).then_some(stats)
    }

    fn this_node(&self) -> Option<&crate::model::Node> {
        self.store.node().map(Arc::as_ref)
    }
}

/// Serves until dropped; waits for a port that is taken, which holds nothing else up.
async fn serve(address: SocketAddr, purpose: &str, handler: impl Handler) {
    let listener = http::bind_until_free(address, purpose).await;
    match Server::start(listener, Arc::new(handler), Limits::default()) {
        Ok(_server) => future::pending().await,
        Err(error) => tracing::error!("cannot serve {purpose} on {address}: {error}"),
    }
}

/// The source that the configuration names.
fn source(spec: &SourceSpec) -> anyhow::Result<Box<dyn Source>> {
    match spec {
        SourceSpec::Dir(path) => Ok(Box::new(DirSource::open(path)?)),
    }
}

/// This node as the planner needs it.
fn local_node(config: &Config, store: &Store, addresses: &BTreeSet<IpAddr>) -> LocalNode {
    let mut node = config.this_node(store.node().map(Arc::as_ref));
    if node.addresses.is_empty() {
        // Nobody says which addresses are the node's: take those of its devices.
        node.addresses = addresses
            .iter()
            .copied()
            .filter(|ip| is_global(*ip))
            .collect();
    }
    let addresses: Vec<_> = addresses.iter().copied().collect();
    LocalNode::new(&node, &addresses, &config.plan)
}

/// What of this node is part of every service's entry.
fn facts(config: &Config, store: &Store, addresses: &BTreeSet<IpAddr>) -> NodeFacts {
    let node = config.this_node(store.node().map(Arc::as_ref));
    let mut cluster_networks = config.cluster_networks.clone();
    cluster_networks.extend(node.pod_cidrs);
    NodeFacts {
        local_addresses: addresses.clone(),
        cluster_networks,
        maglev_rows: config.datapath.maglev_table_size,
    }
}

/// Where healthCheckNodePort servers listen.
fn listen_addresses(
    config: &Config,
    node: &LocalNode,
    addresses: &BTreeSet<IpAddr>,
) -> ListenAddresses {
    let networks = match &config.plan.node_port_addresses {
        NodePortAddresses::Networks(networks) => networks.clone(),
        NodePortAddresses::Primary => {
            let ips = [IpFamily::V4, IpFamily::V6]
                .into_iter()
                .filter_map(|f| node.ip(f));
            ips.map(Into::into).collect()
        }
    };
    ListenAddresses::select(&networks, Ok(addresses.iter().copied().collect()))
}

fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}
