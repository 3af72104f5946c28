//! What a simulation records.

use hdrhistogram::Histogram;

use crate::queueset::{QueueSet, Rejections};

/// Most samples of seats over time that are kept.
const MAX_SAMPLES: usize = 256;
/// Time between the first samples, in nanoseconds; doubled whenever there are too many.
const FIRST_INTERVAL: u64 = 1_000_000;

/// Waiting times, and numbers of connections by outcome.
#[derive(Clone, Debug)]
pub struct Outcomes {
    pub executions: u64,
    pub rejections: Rejections,
    /// Waiting times of the admitted connections, in nanoseconds.
    pub waits: Histogram<u64>,
}

/// The record of one flow.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    pub executions: u64,
    pub rejections: u64,
    pub max_wait: u64,
    /// Seats of executing connections times time, in seat-nanoseconds.
    pub seat_time: u128,
    seats: u64,
    waiting: u64,
}

/// How evenly the seats of a level are divided among its flows over time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evenness {
    /// Number of flows that hold or want a seat.
    flows: u64,
    seats: u64,
    squares: u128,
    waiting: u64,
    /// Integral of Jain's index over time, and that time, in seconds; both only while a connection
    /// waits.
    integral: f64,
    seconds: f64,
    measured_at: u64,
}

/// Seats of a level at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub at: u64,
    pub limit: u32,
    pub in_use: u64,
    pub waiting: u64,
}

/// Samples of a level at even intervals, at most [`MAX_SAMPLES`].
#[derive(Clone, Debug)]
pub struct Samples {
    pub samples: Vec<Sample>,
    interval: u64,
    next: u64,
}

impl Outcomes {
    pub fn new() -> Self {
        Self {
            executions: 0,
            rejections: Rejections::default(),
            waits: Histogram::new(3).expect("histograms of up to 5 digits exist"),
        }
    }

    pub fn admit(&mut self, wait: u64) {
        self.executions += 1;
        self.waits
            .record(wait)
            .expect("the histogram grows as needed");
    }
}

impl Flow {
    fn has_demand(&self) -> bool {
        self.seats > 0 || self.waiting > 0
    }
}

impl Evenness {
    /// Changes the seats that a flow holds and waits for.
    pub fn change(&mut self, flow: &mut Flow, seats: i64, waiting: i64, now: u64) {
        let elapsed = now - self.measured_at;
        self.measured_at = now;
        if self.waiting > 0 && self.seats > 0 && elapsed > 0 {
            let seats = self.seats as f64;
            let index = seats * seats / (self.flows as f64 * self.squares as f64);
            self.integral += index * elapsed as f64;
            self.seconds += elapsed as f64;
        }
        self.flows -= u64::from(flow.has_demand());
        self.squares -= square(flow.seats);
        flow.seats = flow.seats.wrapping_add_signed(seats);
        flow.waiting = flow.waiting.wrapping_add_signed(waiting);
        self.flows += u64::from(flow.has_demand());
        self.squares += square(flow.seats);
        self.seats = self.seats.wrapping_add_signed(seats);
        self.waiting = self.waiting.wrapping_add_signed(waiting);
    }

    /// Mean of Jain's index over the time in which a connection waited; `None` if none did.
    pub fn jain_index(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.integral / self.seconds)
    }
}

impl Samples {
    pub fn new() -> Self {
        Self {
            samples: Vec::new(),
            interval: FIRST_INTERVAL,
            next: 0,
        }
    }

    /// Takes the samples that are due before `now`. Nothing has changed until then.
    pub fn advance(&mut self, level: &QueueSet, now: u64) {
        while self.next < now {
            self.samples.push(Sample {
                at: self.next,
                limit: level.limit(),
                in_use: level.seats_in_use(),
                waiting: level.seats_waiting(),
            });
            if self.samples.len() > MAX_SAMPLES {
                self.interval *= 2;
                self.samples.retain(|sample| sample.at % self.interval == 0);
            }
            self.next = (self.next / self.interval + 1) * self.interval;
        }
    }
}

fn square(seats: u64) -> u128 {
    u128::from(seats) * u128::from(seats)
}

/// Jain's index of shares: 1 if all are equal, 1/n if one of n has everything. `None` without
/// shares.
pub fn jain_index(shares: impl Iterator<Item = f64>) -> Option<f64> {
    let (number, sum, squares) = shares.fold((0.0, 0.0, 0.0), |(number, sum, squares), share| {
        (number + 1.0, sum + share, squares + share * share)
    });
    (squares > 0.0).then(|| sum * sum / (number * squares))
}
