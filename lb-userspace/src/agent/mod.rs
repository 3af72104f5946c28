//! The agent: follows the cluster's objects and the node's devices, and keeps the kernel's maps,
//! programs and health answers equal to them.

mod attachments;
pub mod catalog;
mod events;
mod flow_source;
mod kernel;
pub mod local_api;
pub mod metrics_server;
mod node;
mod observe;
mod report;
mod resize;
mod servers;
mod sizes;
pub mod status;
mod sync;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use lb_datapath::{
    devices::{Event as DeviceEvent, Watcher},
    maps::Maps,
    preflight,
};
use lb_objects::{IpFamily, Kind};
use tokio::sync::{mpsc, oneshot};

use self::{
    attachments::Attachments,
    kernel::Kernel,
    node::{facts, listen_addresses, local_node},
    observe::Observer,
    servers::Servers,
    status::Status,
    sync::Syncer,
};
use crate::{
    config::{Config, SocketLb, snat_ports},
    conntrack_sysctls,
    events::Recorder,
    flows::FlowSweeper,
    health::{
        addresses::ListenAddresses,
        clock::SystemClock,
        proxy::ProxyHealth,
        service::{Options, ServiceHealthServers},
    },
    map_writer::MapWriter,
    metrics::{Metrics, Sample, set_to_now},
    plan::{LocalDetector, LocalNode},
    source::{
        Batch, Event, Source, SourceSpec, api::ApiSource, dir::DirSource, health::SourceHealth,
    },
    store::Store,
};

/// Half of the time that a change may wait before the agent counts as stuck: kube-proxy's
/// syncPeriod.
const SYNC_PERIOD: Duration = Duration::from_secs(30);
/// After so long without a change, the agent tidies up; so long after an error, it reads the
/// devices again.
const QUIET: Duration = Duration::from_secs(1);
/// How many batches of events from the source may wait.
const EVENT_QUEUE: usize = 64;
/// How many questions about the agent's state may wait.
const QUESTION_QUEUE: usize = 16;

/// Runs the agent until it is told to stop. Programs and maps stay in the kernel, and traffic goes
/// on.
///
/// # Errors
///
/// If the node cannot run the data plane, or something fails that no retry can repair.
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
    let ports = config.datapath.snat_ports;
    let own = snat_ports::ephemeral();
    if let Some(problem) = snat_ports::problem(ports, own, config.datapath.node_ports) {
        tracing::warn!("source NAT: {problem}");
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
    /// The state of each resource of the source; empty until the source runs.
    source_health: Arc<SourceHealth>,
    node: LocalNode,
    syncer: Syncer,
    /// Runs from when the settings are written.
    sweeper: Option<FlowSweeper>,
    metrics: Arc<Metrics>,
    proxy_health: Arc<ProxyHealth>,
    service_health: ServiceHealthServers,
    /// Writes Events: what users have to know about their Services.
    events: Recorder,
    servers: Servers,
    in_sync_since: Option<SystemTime>,
}

impl Agent {
    fn new(config: Config, kernel: Kernel, watcher: Watcher) -> anyhow::Result<Self> {
        let store = Store::new(config.node_name.clone());
        let local_addresses = watcher.devices().local_addresses();
        let node = local_node(&config, &store, &local_addresses);
        let detector = LocalDetector::new(&config.detect_local, &config.this_node(None));
        let facts = facts(&config, &store, &local_addresses);
        let writer =
            MapWriter::new(Maps::open(&kernel.loaded)?, facts).context("cannot read the maps")?;
        let metrics = Arc::new(Metrics::new());
        for (name, stage, enabled) in config.feature_gates() {
            metrics.set_feature(name, stage, enabled);
        }
        let source_health = Arc::new(SourceHealth::new(Kind::ALL.map(Kind::resource)));
        let servers = Servers::new(&config, &metrics, &source_health)?;
        let proxy_health = Arc::new(ProxyHealth::new(SYNC_PERIOD, SystemClock));
        let listen = listen_addresses(&config, &node, &local_addresses);
        let service_health =
            service_health_servers(listen, &servers, proxy_health.clone(), &metrics);
        Ok(Self {
            attachments: Attachments::new(
                &config.datapath,
                config.this_node(None).addresses,
                detector,
            )?,
            syncer: Syncer::new(writer, servers.catalog.clone()),
            sweeper: None,
            events: Recorder::none(metrics.events.clone()),
            servers,
            in_sync_since: None,
            config,
            kernel,
            watcher,
            store,
            source_health,
            node,
            metrics,
            proxy_health,
            service_health,
        })
    }

    async fn run(mut self, cgroup_root: Option<PathBuf>) -> anyhow::Result<()> {
        if self.kernel.is_configured() {
            // The settings are from an agent that knew the Node, which this one does not know yet:
            // what depends on the Node stays as it is.
            self.follow_local_state()?;
        } else {
            self.configure()?;
        }
        tokio::spawn(conntrack_sysctls::set_up(self.config.conntrack));
        self.attach()?;
        self.sweeper = Some(self.kernel.sweep_flows()?);
        let datapath = &self.config.datapath;
        self.attachments
            .sockets(&self.kernel, datapath, cgroup_root.as_deref())?;

        let source;
        (source, self.events) =
            open_source(&self.config, &self.metrics, &self.source_health).await?;

        let (ask, mut status_asked) = mpsc::channel::<oneshot::Sender<Status>>(QUESTION_QUEUE);
        let flows = Arc::new(self.kernel.flows()?);
        self.servers.serve_locally(&self.config, flows, ask)?;
        let (ask, mut sample_asked) = mpsc::channel::<oneshot::Sender<Sample>>(QUESTION_QUEUE);
        let observer = Observer::new(self.kernel.loaded.map("PACKETS")?, ask)?;
        self.metrics.set_kernel_source(Arc::new(observer));
        self.servers
            .serve(&self.config, &self.metrics, &self.proxy_health);

        let (sender, mut events) = mpsc::channel(EVENT_QUEUE);
        let mut source = tokio::spawn(source.run(sender));
        let mut told_to_stop = self.servers.told_to_stop()?;
        let mut quiet = tokio::time::interval(QUIET);
        let mut retry_devices = Instant::now();
        loop {
            tokio::select! {
                // The order matters: a pod's device is there before its endpoint, and must get its
                // programs before the endpoint is in the maps.
                biased;
                _ = &mut told_to_stop => break,
                changed = self.watcher.next(), if retry_devices <= Instant::now() => match changed {
                    Ok(changes) => self.devices_changed(&changes).await?,
                    Err(error) => {
                        tracing::warn!("cannot follow the node's devices: {error}");
                        retry_devices = Instant::now() + QUIET;
                    }
                },
                Some(batch) = events.recv() => {
                    let mut batches = vec![batch];
                    while let Ok(more) = events.try_recv() {
                        batches.push(more);
                    }
                    self.objects_changed(batches).await?;
                }
                ended = &mut source => {
                    return ended.context("the source panicked")?.context("the source gave up");
                }
                // A client that no longer waits needs no answer.
                Some(reply) = status_asked.recv() => drop(reply.send(self.status().await)),
                Some(reply) = sample_asked.recv() => drop(reply.send(self.sample())),
                _ = quiet.tick() => {
                    self.syncer.idle(QUIET);
                    self.syncer.watch_limits(Instant::now());
                    self.tell_of_service_ports();
                }
            }
        }
        tracing::info!("stopping; programs and maps stay, and traffic goes on");
        Ok(())
    }

    /// Attaches programs to devices: first those of a change of the flow tables' size, if there is
    /// one, then those that stay.
    fn attach(&mut self) -> anyhow::Result<()> {
        loop {
            self.attachments
                .renew(&self.kernel, self.watcher.devices())?;
            self.attachments.sweep(&self.kernel)?;
            let failed = self.attachments.failed();
            if !self.kernel.go_on(failed.as_deref())? {
                return Ok(());
            }
        }
    }

    /// Takes over changed objects.
    async fn objects_changed(&mut self, batches: Vec<Batch>) -> anyhow::Result<()> {
        let since = Instant::now();
        let first = !self.store.is_synced();
        let mut arrivals = Vec::with_capacity(batches.len());
        for Batch { events, received } in batches {
            self.count_changes(&events);
            let refused = self.refused_services(&events);
            arrivals.push((received, self.store.apply(events)));
            self.tell_of_refused(refused);
        }
        self.metrics
            .source_problems
            .set(self.store.problems().count() as i64);
        if !self.store.is_synced() {
            return Ok(());
        }
        if first {
            self.source_health.all_complete();
        }
        let changes = self.store.take_changes();
        for family in [IpFamily::V4, IpFamily::V6] {
            self.proxy_health.queued(family);
        }
        let mut services = changes.services;
        if changes.node || first {
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
        if !first {
            let done = self.syncer.synced_at();
            for (received, applied) in arrivals {
                let took = done.saturating_duration_since(received);
                let (services, slices) = (Kind::Service.resource(), Kind::EndpointSlice.resource());
                self.metrics.programmed(services, applied.services, took);
                self.metrics
                    .programmed(slices, applied.endpoint_slices, took);
            }
        }
        if changes.node || first {
            // Only now do the maps agree with what load balancers are told of this node.
            self.proxy_health
                .set_node(Some(&self.config.this_node(self.this_node())));
        }
        for (family, at) in changes.triggers.into_values().flatten() {
            let latency = at.elapsed().unwrap_or_default();
            let metrics = self.metrics.family(family);
            metrics.network_programming.observe(latency.as_secs_f64());
        }
        if first {
            self.syncer.writer().finish_adoption();
            self.in_sync_since = Some(SystemTime::now());
            self.servers.first_state_written();
            tracing::info!(
                service_ports = self.syncer.writer().len(),
                seconds = since.elapsed().as_secs_f64(),
                "the first state is in the maps"
            );
        }
        Ok(())
    }

    /// Counts changes as they arrive. A sync makes them no longer pending.
    fn count_changes(&self, events: &[Event]) {
        let metrics = &self.metrics;
        for event in events {
            let kind = match event {
                Event::Apply(object) => object.kind(),
                Event::Delete(object) => object.kind,
                Event::EndpointsChanged { .. } | Event::Problems { .. } | Event::Synced => continue,
            };
            let (total, pending) = match kind {
                Kind::Service => (&metrics.service_changes, &metrics.service_changes_pending),
                Kind::EndpointSlice => {
                    (&metrics.endpoint_changes, &metrics.endpoint_changes_pending)
                }
                Kind::Node => continue,
            };
            total.inc();
            pending.inc();
        }
        for family in [IpFamily::V4, IpFamily::V6] {
            set_to_now(&metrics.family(family).last_queued);
        }
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

    /// Applies the settings that need no Node object.
    fn follow_local_state(&self) -> anyhow::Result<()> {
        self.kernel.next_hops_changed();
        self.kernel
            .set_local_addresses(&self.watcher.devices().local_addresses())
    }

    /// Applies what the Node object and the devices say. Returns whether plans must be made again.
    fn node_changed(&mut self) -> anyhow::Result<bool> {
        let addresses = self.watcher.devices().local_addresses();
        self.kernel.set_local_addresses(&addresses)?;
        let node = local_node(&self.config, &self.store, &addresses);
        let facts = facts(&self.config, &self.store, &addresses);
        let changed = self.syncer.writer().set_facts(facts) || node != self.node;
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

    /// Writes Services. When this returns, the maps have them, and the health answers agree.
    async fn sync(
        &mut self,
        services: impl IntoIterator<Item = lb_objects::ObjectName>,
        since: Instant,
    ) {
        self.publish(services);
        if let Some(health) = self.syncer.changed_health() {
            for problem in self.service_health.sync(health).await {
                tracing::warn!("{problem}");
                self.tell_of_health_check(&problem);
            }
        }
        self.tell_of_service_ports();
        for family in [IpFamily::V4, IpFamily::V6] {
            self.proxy_health.updated(family);
        }
        self.syncer.measure(&self.metrics, since);
    }

    /// Writes Services, and has the flows ended that have become stale.
    fn publish(&mut self, services: impl IntoIterator<Item = lb_objects::ObjectName>) {
        let publication = self.sweeper.as_ref().map(FlowSweeper::publication);
        let stale = self.syncer.sync(&self.store, &self.node, services);
        if let (Some(publication), false) = (publication, stale.is_empty()) {
            publication.end_stale(stale);
        }
    }

    /// A set of servers, none open yet, on the addresses that this node has now.
    fn health_servers(&self) -> ServiceHealthServers {
        let addresses = self.watcher.devices().local_addresses();
        let listen = listen_addresses(&self.config, &self.node, &addresses);
        let health = self.proxy_health.clone();
        service_health_servers(listen, &self.servers, health, &self.metrics)
    }

    fn this_node(&self) -> Option<&lb_objects::Node> {
        self.store.node().map(Arc::as_ref)
    }
}

/// A set of servers, none open yet, on these addresses.
fn service_health_servers(
    listen: ListenAddresses,
    servers: &Servers,
    health: Arc<ProxyHealth>,
    metrics: &Metrics,
) -> ServiceHealthServers {
    let options = Options::new(listen, servers.stack.clone());
    ServiceHealthServers::new(options, health, metrics)
}

/// Opens the source that the configuration names, and where Events go. The source reports the state
/// of its resources to `health`.
async fn open_source(
    config: &Config,
    metrics: &Metrics,
    health: &Arc<SourceHealth>,
) -> anyhow::Result<(Box<dyn Source>, Recorder)> {
    let events = metrics.events.clone();
    match &config.source {
        SourceSpec::Kubernetes => {
            let (access, metrics) = (config.api_access.clone(), metrics.api.clone());
            let source = ApiSource::open(access, &config.node_name, metrics).await?;
            let source = source.reporting_to(health.clone());
            let recorder = Recorder::start(source.writer(), &config.node_name, events);
            Ok((Box::new(source), recorder))
        }
        SourceSpec::Dir(path) => {
            let source = DirSource::open(path)?;
            Ok((Box::new(source), Recorder::none(events)))
        }
    }
}
