//! Nanoseconds per decision of a level with a given number of queues and parked connections.

use std::{
    collections::VecDeque,
    hint::black_box,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lb_admission::{
    level::{ConnectionLimits, LevelKind, LimitResponse, Limited, Queuing},
    queueset::{Arrival, Dispatch, Policy, QueueSet, Shape, Verdict},
};

/// Decisions of each kind in a batch. Their mean is one sample.
pub const BATCH: u32 = 500;
/// Samples.
pub const BATCHES: u32 = 400;
/// Seats of the level, all taken.
const SEATS: u32 = 1_000;
/// Time from one decision to the next, in nanoseconds of the level's clock.
const INTERVAL: u64 = 10_000;

/// Nanoseconds of each call.
pub struct Cost {
    pub enqueue: f64,
    pub dispatch: f64,
    pub release: f64,
}

/// Replaces one connection at a time: one arrives and waits, one ends, and a waiting one gets its
/// seat.
///
/// # Errors
/// If the level refuses a connection that it has room for.
pub fn measure(queues: u32, parked: u32) -> Result<Cost> {
    let kind = LevelKind::Limited(Limited {
        borrowing_limit_percent: None,
        response: LimitResponse::Queue(Queuing {
            queues,
            hand_size: 6,
            queue_length_limit: parked,
        }),
        connections: ConnectionLimits::default(),
        audited: false,
    });
    let mut set = QueueSet::new(Shape::new(&kind)?, Policy::Connections, 0);
    set.set_limit(SEATS, 0);
    let mut now = 0;
    let mut flow = 0_u64;
    let mut arrive = |set: &mut QueueSet, now: u64| {
        flow = flow.wrapping_add(0x9e37_79b9_7f4a_7c15);
        set.arrive(
            Arrival::connection(flow, 1, 0, Some(now + 1_000_000_000_000)),
            now,
        )
    };
    let mut executing = VecDeque::new();
    while set.waiting() < parked {
        now += INTERVAL;
        ensure!(
            matches!(arrive(&mut set, now), Verdict::Queued(_)),
            "refused"
        );
        while let Some(Dispatch { mut grant, .. }) = set.dispatch(now) {
            set.establish(&mut grant, now);
            executing.push_back(grant);
        }
    }

    let clock = clock_cost();
    let mut batches = [const { Vec::new() }; 3];
    for _ in 0..BATCHES {
        let mut times = [Duration::ZERO; 3];
        let mut calls = [0_u32; 3];
        for _ in 0..BATCH {
            now += INTERVAL;
            let start = Instant::now();
            let verdict = arrive(&mut set, now);
            times[0] += start.elapsed();
            calls[0] += 1;
            ensure!(matches!(verdict, Verdict::Queued(_)), "refused");

            let oldest = executing.pop_front().context("nobody executes")?;
            let start = Instant::now();
            set.finish(oldest, now);
            times[1] += start.elapsed();
            calls[1] += 1;

            // A flow that has just lost its last seat may get one of the reserved seats, too.
            loop {
                let start = Instant::now();
                let dispatch = set.dispatch(now);
                let time = start.elapsed();
                let Some(Dispatch { mut grant, .. }) = dispatch else {
                    break;
                };
                times[2] += time;
                calls[2] += 1;
                set.establish(&mut grant, now);
                executing.push_back(grant);
            }
        }
        for ((batch, time), calls) in batches.iter_mut().zip(times).zip(calls) {
            batch.push(time.as_nanos() as f64 / f64::from(calls.max(1)) - clock);
        }
    }
    let [enqueue, release, dispatch] = batches.map(median);
    Ok(Cost {
        enqueue,
        dispatch,
        release,
    })
}

/// Nanoseconds that reading the clock adds to a measurement.
fn clock_cost() -> f64 {
    let batch = |_| {
        let start = Instant::now();
        for _ in 0..BATCH {
            black_box(Instant::now());
        }
        start.elapsed().as_nanos() as f64 / f64::from(BATCH)
    };
    median((0..BATCHES).map(batch).collect())
}

/// The median, so that batches disturbed by other processes do not count.
pub fn median(mut batches: Vec<f64>) -> f64 {
    batches.sort_by(f64::total_cmp);
    batches[batches.len() / 2]
}
