//! Connections that wait without number: what they cost the agent.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    attack::{Flood, FloodKind},
    patience::try_eventually,
};

use super::{
    ground::{Ground, Response, Tenant},
    sheet::{Column, Sample},
};
use crate::{
    cluster::usage::{Memory, memory},
    machine::cpu_time,
};

/// Connections that are to wait.
pub const CROWD: u32 = 100_000;
/// Seats of each level. Connections that are open have them all.
pub const SEATS: u32 = 10;
/// How long a connection waits.
pub const WAIT: Duration = Duration::from_secs(5);

/// A level keeps 16 MiB of SYNs, which is less than the crowd has.
const TENANTS: [Tenant; 2] = [tenant("left"), tenant("right")];
/// So many SYNs a second that the crowd is there well before the first ones have waited for too long.
const FAST: u32 = 30_000;
/// So many that those who have waited for too long are replaced.
const STEADY: u32 = CROWD / WAIT.as_secs() as u32;
/// How long the crowd is watched while nobody comes or goes, from so long after the first one came.
const STILL: Duration = Duration::from_millis(500);
const GATHERED: Duration = Duration::from_millis(4300);
/// How long it is watched while people come and go.
const WATCHED: Duration = Duration::from_secs(10);
/// How often those who wait are counted then.
const LOOK: Duration = Duration::from_secs(2);

const fn tenant(name: &'static str) -> Tenant {
    Tenant {
        name,
        seats: SEATS,
        response: Response::Queue {
            queues: 128,
            length: 2000,
            patience: 4 * WAIT.as_secs() as u32,
            keeps_seats: false,
        },
    }
}

/// The columns of the table.
pub const COLUMNS: &[Column] = &[
    Column::median("wait", "waiting", 0),
    Column::median("agent: % of a CPU", "agent_cpu_percent", 1),
    Column::median("octets each", "octets_each", 0),
    Column::median("come/s", "come_per_second", 0),
    Column::median("time-outs/s", "timed_out_per_second", 0),
    Column::median("find no room", "queue_full", 0),
];

/// Measures the agent beside nobody, beside a crowd that waits, and beside one whose members come and go, in
/// a lab of its own.
///
/// # Errors
///
/// If the lab cannot be built, or seats cannot be taken.
pub fn measure(xdp: &str) -> Result<[(&'static str, Sample); 3]> {
    let ground = Ground::build(&TENANTS, 1, &[xdp])?;
    let targets = [0, 1].map(|tenant| ground.target(tenant));
    let seats = [ground.take_seats(0, 0)?, ground.take_seats(0, 1)?];
    let empty = Watched::over(&ground, WATCHED / 2)?;
    let (before, counts) = (own_memory(&ground)?, Counts::now(&ground)?);

    let since = Instant::now();
    let flood = Flood::new(FloodKind::Syn, targets).rate(FAST);
    let flood = flood.limit(CROWD.into()).start(&ground.noisy()[0])?;
    flood.wait()?;
    thread::sleep(GATHERED.saturating_sub(since.elapsed()));
    let still = Watched::over(&ground, STILL)?;
    let turned_away = Counts::now(&ground)?.queue_full - counts.queue_full;
    let grown = own_memory(&ground)?.saturating_sub(before);
    try_eventually(|| {
        let waiting = Counts::now(&ground)?.waiting;
        ensure!(waiting == 0, "{waiting} connections wait still");
        Ok(())
    })?;

    let flood = Flood::new(FloodKind::Syn, targets).rate(STEADY);
    let flood = flood.start(&ground.noisy()[0])?;
    thread::sleep(WAIT + Duration::from_secs(1));
    let moving = Watched::over(&ground, WATCHED)?;
    let sent = flood.stop()?.rate();
    drop(seats);
    ground.down()?;

    let each = (still.waiting > 0.0).then(|| grown as f64 / still.waiting);
    Ok([
        ("nobody waits", empty.sample(None, None, None)),
        (
            "a crowd waits",
            still.sample(each, None, Some(turned_away as f64)),
        ),
        (
            "a crowd waits, and others take its place",
            moving.sample(None, Some(sent), None),
        ),
    ])
}

/// The agent's memory that it shares with no other process, in octets.
fn own_memory(ground: &Ground) -> Result<u64> {
    let Memory { own, .. } = memory(ground.agent()?)?;
    Ok(own)
}

/// What the agent counts of all levels.
struct Counts {
    waiting: u32,
    timed_out: u64,
    queue_full: u64,
}

impl Counts {
    fn now(ground: &Ground) -> Result<Self> {
        let mut counts = Self {
            waiting: 0,
            timed_out: 0,
            queue_full: 0,
        };
        for tenant in 0..TENANTS.len() {
            let (level, schema) = ground.counts(tenant)?;
            counts.waiting += level.waiting;
            counts.timed_out += schema.timed_out;
            counts.queue_full += level.queue_full;
        }
        Ok(counts)
    }
}

/// What the agent does for some time.
struct Watched {
    /// How many wait, on average.
    waiting: f64,
    /// Part of a processor that the agent uses.
    cpu: f64,
    /// In a second.
    timed_out: f64,
}

impl Watched {
    fn over(ground: &Ground, time: Duration) -> Result<Self> {
        let agent = ground.agent()?;
        let first = Counts::now(ground)?;
        let (since, before) = (Instant::now(), cpu_time(agent)?);
        let mut waiting = vec![first.waiting];
        while since.elapsed() < time {
            thread::sleep(LOOK.min(time.saturating_sub(since.elapsed())));
            if since.elapsed() < time {
                waiting.push(Counts::now(ground)?.waiting);
            }
        }
        let (elapsed, after) = (since.elapsed().as_secs_f64(), cpu_time(agent)?);
        let last = Counts::now(ground)?;
        waiting.push(last.waiting);
        let sum: f64 = waiting.iter().map(|number| f64::from(*number)).sum();
        Ok(Self {
            waiting: sum / waiting.len() as f64,
            cpu: (after - before).as_secs_f64() / elapsed,
            timed_out: (last.timed_out - first.timed_out) as f64 / elapsed,
        })
    }

    fn sample(
        &self,
        octets_each: Option<f64>,
        come: Option<f64>,
        queue_full: Option<f64>,
    ) -> Sample {
        vec![
            Some(self.waiting),
            Some(100.0 * self.cpu),
            octets_each,
            come,
            Some(self.timed_out),
            queue_full,
        ]
    }
}
