//! Synthetic loads: clients that wait for their connections, and sources that do not.

use serde::Deserialize;
use thiserror::Error;

use super::Notification;
use super::{MAX_TIME, MAX_WIDTH};

/// Most threads, sources' flows included, in one workload.
const MAX_FLOWS: u64 = 10_000_000;
/// Most connections in one workload, about: an hour or so of simulation.
const MAX_CONNECTIONS: f64 = 1e9;

/// Loads on a level, or several. Times are in nanoseconds.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of the priority level.
    pub level: String,
    /// The level's limit throughout; without it, the level borrows and lends.
    #[serde(default, rename = "currentLimit")]
    pub current_limit: Option<u32>,
    /// For how long averages are taken and sources send. The simulation goes on to the last
    /// connection's end.
    pub duration_ns: u64,
    #[serde(default)]
    pub clients: Vec<Client>,
    #[serde(default)]
    pub sources: Vec<Source>,
}

/// A flow of so many threads, each of which opens its next connection only after the one before
/// was admitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Name of its priority level, if not the workload's.
    #[serde(default)]
    pub level: Option<String>,
    /// Of the flow.
    pub hash: u64,
    pub threads: u32,
    /// Connections of each thread; one that is refused is its thread's last.
    pub calls: u32,
    /// How long a connection lasts.
    pub exec_ns: u64,
    /// From a connection's end to the thread's next; -1 is just before the end.
    #[serde(default)]
    pub think_ns: i64,
    #[serde(default = "one")]
    pub initial_seats: u32,
    /// Seats that stay taken for `pad_ns` after the end.
    #[serde(default)]
    pub final_seats: u32,
    #[serde(default)]
    pub pad_ns: u64,
    /// In place of the two before: how many watchers of an API server each call's change goes to.
    #[serde(default)]
    pub watchers: Option<u32>,
    /// Most seats of one connection for [`Self::watchers`], as `plan` shows it; 0 is no limit.
    #[serde(default)]
    pub max_seats: u32,
    /// Whether the second half of the threads starts after half the duration, for half the calls.
    #[serde(default)]
    pub split: bool,
}

/// Flows that open connections at random times, at a fixed rate together, whatever becomes of
/// them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub name: String,
    /// Name of its priority level, if not the workload's.
    #[serde(default)]
    pub level: Option<String>,
    #[serde(default = "one")]
    pub flows: u32,
    /// Of all flows together; exponential intervals.
    pub connections_per_second: f64,
    /// How long a connection lasts.
    pub hold_ns: u64,
    /// Whether that is only the mean, with exponential holds.
    #[serde(default)]
    pub random_holds: bool,
    /// How long a connection's handshake takes of its hold.
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

/// What is wrong with a workload: a field and the rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {rule}")]
pub struct WorkloadError {
    field: String,
    rule: &'static str,
}

impl Workload {
    /// Checks that nothing in it is absurd.
    ///
    /// # Errors
    /// Names the first field that is.
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
            // What fewer seats than these would take for the same work.
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

    /// When phases end that averages are taken over: halves if a client is split.
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

    /// How many it makes at most.
    fn connections(&self) -> f64 {
        f64::from(self.threads) * f64::from(self.calls)
    }
}

impl Source {
    /// How many it makes in so many nanoseconds, about.
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
