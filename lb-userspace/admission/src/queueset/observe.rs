//! Taking over numbers that somebody else counts: the kernel, which lets connections in without
//! asking while nobody waits.

use super::{Holds, QueueSet};
use crate::seat_seconds::SeatSeconds;

impl QueueSet {
    /// Sets what the connections of a queue hold, by the queue's index. What this queue set gave or
    /// took back itself must be in these numbers. A queue that does not exist is ignored.
    ///
    /// The first time, what is held is charged from now on. Later the queue is charged what the
    /// holds have used since, also those that came and went in between.
    pub fn observe(&mut self, queue: u32, holds: Holds, now: u64) {
        if queue >= self.queues.len() {
            return;
        }
        self.synchronise(now);
        let slot = self.queues.slot(queue);
        let (usage, before) = {
            let queue = self.queues.at(slot);
            (queue.usage(now), queue.holds)
        };
        self.queues.hold(slot, |known| *known = holds);
        let queue = self.queues.at_mut(slot);
        let is_first = !std::mem::replace(&mut queue.observed, true);
        if is_first {
            queue.set_usage(usage, now);
        } else {
            for _ in 0..ends(&before, &holds) {
                queue.mean_hold.observe(mean_of_ends(&before, &holds));
            }
        }
        queue.limit_credit(&self.connections, now);
        self.requested_seats = (self.requested_seats + holds.seats).saturating_sub(before.seats);
        self.note_observed(&before, &holds, is_first, now);
        self.reorder(slot);
        self.remove_surplus(slot);
    }

    /// Somebody else counts queues anew, from zero, because there are others. What was observed of
    /// queues, all of it, belongs to connections in no queue from now on. Charges stay.
    pub fn observe_anew(&mut self, now: u64) {
        self.synchronise(now);
        // Queues after one that is removed move up.
        for queue in (0..self.queues.len()).rev() {
            let slot = self.queues.slot(queue);
            let usage = self.queues.at(slot).usage(now);
            let held = self.queues.hold(slot, std::mem::take);
            let queue = self.queues.at_mut(slot);
            queue.set_usage(usage, now);
            queue.observed = false;
            self.observed_without_queue += held;
            self.requested_seats = self.requested_seats.saturating_sub(held.seats);
            self.reorder(slot);
            self.remove_surplus(slot);
        }
        self.ready = true;
    }

    /// Sets what the connections hold that are in no queue, as all are at a level without queues.
    pub fn observe_without_queue(&mut self, holds: Holds, now: u64) {
        self.synchronise(now);
        let before = std::mem::replace(&mut self.observed_without_queue, holds);
        let is_first = before == Holds::default();
        self.note_observed(&before, &holds, is_first, now);
    }

    /// Sets how many connections of a flow hold seats, and how many seats. Its waiting connections
    /// are known here. The flow is forgotten when none waits any more.
    pub fn observe_flow(&mut self, hash: u64, connections: u32, seats: u64, now: u64) {
        if !self.counts_flows() {
            return;
        }
        self.synchronise(now);
        self.change_flow(hash, now, |flow| {
            flow.connections = flow.waiting.saturating_add(connections);
            flow.seats = seats;
            flow.is_observed = true;
        });
        self.ready = true;
    }

    /// Changes the sums of the level by what a part of it has changed.
    fn note_observed(&mut self, before: &Holds, after: &Holds, is_first: bool, now: u64) {
        if !is_first {
            let released = after.released.saturating_sub(before.released);
            let borrowed = self.holds.seats.saturating_sub(u64::from(self.nominal));
            self.borrowed_released += released.min(borrowed);
            for _ in 0..ends(before, after) {
                self.mean_hold.observe(mean_of_ends(before, after));
            }
        }
        let level = &mut self.holds;
        let count = |sum: u64, after: u64, before: u64| (sum + after).saturating_sub(before);
        level.executing = level
            .executing
            .saturating_add(after.executing)
            .saturating_sub(before.executing);
        level.seats = count(level.seats, after.seats, before.seats);
        level.half_open = count(level.half_open, after.half_open, before.half_open);
        level.released = count(level.released, after.released, before.released);
        level.taken_at += after.taken_at - before.taken_at;
        level.released_time += after.released_time - before.released_time;
        self.note_demand(now);
        self.ready = true;
    }
}

/// Seats that came back between two observations, as far as a mean follows them.
fn ends(before: &Holds, after: &Holds) -> u64 {
    after.released.saturating_sub(before.released).min(16)
}

/// For how long they were held on average, in nanoseconds.
fn mean_of_ends(before: &Holds, after: &Holds) -> u64 {
    let time: SeatSeconds = after.released_time - before.released_time;
    let seats = after.released.saturating_sub(before.released).max(1);
    time.per_seat(seats as f64)
}
