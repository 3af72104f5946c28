//! Waits until no other process uses the machine.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::machine::Ticks;

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
    let mut before = Ticks::now()?;
    loop {
        thread::sleep(WINDOW);
        let now = Ticks::now()?;
        let all = now.all - before.all;
        let idle = now.idle - before.idle;
        if !all.is_zero() && idle >= all.mul_f64(IDLE) {
            return Ok(true);
        }
        if since.elapsed() > patience {
            return Ok(false);
        }
        before = now;
    }
}
