//! The fields of a `FlowSchema`. What is said here is also what `kubectl explain` says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{rule::RuleSpec, wire::or_default};

/// Which connections the schema takes, how it divides them into flows, and which priority level
/// they get.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["priorityLevelConfiguration"], "x-kubernetes-validations" = json!([
    {"rule": "!has(self.longRunning) || !self.longRunning || !has(self.deadlines) || \
              !(has(self.deadlines.clientIdle) || has(self.deadlines.serverIdle) || has(self.deadlines.lifetime))",
     "fieldPath": ".longRunning",
     "message": "long-running connections have neither idle deadlines nor a lifetime"},
])))]
pub struct FlowSchemaSpec {
    /// The level of the schema's connections. While this level does not exist, the schema takes no
    /// connections.
    #[serde(default, deserialize_with = "or_default")]
    pub priority_level_configuration: PriorityLevelReference,

    /// The schema with the lower number is tried first; with equal numbers, the one whose name
    /// sorts first. Only the schema `exempt` may have 1. Zero means the default.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(range(min = 0, max = 10_000), extend("default" = 1000))]
    pub matching_precedence: i32,

    /// How connections are divided into flows; without it all connections of the schema are one
    /// flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distinguisher_method: Option<DistinguisherMethodSpec>,

    /// The schema takes a connection if any rule matches. Without rules it takes no connections.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(length(max = 64))]
    pub rules: Vec<RuleSpec>,

    /// How many connections one flow may have, waiting ones included, if its level does not allow fewer;
    /// more are refused at once. Without it only the level's limit counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_connections_per_flow: Option<i32>,

    /// Seats that one connection takes, for backends whose connections cost more than others.
    /// Zero means the default.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(range(min = 0, max = 10), extend("default" = 1))]
    pub seats: i32,

    /// How long a connection's seats stay taken after its end, at most 10s. This slows clients that
    /// connect and close all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "0s", "pattern" = super::crd::DURATION_PATTERN))]
    pub linger: Option<String>,

    /// When the node gives up connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<DeadlinesSpec>,

    /// For connections that stay open for a long time without traffic: watches, tunnels, database
    /// sessions. They have no idle deadlines and no lifetime. Give them a level of their own.
    #[serde(default, deserialize_with = "or_default")]
    pub long_running: bool,

    /// The answer to the client of a refused connection.
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

/// How connections are divided into flows. One misbehaving client or tenant should be one flow.
/// Otherwise its connections spread over every queue of the level.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["type"], "x-kubernetes-validations" = json!([
    {"rule": "self.type == 'BySourcePrefix' || !has(self.sourcePrefix)", "fieldPath": ".sourcePrefix",
     "message": "must not be given except for type BySourcePrefix"},
])))]
pub struct DistinguisherMethodSpec {
    /// A source without a known identity is identified by its address; outside the cluster, by
    /// the /24 (IPv4) or /56 (IPv6) network of the address.
    #[serde(default, rename = "type", deserialize_with = "or_default")]
    #[schemars(extend("enum" = super::validate::DISTINGUISHERS))]
    pub type_: String,

    /// For type `BySourcePrefix`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_prefix: Option<SourcePrefixSpec>,
}

/// How many bits of the source address count.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct SourcePrefixSpec {
    /// Bits of an IPv4 address, 24 to 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 24, max = 32), extend("default" = 24))]
    pub ipv4: Option<i32>,

    /// Bits of an IPv6 address, 56 to 64: a client with one IPv6 address has a whole /64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 56, max = 64), extend("default" = 56))]
    pub ipv6: Option<i32>,
}

/// When the node gives up connections. Durations are written like `1h30m` or `500ms`. Zero means
/// the default, and more than the maximum means the maximum.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadlinesSpec {
    /// How long clients wait for an answer to their first packet: default 4s, at most 20s. A
    /// connection waits for a seat for a quarter of this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub connect_patience: Option<String>,

    /// Time from the first packet to the endpoint until the end of the handshake: default 3s, at
    /// most 10s. After that, a handshake holds no seats.
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

    /// How long the whole connection may last, with a random difference of up to 10 %: at most
    /// 720h, by default without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = super::crd::DURATION_PATTERN))]
    pub lifetime: Option<String>,
}

/// The answer to the client of a refused connection, for each reason: `RST` (a TCP reset; with UDP,
/// port unreachable), `ICMP` (administratively prohibited; with UDP, port unreachable) or `Drop`
/// (no answer).
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

    /// The connection has waited for as long as it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = super::validate::ANSWERS, "default" = "RST"))]
    pub time_out: Option<String>,
}
