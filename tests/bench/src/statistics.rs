//! Medians, ranges and random numbers.

use std::time::Duration;

use serde::Serialize;

/// In milliseconds.
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// In microseconds.
pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// In MiB.
pub fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Median and range of samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Figures {
    /// The figures of some samples; `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        if sorted.is_empty() {
            return None;
        }
        let median = median(&mut sorted);
        Some(Self {
            median,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }

    /// The range, for people, with a number of decimals.
    pub fn range(&self, decimals: usize) -> String {
        format!("[{:.decimals$}..{:.decimals$}]", self.min, self.max)
    }
}

/// The middle of some samples, which are sorted. There must be one.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let count = samples.len();
    (samples[(count - 1) / 2] + samples[count / 2]) / 2.0
}

/// The smallest value such that the part `share` of the sorted samples is not above it. There must
/// be a sample.
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> T {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Pseudo-random numbers (SplitMix64): the same in every run of the benchmark.
pub struct Random(u64);

impl Random {
    /// The sequence that starts with `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number less than `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        (((self.next() >> 32) * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn figures_are_of_unsorted_samples() {
        let figures = Figures::of(&[3.0, 1.0, 2.5]).unwrap();
        assert_eq!((figures.median, figures.min, figures.max), (2.5, 1.0, 3.0));
        assert_eq!(figures.range(1), "[1.0..3.0]");
        assert_eq!(Figures::of(&[]), None);
    }

    #[test]
    fn quantiles() {
        let samples: Vec<u32> = (1..=200).collect();
        assert_eq!(quantile(&samples, 0.5), 100);
        assert_eq!(quantile(&samples, 0.99), 198);
        assert_eq!(quantile(&samples, 1.0), 200);
        assert_eq!(quantile(&[7], 0.01), 7);
    }

    #[test]
    fn draws_reach_all_and_nothing_else() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        (0..1000).for_each(|_| seen[random.below(5) as usize] = true);
        assert_eq!(seen, [true; 5]);
    }
}
