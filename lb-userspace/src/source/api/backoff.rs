//! How long to wait before asking again.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait; each following one is twice as long.
const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// Without a failure for this long, waits are short again.
const QUIET: Duration = Duration::from_secs(120);

/// Exponential back-off with jitter; times as client-go's reflectors have them.
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

    /// How long to wait after a failure just now: stretched by up to 100 % at random, so that the
    /// nodes of a cluster do not come back all at once.
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

/// A random time, shorter than this.
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
