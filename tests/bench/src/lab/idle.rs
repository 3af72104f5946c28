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

/// How many samples began on an idle machine, and how many did not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Begun {
    idle: u32,
    pub busy: u32,
}

impl Begun {
    /// Counts one, before which the machine was idle or not.
    pub fn count(&mut self, idle: bool) {
        match idle {
            true => self.idle += 1,
            false => self.busy += 1,
        }
    }

    /// The same for a table's notes.
    pub fn note(self) -> String {
        format!(
            "{} of {} samples began while something else used the machine",
            self.busy,
            self.busy + self.idle
        )
    }
}
