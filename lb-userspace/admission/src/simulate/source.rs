//! Connections of a workload's sources, in order of time, produced one by one.

use std::{cmp::Reverse, collections::BinaryHeap};

use fastrand::Rng;

use super::workload::Source;

/// The fixed seed of random numbers, so that runs can be compared.
const SEED: u64 = 0x6e6f_6465_2d6c_6221;

/// A source's next connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceArrival {
    /// When, in nanoseconds.
    pub at: u64,
    /// Index of the source.
    pub source: usize,
    /// Which of the source's flows.
    pub flow: u32,
    /// How long it lasts once admitted, in nanoseconds.
    pub hold: u64,
}

/// All sources of a workload.
#[derive(Debug)]
pub struct Sources<'a> {
    sources: &'a [Source],
    end: u64,
    random: Vec<Rng>,
    /// The next arrival of each source that has not ended.
    next: BinaryHeap<Reverse<SourceArrival>>,
}

impl<'a> Sources<'a> {
    /// Sources that send until `end`, in nanoseconds.
    pub fn new(sources: &'a [Source], end: u64) -> Self {
        let seeds = (SEED..).take(sources.len());
        let mut all = Self {
            sources,
            end,
            random: seeds.map(Rng::with_seed).collect(),
            next: BinaryHeap::new(),
        };
        for (index, source) in sources.iter().enumerate() {
            all.schedule(index, source.start_ns);
        }
        all
    }

    /// When the next connection arrives.
    pub fn peek(&self) -> Option<u64> {
        self.next.peek().map(|Reverse(arrival)| arrival.at)
    }

    /// Draws the first arrival of a source after a moment.
    fn schedule(&mut self, index: usize, after: u64) {
        let (source, random) = (&self.sources[index], &mut self.random[index]);
        let interval = exponential(random, 1e9 / source.connections_per_second);
        let at = after.saturating_add(interval);
        if at >= self.end {
            return;
        }
        let flow = random.u32(0..source.flows);
        let hold = match source.random_holds {
            true => exponential(random, source.hold_ns as f64),
            false => source.hold_ns,
        };
        self.next.push(Reverse(SourceArrival {
            at,
            source: index,
            flow,
            hold,
        }));
    }
}

impl Iterator for Sources<'_> {
    type Item = SourceArrival;

    fn next(&mut self) -> Option<SourceArrival> {
        let Reverse(arrival) = self.next.pop()?;
        self.schedule(arrival.source, arrival.at);
        Some(arrival)
    }
}

/// A time with an exponential distribution, in whole nanoseconds.
fn exponential(random: &mut Rng, mean: f64) -> u64 {
    // Of a number in (0, 1].
    (-(1.0 - random.f64()).ln() * mean).round() as u64
}
