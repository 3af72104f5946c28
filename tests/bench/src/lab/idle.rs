//! Waits until no other process uses the machine.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

/// How long the CPUs are watched.
const WINDOW: Duration = Duration::from_millis(40);
/// The part of the window in which all CPUs together must be idle.
const IDLE: f64 = 0.9;

/// Waits until the machine is idle, at most for `patience`. Returns whether it is idle.
///
/// # Errors
///
/// If the kernel's statistics cannot be read.
pub fn wait(patience: Duration) -> Result<bool> {
    let since = Instant::now();
    let mut before = ticks()?;
    loop {
        thread::sleep(WINDOW);
        let now = ticks()?;
        let all = now.all - before.all;
        if all != 0 && (now.idle - before.idle) as f64 >= IDLE * all as f64 {
            return Ok(true);
        }
        if since.elapsed() > patience {
            return Ok(false);
        }
        before = now;
    }
}

/// Clock ticks of all CPUs since boot.
struct Ticks {
    idle: u64,
    all: u64,
}

/// Reads `/proc/stat` (proc_stat(5)).
fn ticks() -> Result<Ticks> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let fields = line.strip_prefix("cpu ").context("no cpu in /proc/stat")?;
    let fields = fields.split_whitespace().map(str::parse::<u64>);
    let fields: Vec<u64> = fields.collect::<Result<_, _>>()?;
    // user nice system idle iowait irq softirq steal; guests' time is included in user.
    Ok(Ticks {
        idle: fields.iter().skip(3).take(2).sum(),
        all: fields.iter().take(8).sum(),
    })
}
