//! A decision as JSON.

use lb_common::{flow::party::PartyRule, select::Policy, service::Origin};
use lb_objects::TrafficPolicy;
use serde::Serialize;

use super::{
    decision::{Decision, Verdict},
    limits::{Limit, Whose},
};

/// What happens to a packet. Fields about the Service are null if it is not addressed to one.
#[derive(Serialize)]
pub struct Report {
    /// `forward`, `wait`, `reject`, `drop` or `pass`.
    verdict: &'static str,
    /// The reason's name, as in metrics.
    reason: &'static str,
    /// Where the packet comes from: `pod` (a local one), `node` (this one) or `outside`.
    origin: &'static str,
    /// `TCP`, `UDP` or `SCTP`.
    protocol: String,
    /// `namespace/name:port`.
    service: Option<String>,
    /// The kind of address that the destination is.
    frontend: Option<&'static str>,
    /// The service port that would have this address, did not the node itself answer there; absent
    /// if there is none.
    #[serde(rename = "leftToNode", skip_serializing_if = "Option::is_none")]
    left_to_node: Option<String>,
    /// The policy in force for this packet.
    policy: Option<String>,
    /// All endpoints among which one is chosen, sorted by text.
    endpoints: Vec<String>,
    /// Their weights, in the same order; absent if all have the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    weights: Vec<u32>,
    #[serde(rename = "sourceNAT")]
    source_nat: bool,
    /// The flow schema that takes the connection; absent without connection admission.
    #[serde(rename = "flowSchema", skip_serializing_if = "Option::is_none")]
    flow_schema: Option<String>,
    /// Whose of the schema's flows it is; absent unless it tells them apart by whose pods they come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    flow: Option<String>,
    /// How many connections the flow may have that this one belongs to; absent without such a limit.
    #[serde(
        rename = "maxConnectionsPerFlow",
        skip_serializing_if = "Option::is_none"
    )]
    max_connections_per_flow: Option<u32>,
    /// The limits of connections that this one counts against; absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    limits: Vec<LimitReport>,
}

/// A limit of connections.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LimitReport {
    /// `namespace/name`; null for the node's and a priority level's.
    service: Option<String>,
    /// Absent for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority_level: Option<String>,
    /// 0: they are only counted; a priority level that has 0 seats lets nobody in.
    limit: u32,
    /// Null if no agent answers on this node.
    in_use: Option<u32>,
    /// Whether connections are let in when the limit is reached.
    exempt: bool,
    /// Whether the limit is only audited; absent if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    audited: bool,
}

impl From<&Limit> for LimitReport {
    fn from(limit: &Limit) -> Self {
        let (service, priority_level) = match &limit.whose {
            Whose::Node => (None, None),
            Whose::Service(service) => (Some(service.clone()), None),
            Whose::Level(level) => (None, Some(level.clone())),
        };
        Self {
            service,
            priority_level,
            limit: limit.most.unwrap_or(0),
            in_use: limit.in_use,
            exempt: limit.exempt,
            audited: limit.is_audited,
        }
    }
}

impl From<&Decision<'_>> for Report {
    fn from(decision: &Decision<'_>) -> Self {
        let frontend = decision.frontend.as_ref();
        let candidates = decision.candidates.iter();
        Self {
            verdict: verdict(decision.verdict),
            reason: decision.reason.name(),
            origin: origin(decision.origin),
            protocol: decision.packet.protocol.to_string(),
            service: frontend.map(|frontend| frontend.service.to_string()),
            frontend: frontend.map(|frontend| frontend.kind.name()),
            left_to_node: decision.left_to_node.map(ToString::to_string),
            policy: frontend.map(|frontend| policy(frontend.policy).to_string()),
            weights: candidates
                .clone()
                .map(|c| c.weight)
                .filter(|w| *w != 0)
                .collect(),
            endpoints: candidates.map(|c| c.address.to_string()).collect(),
            source_nat: decision.source_nat(),
            flow_schema: decision.schema.as_ref().map(|schema| schema.name.clone()),
            flow: decision.tenant.clone(),
            max_connections_per_flow: decision.part.and_then(PartyRule::limit),
            limits: decision.limits.iter().map(Into::into).collect(),
        }
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forward => "forward",
        Verdict::Reject => "reject",
        Verdict::Drop => "drop",
        Verdict::Wait => "wait",
        Verdict::Pass => "pass",
    }
}

fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Pod => "pod",
        Origin::Node => "node",
        Origin::Outside => "outside",
    }
}

fn policy(policy: Policy) -> TrafficPolicy {
    match policy {
        Policy::Cluster => TrafficPolicy::Cluster,
        Policy::Local => TrafficPolicy::Local,
    }
}
