//! The source of the agent's objects while it runs, and where Events go.

use std::sync::Arc;

use anyhow::Context as _;
use lb_objects::Kind;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
};

use super::statuses::Statuses;
use crate::{
    config::{Config, SourceSpec},
    events::Recorder,
    metrics::Metrics,
    source::{
        Batch, Event, Source,
        api::{ApiServers, ApiSource, Optional, PodWatch},
        dir::DirSource,
        health::SourceHealth,
    },
};

/// How many batches of events from the source may wait.
const QUEUE: usize = 64;
/// The file beside the socket that says where the API server has been.
const API_SERVERS: &str = "api-servers";

/// A source that runs. Dropped, it ends.
pub struct Feed {
    /// The state of each resource of the source.
    pub health: Arc<SourceHealth>,
    /// The state of the resources of connection admission, if the API server is asked for them.
    pub admission: Option<Arc<SourceHealth>>,
    /// The state of Namespaces, if the API server is asked for them.
    pub namespaces: Option<Arc<SourceHealth>>,
    /// The state of ServiceCIDRs, if the API server is asked for them.
    pub service_cidrs: Option<Arc<SourceHealth>>,
    /// This node's pods, if the API server may be asked for them.
    pub pods: Option<Pods>,
    /// Where the API server is, if it is the source.
    pub api_servers: Arc<ApiServers>,
    /// Writes the status of connection admission's objects, if they are the API server's.
    pub statuses: Option<Statuses>,
    /// Writes Events: what users have to know about their Services.
    pub events: Recorder,
    batches: mpsc::Receiver<Batch>,
    /// What was read ahead.
    ahead: Vec<Batch>,
    is_complete: bool,
    task: JoinHandle<anyhow::Result<()>>,
}

/// This node's pods, which the source follows once they are wanted.
pub struct Pods {
    /// The state of the resource.
    pub health: Arc<SourceHealth>,
    wanted: watch::Sender<bool>,
}

impl Pods {
    /// Has the source follow them from now on.
    pub fn want(&self) {
        self.wanted
            .send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }
}

impl Feed {
    /// Opens the source that the configuration names; it reports the state of its resources to
    /// `health`.
    ///
    /// # Errors
    ///
    /// If the settings do not lead to a source. One that does not answer is tried again.
    pub async fn open(
        config: &Config,
        metrics: &Metrics,
        health: Arc<SourceHealth>,
    ) -> anyhow::Result<Self> {
        let events = metrics.events.clone();
        let api_servers = Arc::new(match config.source {
            SourceSpec::Kubernetes => {
                ApiServers::remembering(&config.socket.with_file_name(API_SERVERS))
            }
            SourceSpec::Dir(_) => ApiServers::default(),
        });
        let optional = Optional::of(config);
        let pods = config.may_ask_for_pods().then(|| Pods {
            health: Arc::new(SourceHealth::new([Kind::Pod.resource()])),
            wanted: watch::Sender::new(false),
        });
        let mut statuses = None;
        let (source, events): (Box<dyn Source>, _) = match &config.source {
            SourceSpec::Kubernetes => {
                let (access, metrics) = (config.api_access.clone(), metrics.api.clone());
                let (servers, node) = (api_servers.clone(), &config.node_name);
                let source = ApiSource::open_with(access, servers, node, metrics).await?;
                let source = source
                    .reporting_to(health.clone())
                    .following(&optional)
                    .following_pods(pods.as_ref().map(|pods| PodWatch {
                        health: pods.health.clone(),
                        wanted: pods.wanted.subscribe(),
                    }));
                let of_admission = &optional.admission;
                statuses = of_admission
                    .is_some()
                    .then(|| Statuses::start(source.writer()));
                let recorder = Recorder::start(source.writer(), &config.node_name, events);
                (Box::new(source), recorder)
            }
            SourceSpec::Dir(path) => {
                let source = DirSource::open(path)?;
                (Box::new(source), Recorder::none(events))
            }
        };
        let (sender, batches) = mpsc::channel(QUEUE);
        let Optional {
            admission,
            namespaces,
            service_cidrs,
        } = optional;
        Ok(Self {
            health,
            admission,
            namespaces,
            service_cidrs,
            pods,
            statuses,
            api_servers,
            events,
            batches,
            ahead: Vec::new(),
            is_complete: false,
            task: tokio::spawn(source.run(sender)),
        })
    }

    /// Whether the source has delivered everything once.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Reads the next batch ahead. May be given up at any time without losing anything.
    ///
    /// # Errors
    ///
    /// If the source has ended: no retry can help it.
    pub async fn read_ahead(&mut self) -> anyhow::Result<()> {
        let batch = tokio::select! {
            biased;
            Some(batch) = self.batches.recv() => batch,
            ended = &mut self.task => {
                ended.context("the source panicked")?.context("the source gave up")?;
                anyhow::bail!("the source has ended");
            }
        };
        self.is_complete |= batch.events.contains(&Event::Synced);
        self.ahead.push(batch);
        Ok(())
    }

    /// What has come next, as much as there is. May be given up at any time without losing
    /// anything.
    ///
    /// # Errors
    ///
    /// As [`Self::read_ahead`].
    pub async fn next(&mut self) -> anyhow::Result<Vec<Batch>> {
        if self.ahead.is_empty() {
            self.read_ahead().await?;
        }
        while let Ok(more) = self.batches.try_recv() {
            self.ahead.push(more);
        }
        Ok(std::mem::take(&mut self.ahead))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}
