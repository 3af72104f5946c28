//! A quiet tenant beside a noisy one, with different loads and holds.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_admission::{
    controller::Controller,
    level::{ConnectionLimits, Level, LevelKind, LimitResponse, Limited, Queuing},
    queueset::Policy,
    simulate::{Settings, run_workload, workload::Workload},
};
use serde_json::{Value, json};

/// Seats of the level.
const SEATS: u32 = 100;
/// What the noisy tenant sends, as a multiple of the level's capacity.
const LOADS: [f64; 6] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0];
/// Mean holds, with the durations of their simulations, in seconds.
const HOLDS: [(f64, f64); 3] = [(0.01, 10.0), (1.0, 400.0), (100.0, 20_000.0)];
/// What the quiet tenant sends, as a multiple of the level's capacity.
const QUIET: f64 = 0.05;
/// The longest wait, in nanoseconds.
const QUEUE_WAIT: u64 = 1_000_000_000;

/// The results of the quiet tenant. Times are in seconds.
#[derive(Clone, Copy)]
pub struct Outcome {
    pub load: f64,
    pub hold: f64,
    pub policy: Policy,
    p50: f64,
    pub p99: f64,
    max: f64,
    /// The part of its connections that was refused.
    pub refused: f64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            load,
            hold,
            p50,
            p99,
            max,
            refused,
            ..
        } = self;
        let mode = mode(self.policy);
        let refused = refused * 100.0;
        write!(
            f,
            "{load:>4}   {hold:>4} s   {mode:<10}   {p50:>6.3} s  {p99:>5.3} s  {max:>5.3} s   {refused:>5.1} %"
        )
    }
}

/// A mode's name in tables and plots.
pub fn mode(policy: Policy) -> &'static str {
    match policy {
        Policy::Exact => "exact",
        Policy::Connections => "connections",
    }
}

/// Simulates all combinations.
///
/// # Errors
/// If the workload is refused.
pub fn sweep() -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (hold, seconds) in HOLDS {
        for policy in [Policy::Exact, Policy::Connections] {
            for load in LOADS {
                outcomes.push(run(load, hold, seconds, policy)?);
            }
        }
    }
    Ok(outcomes)
}

fn run(load: f64, hold: f64, seconds: f64, policy: Policy) -> Result<Outcome> {
    let capacity = f64::from(SEATS) / hold;
    let source = |name: &str, rate: f64, start: f64| {
        json!({
            "name": name, "connections_per_second": rate, "hold_ns": nanoseconds(hold),
            "random_holds": true, "start_ns": nanoseconds(start),
        })
    };
    let noisy = source("noisy", load * capacity, 0.0);
    let quiet = source("quiet", QUIET * capacity, seconds / 10.0);
    let report = simulate(policy, SEATS, seconds, [noisy, quiet].into())?;
    let quiet = &report.sources[1];
    let second = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let all = quiet.executions + quiet.rejections;
    Ok(Outcome {
        load,
        hold,
        policy,
        p50: second(quiet.wait_ns.p50),
        p99: second(quiet.wait_ns.p99),
        max: second(quiet.wait_ns.max),
        refused: quiet.rejections as f64 / all.max(1) as f64,
    })
}

/// Simulates about `connections` connections of a hundred thousand flows. Returns how many there
/// were, and how long it took.
///
/// # Errors
/// If the workload is refused.
pub fn large(connections: u64) -> Result<(u64, Duration)> {
    let rate = 100_000.0;
    let seconds = connections as f64 / rate;
    let source = json!({
        "name": "all", "flows": 100_000, "connections_per_second": rate,
        "hold_ns": 101_000_000, "random_holds": true,
    });
    let start = Instant::now();
    let report = simulate(Policy::Connections, 10_000, seconds, vec![source])?;
    Ok((report.connections, start.elapsed()))
}

fn simulate(
    policy: Policy,
    seats: u32,
    seconds: f64,
    sources: Vec<Value>,
) -> Result<lb_admission::simulate::Report> {
    let level = Level {
        name: "tenants".to_owned(),
        shares: 1,
        lendable_percent: 0,
        kind: LevelKind::Limited(Limited {
            borrowing_limit_percent: Some(0),
            response: LimitResponse::Queue(Queuing {
                queues: 128,
                hand_size: 6,
                queue_length_limit: 50,
            }),
            connections: ConnectionLimits::default(),
            audited: false,
        }),
    };
    let workload: Workload = serde_json::from_value(json!({
        "level": level.name, "currentLimit": seats, "duration_ns": nanoseconds(seconds),
        "sources": sources,
    }))?;
    let controller = Controller::new(&[level], seats, policy, 0)?;
    let settings = Settings {
        policy,
        queue_wait: Some(QUEUE_WAIT),
    };
    Ok(run_workload(controller, settings, &workload)?)
}

fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}
