//! How long to wait before a request is repeated.

use std::time::Duration;

use tokio::time::Instant;

/// The first wait; each following one is twice as long.
const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait while failures may be over soon.
const LONGEST_AT_FIRST: Duration = Duration::from_secs(4);
/// An API server that starts again is back within this time.
const SOON: Duration = Duration::from_secs(60);
/// After so long without a failure, waits start short again.
const QUIET: Duration = Duration::from_secs(120);

/// Exponential back-off with jitter, with the times of client-go's reflectors in the end.
///
/// At first waits grow less than there. Whoever follows a server that is away for some seconds has
/// what changed meanwhile some seconds later, and few requests are the price of it.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    /// When the first failure in a row happened.
    began: Option<Instant>,
    last: Option<Instant>,
    /// How long waits stay below [`LONGEST_AT_FIRST`].
    at_first: Duration,
}

impl Backoff {
    /// For requests that a server does not answer.
    pub fn new() -> Self {
        Self::with(SOON)
    }

    /// For requests whose answer breaks off, of a server that did answer: its failures are short.
    pub fn of_breaks() -> Self {
        Self::with(Duration::MAX)
    }

    /// For requests that cost a server much, or can wait: as client-go's from the first one on.
    pub fn steep() -> Self {
        Self::with(Duration::ZERO)
    }

    fn with(at_first: Duration) -> Self {
        Self {
            next: FIRST,
            began: None,
            last: None,
            at_first,
        }
    }

    /// How long to wait after a failure that happened just now. The time is stretched at random by
    /// up to 100 %, so that the nodes of a cluster do not all come back at once.
    pub fn after_failure(&mut self) -> Duration {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last >= QUIET) {
            *self = Self::with(self.at_first);
        }
        let began = *self.began.get_or_insert(now);
        self.last = Some(now);
        let wait = self.next;
        let longest = match now - began < self.at_first {
            true => LONGEST_AT_FIRST,
            false => LONGEST,
        };
        self.next = (wait * 2).min(longest);
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

    /// Fails so often, one time after the other, and returns the waits without their jitter.
    async fn waits(backoff: &mut Backoff, number: usize) -> Vec<Duration> {
        let mut waits = Vec::new();
        for _ in 0..number {
            let wait = backoff.next;
            let stretched = backoff.after_failure();
            assert!((wait..wait * 2).contains(&stretched), "{stretched:?}");
            tokio::time::advance(stretched).await;
            waits.push(wait);
        }
        waits
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_the_longest_and_shrink_after_quiet() {
        let mut backoff = Backoff::steep();
        let seconds = [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0];
        assert_eq!(
            waits(&mut backoff, 8).await,
            seconds.map(Duration::from_secs_f64)
        );
        tokio::time::advance(QUIET).await;
        assert!(backoff.after_failure() < FIRST * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_over_soon_is_looked_at_soon() {
        let mut backoff = Backoff::new();
        let began = Instant::now();
        while began.elapsed() < SOON {
            let wait = waits(&mut backoff, 1).await[0];
            assert!(wait <= LONGEST_AT_FIRST, "{wait:?}");
        }
        assert_eq!(waits(&mut backoff, 5).await.pop(), Some(LONGEST));
        let mut breaks = Backoff::of_breaks();
        assert_eq!(waits(&mut breaks, 40).await.pop(), Some(LONGEST_AT_FIRST));
    }
}
