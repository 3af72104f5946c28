//! Progress of a level: R, how much work an ideally fair queue would have been given by now.

use super::QueueSet;
use crate::seat_seconds::SeatSeconds;

/// What R is reduced by before it overflows.
pub const R_DECREMENT: SeatSeconds = SeatSeconds::from_units(u64::MAX / 2);
/// When it is.
pub const HIGH_R: SeatSeconds = SeatSeconds::from_units(u64::MAX / 2 + u64::MAX / 4);

/// What a queue may have had in advance of the others: all seats for so many nanoseconds.
const MAX_DEBT: u64 = 600_000_000_000;

impl QueueSet {
    /// Forgets what queues had long ago: connections that last for days must not bar their flow for
    /// as long. To be called every now and then; looks at every queue.
    pub fn limit_debts(&mut self, now: u64) {
        self.synchronise(now);
        let most = SeatSeconds::since_origin(u64::from(self.limit), MAX_DEBT);
        for index in 0..self.queues.len() {
            let slot = self.queues.slot(index);
            let queue = self.queues.at_mut(slot);
            // Negative if the queue is behind.
            let ahead = (queue.usage(now) - self.r).units() as i64;
            if ahead > most.units() as i64 {
                queue.set_usage(self.r + most, now);
            }
        }
    }

    /// Brings R up to date, which all changes do first: it grows by the seats in demand, or as many
    /// as there are, divided among the active queues.
    pub fn synchronise(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.synchronised_at);
        self.synchronised_at = self.synchronised_at.max(now);
        let active = self.queues.active();
        if elapsed == 0 || active == 0 {
            return;
        }
        let seats = self.requested_seats.min(u64::from(self.limit));
        let rate = seats as f64 / f64::from(active);
        self.r += SeatSeconds::new(rate, i64::try_from(elapsed).unwrap_or(i64::MAX));
        if self.r >= HIGH_R {
            self.advance_epoch(now);
        }
    }

    /// Shifts the origin of all progress, so that nothing overflows and no order changes.
    fn advance_epoch(&mut self, now: u64) {
        self.r -= R_DECREMENT;
        for index in 0..self.queues.len() {
            let slot = self.queues.slot(index);
            let queue = self.queues.at_mut(slot);
            let usage = match queue.is_active() {
                true => queue.usage(now) - R_DECREMENT,
                false => SeatSeconds::ZERO,
            };
            queue.set_usage(usage, now);
        }
        for connection in self.connections.iter_mut() {
            connection.arrival_r -= R_DECREMENT;
        }
        self.counters.epoch_advances += 1;
    }
}
