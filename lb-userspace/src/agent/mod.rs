//! The agent: follows the cluster's objects and the node's devices, and keeps the kernel's maps,
//! programs and health answers equal to them.

mod admission;
mod attachments;
pub mod attention;
mod bulletin;
pub mod catalog;
mod connections;
mod differences;
mod events;
mod explainer;
mod feed;
mod flow_source;
pub mod history;
mod hosted;
mod kernel;
pub mod local_api;
pub mod metrics_server;
mod node;
mod observe;
pub mod page;
mod pins;
mod process;
mod progress;
mod proof;
mod refit;
mod relief;
mod report;
mod resize;
mod servers;
mod silent_nodes;
mod sizes;
mod slow_start;
pub mod status;
mod statuses;
mod succession;
mod sync;
mod this_node;
mod tracer;
mod traffic;
mod verification;
pub mod vitals;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::Context as _;
use lb_datapath::{bpf::MappedArray, devices::Watcher, heap, maps::Maps, preflight};
use lb_objects::{IpFamily, Kind, Node, ObjectName, Protocol};
use tokio::{sync::mpsc, task::spawn_blocking};

pub use self::node::own_addresses;
use self::{
    admission::{Admission, node_limit},
    attachments::Attachments,
    bulletin::Bulletin,
    connections::Connections,
    explainer::Explainer,
    feed::Feed,
    kernel::{Exchange, Kernel},
    node::{KnownNode, facts, listen_addresses, local_addresses, local_node, situation},
    observe::Observer,
    process::Process,
    progress::Progress,
    proof::Proof,
    relief::{asked, at, gone},
    servers::{LocalSources, Servers},
    succession::{Next, Offer, Place, Predecessor, Retired, Standby},
    sync::Syncer,
    tracer::Tracer,
    verification::Verification,
    vitals::Phase,
};
use crate::{
    config::{Config, SocketLb, snat_ports},
    conntrack_sysctls,
    docs::Section,
    flows::{FlowSweeper, Queues, SeatTable},
    health::{
        addresses::ListenAddresses,
        clock::SystemClock,
        proxy::ProxyHealth,
        service::{Options, ServiceHealthServers},
    },
    map_writer::MapWriter,
    metrics::{Metrics, set_to_now},
    plan::{FrontendKind, LocalDetector, api_server},
    source::{Batch, Event, health::SourceHealth},
    store::Store,
    waiting::WaitKeeper,
};

/// Half of the time that a change may wait before the agent counts as stuck: kube-proxy's
/// syncPeriod.
const SYNC_PERIOD: Duration = Duration::from_secs(30);
/// After so long without a change, the agent tidies up; so long after an error, it reads the
/// devices again.
const QUIET: Duration = Duration::from_secs(1);
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
        let section = Section::NodeProblem;
        anyhow::anyhow!(
            "this node cannot run node-lb (see {section}):\n{}",
            unmet.join("\n")
        )
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
    let process = Process::start(&config)?;
    let (mut metrics, mut feed) = open_source(&config).await?;
    let Some(mut place) = succession::enter(&config, &process, &mut feed).await? else {
        return Ok(());
    };
    loop {
        let agent = Agent::new(config.clone(), place, feed, metrics, &process).await?;
        let (retired, standby) = agent.run(&process, ready.cgroup2.clone()).await?;
        let next = match retired.answer(standby, &config, &process).await? {
            Next::End => None,
            Next::Resume(place) => Some(*place),
            Next::StandBy(kept) => succession::stand_by(kept, &config, &process).await?,
        };
        let Some(next) = next else { return Ok(()) };
        place = next;
        (metrics, feed) = open_source(&config).await?;
    }
}

/// Opens the source, and the metrics that count its requests.
async fn open_source(config: &Config) -> anyhow::Result<(Arc<Metrics>, Feed)> {
    let metrics = Arc::new(Metrics::new());
    let health = Arc::new(SourceHealth::new(Kind::ALL.map(Kind::resource)));
    let feed = Feed::open(config, &metrics, health).await?;
    Ok((metrics, feed))
}

/// The agent's state.
struct Agent {
    config: Config,
    kernel: Kernel,
    watcher: Watcher,
    attachments: Attachments,
    store: Store,
    feed: Feed,
    node: KnownNode,
    /// The addresses of this node's devices, as of the last change of one.
    own_addresses: BTreeSet<IpAddr>,
    /// Addresses of this node that there is no room for.
    addresses_left_out: usize,
    syncer: Syncer,
    /// What others are told of this state.
    bulletin: Arc<Bulletin>,
    /// When they were last.
    published: Instant,
    /// What decides about connections besides Services, for those who ask what becomes of one.
    explainer: Arc<Explainer>,
    /// Runs once the settings are written.
    sweeper: Option<FlowSweeper>,
    /// Limits of connections, and how many there are.
    seats: Arc<SeatTable>,
    admission: Option<Admission>,
    /// Looks after connections that wait for seats, if there are queues for them. If it could not be
    /// started, when to try again.
    wait_keeper: Option<WaitKeeper>,
    next_wait_keeper: Instant,
    metrics: Arc<Metrics>,
    proxy_health: Arc<ProxyHealth>,
    service_health: ServiceHealthServers,
    servers: Servers,
    /// Answers health checks until this agent does.
    predecessor: Option<Predecessor>,
    /// When this agent answers at the latest, where it waits for its first state to do so.
    answers_by: Option<Instant>,
    /// To agents that stand by, once there is something to take over.
    offer: Option<Offer>,
    tracer: Tracer,
    /// Of the hierarchy whose sockets are translated, if it is known.
    cgroup_root: Option<PathBuf>,
    /// Why this node's pods cannot be told from other sources, if that is so.
    undetected: Option<String>,
    /// What that was last found by: the node, the revision of [`hosted::Hosted`], and the addresses
    /// there that are the node's own. Each pod's device brings an address, and there are many pods.
    detected_by: Option<(Node, u64, BTreeSet<IpAddr>)>,
    /// Which devices should have programs and cannot, if there are any.
    unserved: Option<String>,
    /// Why what has lost its pin cannot be pinned again, if that is so.
    unpinned: Option<String>,
    /// Which pods of this node that was last asked of.
    pods_seen: u64,
    verification: Verification,
    proof: Proof,
    /// Nodes none of whose endpoints answers, as of when somebody last asked.
    silent_nodes: Vec<status::SilentNode>,
    in_sync_since: Option<SystemTime>,
}

impl Agent {
    async fn new(
        config: Config,
        place: Place,
        feed: Feed,
        metrics: Arc<Metrics>,
        process: &Process,
    ) -> anyhow::Result<Self> {
        let watcher = Watcher::start().await?;
        let own = config.this_node(None).addresses;
        let programs = attachments::programs(&config.datapath, own, watcher.devices())?;
        let kernel = Kernel::start(&config, place.lock, programs, place.ahead)?;
        let store = Store::new(config.node_name.clone());
        let addresses = local_addresses(watcher.devices());
        let known = KnownNode::new(&config, kernel.node_addresses());
        let node = local_node(&config, known.node(), &addresses);
        let detector = LocalDetector::new(&config.detect_local, known.node());
        let facts = facts(&config, known.node(), &addresses);
        let writer =
            MapWriter::new(Maps::open(&kernel.loaded)?, facts).context("cannot read the maps")?;
        for (name, stage, enabled) in config.feature_gates() {
            metrics.set_feature(name, stage, enabled);
        }
        let servers = Servers::new(&config, &metrics, &feed.health, process);
        for socket in place.sockets {
            if let Err(error) = servers.stack.listeners().inherit(socket) {
                tracing::warn!("cannot take over a socket of the agent before: {error}");
            }
        }
        let proxy_health = Arc::new(ProxyHealth::new(SYNC_PERIOD, SystemClock));
        let listen = listen_addresses(&config, &node, &addresses);
        let service_health =
            service_health_servers(listen, &servers, proxy_health.clone(), &metrics);
        let (catalog, progress) = (servers.catalog.clone(), Arc::<Progress>::default());
        let seats = Arc::new(SeatTable::open(&kernel.loaded)?);
        let of_api = feed.admission.is_some();
        let queues = Queues::open(&kernel.loaded)?;
        let admission = Admission::new(&config.admission, config.max_connections, of_api, queues);
        seats.limit_node(node_limit(&config, admission.as_ref()));
        let connections = Connections::new(
            seats.clone(),
            writer.limited(),
            writer.numbered(),
            MappedArray::new(&kernel.loaded.map("FLOW_SCHEMAS")?)?,
            admission.as_ref().map(Admission::line),
        );
        let bulletin = Arc::new(Bulletin::new(
            catalog.clone(),
            writer.roster(),
            progress.clone(),
            connections,
        ));
        let explainer = Explainer::new(
            config.clone(),
            catalog.clone(),
            writer.roster(),
            bulletin.clone(),
            situation(known.node(), &node, &addresses),
        );
        let plannings = metrics.services_planned.clone();
        let has_room = servers.has_room.clone();
        Ok(Self {
            attachments: Attachments::new(
                &config.datapath,
                config.this_node(None).addresses,
                detector,
            )?,
            node: known,
            own_addresses: addresses,
            addresses_left_out: 0,
            syncer: Syncer::new(writer, node, catalog, progress, has_room, plannings),
            bulletin,
            published: Instant::now(),
            explainer: Arc::new(explainer),
            sweeper: None,
            seats,
            admission,
            wait_keeper: None,
            next_wait_keeper: Instant::now(),
            servers,
            predecessor: place.predecessor,
            answers_by: None,
            offer: None,
            tracer: Tracer::default(),
            cgroup_root: None,
            undetected: None,
            detected_by: None,
            unserved: None,
            unpinned: None,
            pods_seen: 0,
            verification: Verification::new(config.verification_interval),
            proof: Proof::new(config.test_packet_interval),
            silent_nodes: Vec::new(),
            in_sync_since: None,
            config,
            kernel,
            watcher,
            store,
            feed,
            metrics,
            proxy_health,
            service_health,
        })
    }

    /// Works until the process is to end, or another agent is to take over. Returns what answers
    /// health checks still, and the agent that is to take over, if there is one.
    async fn run(
        mut self,
        process: &Process,
        cgroup_root: Option<PathBuf>,
    ) -> anyhow::Result<(Retired, Option<Standby>)> {
        process.vitals.set(Phase::InCharge {
            health: self.proxy_health.clone(),
            readiness: self.servers.readiness.clone(),
        });
        // First of all: that nothing is there yet is an answer, too.
        let packets = self.kernel.loaded.map("PACKETS")?;
        let series = self.config.service_metrics;
        let observer = Observer::new(packets, self.bulletin.clone(), series)?;
        self.metrics.limit_services(series);
        let observer = Arc::new(observer);
        self.metrics.set_kernel_source(observer.clone());
        self.publish_state().await;
        self.begin_to_answer();
        if self.kernel.is_configured() {
            // By an agent that knew the Node, which this one does not yet: what depends on it
            // stays.
            self.follow_local_state();
        } else {
            self.configure()?;
        }
        tokio::spawn(conntrack_sysctls::set_up(self.config.conntrack));
        self.attach()?;
        self.sweeper = Some(self.kernel.sweep_flows(self.seats.clone())?);
        self.cgroup_root = cgroup_root;
        self.attach_to_sockets()?;
        self.kernel.finish_refit()?;
        self.follow_admission(true).await?;

        let flows = Arc::new(self.kernel.flows()?);
        self.publish_state().await;
        let bulletin = self.bulletin.clone();
        let (ask_for_trace, mut trace_asked) = mpsc::channel(TRACE_QUEUE);
        let sources = LocalSources {
            flows,
            numbered: self.syncer.writer().numbered(),
            line: self.admission.as_ref().map(Admission::line),
            observer,
            explainer: self.explainer.clone(),
            trace: ask_for_trace,
        };
        self.servers.serve_locally(&self.config, sources)?;

        let stop = process.stop();
        let mut quiet = tokio::time::interval(QUIET);
        let mut level_limits = tokio::time::interval(admission::LIMITS);
        let mut retry_devices = Instant::now();
        let mut api_servers = self.feed.api_servers.addresses();
        let successor = loop {
            tokio::select! {
                // The order matters: a pod's device is there before its endpoint, and must get its
                // programs before the endpoint is in the maps.
                biased;
                () = stop.told() => break self.offer.as_ref().and_then(Offer::successor),
                standby = asked(&self.offer) => break Some(standby),
                () = gone(&mut self.predecessor) => self.answer_soon(),
                () = at(self.answers_by) => self.answer(),
                () = bulletin.wanted() => {
                    self.look_for_silent_nodes();
                    self.publish_state().await;
                }
                changed = self.watcher.next(), if retry_devices <= Instant::now() => match changed {
                    Ok(changes) => self.devices_changed(&changes).await?,
                    Err(error) => {
                        tracing::warn!("cannot follow the node's devices: {error}");
                        retry_devices = Instant::now() + QUIET;
                    }
                },
                batches = self.feed.next() => self.objects_changed(batches?).await?,
                Ok(()) = api_servers.changed() => self.api_servers_changed().await,
                Some(request) = trace_asked.recv() => self.trace_asked(request),
                step = self.tracer.next() => self.trace_step(step),
                () = at(self.verification.next()) => self.verify_some().await,
                () = at(self.proof.next()) => self.prove_some(),
                done = self.proof.done() => self.proved(done),
                _ = level_limits.tick(), if self.admission.is_some() => self.set_level_limits(),
                _ = quiet.tick() => {
                    self.seats.tick();
                    self.follow_admission(false).await?;
                    self.look_after_pins();
                    self.syncer.idle(QUIET);
                    if self.syncer.has_garbage(QUIET) {
                        // Nobody waits for it.
                        drop(spawn_blocking(heap::give_back));
                    }
                    self.go_on_with_slow_starts().await;
                    self.syncer.watch_limits(Instant::now());
                    self.tell_of_service_ports();
                }
            }
            self.publish_in_time().await;
        };
        self.end_trace("the agent stops");
        match successor {
            Some(_) => tracing::info!(
                "another agent takes over; health checks are answered until it serves"
            ),
            None => tracing::info!("stopping; programs and maps stay, and traffic goes on"),
        }
        Ok((self.retire().await, successor))
    }

    /// Attaches programs to devices: first those of a change of the maps' sizes, if there is one,
    /// then those that stay.
    fn attach(&mut self) -> anyhow::Result<()> {
        loop {
            self.attachments
                .renew(&mut self.kernel, self.watcher.devices())?;
            self.attachments.sweep(&self.kernel)?;
            let failed = self.attachments.failed();
            match self.kernel.go_on(failed.as_deref())? {
                Exchange::Complete => return Ok(()),
                Exchange::OtherPrograms => {}
                Exchange::OtherMaps => {
                    let maps = Maps::open(&self.kernel.loaded)?;
                    self.syncer.writer().reopen(maps)?;
                }
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
        if let Some(admission) = &mut self.admission
            && let Some(objects) = self.store.take_admission()
        {
            // They are in force from the next quiet moment on, however often they change.
            admission.set_objects(objects, self.store.are_namespaces_synced());
        }
        if let Some(pods) = self.store.take_pods()
            && let Some(admission) = &mut self.admission
        {
            let are_complete = match self.feed.pods {
                Some(_) => self.store.are_pods_synced(),
                None => self.store.is_synced(),
            };
            admission.set_pods(&pods, are_complete, self.syncer.writer());
            self.explainer.change(|known| known.pods = pods.into());
        }
        self.metrics
            .source_problems
            .set(self.store.problems().count() as i64);
        if !self.store.is_synced() {
            return Ok(());
        }
        if first {
            self.feed.health.all_complete();
        }
        if let Some(cidrs) = self.store.take_service_cidrs() {
            // The sync below writes them.
            self.syncer.writer().set_service_cidrs(&cidrs);
            let cidrs = cidrs.into();
            self.explainer.change(|known| known.service_cidrs = cidrs);
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
            let admission = self.admission.as_ref();
            if admission.is_some_and(|admission| admission.in_force().is_some()) {
                self.kernel.begin_admission();
            }
            self.in_sync_since = Some(SystemTime::now());
        }
        if changes.node || first {
            // Who hears of it and asks for more is to find it.
            self.publish_state().await;
            self.tell_of_node();
        }
        if first {
            self.answer();
            self.offer();
            self.servers.first_state_written();
            self.verification.begin();
            self.proof.begin();
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
        self.feed.api_servers.set_service(&cluster_ips, &endpoints);
    }

    /// Counts changes as they arrive. A sync makes them no longer pending.
    fn count_changes(&self, events: &[Event]) {
        let metrics = &self.metrics;
        for event in events {
            let kind = match event {
                Event::Apply(object) => object.kind(),
                Event::Delete(object) => object.kind,
                Event::EndpointsChanged { .. }
                | Event::Problems { .. }
                | Event::Synced
                | Event::AdmissionSynced
                | Event::NamespacesSynced
                | Event::PodsSynced
                | Event::ServiceCidrsSynced => continue,
            };
            let (total, pending) = match kind {
                Kind::Service => (&metrics.service_changes, &metrics.service_changes_pending),
                Kind::EndpointSlice => {
                    (&metrics.endpoint_changes, &metrics.endpoint_changes_pending)
                }
                Kind::Node
                | Kind::Pod
                | Kind::PriorityLevel
                | Kind::FlowSchema
                | Kind::Namespace
                | Kind::ServiceCidr => continue,
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
        self.publish(services, since);
        self.relieve().await;
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
    fn publish(&mut self, services: BTreeSet<ObjectName>, now: Instant) {
        let publication = self.sweeper.as_ref().map(FlowSweeper::publication);
        let of_api_server = services.contains(&api_server());
        let stale = self.syncer.sync(&self.store, services, now);
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
