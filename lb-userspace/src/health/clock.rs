//! The clock of health checks, so that tests can set it.

use std::time::{Instant, SystemTime};

/// The two times health needs: one to measure with, one to show.
pub trait Clock: Send + Sync + 'static {
    /// For durations: not affected when the system's clock is set.
    fn monotonic(&self) -> Instant;

    /// For people.
    fn wall(&self) -> SystemTime;
}

/// The system's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic(&self) -> Instant {
        Instant::now()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}
