//! Synthetic loads: clients that wait for their connections, and sources that do not.

use serde::Deserialize;
use thiserror::Error;

use super::Notification;
use super::{MAX_TIME, MAX_WIDTH};

/// The most threads in one workload, flows of sources included.
const MAX_FLOWS: u64 = 10_000_000;
/// The most connections in one workload, roughly: about an hour of simulation.
const MAX_CONNECTIONS: f64 = 1e9;

/// The load on one or several levels. Times are in nanoseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of the priority level.
    pub level: String,
    /// A fixed limit of the level. Without it, the level borrows and lends.
    #[serde(default, rename = "currentLimit")]
    pub current_limit: Option<u32>,
    /// How long sources send, and the time over which averages are taken. The simulation goes on
    /// until the last connection ends.
    pub duration_ns: u64,
    #[serde(default)]
    pub clients: Vec<Client>,
    #[serde(default)]
    pub sources: Vec<Source>,
}

/// A flow of so many threads. Each thread opens its next connection only after the previous one was
/// admitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Name of its priority level, if not the workload's.
    #[serde(default)]
    pub level: Option<String>,
    /// The hash of its flow.
    pub hash: u64,
    pub threads: u32,
    /// Connections of each thread. A refused connection is the thread's last.
    pub calls: u32,
    /// How long a connection lasts.
    pub exec_ns: u64,
    /// Time from a connection's end to the thread's next connection; -1 means just before the end.
    #[serde(default)]
    pub think_ns: i64,
    #[serde(default = "one")]
    pub initial_seats: u32,
    /// Seats that stay taken for `pad_ns` after the end.
    #[serde(default)]
    pub final_seats: u32,
    #[serde(default)]
    pub pad_ns: u64,
    /// Instead of `final_seats` and `pad_ns`: the number of watchers that are notified of each
    /// call's change.
    #[serde(default)]
    pub watchers: Option<u32>,
    /// The most seats of one connection, for [`Self::watchers`]; 0 means no limit.
    #[serde(default)]
    pub max_seats: u32,
    /// Whether the second half of the threads starts after half of the duration and makes half the
    /// calls.
    #[serde(default)]
    pub split: bool,
}

/// Flows that open connections at random times, at a fixed rate together, whatever the outcome.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    /// Name of its priority level, if not the workload's.
    #[serde(default)]
    pub level: Option<String>,
    #[serde(default = "one")]
    pub flows: u32,
    /// The rate of all flows together. Intervals are exponentially distributed.
    pub connections_per_second: f64,
    /// How long a connection lasts.
    pub hold_ns: u64,
    /// Whether `hold_ns` is only the mean of exponentially distributed times.
    #[serde(default)]
    pub random_holds: bool,
    /// The part of a connection's hold that its handshake takes.
    #[serde(default)]
    pub handshake_ns: u64,
    #[serde(default = "one")]
    pub width: u32,
    /// When the source starts.
    #[serde(default)]
    pub start_ns: u64,
}

fn one() -> u32 {
    1
}

/// What is wrong with a workload: a field and the rule that it breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {rule}")]
pub struct WorkloadError {
    field: String,
    rule: &'static str,
}

impl Workload {
    /// Checks that no value is absurd.
    ///
    /// # Errors
    /// Names the first such field.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        ensure(
            (1..=MAX_TIME).contains(&self.duration_ns),
            "duration_ns",
            "must be 1 to ten years",
        )?;
        ensure(
            !(self.clients.is_empty() && self.sources.is_empty()),
            "clients",
            "there must be a client or a source",
        )?;
        for (index, client) in self.clients.iter().enumerate() {
            let field = |name| format!("clients[{index}].{name}");
            ensure(client.threads > 0, field("threads"), "must be positive")?;
            ensure(client.calls > 0, field("calls"), "must be positive")?;
            ensure(
                client.exec_ns <= MAX_TIME,
                field("exec_ns"),
                "must be at most ten years",
            )?;
            ensure(
                (-1..=MAX_TIME as i64).contains(&client.think_ns)
                    && client.exec_ns.saturating_add_signed(client.think_ns) > 0,
                field("think_ns"),
                "must be -1 to ten years, and time must pass between calls",
            )?;
            ensure(
                (1..=MAX_WIDTH).contains(&client.initial_seats),
                field("initial_seats"),
                "must be 1 to 1000000",
            )?;
            ensure(
                client.final_seats <= MAX_WIDTH,
                field("final_seats"),
                "must be at most 1000000",
            )?;
            ensure(
                client.watchers.is_none() || client.final_seats == 0 && client.pad_ns == 0,
                field("watchers"),
                "must not be combined with final_seats and pad_ns, which follow from it",
            )?;
            // The time that fewer seats would take for the same work.
            let longest = u64::from(client.final_seats.max(1)).saturating_mul(client.pad_ns);
            ensure(
                longest <= MAX_TIME,
                field("pad_ns"),
                "must be at most ten years, times final_seats",
            )?;
        }
        for (index, source) in self.sources.iter().enumerate() {
            let field = |name| format!("sources[{index}].{name}");
            ensure(source.flows > 0, field("flows"), "must be positive")?;
            ensure(
                (1..=MAX_WIDTH).contains(&source.width),
                field("width"),
                "must be 1 to 1000000",
            )?;
            let rate = source.connections_per_second;
            ensure(
                rate > 0.0 && rate <= 1e9,
                field("connections_per_second"),
                "must be more than 0 and at most 1e9",
            )?;
            ensure(
                source.hold_ns.max(source.start_ns) <= MAX_TIME
                    && source.handshake_ns <= source.hold_ns,
                field("hold_ns"),
                "must be at least handshake_ns and at most ten years, as must start_ns",
            )?;
        }
        let threads = self.clients.iter().map(|client| u64::from(client.threads));
        let flows = self.sources.iter().map(|source| u64::from(source.flows));
        ensure(
            threads.sum::<u64>() + flows.sum::<u64>() <= MAX_FLOWS,
            "clients",
            "threads, and flows of sources, must be at most 10000000 together",
        )?;
        let calls = self.clients.iter().map(Client::connections);
        let arrivals = self
            .sources
            .iter()
            .map(|source| source.connections(self.duration_ns));
        ensure(
            calls.sum::<f64>() + arrivals.sum::<f64>() <= MAX_CONNECTIONS,
            "clients",
            "connections, those of sources included, must be at most 1000000000",
        )
    }

    /// Ends of the phases over which averages are taken: two halves if a client is split.
    pub fn phases(&self) -> Vec<u64> {
        match self.clients.iter().any(|client| client.split) {
            true => vec![self.duration_ns / 2, self.duration_ns],
            false => vec![self.duration_ns],
        }
    }
}

impl Client {
    /// What stays taken after each call's end.
    pub fn ending(&self) -> Notification {
        match self.watchers {
            Some(watchers) => Notification::of_write(watchers, self.max_seats),
            None => Notification {
                seats: self.final_seats,
                time: self.pad_ns,
            },
        }
    }

    /// The most connections that it makes.
    fn connections(&self) -> f64 {
        f64::from(self.threads) * f64::from(self.calls)
    }
}

impl Source {
    /// About how many connections it makes in so many nanoseconds.
    fn connections(&self, duration_ns: u64) -> f64 {
        self.connections_per_second * duration_ns.saturating_sub(self.start_ns) as f64 / 1e9
    }
}

fn ensure(holds: bool, field: impl Into<String>, rule: &'static str) -> Result<(), WorkloadError> {
    match holds {
        true => Ok(()),
        false => Err(WorkloadError {
            field: field.into(),
            rule,
        }),
    }
}
