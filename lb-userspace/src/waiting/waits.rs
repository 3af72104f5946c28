//! How long connections have waited.

use std::{ops::AddAssign, time::Duration};

/// Upper bounds of the buckets: those of APF's `request_wait_duration_seconds`. Longer waits have a bucket
/// of their own.
const BOUNDS: [Duration; 13] = [
    Duration::ZERO,
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// A histogram of waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many waits each bucket has, without those of the buckets before it.
    buckets: [u64; BOUNDS.len() + 1],
    total: Duration,
}

impl AddAssign for Waits {
    fn add_assign(&mut self, other: Self) {
        for (waits, others) in self.buckets.iter_mut().zip(other.buckets) {
            *waits += others;
        }
        self.total += other.total;
    }
}

impl Waits {
    /// Adds one.
    pub fn add(&mut self, wait: Duration) {
        let bucket = BOUNDS.partition_point(|bound| *bound < wait);
        self.buckets[bucket] += 1;
        self.total += wait;
    }

    /// How many there were.
    pub fn number(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How long they were together.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// How long they were on average; zero if there was none.
    pub fn mean(&self) -> Duration {
        let nanoseconds = self.total.as_nanos().checked_div(self.number().into());
        Duration::from_nanos(nanoseconds.unwrap_or(0) as u64)
    }

    /// How many were not longer than each bound.
    pub fn up_to_bounds(&self) -> impl Iterator<Item = (Duration, u64)> {
        let sums = self.buckets.iter().scan(0, |sum, waits| {
            *sum += waits;
            Some(*sum)
        });
        BOUNDS.into_iter().zip(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_in_the_bucket_whose_bound_it_does_not_exceed() {
        let mut waits = Waits::default();
        assert_eq!(waits.mean(), Duration::ZERO);
        let all = [0, 4_999, 5_000, 5_001, 30_000_000, 30_000_001];
        for wait in all {
            waits.add(Duration::from_micros(wait));
        }
        let up_to: Vec<_> = waits.up_to_bounds().map(|(_, waits)| waits).collect();
        assert_eq!(up_to, [1, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5]);
        assert_eq!(waits.number(), 6);
        let total = Duration::from_micros(all.iter().sum());
        assert_eq!((waits.total(), waits.mean()), (total, total / 6));
    }
}
