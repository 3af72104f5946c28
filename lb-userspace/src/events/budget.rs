//! How many Events there may be: of each Service, and of the agent.

use std::{collections::HashMap, time::Duration};

use lb_objects::ObjectName;
use tokio::time::Instant;

/// What may come at once.
const BURST: u32 = 25;
/// After the burst, an Event of a Service for each of these: client-go's limits for one object.
const REFILL: Duration = Duration::from_secs(300);
/// After the burst, a request of the agent's for each of these. client-go allows five a second: of
/// a thousand nodes that would be five thousand, more than all else that an API server writes.
const REQUEST_REFILL: Duration = Duration::from_secs(10);
/// Services remembered, as in client-go.
const SERVICES: usize = 4096;

/// A token bucket for each Service that had an Event lately.
#[derive(Debug, Default)]
pub struct Budgets {
    buckets: HashMap<ObjectName, Bucket>,
}

/// The token bucket for requests about Events, whatever becomes of these.
#[derive(Debug)]
pub struct RequestBudget(Bucket);

#[derive(Debug)]
struct Bucket {
    tokens: u32,
    /// Tokens have been added up to this moment.
    filled: Instant,
    /// How long a token takes.
    refill: Duration,
}

impl Bucket {
    fn new(now: Instant, refill: Duration) -> Self {
        Self {
            tokens: BURST,
            filled: now,
            refill,
        }
    }

    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.filled);
        let due = (since.as_secs() / self.refill.as_secs()) as u32;
        self.tokens = self.tokens.saturating_add(due).min(BURST);
        match self.tokens {
            BURST => self.filled = now,
            _ => self.filled += self.refill * due,
        }
    }

    fn take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let taken = self.tokens.checked_sub(1);
        self.tokens = taken.unwrap_or_default();
        taken.is_some()
    }
}

impl RequestBudget {
    pub fn new(now: Instant) -> Self {
        Self(Bucket::new(now, REQUEST_REFILL))
    }

    /// When the next request may be sent: now or later.
    pub fn next(&mut self, now: Instant) -> Instant {
        self.0.refill(now);
        match self.0.tokens {
            0 => self.0.filled + self.0.refill,
            _ => now,
        }
    }

    /// Notes that one is sent.
    pub fn spend(&mut self, now: Instant) {
        self.0.take(now);
    }
}

impl Budgets {
    /// Takes a token of this Service. False if it has none.
    pub fn take(&mut self, service: &ObjectName, now: Instant) -> bool {
        if !self.buckets.contains_key(service) {
            self.make_room(now);
            let bucket = Bucket::new(now, REFILL);
            self.buckets.insert(service.clone(), bucket);
        }
        let bucket = self.buckets.get_mut(service);
        bucket.is_some_and(|bucket| bucket.take(now))
    }

    /// Forgets buckets that are full; if none is, the one with the most tokens.
    fn make_room(&mut self, now: Instant) {
        if self.buckets.len() < SERVICES {
            return;
        }
        self.buckets.retain(|_, bucket| {
            bucket.refill(now);
            bucket.tokens < BURST
        });
        if self.buckets.len() >= SERVICES
            && let Some((fullest, _)) = self.buckets.iter().max_by_key(|(_, b)| b.tokens)
        {
            let fullest = fullest.clone();
            self.buckets.remove(&fullest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(number: usize) -> ObjectName {
        ObjectName::new("default", format!("s{number}"))
    }

    #[test]
    fn burst_then_one_each_five_minutes() {
        let mut budgets = Budgets::default();
        let start = Instant::now();
        let taken = (0..100)
            .filter(|_| budgets.take(&service(0), start))
            .count();
        assert_eq!(taken, 25);
        assert!(budgets.take(&service(1), start), "each has its own");
        assert!(!budgets.take(&service(0), start + REFILL - Duration::from_secs(1)));
        assert!(budgets.take(&service(0), start + REFILL));
        assert!(!budgets.take(&service(0), start + REFILL));
        let later = start + REFILL * 1000;
        let taken = (0..100)
            .filter(|_| budgets.take(&service(0), later))
            .count();
        assert_eq!(taken, 25, "no more than the burst is saved up");
    }

    #[test]
    fn requests_come_at_once_and_then_at_intervals() {
        let start = Instant::now();
        let mut budget = RequestBudget::new(start);
        for _ in 0..BURST {
            assert_eq!(budget.next(start), start);
            budget.spend(start);
        }
        let mut now = start;
        for number in 1..4 {
            let next = budget.next(now);
            assert_eq!(next, start + REQUEST_REFILL * number);
            now = next;
            budget.spend(now);
        }
    }

    #[test]
    fn memory_is_bounded_and_who_is_out_of_tokens_is_remembered() {
        let mut budgets = Budgets::default();
        let now = Instant::now();
        while budgets.take(&service(0), now) {}
        for number in 1..3 * SERVICES {
            budgets.take(&service(number), now);
        }
        assert!(budgets.buckets.len() <= SERVICES);
        assert!(!budgets.take(&service(0), now));
    }
}
