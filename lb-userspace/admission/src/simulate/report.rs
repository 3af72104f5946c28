//! The result of a simulation, in the shape of its JSON.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::record::Sample;
use crate::queueset::Rejections;

/// A simulation's result.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// When the last thing happened, in nanoseconds.
    pub end_ns: u64,
    /// Connections that asked for seats.
    pub connections: u64,
    /// Connections that still waited when nothing more could happen.
    pub still_waiting: u64,
    /// One for each client of the workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<GroupReport>,
    /// One for each source of the workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<GroupReport>,
    /// The levels that had connections.
    pub levels: Vec<LevelReport>,
}

/// The connections of a client or a source, by outcome.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupReport {
    /// The name of a source; clients have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub executions: u64,
    pub rejections: u64,
    /// Mean number of (initial) seats of its executing connections in each phase.
    pub average_seats: Vec<f64>,
    pub wait_ns: Waits,
}

/// A priority level.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LevelReport {
    pub name: String,
    pub executions: u64,
    pub rejections: Rejections,
    pub wait_ns: Waits,
    pub max_seats_in_use: u64,
    pub fairness: Fairness,
    /// Seats over time, at even intervals.
    pub seats: Vec<SeatsReport>,
    /// The flows with the most seat-seconds.
    pub top_flows: Vec<FlowReport>,
}

/// How long admitted connections waited, in nanoseconds, precise to three digits.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Waits {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

/// How evenly seats were divided among a level's flows, by Jain's index: 1 means equally.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fairness {
    pub flows: u64,
    /// Of the seat-seconds of each flow.
    pub jain_seat_seconds: Option<f64>,
    /// Of the seats that flows hold at a moment, averaged over the time in which a connection
    /// waited, among flows that held or wanted seats.
    pub jain_seats: Option<f64>,
}

/// A level's seats at a moment.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SeatsReport {
    #[serde(rename = "t_ns")]
    pub at: u64,
    pub limit: u32,
    pub in_use: u64,
    pub waiting: u64,
}

/// A flow.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowReport {
    pub name: String,
    pub executions: u64,
    pub rejections: u64,
    pub seat_seconds: f64,
    pub max_wait_ns: u64,
}

impl From<&Histogram<u64>> for Waits {
    fn from(waits: &Histogram<u64>) -> Self {
        Self {
            p50: waits.value_at_quantile(0.5),
            p99: waits.value_at_quantile(0.99),
            max: waits.max(),
        }
    }
}

impl From<&Sample> for SeatsReport {
    fn from(sample: &Sample) -> Self {
        Self {
            at: sample.at,
            limit: sample.limit,
            in_use: sample.in_use,
            waiting: sample.waiting,
        }
    }
}
