//! The agent: follows the cluster's objects and the node's devices, and keeps the kernel's maps,
//! programs and health answers equal to them.

mod attachments;
mod bulletin;
pub mod catalog;
mod events;
mod flow_source;
mod hosted;
mod kernel;
pub mod local_api;
pub mod metrics_server;
mod node;
mod observe;
mod pins;
mod progress;
mod report;
mod resize;
mod servers;
mod sizes;
pub mod status;
mod sync;
mod this_node;
mod tracer;
mod traffic;

use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use lb_datapath::{devices::Watcher, maps::Maps, preflight};
use lb_objects::{IpFamily, Kind, ObjectName, Protocol};
use tokio::sync::mpsc;

pub use self::node::own_addresses;
use self::{
    attachments::Attachments,
    bulletin::Bulletin,
    kernel::Kernel,
    node::{KnownNode, facts, listen_addresses, local_addresses, local_node},
    observe::Observer,
    progress::Progress,
    servers::Servers,
    sync::Syncer,
    tracer::Tracer,
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
    metrics::{Metrics, set_to_now},
    plan::{FrontendKind, LocalDetector, api_server},
    source::{
        Batch, Event, Source, SourceSpec,
        api::{ApiServers, ApiSource},
        dir::DirSource,
        health::SourceHealth,
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
/// The file beside the socket that says where the API server has been.
const API_SERVERS: &str = "api-servers";
/// Requests for a trace that may wait.
const TRACE_QUEUE: usize = 16;

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
            "the agent has mounted the BPF file system; in a container, mount the host's instead, \
             because what is pinned here ends with the container"
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
    /// Where the API server is, if it is the source.
    api_servers: Arc<ApiServers>,
    /// The state of each resource of the source; empty until the source runs.
    source_health: Arc<SourceHealth>,
    node: KnownNode,
    /// Addresses of this node that there is no room for.
    addresses_left_out: usize,
    syncer: Syncer,
    /// What others are told of this state.
    bulletin: Arc<Bulletin>,
    /// When they were last.
    published: Instant,
    /// Runs once the settings are written.
    sweeper: Option<FlowSweeper>,
    metrics: Arc<Metrics>,
    proxy_health: Arc<ProxyHealth>,
    service_health: ServiceHealthServers,
    /// Writes Events: what users have to know about their Services.
    events: Recorder,
    servers: Servers,
    tracer: Tracer,
    /// Of the hierarchy whose sockets are translated, if it is known.
    cgroup_root: Option<PathBuf>,
    /// Why this node's pods cannot be told from other sources, if that is so.
    undetected: Option<String>,
    /// Why what has lost its pin cannot be pinned again, if that is so.
    unpinned: Option<String>,
    /// Which pods of this node that was last asked of.
    pods_seen: u64,
    in_sync_since: Option<SystemTime>,
}

impl Agent {
    fn new(config: Config, kernel: Kernel, watcher: Watcher) -> anyhow::Result<Self> {
        let store = Store::new(config.node_name.clone());
        let addresses = local_addresses(watcher.devices());
        let known = KnownNode::new(&config, kernel.node_addresses());
        let node = local_node(&config, known.node(), &addresses);
        let detector = LocalDetector::new(&config.detect_local, known.node());
        let facts = facts(&config, known.node(), &addresses);
        let writer =
            MapWriter::new(Maps::open(&kernel.loaded)?, facts).context("cannot read the maps")?;
        let metrics = Arc::new(Metrics::new());
        for (name, stage, enabled) in config.feature_gates() {
            metrics.set_feature(name, stage, enabled);
        }
        let source_health = Arc::new(SourceHealth::new(Kind::ALL.map(Kind::resource)));
        let servers = Servers::new(&config, &metrics, &source_health)?;
        let proxy_health = Arc::new(ProxyHealth::new(SYNC_PERIOD, SystemClock));
        let listen = listen_addresses(&config, &node, &addresses);
        let service_health =
            service_health_servers(listen, &servers, proxy_health.clone(), &metrics);
        let (catalog, progress) = (servers.catalog.clone(), Arc::<Progress>::default());
        let bulletin = Bulletin::new(catalog.clone(), writer.roster(), progress.clone());
        let plannings = metrics.services_planned.clone();
        let has_room = servers.has_room.clone();
        let api_servers = match config.source {
            SourceSpec::Kubernetes => {
                ApiServers::remembering(&config.socket.with_file_name(API_SERVERS))
            }
            SourceSpec::Dir(_) => ApiServers::default(),
        };
        Ok(Self {
            attachments: Attachments::new(
                &config.datapath,
                config.this_node(None).addresses,
                detector,
            )?,
            node: known,
            addresses_left_out: 0,
            syncer: Syncer::new(writer, node, catalog, progress, has_room, plannings),
            bulletin: Arc::new(bulletin),
            published: Instant::now(),
            sweeper: None,
            events: Recorder::none(metrics.events.clone()),
            servers,
            tracer: Tracer::default(),
            cgroup_root: None,
            undetected: None,
            unpinned: None,
            pods_seen: 0,
            in_sync_since: None,
            config,
            kernel,
            watcher,
            store,
            api_servers: Arc::new(api_servers),
            source_health,
            metrics,
            proxy_health,
            service_health,
        })
    }

    async fn run(mut self, cgroup_root: Option<PathBuf>) -> anyhow::Result<()> {
        // First of all: that nothing is there yet is an answer, too.
        let packets = self.kernel.loaded.map("PACKETS")?;
        let series = self.config.service_metrics;
        let observer = Observer::new(packets, self.bulletin.clone(), series)?;
        self.metrics.limit_services(series);
        self.metrics.set_kernel_source(Arc::new(observer));
        self.publish_state().await;
        self.servers
            .serve(&self.config, &self.metrics, &self.proxy_health);
        if self.kernel.is_configured() {
            // By an agent that knew the Node, which this one does not yet: what depends on it
            // stays.
            self.follow_local_state();
        } else {
            self.configure()?;
        }
        tokio::spawn(conntrack_sysctls::set_up(self.config.conntrack));
        self.attach()?;
        self.sweeper = Some(self.kernel.sweep_flows()?);
        self.cgroup_root = cgroup_root;
        self.attach_to_sockets()?;

        let source;
        (source, self.events) = open_source(
            &self.config,
            &self.metrics,
            &self.api_servers,
            &self.source_health,
        )
        .await?;

        let flows = Arc::new(self.kernel.flows()?);
        self.publish_state().await;
        let bulletin = self.bulletin.clone();
        let (ask_for_trace, mut trace_asked) = mpsc::channel(TRACE_QUEUE);
        self.servers
            .serve_locally(&self.config, flows, bulletin.clone(), ask_for_trace)?;

        let (sender, mut events) = mpsc::channel(EVENT_QUEUE);
        let mut source = tokio::spawn(source.run(sender));
        let mut told_to_stop = self.servers.told_to_stop()?;
        let mut quiet = tokio::time::interval(QUIET);
        let mut retry_devices = Instant::now();
        let mut api_servers = self.api_servers.addresses();
        loop {
            tokio::select! {
                // The order matters: a pod's device is there before its endpoint, and must get its
                // programs before the endpoint is in the maps.
                biased;
                _ = &mut told_to_stop => break,
                () = bulletin.wanted() => self.publish_state().await,
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
                Ok(()) = api_servers.changed() => self.api_servers_changed().await,
                Some(request) = trace_asked.recv() => self.trace_asked(request),
                step = self.tracer.next() => self.trace_step(step),
                _ = quiet.tick() => {
                    self.look_after_pins();
                    self.syncer.idle(QUIET);
                    self.syncer.watch_limits(Instant::now());
                    self.tell_of_service_ports();
                }
            }
            self.publish_in_time().await;
        }
        self.end_trace("the agent stops");
        tracing::info!("stopping; programs and maps stay, and traffic goes on");
        Ok(())
    }

    /// Attaches programs to devices: first those of a change of the flow tables' size, if there is
    /// one, then those that stay.
    fn attach(&mut self) -> anyhow::Result<()> {
        loop {
            self.attachments
                .renew(&mut self.kernel, self.watcher.devices())?;
            self.attachments.sweep(&self.kernel)?;
            let failed = self.attachments.failed();
            if !self.kernel.go_on(failed.as_deref())? {
                return Ok(());
            }
        }
    }

    fn attach_to_sockets(&self) -> anyhow::Result<()> {
        let root = self.cgroup_root.as_deref();
        self.attachments
            .sockets(&self.kernel, &self.config.datapath, root)
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
            services.extend(self.node_changed()?);
            self.listen_again().await;
        }
        if first {
            let all = self.store.services();
            services.extend(all.map(|service| service.name.clone()));
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
        for (family, at) in changes.triggers.into_values().flatten() {
            let latency = at.elapsed().unwrap_or_default();
            let metrics = self.metrics.family(family);
            metrics.network_programming.observe(latency.as_secs_f64());
        }
        if first {
            self.syncer.writer().finish_adoption();
            self.in_sync_since = Some(SystemTime::now());
        }
        if changes.node || first {
            // Who hears of it and asks for more is to find it.
            self.publish_state().await;
            self.tell_of_node();
        }
        if first {
            self.servers.first_state_written();
            tracing::info!(
                service_ports = self.syncer.writer().len(),
                seconds = since.elapsed().as_secs_f64(),
                "the first state is in the maps"
            );
        }
        Ok(())
    }

    /// Keeps the API server's addresses from Services, once there are any.
    async fn api_servers_changed(&mut self) {
        self.set_reserved();
        if self.store.is_synced() && self.syncer.has_other_reserved() {
            self.sync(BTreeSet::new(), Instant::now()).await;
        }
    }

    /// Notes what the API server's own Service has.
    fn note_api_servers(&self) {
        let plan = self.servers.catalog.get(&api_server());
        let ports = plan.iter().flat_map(|plan| &plan.ports);
        let ports: Vec<_> = ports
            .filter(|port| port.name.protocol == Protocol::Tcp)
            .collect();
        let addresses = ports.iter().flat_map(|port| port.frontends.iter());
        let cluster_ips = addresses.filter(|frontend| frontend.kind == FrontendKind::ClusterIp);
        let cluster_ips: Vec<_> = cluster_ips.map(|frontend| frontend.address).collect();
        let endpoints = ports.iter().flat_map(|port| port.endpoints.ready());
        let endpoints: Vec<_> = endpoints.copied().collect();
        self.api_servers.set_service(&cluster_ips, &endpoints);
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

    /// Writes Services; when this returns, the maps have them and the health answers say so.
    async fn sync(&mut self, services: BTreeSet<ObjectName>, since: Instant) {
        self.publish(services);
        if let Some(health) = self.syncer.changed_health() {
            for problem in self.service_health.sync(health).await {
                tracing::warn!("{problem}");
                self.tell_of_health_check(&problem);
            }
        }
        self.tell_of_service_ports();
        self.report_detection_by_pods();
        for family in [IpFamily::V4, IpFamily::V6] {
            self.proxy_health.updated(family);
        }
        self.syncer.measure(&self.metrics, since);
    }

    /// Writes Services, and has the flows ended that are stale now.
    fn publish(&mut self, services: BTreeSet<ObjectName>) {
        let publication = self.sweeper.as_ref().map(FlowSweeper::publication);
        let of_api_server = services.contains(&api_server());
        let stale = self.syncer.sync(&self.store, services);
        if of_api_server {
            self.note_api_servers();
        }
        if let (Some(publication), false) = (publication, stale.is_empty()) {
            publication.end_stale(stale);
        }
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
    servers: &Arc<ApiServers>,
    health: &Arc<SourceHealth>,
) -> anyhow::Result<(Box<dyn Source>, Recorder)> {
    let events = metrics.events.clone();
    match &config.source {
        SourceSpec::Kubernetes => {
            let (access, metrics) = (config.api_access.clone(), metrics.api.clone());
            let (servers, node) = (servers.clone(), &config.node_name);
            let source = ApiSource::open_with(access, servers, node, metrics).await?;
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
