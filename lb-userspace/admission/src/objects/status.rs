//! The status conditions of an object. Whoever writes them adds generations and times.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Condition of both kinds: the object is valid, and its latest version is in force.
pub const ACCEPTED: &str = "Accepted";
/// Condition of a flow schema: its priority level is missing, so it takes no connections.
pub const DANGLING: &str = "Dangling";
/// Condition of a flow schema: its level is too small for the seats that it asks for.
pub const SEATS_CUT: &str = "SeatsCut";

/// A condition of an object, without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub type_: &'static str,
    pub status: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    pub message: String,
}

/// What was found about an object by the nodes that use it. They say there what is the same for all:
/// Accepted and Dangling.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
pub struct Status {
    /// Accepted says whether the object is valid; in a FlowSchema, Dangling says whether its
    /// PriorityLevel is missing, and SeatsCut whether that level is too small for the seats asked
    /// for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<StatusCondition>,
}

/// One aspect of an object's state.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusCondition {
    /// Name of the aspect.
    #[serde(rename = "type")]
    #[schemars(length(max = 316))]
    pub type_: String,
    /// Whether the condition holds.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// Of which `metadata.generation` of the object this is said.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub observed_generation: i64,
    /// When `status` last changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
    /// The reason, in one word.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// The reason, as text for people.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,
}
