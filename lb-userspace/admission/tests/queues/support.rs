//! Levels and simulations for tests.

use lb_admission::{
    controller::Controller,
    level::{ConnectionLimits, Level, LevelKind, LimitResponse, Limited, Queuing},
    queueset::{Arrival, Dispatch, Grant, Handle, Policy, QueueSet, Shape, Verdict},
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
        audited: false,
    })
}

/// A level of its own, without seats.
pub fn queue_set(kind: &LevelKind, policy: Policy) -> QueueSet {
    QueueSet::new(Shape::new(kind).unwrap(), policy, 0)
}

/// A level with so many seats, whose queues are chosen by hash alone.
pub fn single_card_set(policy: Policy, seats: u32) -> QueueSet {
    let mut set = queue_set(&kind(8, 1, 3), policy);
    set.set_limit(seats, 0);
    set
}

/// A level with so many seats and limits inside.
pub fn limited_set(queues: u32, hand_size: u32, seats: u32, limits: ConnectionLimits) -> QueueSet {
    let mut kind = kind(queues, hand_size, 300);
    if let LevelKind::Limited(limited) = &mut kind {
        limited.connections = limits;
    }
    let mut set = queue_set(&kind, Policy::Connections);
    set.set_limit(seats, 0);
    set
}

/// A connection arrives at a level with queues.
pub fn arrive(set: &mut QueueSet, hash: u64, width: u32, now: u64) -> Handle {
    match set.arrive(Arrival::connection(hash, width, 0, None), now) {
        Verdict::Queued(handle) => handle,
        verdict => panic!("{verdict:?}"),
    }
}

/// Admits what can be admitted, and completes each handshake.
pub fn admit(set: &mut QueueSet, grants: &mut Grants, now: u64) -> Vec<Handle> {
    let mut admitted = Vec::new();
    while let Some(mut dispatch) = set.dispatch(now) {
        set.establish(&mut dispatch.grant, now);
        admitted.push(grants.keep(dispatch));
    }
    admitted
}

/// The seats of executing connections, by their handles while they waited.
#[derive(Debug, Default)]
pub struct Grants(pub Vec<(Handle, Grant)>);

impl Grants {
    /// Keeps the seats of a connection. Returns its handle.
    pub fn keep(&mut self, dispatch: Dispatch) -> Handle {
        let Dispatch { connection, grant } = dispatch;
        self.0.push((connection, grant));
        connection
    }

    pub fn take(&mut self, connection: Handle) -> Grant {
        let place = self.0.iter().position(|(handle, _)| *handle == connection);
        self.0.remove(place.expect("it executes")).1
    }
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
