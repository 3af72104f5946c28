//! A running source and the events that it sends.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lb_objects::{Kind, Object, Problem, Service};
use node_lb::{
    metrics::Metrics,
    source::{
        Batch, Event, Source as _,
        api::{ApiSource, PodWatch},
        health::SourceHealth,
    },
};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::fake::{Call, FakeApi, Stream};

/// Longer than anything the source waits for by itself.
const PATIENCE: Duration = Duration::from_secs(1200);

/// A source on a [`FakeApi`], and the sum of its events.
pub struct Follower {
    pub api: FakeApi,
    pub health: Arc<SourceHealth>,
    pub metrics: Metrics,
    pub source: JoinHandle<anyhow::Result<()>>,
    events: mpsc::Receiver<Batch>,
    pub services: BTreeMap<String, Arc<Service>>,
    pub problems: BTreeMap<String, Vec<Problem>>,
    /// Names of Services applied and deleted, in order.
    pub applied: Vec<String>,
    pub deleted: Vec<String>,
    pub synced: usize,
}

impl Follower {
    /// A source for which only Services matter.
    pub fn start() -> Self {
        let mut follower = Self::start_scripted();
        follower.api.serve_empty("endpointslices");
        follower.api.serve_empty("nodes");
        follower
    }

    /// A source for which the test answers every request.
    pub fn start_scripted() -> Self {
        Self::following(None, None)
    }

    /// The same; objects of connection admission are followed if there is a state for them, and pods if
    /// there is a way to ask for them.
    pub fn following(admission: Option<Arc<SourceHealth>>, pods: Option<PodWatch>) -> Self {
        Self::of(|source| source.following_admission(admission).following_pods(pods))
    }

    /// The same with a source that follows more.
    pub fn of(adapt: impl FnOnce(ApiSource) -> ApiSource) -> Self {
        let (api, client) = FakeApi::start();
        let metrics = Metrics::new();
        let source = adapt(ApiSource::with_client(
            client,
            "node-1",
            metrics.api.clone(),
        ));
        let health = source.health();
        let (sender, events) = mpsc::channel(16);
        Self {
            api,
            health,
            metrics,
            source: tokio::spawn(Box::new(source).run(sender)),
            events,
            services: BTreeMap::new(),
            problems: BTreeMap::new(),
            applied: Vec::new(),
            deleted: Vec::new(),
            synced: 0,
        }
    }

    /// The next request for Services.
    pub async fn call(&mut self) -> Call {
        self.api.next("services").await
    }

    /// Takes the next batch.
    pub async fn batch(&mut self) -> Vec<Event> {
        let batch = timeout(PATIENCE, self.events.recv()).await;
        let batch = batch.expect("events in time").expect("a running source");
        let batch = batch.events;
        for event in &batch {
            self.take(event);
        }
        batch
    }

    /// Takes everything until the source has nothing more to do at present.
    pub async fn settle(&mut self) {
        // Time only passes when every task waits.
        while let Ok(Some(batch)) = timeout(Duration::from_millis(1), self.events.recv()).await {
            for event in &batch.events {
                self.take(event);
            }
        }
    }

    /// Answers a list of these Services as a stream, up to this version, which goes on as a watch.
    pub async fn listed(&mut self, services: &[serde_json::Value], version: u64) -> Stream {
        let call = self.call().await;
        assert!(call.is_list(), "{:?}", call.query);
        let stream = call.stream();
        for service in services {
            stream.event("ADDED", service).await;
        }
        stream.bookmark(version, true).await;
        self.settle().await;
        stream
    }

    pub fn names(&self) -> Vec<&str> {
        self.services.keys().map(String::as_str).collect()
    }

    /// The port of a Service, which tells its versions apart.
    pub fn port(&self, name: &str) -> u16 {
        self.services[name].ports[0].port
    }

    /// A metric's value; zero if there is none.
    pub fn metric(&self, series: &str) -> u64 {
        let text = String::from_utf8(self.metrics.encode()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(0, |value| value.trim().parse().unwrap())
    }

    /// The error that the source reports for a resource.
    pub fn error(&self, name: &str) -> Option<String> {
        let states = self.health.states();
        let state = states.into_iter().find(|state| state.name == name);
        state.expect("a resource").error
    }

    /// Lets time pass; the source may send nothing meanwhile.
    pub async fn quiet(&mut self, time: Duration) {
        sleep(time).await;
        assert!(self.events.try_recv().is_err(), "events in a quiet time");
    }

    /// Stops listening.
    pub fn close(&mut self) {
        self.events.close();
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Apply(Object::Service(service)) => {
                let name = service.name.name.to_string();
                self.applied.push(name.clone());
                self.services.insert(name, service.clone());
            }
            Event::Apply(_) | Event::EndpointsChanged { .. } => {}
            Event::Delete(reference)
                if Kind::ADMISSION.contains(&reference.kind)
                    || matches!(
                        reference.kind,
                        Kind::Namespace | Kind::Pod | Kind::ServiceCidr
                    ) => {}
            Event::AdmissionSynced
            | Event::NamespacesSynced
            | Event::PodsSynced
            | Event::ServiceCidrsSynced => {}
            Event::Delete(reference) => {
                let name = reference.name.name.to_string();
                assert!(
                    self.services.remove(&name).is_some(),
                    "{name} was not there"
                );
                self.deleted.push(name);
            }
            Event::Problems { origin, problems } if problems.is_empty() => {
                assert!(self.problems.remove(origin).is_some(), "{origin} was well");
            }
            Event::Problems { origin, problems } => {
                self.problems.insert(origin.clone(), problems.clone());
            }
            Event::Synced => self.synced += 1,
        }
    }
}
