//! A clock that moves when told to.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use node_lb::health::clock::Clock;

#[derive(Clone)]
pub struct ManualClock {
    monotonic: Instant,
    wall: SystemTime,
    advanced: Arc<Mutex<Duration>>,
}

impl ManualClock {
    pub fn new() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789),
            advanced: Arc::default(),
        }
    }

    pub fn advance(&self, by: Duration) {
        *self.advanced.lock().unwrap() += by;
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Instant {
        self.monotonic + *self.advanced.lock().unwrap()
    }

    fn wall(&self) -> SystemTime {
        self.wall + *self.advanced.lock().unwrap()
    }
}
