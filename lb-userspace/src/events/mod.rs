//! Events on Services (events.k8s.io/v1): what the owners of a Service have to know about this
//! node. `kubectl describe service` shows them.
//!
//! The agent hands a [`Notice`] to the [`Recorder`], which never waits. A separate task counts
//! repetitions as a series, limits the rate per Service, and writes. What cannot be written is
//! dropped and counted: nothing depends on an Event.

mod budget;
mod object;
mod series;
mod writer;

use tokio::sync::mpsc;
use uuid::Uuid;

use crate::{
    flows::Limit, health::service::Problem as HealthProblem, map_writer::NotProgrammed,
    metrics::EventMetrics, source::api::ApiWriter,
};
use lb_objects::{ObjectName, Problem as SourceProblem};
use writer::Writer;

/// How many notices may wait, as in client-go.
const QUEUE: usize = 1000;

/// `type` of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

/// Which nodes find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Only this node; the others may have no problem.
    Node,
    /// Every node, because it depends only on the object: one Event is enough for all.
    Cluster,
}

/// Something to tell about a Service. Equal notices are repetitions of one Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    pub service: ObjectName,
    /// The object's uid: `kubectl describe` shows only Events that have it.
    pub uid: Option<Uuid>,
    pub event_type: EventType,
    /// The reason, in one word for programs.
    pub reason: &'static str,
    /// The action during which it happened.
    pub action: &'static str,
    /// Text for people; the node is shown beside it. It is cut at the maximum length of an Event's
    /// note.
    pub note: String,
    pub scope: Scope,
}

impl Notice {
    /// A healthCheckNodePort cannot be opened. Reason and action are kube-proxy's.
    pub fn health_check(problem: &HealthProblem, uid: Option<Uuid>) -> Self {
        let (reason, action) = HealthProblem::EVENT;
        Self {
            service: problem.service.clone(),
            uid,
            event_type: EventType::Warning,
            reason,
            action,
            note: format!(
                "cannot listen on {} for the healthCheckNodePort: {}",
                problem.address, problem.error
            ),
            scope: Scope::Node,
        }
    }

    /// The service port `port` found no room in the maps, or not for all of it.
    pub fn not_programmed(
        service: &ObjectName,
        uid: Option<Uuid>,
        port: &str,
        error: &NotProgrammed,
    ) -> Self {
        let (reason, consequence) = match error {
            NotProgrammed::Map(_) => (
                "ServicePartlyProgrammed",
                "some of its addresses or source ranges are missing",
            ),
            _ => (
                "ServiceNotProgrammed",
                "what was in force before, if anything, stays",
            ),
        };
        Self {
            service: service.clone(),
            uid,
            event_type: EventType::Warning,
            reason,
            action: "Program",
            note: format!("{port}: {error}; {consequence}; it is tried again when there is room"),
            scope: Scope::Node,
        }
    }

    /// The service port `port`, which had no room before, is completely in the maps now.
    pub fn programmed(service: &ObjectName, uid: Option<Uuid>, port: &str) -> Self {
        Self {
            service: service.clone(),
            uid,
            event_type: EventType::Normal,
            reason: "ServiceProgrammed",
            action: "Program",
            note: format!("{port}: programmed after having waited for room"),
            scope: Scope::Node,
        }
    }

    /// The flows of the service port `port` have reached a limit. The text contains no numbers, so
    /// that every time counts as a repetition of one Event.
    pub fn at_limit(service: &ObjectName, uid: Option<Uuid>, port: &str, limit: Limit) -> Self {
        let (reason, what) = match limit {
            Limit::HalfOpen => (
                "HalfOpenFlowsExhausted",
                "so many flows are half open that the oldest give way to new ones; somebody sends from \
                 spoofed addresses, or endpoints do not answer",
            ),
            Limit::SnatPorts => (
                "SourceNATPortsExhausted",
                "the node has no free port left towards an endpoint; new connections to it that need \
                 one are dropped",
            ),
            Limit::FlowTable => (
                "FlowTableFull",
                "the node's flow table has no room left; new connections are dropped",
            ),
        };
        Self {
            service: service.clone(),
            uid,
            event_type: EventType::Warning,
            reason,
            action: "Forward",
            note: format!("{port}: {what}"),
            scope: Scope::Node,
        }
    }

    /// A part of a Service, or all of it, cannot be used, as `problem` says.
    pub fn refused(service: &ObjectName, uid: Option<Uuid>, problem: &SourceProblem) -> Self {
        Self {
            service: service.clone(),
            uid,
            event_type: EventType::Warning,
            reason: "InvalidService",
            action: "Read",
            note: problem.what(),
            scope: Scope::Cluster,
        }
    }
}

/// Takes notices. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// `None` if no Events are written.
    notices: Option<mpsc::Sender<Notice>>,
    metrics: EventMetrics,
}

impl Recorder {
    /// Drops all notices: with a directory of manifests there are no Events.
    pub fn none(metrics: EventMetrics) -> Self {
        Self {
            notices: None,
            metrics,
        }
    }

    /// Writes Events for the node of this name until every clone is dropped. Needs a Tokio runtime.
    pub fn start(api: ApiWriter, node: &str, metrics: EventMetrics) -> Self {
        let (notices, queue) = mpsc::channel(QUEUE);
        tokio::spawn(Writer::new(api, node, metrics.clone()).run(queue));
        Self {
            notices: Some(notices),
            metrics,
        }
    }

    /// Whether Events are written.
    pub fn is_on(&self) -> bool {
        self.notices.is_some()
    }

    /// Takes a notice. If too many are waiting, it is dropped and counted. Never waits.
    pub fn record(&self, notice: Notice) {
        if let Some(notices) = &self.notices
            && notices.try_send(notice).is_err()
        {
            self.metrics.dropped("queue_full");
        }
    }
}
