//! How long to wait before a request is repeated.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait; each following one is twice as long.
const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// After so long without a failure, waits start short again.
const QUIET: Duration = Duration::from_secs(120);

/// Exponential back-off with jitter, with the times of client-go's reflectors.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    last: Option<Instant>,
}

impl Backoff {
    pub fn new() -> Self {
        Self {
            next: FIRST,
            last: None,
        }
    }

    /// How long to wait after a failure that happened just now. The time is stretched at random by
    /// up to 100 %, so that the nodes of a cluster do not all come back at once.
    pub fn after_failure(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last >= QUIET) {
            self.next = FIRST;
        }
        self.last = Some(now);
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        wait + up_to(wait)
    }
}

/// A random time below `limit`.
pub fn up_to(limit: Duration) -> Duration {
    limit.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_the_longest_and_shrink_after_quiet() {
        let mut backoff = Backoff::new();
        let mut expected = FIRST;
        for _ in 0..10 {
            let wait = backoff.after_failure();
            assert!((expected..expected * 2).contains(&wait), "{wait:?}");
            expected = (expected * 2).min(LONGEST);
            tokio::time::advance(wait).await;
        }
        assert_eq!(expected, LONGEST);
        tokio::time::advance(QUIET).await;
        assert!(backoff.after_failure() < FIRST * 2);
    }
}
