//! Process health, as kube-proxy reports it on `:10256`: whether the kernel is kept up to date with
//! the cluster, and whether load balancers may still send to this node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use hyper::StatusCode;
use lb_objects::{IpFamily, Node};
use prometheus::IntCounterVec;
use serde::Serialize;

use super::{clock::Clock, readiness::Readiness};
use crate::{
    http::{Class, Handler, Request, Response, json, not_found},
    metrics::Metrics,
};

/// The taint with which the cluster autoscaler announces that it will delete the node (KEP-3836).
/// Cordoning has no effect here, on purpose.
const DELETION_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// How Go prints a time that was never set. Clients of kube-proxy get this in the body.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Tracks changes from when they are queued until they are in the kernel.
pub struct ProxyHealth {
    stale_after: Duration,
    clock: Box<dyn Clock>,
    state: Mutex<State>,
}

impl ProxyHealth {
    /// A family is unhealthy once its oldest pending change has waited for two `sync_period`s
    /// (kube-proxy: 30 s each). The node is not eligible until [`Self::set_node`] says so.
    pub fn new(sync_period: Duration, clock: impl Clock) -> Self {
        Self {
            stale_after: sync_period * 2,
            clock: Box::new(clock),
            state: Mutex::default(),
        }
    }

    /// Notes that a change waits to be written. Only the first one since the last [`Self::updated`]
    /// matters. To be called only after the caches are there.
    pub fn queued(&self, family: IpFamily) {
        let now = self.clock.monotonic();
        self.state().oldest_pending.entry(family).or_insert(now);
    }

    /// Notes that the kernel has everything that was queued for `family`. A family is counted and
    /// reported from its first call on, so each family calls this once when its sync loop starts.
    pub fn updated(&self, family: IpFamily) {
        let now = self.clock.wall();
        let mut state = self.state();
        state.oldest_pending.remove(&family);
        state.last_updated.insert(family, now);
    }

    /// Notes the Node object; `None` if it does not exist.
    pub fn set_node(&self, node: Option<&Node>) {
        self.state().node_eligible = node.is_some_and(is_eligible);
    }

    /// Whether no family is stuck. The node's own state plays no part.
    pub fn is_healthy(&self) -> bool {
        self.report().healthy
    }

    fn report(&self) -> Report {
        let now = self.clock.monotonic();
        let state = self.state();
        let status: BTreeMap<_, _> = state
            .last_updated
            .iter()
            .map(|(family, updated)| {
                let pending = state.oldest_pending.get(family);
                let status = FamilyStatus {
                    last_updated: rfc3339(*updated),
                    healthy: pending.is_none_or(|since| now - *since < self.stale_after),
                };
                (family.to_string(), status)
            })
            .collect();
        Report {
            last_updated: state.last_updated.values().max().copied(),
            node_eligible: state.node_eligible,
            healthy: status.values().all(|family| family.healthy),
            status,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each update is complete at every step, so the state is valid even after a holder has
        // panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers `/healthz`, `/livez` and `/readyz`, for any method; any other path is 404.
///
/// `/livez` answers 200 while every family is healthy, `/healthz` only if the node is eligible too.
/// So load balancers leave a node that is about to be deleted, but the kubelet does not restart the
/// agent on it.
pub struct HealthEndpoints {
    health: Arc<ProxyHealth>,
    readiness: Arc<Readiness>,
    healthz: IntCounterVec,
    livez: IntCounterVec,
}

impl HealthEndpoints {
    pub fn new(health: Arc<ProxyHealth>, readiness: Arc<Readiness>, metrics: &Metrics) -> Self {
        Self {
            health,
            readiness,
            healthz: metrics.healthz.clone(),
            livez: metrics.livez.clone(),
        }
    }

    fn healthz(&self) -> Response {
        let report = self.health.report();
        let answer = self.answer(&report, Some(report.node_eligible));
        count(&self.healthz, &answer);
        answer
    }

    fn livez(&self) -> Response {
        let answer = self.answer(&self.health.report(), None);
        count(&self.livez, &answer);
        answer
    }

    fn answer(&self, report: &Report, node_eligible: Option<bool>) -> Response {
        let now = rfc3339(self.health.clock.wall());
        let status = match report.healthy && node_eligible.unwrap_or(true) {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        let body = Body {
            // A healthy answer has always contained the current time, and clients rely on it.
            last_updated: match status {
                StatusCode::OK => now.clone(),
                _ => report.last_updated.map_or_else(|| NEVER.into(), rfc3339),
            },
            current_time: now,
            node_eligible,
            healthy: report.healthy,
            status: &report.status,
        };
        let body = serde_json::to_vec(&body).expect("strings and booleans always serialize");
        json(status, body)
    }
}

impl Handler for HealthEndpoints {
    fn class(&self, _: &Request) -> Class {
        Class::Probe
    }

    async fn call(&self, request: Request) -> Response {
        match request.uri().path() {
            "/healthz" => self.healthz(),
            "/livez" => self.livez(),
            path if Readiness::serves(path) => self.readiness.answer(request.uri()),
            _ => not_found(),
        }
    }
}

#[derive(Default)]
struct State {
    /// When the oldest change that is not yet in the kernel was queued.
    oldest_pending: BTreeMap<IpFamily, Instant>,
    last_updated: BTreeMap<IpFamily, SystemTime>,
    node_eligible: bool,
}

struct Report {
    last_updated: Option<SystemTime>,
    node_eligible: bool,
    healthy: bool,
    status: BTreeMap<String, FamilyStatus>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: &'a BTreeMap<String, FamilyStatus>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

fn is_eligible(node: &Node) -> bool {
    !node.deleting && !node.taints.iter().any(|taint| taint == DELETION_TAINT)
}

fn count(counter: &IntCounterVec, answer: &Response) {
    counter.with_label_values(&[answer.status().as_str()]).inc();
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_nanos(time).to_string()
}
