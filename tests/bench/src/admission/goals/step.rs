//! A client that wants more than its level has for some seconds: how soon its connections open as before.

use std::{
    thread,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use lb_tests::{Load, Request, traffic::Connect};

use super::{
    BACK_OFF,
    ground::{Ground, Response, Tenant},
    sheet::{Column, Sample},
};
use crate::{
    options::Options,
    statistics::{millis, quantile},
};

/// Seats of the level.
pub const SEATS: u32 = 50;
/// Connections that the client always has: 0.9 of the seats.
pub const USUAL: usize = 45;
/// Those that it wants besides during the step: together 1.4 times the seats.
pub const MORE: usize = 25;
/// For how long it has each.
pub const HOLD: Duration = Duration::from_millis(50);
/// Connections that begin within so long are looked at together.
pub const WINDOW: Duration = Duration::from_millis(100);

/// Time between the beginnings of two windows.
const STRIDE: Duration = Duration::from_millis(10);
/// The part of windows before the step that are no slower than what is called usual.
const USUAL_SHARE: f64 = 0.95;
const DEADLINE: Duration = Duration::from_secs(10);
/// Until the first connections of all workers are over.
const WARM_UP: Duration = Duration::from_secs(1);

const TENANT: Tenant = Tenant {
    name: "step",
    seats: SEATS,
    response: Response::Queue {
        queues: 64,
        length: 100,
        patience: 20,
        keeps_seats: true,
    },
};

/// How long the phases are.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub before: Duration,
    pub step: Duration,
    pub after: Duration,
}

impl Extent {
    /// As the command line says.
    pub fn of(options: &Options) -> Self {
        let seconds = if options.quick { [2, 2, 3] } else { [10, 5, 5] };
        let [before, step, after] = seconds.map(Duration::from_secs);
        Self {
            before,
            step,
            after,
        }
    }
}

/// The columns of the table.
pub const COLUMNS: &[Column] = &[
    Column::median("before: connect p99, ms", "before_p99_ms", 1),
    Column::median("during: p99", "during_p99_ms", 1),
    Column::median("as before after, ms", "recovery_ms", 0),
    Column::sum("not within the time", "unrecovered"),
    Column::sum("connections", "connections"),
    Column::sum("failed", "failed"),
];

/// Measures a step in a lab of its own.
///
/// # Errors
///
/// If the lab cannot be built, or no connection opens before the step.
pub fn measure(extent: Extent, xdp: &str) -> Result<Sample> {
    let ground = Ground::build(&[TENANT], 1, &[xdp])?;
    let host = &ground.noisy()[0];
    let request = Request::tcp(ground.target(0)).deadline(DEADLINE);
    let load = Load::new(request.held_for(HOLD)).pause_after_failure(BACK_OFF);
    let usual = load.workers(USUAL).keep_connects().start(host)?;
    thread::sleep(WARM_UP);
    let start = UNIX_EPOCH.elapsed()?;
    thread::sleep(extent.before);
    let step = UNIX_EPOCH.elapsed()?;
    let more = load.workers(MORE).start(host)?;
    thread::sleep(extent.step);
    // What it has asked for by then is answered still.
    let end = UNIX_EPOCH.elapsed()?;
    let more = more.stop()?;
    thread::sleep(extent.after.saturating_sub(UNIX_EPOCH.elapsed()? - end));
    let usual = usual.stop()?;
    ground.down()?;

    let mut connects = usual.each_connect;
    connects.sort_unstable_by_key(|connect| connect.at);
    let before = windows(&connects, start, step);
    let mut slowest: Vec<_> = before.map(|(_, p99)| p99).collect();
    slowest.sort_unstable();
    ensure!(!slowest.is_empty(), "no connection opened before the step");
    let former = quantile(&slowest, USUAL_SHARE);
    let during = p99(&connects, step, end).context("no connection opened during the step")?;
    let recovery = recovery(&connects, former, end, end + extent.after - WINDOW);
    Ok(vec![
        Some(millis(former)),
        Some(millis(during)),
        recovery.map(millis),
        Some(f64::from(u8::from(recovery.is_none()))),
        Some((usual.ok + more.ok) as f64),
        Some((usual.failed + more.failed) as f64),
    ])
}

/// How long after `end` the first window begins that is no slower than before; `None` if none does
/// until `limit`.
fn recovery(
    connects: &[Connect],
    former: Duration,
    end: Duration,
    limit: Duration,
) -> Option<Duration> {
    let mut after = windows(connects, end, limit + WINDOW);
    let found = after.find(|(_, p99)| *p99 <= former);
    found.map(|(begin, _)| begin - end)
}

/// The windows between two moments in which connections begin: when they begin, and the 99th percentile
/// there. Connections are in the order in which they began.
fn windows(
    connects: &[Connect],
    from: Duration,
    to: Duration,
) -> impl Iterator<Item = (Duration, Duration)> {
    let begins = (0..).map(move |number| from + STRIDE * number);
    let begins = begins.take_while(move |begin| *begin + WINDOW <= to);
    begins.filter_map(move |begin| Some((begin, p99(connects, begin, begin + WINDOW)?)))
}

/// The 99th percentile of connections that begin between two moments, in which order they are.
fn p99(connects: &[Connect], from: Duration, to: Duration) -> Option<Duration> {
    let first = connects.partition_point(|connect| connect.at < from);
    let there = connects[first..].iter();
    let there = there.take_while(|connect| connect.at < to);
    let mut took: Vec<_> = there.map(|connect| connect.took).collect();
    took.sort_unstable();
    (!took.is_empty()).then(|| quantile(&took, 0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection every millisecond for a second, which takes 1 ms, but 5 ms from `slow` to 700 ms.
    fn connects(slow: u64) -> Vec<Connect> {
        let took = |at| if (slow..700).contains(&at) { 5 } else { 1 };
        let connect = |at| Connect {
            at: Duration::from_millis(at),
            took: Duration::from_millis(took(at)),
        };
        (0..1000).map(connect).collect()
    }

    #[test]
    fn it_is_as_before_in_the_first_window_that_is_no_slower() {
        let millis = Duration::from_millis;
        let recovery = |slow, limit| recovery(&connects(slow), millis(1), millis(600), limit);
        // One connection of a hundred may be slower.
        assert_eq!(recovery(500, millis(900)), Some(millis(100)));
        assert_eq!(recovery(500, millis(650)), None);
        assert_eq!(recovery(700, millis(900)), Some(Duration::ZERO));
    }

    #[test]
    fn windows_without_connections_say_nothing() {
        let to = Duration::from_millis(1500);
        let connects = connects(700);
        let found = windows(&connects, Duration::from_millis(900), to);
        // From 900 to 990 ms.
        assert_eq!(found.count(), 10);
    }
}
