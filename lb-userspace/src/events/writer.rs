//! Writes Events to the API server, one at a time.

use std::time::{Duration, SystemTime};

use hyper::Method;
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::{
    Notice, Scope, object,
    series::{Decision, Going, Series},
};
use crate::{
    metrics::EventMetrics,
    source::api::{ApiWriter, Backoff, Failure, up_to},
};

/// How often to check whether a count must be written.
const LOOK: Duration = Duration::from_secs(30);
/// How often an Event is tried. Meanwhile others wait in the queue; when that is full, they are
/// dropped.
const TRIES: u32 = 4;
/// An Event that would have to wait longer is dropped.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The Events that every node creates at the same moment are spread over this time.
const SPREAD: Duration = Duration::from_secs(5);

/// The task behind a [`super::Recorder`].
pub struct Writer {
    api: ApiWriter,
    node: String,
    metrics: EventMetrics,
    series: Series,
    /// Whether the last Event was forbidden, so that the log says it only once.
    forbidden: bool,
}

impl Writer {
    pub fn new(api: ApiWriter, node: &str, metrics: EventMetrics) -> Self {
        Self {
            api,
            node: node.to_owned(),
            metrics,
            series: Series::default(),
            forbidden: false,
        }
    }

    /// Runs until all recorders are dropped.
    pub async fn run(mut self, mut notices: mpsc::Receiver<Notice>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                notice = notices.recv() => match notice {
                    Some(notice) => self.take(&notice).await,
                    None => return,
                },
                _ = looks.tick() => {
                    for notice in self.series.due(Instant::now()) {
                        self.update(&notice).await;
                    }
                }
            }
        }
    }

    async fn take(&mut self, notice: &Notice) {
        let time = SystemTime::now();
        let name = || object::name(notice);
        match self.series.observe(notice, name, (Instant::now(), time)) {
            Decision::Create => self.create(notice).await,
            Decision::Update => self.update(notice).await,
            Decision::Count => self.metrics.counted(),
            Decision::Limit => self.metrics.dropped("rate_limited"),
        }
    }

    async fn create(&mut self, notice: &Notice) {
        if notice.scope == Scope::Cluster {
            sleep(up_to(SPREAD)).await;
        }
        let Some(going) = self.series.get(notice).cloned() else {
            return;
        };
        let event = object::event(notice, &going, &self.node);
        let written = self.write(&Method::POST, &path(notice, None), &event).await;
        match written {
            // Another node has created it, or an earlier try without an answer.
            Err(Failure::Refused { code: 409, .. }) | Ok(()) => {
                self.metrics.created();
                self.done(notice, &going);
            }
            Err(failure) => self.failed(notice, &failure),
        }
    }

    /// Writes how often an Event has happened.
    async fn update(&mut self, notice: &Notice) {
        let Some(going) = self.series.get(notice).cloned() else {
            return;
        };
        let path = path(notice, Some(&going));
        let written = self
            .write(&Method::PATCH, &path, &object::patch(&going))
            .await;
        match written {
            Ok(()) => {
                self.metrics.updated();
                self.done(notice, &going);
            }
            // The Event has expired: API servers keep Events for about an hour.
            Err(Failure::Refused { code: 404, .. }) => self.create(notice).await,
            Err(failure) => self.failed(notice, &failure),
        }
    }

    /// Sends a request, and repeats it if that may help.
    async fn write(&self, method: &Method, path: &str, object: &Value) -> Result<(), Failure> {
        let mut backoff = Backoff::new();
        let mut tries = 1;
        loop {
            let failure = match self.api.write("events", method, path, object).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            let wait = match &failure {
                Failure::Refused { code, .. } if *code < 500 => return Err(failure),
                Failure::Busy { retry_after, .. } => backoff.after_failure().max(*retry_after),
                _ => backoff.after_failure(),
            };
            if tries == TRIES || wait > LONGEST_WAIT {
                return Err(failure);
            }
            tries += 1;
            sleep(wait).await;
        }
    }

    fn done(&mut self, notice: &Notice, going: &Going) {
        self.forbidden = false;
        self.series.written(notice, going.count, Instant::now());
    }

    fn failed(&mut self, notice: &Notice, failure: &Failure) {
        self.series.forget(notice);
        match failure {
            Failure::Refused {
                code: 403, message, ..
            } => {
                self.metrics.dropped("forbidden");
                if !std::mem::replace(&mut self.forbidden, true) {
                    tracing::warn!(
                        "Events cannot be written: {message}; give the agent's user the verbs create \
                         and patch on events of events.k8s.io"
                    );
                }
            }
            failure => {
                self.metrics.dropped("failed");
                let service = &notice.service;
                tracing::debug!("an Event on Service {service} is dropped: {failure}");
            }
        }
    }
}

/// The path of Events in a notice's namespace, or of this Event.
fn path(notice: &Notice, going: Option<&Going>) -> String {
    let namespace = &notice.service.namespace;
    let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    match going {
        None => events,
        Some(going) => format!("{events}/{}", going.name),
    }
}
