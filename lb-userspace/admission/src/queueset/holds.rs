//! What the connections of a queue hold, as numbers, and for how long they hold it.

use std::ops::AddAssign;

use crate::seat_seconds::SeatSeconds;

/// Lent seats should come back within so many nanoseconds.
pub const RECLAIM_TARGET: u64 = 5_000_000_000;
/// After about so many ends a mean has followed a change.
const SMOOTHING: i64 = 16;

/// The connections that hold seats of one queue, as numbers. Whoever lets connections in without
/// asking (the kernel) counts them like this, and [`super::QueueSet::observe`] takes it over.
///
/// Times of the clock enter as [`SeatSeconds::since_origin`]; sums wrap around, and differences are
/// right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// Connections that are not over.
    pub executing: u32,
    /// Seats held, lingering ones included.
    pub seats: u64,
    /// Seats of those whose handshake is not complete.
    pub half_open: u64,
    /// For each held seat, the moment at which it was taken.
    pub taken_at: SeatSeconds,
    /// Seats that have come back.
    pub released: u64,
    /// For how long those were held.
    pub released_time: SeatSeconds,
}

impl Holds {
    /// A connection takes seats.
    pub fn take(&mut self, width: u32, now: u64) {
        self.seats += u64::from(width);
        self.taken_at += SeatSeconds::since_origin(u64::from(width), now);
    }

    /// Seats that were taken at `taken_at` come back.
    pub fn release(&mut self, width: u32, taken_at: u64, now: u64) {
        self.forget(width, taken_at);
        let width = u64::from(width);
        self.released += width;
        self.released_time +=
            SeatSeconds::since_origin(width, now) - SeatSeconds::since_origin(width, taken_at);
    }

    /// Seats that were taken at `taken_at` come back, as if they had never been taken.
    pub fn forget(&mut self, width: u32, taken_at: u64) {
        self.seats = self.seats.saturating_sub(u64::from(width));
        self.taken_at -= SeatSeconds::since_origin(u64::from(width), taken_at);
    }

    /// For how long the seats held now have been held, in sum.
    pub fn held_time(&self, now: u64) -> SeatSeconds {
        SeatSeconds::since_origin(self.seats, now) - self.taken_at
    }

    /// All seat-seconds so far.
    pub fn used(&self, now: u64) -> SeatSeconds {
        self.released_time + self.held_time(now)
    }
}

impl AddAssign for Holds {
    fn add_assign(&mut self, other: Self) {
        self.executing = self.executing.saturating_add(other.executing);
        self.seats += other.seats;
        self.half_open += other.half_open;
        self.taken_at += other.taken_at;
        self.released += other.released;
        self.released_time += other.released_time;
    }
}

/// A mean of holds that follows changes.
#[derive(Clone, Copy, Debug)]
pub struct MeanHold {
    /// In nanoseconds.
    nanoseconds: u64,
    least: u64,
    most: u64,
}

impl MeanHold {
    /// Starts with, and never goes below, `least` nanoseconds.
    pub fn new(least: u64, most: u64) -> Self {
        Self {
            nanoseconds: least,
            least,
            most,
        }
    }

    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds
    }

    /// Adds one hold.
    pub fn observe(&mut self, held: u64) {
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        let change = (held - self.nanoseconds as i64) / SMOOTHING;
        self.nanoseconds = self
            .nanoseconds
            .saturating_add_signed(change)
            .clamp(self.least, self.most);
    }
}

/// Whether seats come back soon, judged by what was held lately and by what is held now. A queue
/// with many short connections cannot vouch for its long ones: those raise the age of what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turnover {
    /// Nothing has come back yet, and nothing has been held for long.
    Unknown,
    Short,
    Long,
}

/// Judges holds. `mean` is that of ended ones.
pub fn turnover(holds: &Holds, mean: &MeanHold, now: u64) -> Turnover {
    let soon = SeatSeconds::since_origin(holds.seats, RECLAIM_TARGET);
    if holds.held_time(now) > soon || mean.nanoseconds() > RECLAIM_TARGET {
        return Turnover::Long;
    }
    match holds.released {
        0 => Turnover::Unknown,
        _ => Turnover::Short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn churn_does_not_vouch_for_long_holds() {
        let mut holds = Holds::default();
        let mut mean = MeanHold::new(0, 100 * SECOND);
        assert_eq!(turnover(&holds, &mean, 0), Turnover::Unknown);
        holds.take(2, 0);
        for second in 0..10 {
            let now = second * SECOND;
            holds.take(8, now);
            holds.release(8, now, now + SECOND);
            mean.observe(SECOND);
        }
        assert_eq!(
            holds.used(10 * SECOND),
            SeatSeconds::new(100.0, SECOND as i64)
        );
        assert_eq!(turnover(&holds, &mean, 5 * SECOND), Turnover::Short);
        assert_eq!(
            turnover(&holds, &mean, 10 * SECOND),
            Turnover::Long,
            "two seats of ten"
        );
        holds.forget(2, 0);
        assert_eq!(turnover(&holds, &mean, 10 * SECOND), Turnover::Short);
        for _ in 0..40 {
            mean.observe(20 * SECOND);
        }
        assert_eq!(turnover(&holds, &mean, 10 * SECOND), Turnover::Long);
    }
}
