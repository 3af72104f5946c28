//! Progress of a level: R, the work that an ideally fair queue would have received by now.

use super::QueueSet;
use crate::seat_seconds::SeatSeconds;

/// R is reduced by this before it overflows.
pub const R_DECREMENT: SeatSeconds = SeatSeconds::from_units(u64::MAX / 2);
/// R is reduced once it has reached this.
pub const HIGH_R: SeatSeconds = SeatSeconds::from_units(u64::MAX / 2 + u64::MAX / 4);

/// How far a queue may be ahead of the others: a fair share of the seats for so many nanoseconds.
const MAX_DEBT: u64 = 10_000_000_000;

impl QueueSet {
    /// Forgets what queues had long ago: a flow that held much is not kept waiting for as long. It
    /// looks at every queue, and is to be called now and then, so that no debt overflows.
    pub fn limit_debts(&mut self, now: u64) {
        self.synchronise(now);
        for index in 0..self.queues.len() {
            self.limit_debt(self.queues.slot(index), now);
        }
        self.tick.is_stale = true;
    }

    /// The same for one queue.
    pub(super) fn limit_debt(&mut self, slot: u32, now: u64) {
        if !self.policy.charges_continuously() {
            return;
        }
        let share = u64::from(self.limit).div_ceil(u64::from(self.queues.active().max(1)));
        let most = SeatSeconds::since_origin(share, MAX_DEBT);
        let queue = self.queues.at_mut(slot);
        // Negative if the queue is behind.
        let ahead = (queue.usage(now) - self.r).units() as i64;
        if ahead > most.units() as i64 {
            queue.set_usage(self.r + most, now);
        }
    }

    /// Brings R up to date, and forgets flows of long ago; every change does this first. R grows by
    /// the seats in demand, at most the limit, divided by the number of active queues.
    pub fn synchronise(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.synchronised_at);
        self.synchronised_at = self.synchronised_at.max(now);
        // No seats are kept any more for flows that have not come for long.
        self.ready |= self.flows.expire(now);
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
        self.tick.is_stale = true;
        self.counts.level.epoch_advances += 1;
    }
}
