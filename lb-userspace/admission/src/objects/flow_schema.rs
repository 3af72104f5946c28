//! The fields of a `FlowSchema`. What is said here is also what `kubectl explain` says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{rule::RuleSpec, wire::or_default};

/// Which connections it takes, how their flows are told apart, and which priority level they get.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["priorityLevelConfiguration"], "x-kubernetes-validations" = json!([
    {"rule": "!has(self.longRunning) || !self.longRunning || !has(self.deadlines) || \
              !(has(self.deadlines.clientIdle) || has(self.deadlines.serverIdle) || has(self.deadlines.lifetime))",
     "fieldPath": ".longRunning",
     "message": "long-running connections have neither idle deadlines nor a lifetime"},
])))]
pub struct FlowSchemaSpec {
    /// The level of its connections. While there is no such level, the schema takes no connections.
    #[serde(default, deserialize_with = "or_default")]
    pub priority_level_configuration: PriorityLevelReference,

    /// Which schema is asked first: the one with the lower number, or else with the name that sorts
    /// first. 1 is for the schema `exempt` alone. Zero means the default.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(range(min = 0, max = 10_000), extend("default" = 1000))]
    pub matching_precedence: i32,

    /// How flows are told apart; without it all connections of the schema are one flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinguisher_method: Option<DistinguisherMethodSpec>,

    /// Any one of them is enough. Without rules it takes no connections.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(max = 64))]
    pub rules: Vec<RuleSpec>,

    /// Seats of one connection, for backends to which a connection is worth more than elsewhere.
    /// Zero means the default.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(range(min = 0, max = 10), extend("default" = 1))]
    pub seats: i32,

    /// How long its seats stay taken after a connection has ended, at most 10s: damps clients that
    /// connect and close all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "0s", "pattern" = super::crd::DURATION_PATTERN))]
    pub linger: Option<String>,

    /// When connections are given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<DeadlinesSpec>,

    /// Connections stay open without use for long: watches, tunnels, database sessions. They have
    /// neither idle deadlines nor a lifetime, and should have a level of their own.
    #[serde(default, deserialize_with = "or_default")]
    pub long_running: bool,

    /// What the client of a refused connection is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject_answer: Option<RejectAnswerSpec>,
}

/// Names a priority level.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["name"]))]
pub struct PriorityLevelReference {
    /// Name of the PriorityLevel.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How flows are told apart. Flows should be the borders along which misbehaviour runs, or it
/// spreads over every queue of the level.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["type"], "x-kubernetes-validations" = json!([
    {"rule": "self.type == 'BySourcePrefix' || !has(self.sourcePrefix)", "fieldPath": ".sourcePrefix",
     "message": "must not be given except for type BySourcePrefix"},
])))]
pub struct DistinguisherMethodSpec {
    /// A source whose identity is not known is told apart by its address: outside the cluster by
    /// the /24 (IPv4) or /56 (IPv6) network of it.
    #[serde(default, rename = "type", deserialize_with = "or_default")]
    #[schemars(extend("enum" = super::validate::DISTINGUISHERS))]
    pub type_: String,

    /// For type `BySourcePrefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_prefix: Option<SourcePrefixSpec>,
}

/// How much of the source address counts.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct SourcePrefixSpec {
    /// Bits of an IPv4 address, 24 to 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 24, max = 32), extend("default" = 24))]
    pub ipv4: Option<i32>,

    /// Bits of an IPv6 address, 56 to 64: whoever has one IPv6 address has a /64 full of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 56, max = 64), extend("default" = 56))]
    pub ipv6: Option<i32>,
}

/// When connections are given up. Durations are written like `1h30m` or `500ms`; zero is the
/// default, and more than the maximum is the maximum.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadlinesSpec {
    /// How long clients wait for an answer to their first packet: default 4s, at most 20s. A
    /// connection waits for a seat for a quarter of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub connect_patience: Option<String>,

    /// From the first packet that the endpoint gets to the end of the handshake: default 3s, at
    /// most 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub handshake: Option<String>,

    /// How long the client may send nothing while the server waits for it: at most 24h, by default
    /// as long as the node keeps silent flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub client_idle: Option<String>,

    /// How long the server may send nothing while the client waits for it: at most 24h, by default
    /// as long as the node keeps silent flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub server_idle: Option<String>,

    /// How long one direction may stay open after the other has ended: at most 1h, by default as
    /// long as the node keeps half-closed flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub half_close: Option<String>,

    /// How long the whole connection may last, give or take 10 %: at most 720h, by default for
    /// ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub lifetime: Option<String>,
}

/// What the client of a refused connection is told, by the reason: `RST` (a TCP reset, for UDP port
/// unreachable), `ICMP` (administratively prohibited, for UDP port unreachable) or `Drop`
/// (nothing).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RejectAnswerSpec {
    /// The level has no queues and no free seat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = super::validate::ANSWERS, "default" = "RST"))]
    pub concurrency_limit: Option<String>,

    /// The queue has no room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = super::validate::ANSWERS, "default" = "Drop"))]
    pub queue_full: Option<String>,

    /// It waited for as long as it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = super::validate::ANSWERS, "default" = "RST"))]
    pub time_out: Option<String>,
}
