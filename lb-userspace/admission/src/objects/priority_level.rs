//! The fields of a `PriorityLevel`. What is said here is also what `kubectl explain` says.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{crd::hand_size_rules, wire::or_default};

/// How many of the node's seats a group of flows gets, and what happens when all are taken. A seat
/// is one open connection.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["type"], "x-kubernetes-validations" = json!([
    {"rule": "self.type != 'Limited' || has(self.limited)", "fieldPath": ".limited",
     "message": "is required for type Limited"},
    {"rule": "self.type != 'Limited' || !has(self.exempt)", "fieldPath": ".exempt",
     "message": "must not be given for type Limited"},
    {"rule": "self.type != 'Exempt' || !has(self.limited)", "fieldPath": ".limited",
     "message": "must not be given for type Exempt"},
])))]
pub struct PriorityLevelSpec {
    /// `Limited`, or `Exempt` for the level of that name only. Connections of `exempt` are counted,
    /// but they never wait and are never refused.
    #[serde(default, rename = "type", deserialize_with = "or_default")]
    #[schemars(extend("enum" = ["Exempt", "Limited"]))]
    pub type_: String,

    /// For type `Limited`, which requires it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited: Option<LimitedSpec>,

    /// For type `Exempt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempt: Option<ExemptSpec>,
}

/// How a level limits its connections.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["limitResponse"]))]
pub struct LimitedSpec {
    /// The level's weight in the division of the node's seats. With zero the level has no seats of
    /// its own; with zero and a borrowingLimitPercent it never gets any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 30))]
    pub nominal_concurrency_shares: Option<i32>,

    /// How much of its seats other levels may borrow, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100), extend("default" = 0))]
    pub lendable_percent: Option<i32>,

    /// How many seats it may borrow from other levels, in percent of its own; without it, as many
    /// as there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub borrowing_limit_percent: Option<i32>,

    /// What happens to a connection that finds no free seat.
    #[serde(default, deserialize_with = "or_default")]
    pub limit_response: LimitResponseSpec,

    /// Limits inside the level that protect its flows from connections that last long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionsSpec>,

    /// `Enforce`, or `Audit` to let in connections that find no free seat, and to count them only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Audit", "Enforce"], "default" = "Enforce"))]
    pub mode: Option<String>,
}

/// What happens to a connection that finds no free seat.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["type"], "x-kubernetes-validations" = json!([
    {"rule": "self.type != 'Queue' || has(self.queuing)", "fieldPath": ".queuing",
     "message": "is required for type Queue"},
    {"rule": "self.type != 'Reject' || !has(self.queuing)", "fieldPath": ".queuing",
     "message": "must not be given for type Reject"},
])))]
pub struct LimitResponseSpec {
    /// `Queue`: the connection waits for its turn. `Reject`: it is refused at once.
    #[serde(default, rename = "type", deserialize_with = "or_default")]
    #[schemars(extend("enum" = ["Queue", "Reject"]))]
    pub type_: String,

    /// For type `Queue`, which requires it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queuing: Option<QueuingSpec>,
}

/// The queues of a level. Each flow may use a hand of them. So a flow that fills its queues leaves
/// other flows at least one.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = hand_size_rules()))]
pub struct QueuingSpec {
    /// How many queues there are. With more queues, two flows share a hand less often. Zero means
    /// the default.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(range(min = 0, max = 4096), extend("default" = 64))]
    pub queues: i32,

    /// How many queues a flow may use. Zero means the default.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(range(min = 0, max = 15), extend("default" = 8))]
    pub hand_size: i32,

    /// How many connections may wait in one queue. Zero means the default.
    #[serde(default, deserialize_with = "or_default")]
    #[schemars(range(min = 0, max = 65_536), extend("default" = 50))]
    pub queue_length_limit: i32,
}

/// Limits inside a level.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionsSpec {
    /// How many connections one flow may have, waiting ones included; more are refused at once.
    /// Without it there is no limit. It also works without queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_connections_per_flow: Option<i32>,

    /// Part of the level's seats, in percent, that only flows without a seat may use. It lets new
    /// flows in. No more seats are kept free than there are flows that could claim one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 50), extend("default" = 5))]
    pub first_seat_reserve_percent: Option<i32>,

    /// How many seats connections in their handshake may hold. Each queue has its part of them that
    /// others cannot use up. Without it, a quarter of the level's seats at the moment, and at least
    /// 16; with less than two queues, no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_half_open_seats: Option<i32>,
}

/// What can be set for the level `exempt`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExemptSpec {
    /// The level's weight in the division of the node's seats. This reserves seats for the level,
    /// which may also use more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 0))]
    pub nominal_concurrency_shares: Option<i32>,

    /// How much of its seats other levels may borrow, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100), extend("default" = 0))]
    pub lendable_percent: Option<i32>,
}
