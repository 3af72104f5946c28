//! Levels and simulations for tests.

use lb_admission::{
    controller::Controller,
    level::{ConnectionLimits, Level, LevelKind, LimitResponse, Limited, Queuing},
    queueset::Policy,
    simulate::{Report, Settings, run_workload},
};
use serde_json::Value;

pub const POLICIES: [Policy; 2] = [Policy::Exact, Policy::Connections];

/// A level that neither lends nor borrows.
pub fn level(name: &str, shares: u32, queues: u32, hand_size: u32) -> Level {
    Level {
        name: name.to_owned(),
        shares,
        lendable_percent: 0,
        kind: kind(queues, hand_size, 50),
    }
}

pub fn kind(queues: u32, hand_size: u32, queue_length_limit: u32) -> LevelKind {
    LevelKind::Limited(Limited {
        borrowing_limit_percent: Some(0),
        response: match queues {
            0 => LimitResponse::Reject,
            queues => LimitResponse::Queue(Queuing {
                queues,
                hand_size,
                queue_length_limit,
            }),
        },
        connections: ConnectionLimits::default(),
    })
}

/// Runs a workload on a node with so many seats.
pub fn simulate(
    policy: Policy,
    queue_wait: Option<u64>,
    levels: &[Level],
    seats: u32,
    workload: Value,
) -> Report {
    let controller = Controller::new(levels, seats, policy, 0).unwrap();
    let settings = Settings { policy, queue_wait };
    let workload = serde_json::from_value(workload).unwrap();
    run_workload(controller, settings, &workload).unwrap()
}
