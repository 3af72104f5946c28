//! Events on Services (events.k8s.io/v1): what the owners of a Service have to know about this
//! node. `kubectl describe service` shows them.
//!
//! Whoever finds something hands a [`Notice`] to the [`Recorder`], which never waits. A task of its
//! own counts repetitions as a series, keeps each Service and the agent to a rate, and writes. What
//! cannot be written is dropped and counted: nothing depends on an Event.
//!
//! A cluster has a thousand nodes, and most causes are the same on many. So an Event's name follows
//! from what it says: the first node to find something writes it and, seldom, how often it happens
//! there; others are told that it is there and leave it alone for hours. For that, a note has
//! nothing in it that changes or that is the node's.

mod budget;
mod object;
mod series;
mod writer;

use tokio::sync::mpsc;
use uuid::Uuid;

use crate::{
    flows::Limit, health::service::Problem as HealthProblem, map_writer::Reason,
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

/// Who finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// This node, whose name is put before the note: another one may be well.
    Node,
    /// Every node, from the object alone.
    Cluster,
}

/// Something to be told about a Service. Equal ones are repetitions of one Event, on whatever node.
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
    /// For people; without numbers that change, and without what is different on each node. What is
    /// too long for an Event is cut off.
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
                "cannot listen on the healthCheckNodePort {}: {}",
                problem.address.port(),
                problem.error
            ),
            scope: Scope::Node,
        }
    }

    /// A Service, or part of it, is not in the maps. There are no numbers in it, so that every time
    /// is a repetition of one Event.
    pub fn not_programmed(service: &ObjectName, uid: Option<Uuid>, why: Reason) -> Self {
        Self {
            service: service.clone(),
            uid,
            event_type: EventType::Warning,
            reason: why.event(),
            action: "Program",
            note: why.note().to_owned(),
            scope: Scope::Node,
        }
    }

    /// All of a Service is in the maps, after some of it was not.
    pub fn programmed(service: &ObjectName, uid: Option<Uuid>) -> Self {
        Self {
            service: service.clone(),
            uid,
            event_type: EventType::Normal,
            reason: "ServiceProgrammed",
            action: "Program",
            note: "all of it is in force now".to_owned(),
            scope: Scope::Node,
        }
    }

    /// A service port, named by `port`, has come to a limit of what its flows may take.
    pub fn at_limit(service: &ObjectName, uid: Option<Uuid>, port: &str, limit: Limit) -> Self {
        let (reason, what) = match limit {
            Limit::HalfOpen => (
                "HalfOpenFlowsExhausted",
                "so many flows are half open that new ones replace the oldest; a client sends from \
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

    /// Programs do something else with test packets to a Service than it asks for.
    pub fn test_packets_differ(service: &ObjectName, uid: Option<Uuid>) -> Self {
        Self {
            service: service.clone(),
            uid,
            event_type: EventType::Warning,
            reason: "TestPacketsDiffer",
            action: "Verify",
            note: "programs do something else with test packets than the Service asks for; `node-lb status` there says \
                   with which"
                .to_owned(),
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
