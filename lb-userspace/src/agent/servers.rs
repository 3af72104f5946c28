//! The agent's HTTP servers, what they share, and what they say about the agent's state.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::{
    catalog::Catalog,
    explainer::Explainer,
    history::History,
    local_api::{LocalApi, SharedApi, flows::FlowSource, trace::TraceRequest},
    metrics_server::MetricsServer,
    observe::Observer,
    page::StatusPage,
    process::Process,
    succession::offer::{self, Offer},
};
use crate::{
    config::Config,
    health::{
        initialization::Initialization,
        proxy::{HealthEndpoints, ProxyHealth},
        readiness::{Condition, Readiness},
    },
    http::{self, Bind as _, Handler, Limits, LocalServer, Stack},
    map_writer::Numbered,
    metrics::Metrics,
    source::health::SourceHealth,
    waiting::Line,
};

/// Runs the HTTP servers on threads of their own, so that the agent's work never delays an answer.
/// Dropping it ends all servers.
pub struct Servers {
    pub stack: Arc<Stack>,
    initialization: Arc<Initialization>,
    /// What has been given to the maps.
    pub catalog: Arc<Catalog>,
    pub readiness: Arc<Readiness>,
    /// The check that an address of this node is known.
    pub node_addresses: Condition,
    /// The check that this node's pods can be told from other sources.
    pub detection: Condition,
    /// Whether the maps have room for the Services that others depend on. That a greedy one is
    /// refused does not make the node unready.
    pub has_room: Condition,
    pub devices: Condition,
    /// The check that the data plane keeps what is written to it.
    pub data_plane: Condition,
    configz: bytes::Bytes,
    /// For the socket and the status page.
    api: SharedApi,
    local: Option<LocalServer>,
    /// One for each server that speaks for the whole agent. Dropped, they end these.
    public: Vec<oneshot::Sender<Leave>>,
    runtime: Handle,
}

/// What local commands are answered from, besides what all servers share.
pub struct LocalSources {
    pub flows: Arc<dyn FlowSource>,
    pub numbered: Arc<Numbered>,
    /// If connection admission is on.
    pub line: Option<Arc<Line>>,
    pub observer: Arc<Observer>,
    pub explainer: Arc<Explainer>,
    /// Has the agent trace packets.
    pub trace: mpsc::Sender<TraceRequest>,
}

/// Has a server leave its socket, within how long, and who is told of the task that is left.
type Leave = (Duration, oneshot::Sender<JoinHandle<()>>);

impl Servers {
    /// Without servers. They will run on the process's threads.
    pub fn new(
        config: &Config,
        metrics: &Metrics,
        source: &Arc<SourceHealth>,
        process: &Process,
    ) -> Self {
        let runtime = process.threads();
        let _entered = runtime.enter();
        let initialization = Arc::new(Initialization::new(source.clone()));
        let readiness = Arc::new(Readiness::new());
        readiness.add_informers(source);
        let limit = config.http.cache_initialization_timeout;
        tokio::spawn(readiness.wait_for(initialization.clone(), limit));
        let first_state = initialization.clone();
        readiness.add("first-state-in-maps", move || match first_state.is_over() {
            true => Ok(()),
            false => Err("the kernel's maps have not been given the first complete state".into()),
        });
        let node_addresses = readiness.add_condition("node-addresses");
        let detection = readiness.add_condition("local-pod-detection");
        let has_room = readiness.add_condition("maps-have-room");
        let devices = readiness.add_condition("devices");
        let data_plane = readiness.add_condition("data-plane");
        let (shutdown, stop) = (readiness.add_shutdown(), process.stop());
        tokio::spawn(async move {
            stop.told().await;
            shutdown.meet();
        });
        let unready = initialization.clone();
        Self {
            stack: Arc::new(Stack::new(
                &config.http,
                Arc::new(move || unready.unready()),
                Arc::new(metrics.http.clone()),
            )),
            catalog: Arc::default(),
            configz: config.configz().to_string().into(),
            initialization,
            readiness,
            node_addresses,
            detection,
            has_room,
            devices,
            data_plane,
            api: SharedApi::default(),
            local: None,
            public: Vec::new(),
            runtime,
        }
    }

    /// Notes that the maps have everything that the source delivered first.
    pub fn first_state_written(&self) {
        self.initialization.finish();
    }

    /// Starts the servers that speak for the whole agent, unless they run.
    pub fn serve(&mut self, config: &Config, metrics: &Arc<Metrics>, health: &Arc<ProxyHealth>) {
        if !self.public.is_empty() {
            return;
        }
        let healthz = HealthEndpoints::new(health.clone(), self.readiness.clone(), metrics);
        let observer = Arc::new(metrics.http.clone());
        let metrics = MetricsServer {
            metrics: metrics.clone(),
            readiness: self.readiness.clone(),
            post_timeout: self.stack.post_timeout().clone(),
            configz: self.configz.clone(),
        };
        self.start(config.healthz_bind_address, "healthz", healthz);
        self.start(config.metrics_bind_address, "metrics", metrics);
        if let Some(address) = config.status_page_bind_address {
            let page = StatusPage::new(self.api.clone(), observer);
            self.start(address, "page", page);
        }
    }

    /// Starts a server; waits for a port that is taken, which holds nothing else up.
    fn start(&mut self, address: SocketAddr, server: &'static str, handler: impl Handler) {
        let stack = self.stack.clone();
        let (leave, mut left) = oneshot::channel::<Leave>();
        // At once, because what nobody takes over is closed.
        let bound = stack.listeners().bind_all_families(address);
        self.runtime.spawn(async move {
            let serving = async {
                let listener = match bound {
                    Ok(listener) => listener,
                    Err(_) => http::bind_until_free(stack.listeners(), address, server).await,
                };
                match stack.serve(listener, server, handler, Limits::default()) {
                    Ok(server) => Some(server),
                    Err(error) => {
                        tracing::error!("cannot serve {server} on {address}: {error}");
                        None
                    }
                }
            };
            let running = tokio::select! {
                running = serving => running,
                _ = &mut left => return,
            };
            // Fails once this is dropped, and so are the servers.
            if let (Ok((grace, tell)), Some(server)) = (left.await, running) {
                let _ = tell.send(server.leave(grace).await);
            }
        });
        self.public.push(leave);
    }

    /// Has all servers that speak for the agent leave their sockets to another process; see
    /// [`Server::leave`](http::Server::leave), of which these are the tasks.
    pub async fn leave(&mut self, grace: Duration) -> Vec<JoinHandle<()>> {
        let mut leaving = Vec::new();
        for server in self.public.drain(..) {
            let (tell, told) = oneshot::channel();
            if server.send((grace, tell)).is_ok() {
                leaving.extend(told.await);
            }
        }
        leaving
    }

    /// Answers local commands, and what the status page asks; keeps what has been seen from now on.
    ///
    /// # Errors
    ///
    /// If the socket's path is taken or cannot be written.
    pub fn serve_locally(&mut self, config: &Config, sources: LocalSources) -> anyhow::Result<()> {
        let LocalSources {
            flows,
            numbered,
            line,
            observer,
            explainer,
            trace,
        } = sources;
        let history = Arc::<History>::default();
        let following = history.clone();
        let following = following.follow(observer.clone(), self.readiness.clone());
        self.runtime.spawn(following);
        let api = LocalApi {
            catalog: self.catalog.clone(),
            flows,
            traffic: observer.clone(),
            initialization: self.initialization.clone(),
            readiness: self.readiness.clone(),
            history,
            configz: self.configz.clone(),
            status: Arc::new(move || observer.status()),
            explain: Arc::new(move |question| explainer.explain(question)),
            numbered,
            line,
            trace,
        };
        self.api.set(Some(api));
        let started = http::bind_unix(&config.socket).and_then(|listener| {
            let limits = Limits::default();
            self.stack
                .serve_locally(listener, "local", self.api.clone(), limits)
        });
        let path = config.socket.display();
        self.local =
            Some(started.with_context(|| format!("cannot listen on {path}; try --socket"))?);
        Ok(())
    }

    /// Answers local commands no longer. When this returns, another agent can.
    pub async fn end_locally(&mut self) {
        self.api.set(None);
        if let Some(local) = self.local.take() {
            local.close().await;
        }
    }

    /// Offers the agent's place, and its listening sockets, to agents that stand by.
    ///
    /// # Errors
    ///
    /// If the socket's path is taken or cannot be written.
    pub fn offer(&self, config: &Config) -> anyhow::Result<Offer> {
        let _entered = self.runtime.enter();
        let path = offer::path(&config.socket);
        Offer::open(&path, self.stack.listeners().clone())
            .with_context(|| format!("cannot listen on {}", path.display()))
    }
}
