//! How long endpoints take to answer, as programs count it, in people's units.

use lb_common::{
    abi::Latencies,
    flow::latency::{BUCKETS, LONGEST, UNIT, least},
};
use serde::{Deserialize, Serialize};

/// How many flows were answered within each bucket so far, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered([u32; BUCKETS]);

/// How many flows were answered within each bucket since somebody began to follow that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    buckets: [u64; BUCKETS],
    /// What programs had counted last.
    seen: Answered,
}

/// Of so many buckets, Prometheus gets one: their ends are four times as long as the one before.
const COARSE: usize = 4;

/// The latencies that half of all flows, and all but one of a hundred, have not exceeded, in
/// microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quantiles {
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Answered {
    /// Adds what was counted elsewhere.
    pub fn add(&mut self, latencies: &Latencies) {
        for (sum, more) in self.0.iter_mut().zip(latencies.buckets) {
            *sum = sum.wrapping_add(more);
        }
    }

    /// What has been counted since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut more = *self;
        for (more, before) in more.0.iter_mut().zip(before.0) {
            *more = more.wrapping_sub(before);
        }
        more
    }

    /// How many flows that are.
    pub fn flows(&self) -> u64 {
        self.0.iter().map(|flows| u64::from(*flows)).sum()
    }

    /// In the order of [`ends`].
    pub fn buckets(&self) -> &[u32] {
        &self.0
    }

    /// `None` without a flow.
    pub fn quantiles(&self) -> Option<Quantiles> {
        Some(Quantiles {
            p50_us: self.quantile(0.5)?,
            p99_us: self.quantile(0.99)?,
        })
    }

    /// The latency in microseconds that a part of the flows has not exceeded, as if those of a bucket were
    /// spread evenly over it. Flows of the last bucket count as at most four seconds.
    fn quantile(&self, part: f64) -> Option<f64> {
        let all = self.flows();
        let mut wanted = part * all as f64;
        for (bucket, flows) in self.0.iter().enumerate().filter(|(_, flows)| **flows != 0) {
            let flows = f64::from(*flows);
            if wanted <= flows {
                let (least, end) = (micros(least(bucket)), end(bucket));
                return Some(least + (end - least) * wanted / flows);
            }
            wanted -= flows;
        }
        None
    }
}

impl Total {
    /// Takes over what programs have counted by now. They count modulo 2^32, and from zero for a Service that has been
    /// deleted and made again.
    pub fn follow(&mut self, now: &Answered) {
        let seen = std::mem::replace(&mut self.seen, *now);
        let all = self.buckets.iter_mut().zip(now.0.iter().zip(seen.0));
        for (total, (now, seen)) in all {
            let more = now.wrapping_sub(seen);
            // Nobody has waited for so long that there are so many more.
            let is_anew = more > u32::MAX / 2;
            *total += u64::from(if is_anew { *now } else { more });
        }
    }

    /// Each bucket by itself.
    pub fn buckets_mut(&mut self) -> &mut [u64; BUCKETS] {
        &mut self.buckets
    }

    /// How many flows that are.
    pub fn flows(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How many flows were answered within each of some times, in seconds; the longest one is about a second.
    pub fn within(&self) -> impl Iterator<Item = (f64, u64)> {
        let coarse = (0..BUCKETS - 1).step_by(COARSE);
        coarse.map(|bucket| (end(bucket) / 1e6, self.buckets[..=bucket].iter().sum()))
    }

    /// About how many seconds their latencies are together: programs do not sum them up, so each counts as one in the
    /// middle of its bucket.
    pub fn seconds(&self) -> f64 {
        let flows = self.buckets.iter().enumerate();
        let micros = flows.map(|(bucket, flows)| {
            let middle = (micros(least(bucket)) + end(bucket)) / 2.0;
            middle * *flows as f64
        });
        micros.sum::<f64>() / 1e6
    }
}

/// Where each bucket ends, in microseconds; the last one, where longer latencies count as well.
pub fn ends() -> [f64; BUCKETS] {
    std::array::from_fn(end)
}

fn end(bucket: usize) -> f64 {
    match bucket + 1 {
        BUCKETS => micros(LONGEST),
        next => micros(least(next)),
    }
}

/// Units of latency in microseconds.
pub fn micros(latency: u32) -> f64 {
    f64::from(latency) * f64::from(UNIT) / 1e3
}

#[cfg(test)]
mod tests {
    use lb_common::flow::latency::bucket;

    use super::*;

    fn answered(latencies: impl IntoIterator<Item = u32>) -> Answered {
        let mut counted = Latencies::default();
        for latency in latencies {
            counted.buckets[bucket(latency)] += 1;
        }
        let mut answered = Answered::default();
        answered.add(&counted);
        answered
    }

    #[test]
    fn quantiles_are_within_a_bucket_of_the_truth() {
        let answered = answered(1..100_000);
        let Quantiles { p50_us, p99_us } = answered.quantiles().unwrap();
        for (found, truth) in [(p50_us, micros(50_000)), (p99_us, micros(99_000))] {
            assert!((found / truth - 1.0).abs() < 0.2, "{found} {truth}");
        }
        assert!(p50_us < p99_us);
    }

    #[test]
    fn there_are_none_without_a_flow_and_no_endless_ones() {
        assert_eq!(Answered::default().quantiles(), None);
        let slow = answered([u32::MAX]).quantiles().unwrap();
        assert!(slow.p99_us <= micros(LONGEST) && slow.p50_us >= micros(LONGEST) / 2.0);
    }

    #[test]
    fn what_came_since_then_counts_though_counters_begin_anew() {
        let before = Answered([u32::MAX; BUCKETS]);
        let mut now = before;
        let mut more = Latencies::default();
        more.buckets[3] = 5;
        now.add(&more);
        assert_eq!(now.since(&before).flows(), 5);
        assert_eq!(now.since(&before).buckets()[3], 5);
    }

    #[test]
    fn a_total_goes_on_where_counters_begin_anew() {
        let mut total = Total::default();
        let half = u32::MAX / 2;
        for counted in [half, half, u32::MAX - 1, u32::MAX] {
            total.follow(&Answered([counted; BUCKETS]));
        }
        let mut counted = Answered([u32::MAX; BUCKETS]);
        let mut more = Latencies::default();
        more.buckets[0] = 3;
        more.buckets[BUCKETS - 1] = 1;
        counted.add(&more);
        total.follow(&counted);
        let each = u64::from(u32::MAX);
        assert_eq!(total.flows(), each * BUCKETS as u64 + 4);
        let within: Vec<_> = total.within().collect();
        assert_eq!((within[0].1, within[1].1), (each + 3, 5 * each + 3));
        for pair in within.windows(2) {
            assert!((pair[1].0 / pair[0].0 - 4.0).abs() < 1e-9, "{pair:?}");
        }
        assert_eq!(within.len(), 8);
        assert!(within[7].0 > 1.0 && within[7].1 < total.flows());
    }

    #[test]
    fn a_service_that_is_made_again_counts_from_zero() {
        let mut total = Total::default();
        for counted in [1000, 7, 10] {
            total.follow(&Answered([counted; BUCKETS]));
        }
        assert_eq!(total.flows(), 1010 * BUCKETS as u64);
    }

    #[test]
    fn the_sum_of_latencies_is_about_right() {
        let mut total = Total::default();
        total.follow(&answered(1..100_000));
        let truth: f64 = (1..100_000).map(|latency| micros(latency) / 1e6).sum();
        assert!(
            (total.seconds() / truth - 1.0).abs() < 0.02,
            "{} {truth}",
            total.seconds()
        );
    }

    #[test]
    fn each_bucket_ends_after_the_one_before_it() {
        assert!(ends().is_sorted_by(|one, next| one < next));
        assert!((ends()[0] - 65.536).abs() < 1e-9);
    }
}
