//! How connections leave their queues, and how they give back their seats.

use super::{
    ESTIMATED_DURATION, Expiry, HOLD_SMOOTHING, MAX_TYPICAL_HOLD, QueueSet, Rejection,
    connection::{Handle, NONE, State},
};
use crate::seat_seconds::SeatSeconds;

impl QueueSet {
    /// A connection's handshake is complete. False if it holds no seats, or was complete before.
    pub fn establish(&mut self, handle: Handle, now: u64) -> bool {
        let Some(index) = self.find(handle, State::Executing) else {
            return false;
        };
        self.synchronise(now);
        let closed = self.close_half_open(index);
        self.ready |= closed;
        closed
    }

    /// The connection is over. False if it holds no seats or was over already.
    pub fn finish(&mut self, handle: Handle, now: u64) -> bool {
        let Some(index) = self.find(handle, State::Executing) else {
            return false;
        };
        self.synchronise(now);
        self.close_half_open(index);
        let entry = *self.connections.at(index);
        self.executing -= 1;
        let held = now.saturating_sub(entry.admitted_at) as i64;
        if entry.queue != NONE {
            let executing = self.queues.at(entry.queue).executing - 1;
            self.queues.set_executing(entry.queue, executing);
            let queue = self.queues.at_mut(entry.queue);
            if !self.policy.charges_continuously() {
                let excess = ESTIMATED_DURATION as i64 - held;
                let correction = SeatSeconds::new(f64::from(entry.initial_seats), excess);
                queue.charge(SeatSeconds::ZERO - correction);
            }
            queue.limit_credit(&self.connections, now);
        }
        let change = (held - self.typical_hold as i64) / HOLD_SMOOTHING;
        self.typical_hold = self
            .typical_hold
            .saturating_add_signed(change)
            .clamp(ESTIMATED_DURATION, MAX_TYPICAL_HOLD);

        if entry.additional_latency == 0 {
            self.release(index, now);
        } else {
            self.connections.at_mut(index).state = State::Lingering;
            let at = now.saturating_add(entry.additional_latency);
            self.timers.set(index, at, &mut self.connections);
            // A connection that is wider than the limit waits only for executing connections.
            self.ready = true;
        }
        true
    }

    /// A waiting connection leaves. False if it is not waiting.
    pub fn cancel(&mut self, handle: Handle, now: u64) -> bool {
        self.remove_waiter(handle, Rejection::TimeOut, now)
    }

    /// Turns away a waiting connection because the node has no room for its packet. False if it is
    /// not waiting.
    pub fn refuse(&mut self, handle: Handle, now: u64) -> bool {
        self.remove_waiter(handle, Rejection::QueueFull, now)
    }

    fn remove_waiter(&mut self, handle: Handle, reason: Rejection, now: u64) -> bool {
        let Some(index) = self.find(handle, State::Waiting) else {
            return false;
        };
        self.synchronise(now);
        self.drop_waiter(index, reason, now);
        true
    }

    /// When the next timer is due.
    pub fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| at)
    }

    /// Lets the first timer that is due by `now` fire. Returns when it was due, and what it was
    /// for.
    pub fn fire(&mut self, now: u64) -> Option<(u64, Expiry)> {
        let (at, index) = self.timers.first().filter(|(at, _)| *at <= now)?;
        self.timers.cancel(index, &mut self.connections);
        let handle = self.connections.handle(index);
        self.synchronise(at);
        let expiry = match self.connections.at(index).state {
            State::Waiting => {
                self.drop_waiter(index, Rejection::TimeOut, at);
                Expiry::TimedOut(handle)
            }
            State::Executing | State::Lingering | State::Free => {
                self.release(index, at);
                Expiry::Released(handle)
            }
        };
        Some((at, expiry))
    }

    fn drop_waiter(&mut self, index: u32, reason: Rejection, now: u64) {
        self.timers.cancel(index, &mut self.connections);
        let entry = *self.connections.at(index);
        self.queues.take(index, &mut self.connections);
        self.queues
            .at_mut(entry.queue)
            .limit_credit(&self.connections, now);
        self.waiting -= 1;
        self.seats_waiting -= u64::from(entry.width());
        self.requested_seats -= u64::from(entry.width());
        self.connections.remove(index);
        self.counters.count(reason);
        self.note_demand(now);
        self.ready |= !self.policy.keeps_defects();
    }

    /// Frees the seats of a connection that is over.
    fn release(&mut self, index: u32, now: u64) {
        let entry = *self.connections.at(index);
        let width = entry.width();
        self.seats_in_use -= u64::from(width);
        if entry.queue != NONE {
            self.requested_seats -= u64::from(width);
            let queue = self.queues.at_mut(entry.queue);
            queue.seats -= u64::from(width);
            if self.policy.charges_continuously() {
                queue.end_accruing(width, now);
                queue.advance -= entry.advance;
            }
            if queue.is_empty() && self.queues.len() > self.kind.queues() {
                let removed = self.queues.remove(entry.queue);
                if self.robin >= removed {
                    let last = self.queues.len().saturating_sub(1);
                    self.robin = self.robin.checked_sub(1).unwrap_or(last);
                }
            }
        }
        self.connections.remove(index);
        self.note_demand(now);
        self.ready = true;
    }

    /// Subtracts a connection's seats from the half-open ones, if it is half-open.
    fn close_half_open(&mut self, index: u32) -> bool {
        let entry = self.connections.at_mut(index);
        let half_open = std::mem::replace(&mut entry.half_open, false);
        if half_open {
            self.half_open_seats -= u64::from(entry.width());
        }
        half_open
    }
}
