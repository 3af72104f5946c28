//! A decision as JSON, with all that its text says.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use lb_common::{
    abi::{FrontendKind, RejectAnswer, plan_flag},
    flow::party::{Common, PartyRule},
    select::Policy,
    service::Origin,
    verdict::Reason,
};
use lb_objects::{Algorithm, Protocol, TrafficPolicy};
use serde::{Deserialize, Serialize};

use super::{
    decision::{Decision, Frontend, Verdict},
    limits::{Limit, Whose},
    named,
};

/// What happens to a packet. What concerns the Service is null or absent if it is not addressed to one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub verdict: Verdict,
    /// Its name is that of metrics.
    #[serde(with = "named")]
    pub reason: Reason,
    /// Where the packet comes from.
    #[serde(with = "named")]
    pub origin: Origin,
    #[serde(with = "named")]
    pub protocol: Protocol,
    pub from: IpAddr,
    pub to: SocketAddr,
    /// `namespace/name:port`.
    pub service: Option<String>,
    /// The kind of address that the destination is.
    #[serde(with = "named::option")]
    pub frontend: Option<FrontendKind>,
    /// The service port that would have this address, did not the node itself answer there; absent
    /// if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_to_node: Option<String>,
    /// `namespace/name` of a Service that has the destination as its ClusterIP, at other ports; absent
    /// if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_ports_of: Option<String>,
    /// The policy in force for this packet.
    #[serde(with = "named::option")]
    pub policy: Option<TrafficPolicy>,
    /// Whether externalTrafficPolicy is Local, and does not bind this packet because of its origin;
    /// absent if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub short_circuit: bool,
    /// The only sources that this load balancer IP accepts; absent if it accepts all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// All endpoints among which one is chosen, sorted by text.
    pub endpoints: Vec<SocketAddr>,
    /// Their weights, in the same order; absent if all have the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<u32>,
    /// How one is chosen; absent if there are none.
    #[serde(
        default,
        with = "named::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub algorithm: Option<Algorithm>,
    /// With Maglev: how many connections an endpoint may have open before others get its new ones, in
    /// percent of the mean; absent if any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_balance_factor: Option<u32>,
    /// Whether the endpoints are terminating, because none is ready; absent if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub terminating: bool,
    /// Whether topology hints have left only these endpoints; absent if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub hinted: bool,
    /// For how long after its last connection a client returns to its endpoint; absent if it need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity_seconds: Option<u32>,
    /// Whether the client's address is replaced on the way to the endpoints.
    #[serde(rename = "sourceNAT")]
    pub source_nat: bool,
    /// Those of the endpoints for which it is the other way round: of a client that is one of them, or
    /// of those that are the node itself; absent if there are none.
    #[serde(
        rename = "sourceNATExceptions",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    pub source_nat_exceptions: Vec<SocketAddr>,
    /// This node's address of the packet's family; null if none is known.
    pub node_address: Option<IpAddr>,
    /// How the client is told that a limit is reached; absent if none is.
    #[serde(
        default,
        with = "named::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub refusal: Option<RejectAnswer>,
    /// The flow schema that takes the connection; absent without connection admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_schema: Option<String>,
    /// That schema's priority level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_level: Option<String>,
    /// Whose of the schema's flows it is; absent unless it tells them apart by whose pods they come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// How many connections the flow may have that this one belongs to; absent without such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_connections_per_flow: Option<u32>,
    /// What the connections of that flow have in common; absent without such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_of: Option<FlowOf>,
    /// The limits of connections that this one counts against; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitReport>,
}

/// What the connections of one flow have in common, besides their flow schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FlowOf {
    /// The service port.
    Service,
    /// Nothing: all clients are one flow.
    Everybody,
    /// So many first bits of their sources.
    SourcePrefix(u32),
}

/// A limit of connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitReport {
    /// `namespace/name`; null for the node's and a priority level's.
    pub service: Option<String>,
    /// Absent for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_level: Option<String>,
    /// A priority level that has 0 seats lets nobody in.
    pub limit: u32,
    /// Whether connections are only counted, without a limit; absent if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub only_counted: bool,
    /// Null if no agent answers on this node.
    pub in_use: Option<u32>,
    /// Whether connections are let in when the limit is reached.
    pub exempt: bool,
    /// Whether the limit is only audited; absent if not.
    #[serde(default, skip_serializing_if = "is_false")]
    pub audited: bool,
    /// Seats of the priority level that the connection takes; absent if one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub seats: u32,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn one() -> u32 {
    1
}

fn is_one(value: &u32) -> bool {
    *value == 1
}

impl Report {
    /// Whether an endpoint that may be chosen sees this node's address instead of the client's.
    pub fn replaces_source(&self, endpoint: SocketAddr) -> bool {
        self.source_nat != self.source_nat_exceptions.contains(&endpoint)
    }

    /// Whether it is of the node's own SCTP: sockets of that are not translated.
    pub fn is_own_association(&self) -> bool {
        self.protocol == Protocol::Sctp && self.origin == Origin::Node
    }
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
            only_counted: limit.most.is_none(),
            in_use: limit.in_use,
            exempt: limit.exempt,
            audited: limit.is_audited,
            seats: limit.width,
        }
    }
}

impl From<&Decision<'_>> for Report {
    fn from(decision: &Decision<'_>) -> Self {
        let packet = decision.packet;
        let frontend = decision.frontend.as_ref();
        // What chooses among endpoints says nothing where there is no choice.
        let choice = frontend.filter(|_| !decision.candidates.is_empty());
        let candidates = decision.candidates.iter();
        let source_nat = decision.source_nat();
        let exceptions = candidates.clone().filter(|c| c.source_nat != source_nat);
        let weights = candidates.clone().map(|c| c.weight);
        let is_limited = matches!(
            decision.reason,
            Reason::ConcurrencyLimit | Reason::FlowLimit | Reason::EndpointLimit
        );
        let schema = decision.schema.as_ref();
        let part = decision.part;
        Self {
            verdict: decision.verdict,
            reason: decision.reason,
            origin: decision.origin,
            protocol: packet.protocol,
            from: packet.source,
            to: packet.destination,
            service: frontend.map(|frontend| frontend.service.to_string()),
            frontend: frontend.map(|frontend| frontend.kind),
            left_to_node: decision.left_to_node.map(ToString::to_string),
            other_ports_of: decision.other_port.map(|port| port.service.to_string()),
            policy: frontend.map(|frontend| policy(frontend.policy)),
            short_circuit: frontend.is_some_and(is_short_circuit),
            source_ranges: frontend
                .filter(|frontend| frontend.kind == FrontendKind::LoadBalancerIp)
                .map(|frontend| frontend.source_ranges.to_vec())
                .unwrap_or_default(),
            weights: weights.filter(|weight| *weight != 0).collect(),
            algorithm: choice.map(|frontend| frontend.algorithm),
            hash_balance_factor: choice
                .map(|frontend| frontend.plan.balance_factor())
                .filter(|factor| *factor != 0),
            terminating: choice.is_some_and(Frontend::terminating),
            hinted: choice.is_some_and(Frontend::hinted),
            affinity_seconds: choice
                .map(|frontend| frontend.plan.affinity_seconds)
                .filter(|seconds| *seconds != 0),
            source_nat,
            source_nat_exceptions: exceptions.map(|c| c.address).collect(),
            endpoints: candidates.map(|c| c.address).collect(),
            node_address: decision.node,
            refusal: is_limited.then_some(decision.answer),
            flow_schema: schema.map(|schema| schema.name.clone()),
            priority_level: schema.map(|schema| schema.level.clone()),
            flow: decision.tenant.clone(),
            max_connections_per_flow: part.and_then(PartyRule::limit),
            flow_of: part.map(|rule| {
                let is_inside = decision.origin != Origin::Outside;
                FlowOf::from(rule.common(packet.source, is_inside))
            }),
            limits: decision.limits.iter().map(Into::into).collect(),
        }
    }
}

impl From<Common> for FlowOf {
    fn from(common: Common) -> Self {
        match common {
            Common::Service => Self::Service,
            Common::Nothing => Self::Everybody,
            Common::Source(bits) => Self::SourcePrefix(bits),
        }
    }
}

fn is_short_circuit(frontend: &Frontend<'_>) -> bool {
    frontend.policy == Policy::Cluster
        && frontend.kind.is_external()
        && frontend.plan.has(plan_flag::EXTERNAL_LOCAL)
}

fn policy(policy: Policy) -> TrafficPolicy {
    match policy {
        Policy::Cluster => TrafficPolicy::Cluster,
        Policy::Local => TrafficPolicy::Local,
    }
}
