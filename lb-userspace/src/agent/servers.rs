//! The agent's HTTP servers, what they share, and what they say about the agent's state.

use std::{future, io, net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinHandle,
};

use super::{
    bulletin::Bulletin,
    catalog::Catalog,
    local_api::{LocalApi, flows::FlowSource, trace::TraceRequest},
    metrics_server::MetricsServer,
};
use crate::{
    config::Config,
    health::{
        initialization::Initialization,
        proxy::{HealthEndpoints, ProxyHealth},
        readiness::{Condition, Latch, Readiness},
    },
    http::{self, Handler, Limits, LocalServer, Stack},
    metrics::Metrics,
    source::health::SourceHealth,
};

/// Threads that serve. There is more than one, so that a handler that blocks does not hold up
/// others.
const THREADS: usize = 2;

/// Runs the HTTP servers on threads of their own, so that the agent's work never delays an answer.
/// Dropping it ends all servers.
pub struct Servers {
    pub stack: Arc<Stack>,
    initialization: Arc<Initialization>,
    /// What has been given to the maps.
    pub catalog: Arc<Catalog>,
    readiness: Arc<Readiness>,
    /// The check that an address of this node is known.
    pub node_addresses: Condition,
    /// The check that this node's pods can be told from other sources.
    pub detection: Condition,
    /// Whether the maps have room for the Services that others depend on. That a greedy one is
    /// refused does not make the node unready.
    pub has_room: Condition,
    shutdown: Latch,
    configz: bytes::Bytes,
    local: Option<LocalServer>,
    runtime: HttpRuntime,
}

impl Servers {
    /// Starts the threads, without servers.
    ///
    /// # Errors
    ///
    /// If threads cannot be started.
    pub fn new(
        config: &Config,
        metrics: &Metrics,
        source: &Arc<SourceHealth>,
    ) -> anyhow::Result<Self> {
        http::raise_descriptor_limit();
        let runtime = HttpRuntime::start()?;
        let _entered = runtime.get().enter();
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
        let shutdown = readiness.add_shutdown();
        let unready = initialization.clone();
        Ok(Self {
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
            shutdown,
            local: None,
            runtime,
        })
    }

    /// Follows SIGTERM and SIGINT: the task ends when the process is told to stop. From that moment
    /// on the agent is not ready, even while it is busy with something else.
    ///
    /// # Errors
    ///
    /// If signals cannot be followed.
    pub fn told_to_stop(&self) -> io::Result<JoinHandle<()>> {
        let _entered = self.runtime.get().enter();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = self.shutdown.clone();
        Ok(tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            shutdown.meet();
        }))
    }

    /// Notes that the maps have everything that the source delivered first.
    pub fn first_state_written(&self) {
        self.initialization.finish();
    }

    /// Starts the servers that speak for the whole agent.
    pub fn serve(&self, config: &Config, metrics: &Arc<Metrics>, health: &Arc<ProxyHealth>) {
        let healthz = HealthEndpoints::new(health.clone(), self.readiness.clone(), metrics);
        let metrics = MetricsServer {
            metrics: metrics.clone(),
            readiness: self.readiness.clone(),
            post_timeout: self.stack.post_timeout().clone(),
            configz: self.configz.clone(),
        };
        let runtime = self.runtime.get();
        let (stack, address) = (self.stack.clone(), config.healthz_bind_address);
        runtime.spawn(serve(stack, address, "healthz", healthz));
        let (stack, address) = (self.stack.clone(), config.metrics_bind_address);
        runtime.spawn(serve(stack, address, "metrics", metrics));
    }

    /// Answers local commands.
    ///
    /// # Errors
    ///
    /// If the socket's path is taken or cannot be written.
    pub fn serve_locally(
        &mut self,
        config: &Config,
        flows: Arc<dyn FlowSource>,
        bulletin: Arc<Bulletin>,
        trace: mpsc::Sender<TraceRequest>,
    ) -> anyhow::Result<()> {
        let api = LocalApi {
            catalog: self.catalog.clone(),
            flows,
            initialization: self.initialization.clone(),
            readiness: self.readiness.clone(),
            configz: self.configz.clone(),
            status: Arc::new(move || bulletin.status()),
            trace,
        };
        let started = http::bind_unix(&config.socket).and_then(|listener| {
            let limits = Limits::default();
            self.stack.serve_locally(listener, "local", api, limits)
        });
        let path = config.socket.display();
        self.local =
            Some(started.with_context(|| format!("cannot listen on {path}; try --socket"))?);
        Ok(())
    }
}

/// Serves until dropped; waits for a port that is taken, which holds nothing else up.
async fn serve(
    stack: Arc<Stack>,
    address: SocketAddr,
    server: &'static str,
    handler: impl Handler,
) {
    let listener = http::bind_until_free(address, server).await;
    match stack.serve(listener, server, handler, Limits::default()) {
        Ok(_server) => future::pending().await,
        Err(error) => tracing::error!("cannot serve {server} on {address}: {error}"),
    }
}

/// The threads. They end on their own, because waiting for them would delay the agent's end.
struct HttpRuntime(Option<Runtime>);

impl HttpRuntime {
    fn start() -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .context("cannot start the threads that serve HTTP")?;
        Ok(Self(Some(runtime)))
    }

    fn get(&self) -> &Runtime {
        self.0.as_ref().expect("only taken when dropped")
    }
}

impl Drop for HttpRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
