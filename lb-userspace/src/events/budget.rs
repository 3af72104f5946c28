//! Limits the number of Events per Service.

use std::{collections::HashMap, time::Duration};

use lb_objects::ObjectName;
use tokio::time::Instant;

/// So many Events at once, then one in each [`REFILL`]: client-go's limits for one object.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
/// How many Services are remembered, as in client-go.
const SERVICES: usize = 4096;

/// A token bucket for each Service that had an Event lately.
#[derive(Debug, Default)]
pub struct Budgets {
    buckets: HashMap<ObjectName, Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: u32,
    /// Tokens have been added up to this moment.
    filled: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self {
            tokens: BURST,
            filled: now,
        }
    }

    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.filled);
        let due = (since.as_secs() / REFILL.as_secs()) as u32;
        self.tokens = self.tokens.saturating_add(due).min(BURST);
        match self.tokens {
            BURST => self.filled = now,
            _ => self.filled += REFILL * due,
        }
    }
}

impl Budgets {
    /// Takes a token of this Service. False if it has none.
    pub fn take(&mut self, service: &ObjectName, now: Instant) -> bool {
        if !self.buckets.contains_key(service) {
            self.make_room(now);
            self.buckets.insert(service.clone(), Bucket::new(now));
        }
        let Some(bucket) = self.buckets.get_mut(service) else {
            return false;
        };
        bucket.refill(now);
        let taken = bucket.tokens.checked_sub(1);
        bucket.tokens = taken.unwrap_or_default();
        taken.is_some()
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
        ObjectName {
            namespace: "default".to_owned(),
            name: format!("s{number}"),
        }
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
