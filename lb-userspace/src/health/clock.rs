//! Time as health checks see it, so that tests can move it.

use std::time::{Instant, SystemTime};

/// The two times health needs: one to measure with, one to show.
pub trait Clock: Send + Sync + 'static {
    /// For durations: not disturbed when somebody sets the clock.
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
