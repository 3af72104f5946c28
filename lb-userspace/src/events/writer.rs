//! Writes Events to the API server, one at a time and within a budget.

use std::time::{Duration, SystemTime};

use hyper::Method;
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};

use super::{
    Notice,
    budget::RequestBudget,
    object,
    series::{Decision, Going, Series, Stage},
};
use crate::{
    metrics::EventMetrics,
    source::api::{ApiWriter, Backoff, Failure, up_to},
};

/// How often to check whether a count must be written.
const LOOK: Duration = Duration::from_secs(30);
/// Tries for one Event.
const TRIES: u32 = 4;
/// What every node finds at the same moment is written by them from some moment within this time.
const SPREAD: Duration = Duration::from_secs(5);
/// Events that may wait for the budget. Of more, some are left out, at random: then several nodes
/// that find the same tell of different Services.
const WAITING: usize = 128;

/// The task behind a [`super::Recorder`].
pub struct Writer {
    api: ApiWriter,
    node: String,
    metrics: EventMetrics,
    series: Series,
    /// What is to be written, in no order.
    waiting: Vec<Waiting>,
    /// How many have come since none waited.
    came: usize,
    budget: RequestBudget,
    /// No request before this.
    not_before: Instant,
    backoff: Backoff,
    /// Whether the last Event was forbidden, which the log says once.
    forbidden: bool,
}

/// A notice whose Event is to be written.
struct Waiting {
    notice: Notice,
    /// How often that has been tried.
    tries: u32,
}

impl Writer {
    pub fn new(api: ApiWriter, node: &str, metrics: EventMetrics) -> Self {
        let now = Instant::now();
        Self {
            api,
            node: node.to_owned(),
            metrics,
            series: Series::new(now),
            waiting: Vec::new(),
            came: 0,
            budget: RequestBudget::new(now),
            not_before: now,
            backoff: Backoff::steep(),
            forbidden: false,
        }
    }

    /// Runs until all recorders are dropped.
    pub async fn run(mut self, mut notices: mpsc::Receiver<Notice>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let turn = self.budget.next(Instant::now()).max(self.not_before);
            tokio::select! {
                notice = notices.recv() => match notice {
                    Some(notice) => self.take(notice),
                    None => return,
                },
                () = sleep_until(turn), if !self.waiting.is_empty() => self.write_any().await,
                _ = looks.tick() => {
                    for notice in self.series.due(Instant::now()) {
                        self.put(notice);
                    }
                }
            }
        }
    }

    fn take(&mut self, notice: Notice) {
        let now = (Instant::now(), SystemTime::now());
        match self.series.observe(&notice, now) {
            Decision::Write => self.put(notice),
            Decision::Count => self.metrics.counted(),
            Decision::Limit => self.metrics.dropped("rate_limited"),
        }
    }

    /// Has a notice's Event be written. If too many wait, it is left out, or another one for it: so
    /// that all that came since none waited are equally likely to be told (reservoir sampling).
    fn put(&mut self, notice: Notice) {
        let now = Instant::now();
        if self.waiting.is_empty() {
            self.came = 0;
            self.not_before = self.not_before.max(now + up_to(SPREAD));
        }
        self.came += 1;
        if self.waiting.len() < WAITING {
            return self.waiting.push(Waiting { notice, tries: 0 });
        }
        let left_out = match fastrand::usize(..self.came) < WAITING {
            true => {
                let other = self.any().notice;
                self.waiting.push(Waiting { notice, tries: 0 });
                other
            }
            false => notice,
        };
        self.series.leave_alone(&left_out, now);
        self.metrics.dropped("over_budget");
    }

    /// Takes out one of those that wait; there is one.
    fn any(&mut self) -> Waiting {
        let index = fastrand::usize(..self.waiting.len());
        self.waiting.swap_remove(index)
    }

    /// Writes one of the Events that wait.
    async fn write_any(&mut self) {
        let Waiting { notice, tries } = self.any();
        let Some(going) = self.series.get(&notice).cloned() else {
            // Long forgotten.
            return self.metrics.dropped("over_budget");
        };
        self.budget.spend(Instant::now());
        let is_new = going.stage == Stage::New;
        let written = self.write(&notice, &going, is_new).await;
        let now = Instant::now();
        match written {
            Ok(()) => {
                self.forbidden = false;
                match is_new {
                    true => self.metrics.created(),
                    false => self.metrics.updated(),
                }
                self.series.written(&notice, going.count, now);
            }
            // By another node, by an earlier run, or by a try whose answer did not arrive.
            Err(Failure::Refused { code: 409, .. }) if is_new => {
                self.forbidden = false;
                self.metrics.present();
                self.series.leave_alone(&notice, now);
            }
            // The API server keeps Events for an hour, say.
            Err(Failure::Refused { code: 404, .. }) if !is_new => {
                self.series.expired(&notice);
                self.waiting.push(Waiting { notice, tries });
            }
            Err(failure) => self.failed(Waiting { notice, tries }, &failure),
        }
    }

    async fn write(&self, notice: &Notice, going: &Going, is_new: bool) -> Result<(), Failure> {
        let namespace = &notice.service.namespace;
        let events = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let (method, path, object) = match is_new {
            true => (
                Method::POST,
                events,
                object::event(notice, going, &self.node),
            ),
            false => (
                Method::PATCH,
                format!("{events}/{}", object::name(notice)),
                object::patch(going),
            ),
        };
        self.api.write("events", &method, &path, &object).await
    }

    /// Has a failed write be tried again if that may help, and later than the last time.
    fn failed(&mut self, Waiting { notice, tries }: Waiting, failure: &Failure) {
        let now = Instant::now();
        let reason = match failure {
            Failure::Refused { code: 403, message } => {
                if !std::mem::replace(&mut self.forbidden, true) {
                    tracing::warn!(
                        "Events cannot be written: {message}; give the agent's user the verbs create \
                         and patch on events of events.k8s.io"
                    );
                }
                "forbidden"
            }
            Failure::Refused { code, .. } if *code < 500 && *code != 409 => "failed",
            failure => {
                let asked = match failure {
                    Failure::Busy { retry_after, .. } => *retry_after,
                    _ => Duration::ZERO,
                };
                self.not_before = now + self.backoff.after_failure().max(asked);
                if tries + 1 < TRIES {
                    let tries = tries + 1;
                    self.waiting.push(Waiting { notice, tries });
                    return;
                }
                "failed"
            }
        };
        let service = &notice.service;
        tracing::debug!("an Event on Service {service} is dropped: {failure}");
        self.metrics.dropped(reason);
        self.series.leave_alone(&notice, now);
    }
}
