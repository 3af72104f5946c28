//! How connections leave their queues, and how they give back their seats.

use super::{
    ESTIMATED_DURATION, Expiry, Grant, QueueSet, Rejection,
    connection::{Connection, Handle, NONE, State},
    grant::Seats,
    holds::Holds,
    queue::Queues,
};
use crate::seat_seconds::SeatSeconds;

impl QueueSet {
    /// A connection's handshake is complete. False if it was complete before.
    pub fn establish(&mut self, grant: &mut Grant, now: u64) -> bool {
        if !grant.half_open {
            return false;
        }
        self.synchronise(now);
        self.close_half_open(grant);
        if let Some(slot) = grant.seats.queue {
            self.reorder(slot);
        }
        self.ready = true;
        true
    }

    /// The connection is over. Its seats are free after its additional latency.
    pub fn finish(&mut self, mut grant: Grant, now: u64) {
        self.synchronise(now);
        self.end_execution(&mut grant);
        let seats = grant.seats;
        let held = now.saturating_sub(seats.taken_at);
        self.mean_hold.observe(held);
        if let Some(slot) = seats.queue {
            let queue = self.queues.at_mut(slot);
            queue.mean_hold.observe(held);
            if !self.policy.charges_continuously() {
                let held = i64::try_from(held).unwrap_or(i64::MAX);
                let excess = ESTIMATED_DURATION as i64 - held;
                let initial = f64::from(seats.arrival.initial_seats);
                queue.charge(SeatSeconds::ZERO - SeatSeconds::new(initial, excess));
            }
            queue.limit_credit(&self.connections, now);
        }
        if seats.arrival.additional_latency == 0 || !self.linger(seats, now) {
            self.release(seats, now);
        }
    }

    /// The connection that was admitted could not be let in, or its client was gone: its seats are
    /// free at once, its flow is charged nothing for them, and nothing is learnt from how long they
    /// were held.
    pub fn abort(&mut self, mut grant: Grant, now: u64) {
        self.synchronise(now);
        self.end_execution(&mut grant);
        self.counts.abort(&grant.seats.arrival);
        if let Some(slot) = grant.seats.queue {
            let queue = self.queues.at_mut(slot);
            queue.charge(SeatSeconds::ZERO - grant.charged);
            queue.limit_credit(&self.connections, now);
        }
        self.free(grant.seats, now, Holds::forget);
    }

    /// Somebody else counts the connection from now on. Until that one's numbers are observed
    /// ([`Self::observe`]), its seats stay with the queue in which it waited.
    pub fn hand_over(&mut self, mut grant: Grant, now: u64) {
        self.synchronise(now);
        self.close_half_open(&mut grant);
        let Seats {
            arrival,
            queue,
            counted,
            ..
        } = grant.seats;
        self.counts.end(&arrival);
        self.counts.release(&arrival);
        if counted {
            self.leave_flow(arrival.hash, now, |flow| flow.is_observed = true);
        }
        if let Some(slot) = queue {
            self.reorder(slot);
        }
        self.ready = true;
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

    /// Takes all waiting connections out of their queues, to be asked for elsewhere. Those of a queue
    /// stay in order.
    pub fn evict(&mut self, now: u64) -> Vec<Handle> {
        self.synchronise(now);
        let mut evicted = Vec::with_capacity(self.waiting as usize);
        let head = |queues: &Queues| queues.at(*queues.with_waiters().first()?).head();
        while let Some(index) = head(&self.queues) {
            evicted.push(self.connections.handle(index));
            self.drop_waiter(index, None, now);
        }
        evicted
    }

    fn remove_waiter(&mut self, handle: Handle, reason: Rejection, now: u64) -> bool {
        let found = self.connections.find(handle);
        let Some(index) = found.filter(|&index| self.connections.at(index).is_waiting()) else {
            return false;
        };
        self.synchronise(now);
        self.drop_waiter(index, Some(reason), now);
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
        let entry = *self.connections.at(index);
        if entry.is_waiting() {
            self.drop_waiter(index, Some(Rejection::TimeOut), at);
            return Some((at, Expiry::TimedOut(handle)));
        }
        self.connections.remove(index);
        let seats = Seats {
            arrival: entry.arrival,
            queue: (entry.queue != NONE).then_some(entry.queue),
            taken_at: entry.since,
            borrowed: entry.borrowed,
            counted: entry.counted,
        };
        self.release(seats, at);
        Some((at, Expiry::Released))
    }

    /// Takes a waiting connection out of its queue; `reason` says why it gets no seat, if so.
    fn drop_waiter(&mut self, index: u32, reason: Option<Rejection>, now: u64) {
        self.timers.cancel(index, &mut self.connections);
        let entry = *self.connections.at(index);
        self.queues.take(index, &mut self.connections);
        self.queues
            .at_mut(entry.queue)
            .limit_credit(&self.connections, now);
        self.connections.remove(index);
        self.waiting -= 1;
        self.seats_waiting -= u64::from(entry.width());
        self.requested_seats -= u64::from(entry.width());
        self.counts.wait_no_more(&entry.arrival);
        if let Some(reason) = reason {
            self.counts.reject(&entry.arrival, reason);
        }
        if self.policy.charges_continuously() {
            self.leave_flow(entry.arrival.hash, now, |flow| {
                flow.waiting = flow.waiting.saturating_sub(1);
                flow.connections = flow.connections.saturating_sub(1);
            });
        }
        self.reorder(entry.queue);
        self.note_demand(now);
        self.ready |= !self.policy.keeps_defects();
    }

    /// Counts a connection as over.
    fn end_execution(&mut self, grant: &mut Grant) {
        self.close_half_open(grant);
        let end = |holds: &mut Holds| holds.executing = holds.executing.saturating_sub(1);
        end(&mut self.holds);
        if let Some(slot) = grant.seats.queue {
            self.queues.hold(slot, end);
        }
        self.counts.end(&grant.seats.arrival);
    }

    /// Keeps the seats of a connection that is over for its additional latency. False if there are
    /// no numbers left to name it.
    fn linger(&mut self, seats: Seats, now: u64) -> bool {
        let mut connection = Connection::new(seats.arrival);
        connection.state = State::Lingering;
        connection.queue = seats.queue.unwrap_or(NONE);
        connection.since = seats.taken_at;
        connection.borrowed = seats.borrowed;
        connection.counted = seats.counted;
        let Some(handle) = self.connections.insert(connection) else {
            return false;
        };
        let index = handle.index() as u32;
        let at = now.saturating_add(seats.arrival.additional_latency);
        self.timers.set(index, at, &mut self.connections);
        if let Some(slot) = seats.queue {
            self.reorder(slot);
        }
        // A connection that is wider than the limit waits only for executing connections.
        self.ready = true;
        true
    }

    /// Frees the seats of a connection that is over.
    fn release(&mut self, seats: Seats, now: u64) {
        if seats.borrowed {
            self.borrowed_released += u64::from(seats.arrival.width());
        }
        self.free(seats, now, |holds, width, taken_at| {
            holds.release(width, taken_at, now);
        });
    }

    /// Frees seats; `give_back` says what that means for the numbers of holds.
    fn free(&mut self, seats: Seats, now: u64, give_back: impl Fn(&mut Holds, u32, u64)) {
        let Seats {
            arrival,
            queue,
            taken_at,
            counted,
            ..
        } = seats;
        let width = arrival.width();
        give_back(&mut self.holds, width, taken_at);
        self.counts.release(&arrival);
        if counted {
            self.leave_flow(arrival.hash, now, |flow| {
                flow.connections = flow.connections.saturating_sub(1);
                flow.seats = flow.seats.saturating_sub(u64::from(width));
            });
        }
        if let Some(slot) = queue {
            self.requested_seats = self.requested_seats.saturating_sub(u64::from(width));
            self.queues
                .hold(slot, |holds| give_back(holds, width, taken_at));
            self.reorder(slot);
            self.remove_surplus(slot);
        }
        self.note_demand(now);
        self.ready = true;
    }

    /// Removes a queue if it is empty and there are more than the level wants.
    pub(super) fn remove_surplus(&mut self, slot: u32) {
        if !self.queues.at(slot).is_empty() || self.queues.len() <= self.kind.queues() {
            return;
        }
        let removed = self.queues.remove(slot);
        if self.robin >= removed {
            let last = self.queues.len().saturating_sub(1);
            self.robin = self.robin.checked_sub(1).unwrap_or(last);
        }
        self.tick.is_stale = true;
        // Indices have moved, and hands are made of indices.
        self.mixed_hands |= self.waiting > 0;
    }

    /// Subtracts a connection's seats from the half-open ones, if it is half-open.
    fn close_half_open(&mut self, grant: &mut Grant) {
        if !std::mem::replace(&mut grant.half_open, false) {
            return;
        }
        let width = u64::from(grant.width());
        let close = |holds: &mut Holds| holds.half_open = holds.half_open.saturating_sub(width);
        close(&mut self.holds);
        if let Some(slot) = grant.seats.queue {
            self.queues.hold(slot, close);
        }
    }
}
