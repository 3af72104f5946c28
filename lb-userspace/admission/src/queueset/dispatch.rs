//! Which waiting connection gets the next seat.

use super::{Dispatch, QueueSet, connection::State, queue::Queue};
use crate::seat_seconds::SeatSeconds;

/// A queue whose head may be dispatched.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) slot: u32,
    /// What the queue will have been charged afterwards. The smallest value comes first.
    finish_r: SeatSeconds,
}

impl QueueSet {
    /// Admits one waiting connection, if possible. To be called after every change until it returns
    /// `None`.
    pub fn dispatch(&mut self, now: u64) -> Option<Dispatch> {
        if !self.ready {
            return None;
        }
        self.synchronise(now);
        let candidate = self.pick(now);
        self.ready = candidate.is_some();
        self.admit_head(candidate?.slot, now)
    }

    /// Chooses a queue with a head that fits. If the first in line does not fit, only queues
    /// without a seat may overtake it: they use the seats that are reserved for them.
    pub(super) fn pick(&mut self, now: u64) -> Option<Candidate> {
        let limit = u64::from(self.limit);
        if self.seats_in_use >= limit {
            return None;
        }
        let reserve = u64::from(self.caps.first_seat_reserve);
        let only_reserve_left = self.seats_in_use + reserve >= limit;
        let per_queue = u64::from(self.caps.per_queue);
        let (mut first, mut first_without_seat) = (None, None);
        for &slot in self.queues.with_waiters() {
            let queue = self.queues.at(slot);
            let has_seats = queue.seats > 0;
            let at_cap = queue.seats + u64::from(queue.head_width) > per_queue;
            if has_seats && (only_reserve_left || at_cap) {
                continue;
            }
            let candidate = Candidate {
                slot,
                finish_r: queue.usage(now) + queue.advance + self.estimate(queue),
            };
            if self.is_earlier(candidate, first) {
                first = Some(candidate);
            }
            if !has_seats && reserve > 0 && self.is_earlier(candidate, first_without_seat) {
                first_without_seat = Some(candidate);
            }
        }
        // Without a candidate this is not a failed attempt, and is not counted.
        let first = first?;
        let candidates = [Some(first), first_without_seat];
        let fitting = candidates
            .into_iter()
            .flatten()
            .find(|candidate| self.fits(candidate.slot));
        self.counters.no_accommodation += u64::from(fitting.is_none());
        fitting
    }

    /// Whether a candidate comes before the first one so far. Of equals, the one that comes next
    /// after the queue that was served last.
    #[inline]
    fn is_earlier(&self, candidate: Candidate, first: Option<Candidate>) -> bool {
        let Some(first) = first else {
            return true;
        };
        candidate.finish_r < first.finish_r
            || candidate.finish_r == first.finish_r
                && self.turn(candidate.slot) < self.turn(first.slot)
    }

    /// How many queues lie between the queue that was served last and this one.
    fn turn(&self, slot: u32) -> u32 {
        let number = self.queues.len();
        // The sum stays below twice the number of queues, which is at most 2^26.
        (self.queues.at(slot).index + number - self.robin - 1) % number
    }

    /// Whether there are seats for the head of a queue.
    fn fits(&self, slot: u32) -> bool {
        let queue = self.queues.at(slot);
        let reserve = match queue.seats {
            0 => 0,
            _ => self.caps.first_seat_reserve,
        };
        self.has_room(queue.head_width, reserve)
    }

    /// Whether a connection may have `width` seats if `reserve` seats are to stay free. A
    /// connection that is wider than the limit may have them when nothing else executes.
    pub(super) fn has_room(&self, width: u32, reserve: u32) -> bool {
        if self.half_open_seats > 0
            && self.half_open_seats + u64::from(width) > u64::from(self.caps.half_open)
        {
            return false;
        }
        if width > self.limit {
            return self.executing == 0 && (self.limit > 0 || self.policy.keeps_defects());
        }
        self.seats_in_use + u64::from(width) <= u64::from(self.limit.saturating_sub(reserve))
    }

    fn admit_head(&mut self, slot: u32, now: u64) -> Option<Dispatch> {
        let queue = self.queues.at(slot);
        let (connection, width_waiting) = (queue.head()?, queue.head_width);
        let advance = self.estimate(queue);
        self.timers.cancel(connection, &mut self.connections);
        self.queues.take(connection, &mut self.connections);
        self.waiting -= 1;

        let entry = self.connections.at_mut(connection);
        if entry.final_seats > self.limit {
            // The same work, done by fewer seats for longer.
            let work = SeatSeconds::new(
                f64::from(entry.final_seats),
                entry.additional_latency as i64,
            );
            entry.additional_latency = work.per_seat(f64::from(self.limit));
            entry.final_seats = self.limit;
        }
        let (width, work) = (entry.width(), entry.work);
        let waiting = match self.policy.keeps_defects() {
            true => width,
            false => width_waiting,
        };
        self.seats_waiting -= u64::from(waiting);
        self.requested_seats -= u64::from(width_waiting - width);

        let continuous = self.policy.charges_continuously();
        let executing = self.queues.at(slot).executing + 1;
        self.queues.set_executing(slot, executing);
        let queue = self.queues.at_mut(slot);
        queue.seats += u64::from(width);
        if continuous {
            // The queue that is served was the most entitled, so none that becomes active later is
            // more entitled.
            self.r = self.r.max(queue.usage(now));
            queue.begin_accruing(width, now);
            queue.advance += advance;
            self.connections.at_mut(connection).advance = advance;
        } else {
            queue.charge(work);
        }
        queue.limit_credit(&self.connections, now);
        self.robin = queue.index;
        self.take_seats(connection, now);
        Some(Dispatch {
            connection: self.connections.handle(connection),
            borrowed: self.seats_in_use > u64::from(self.nominal),
        })
    }

    /// The expected cost of the head of a queue.
    fn estimate(&self, queue: &Queue) -> SeatSeconds {
        match self.policy.charges_continuously() {
            true => SeatSeconds::since_origin(u64::from(queue.head_width), self.typical_hold),
            false => queue.head_work,
        }
    }

    /// Counts a connection as executing from `now` on.
    pub(super) fn take_seats(&mut self, connection: u32, now: u64) {
        let entry = self.connections.at_mut(connection);
        entry.state = State::Executing;
        entry.admitted_at = now;
        entry.half_open = true;
        let width = u64::from(entry.width());
        self.executing += 1;
        self.seats_in_use += width;
        self.half_open_seats += width;
        self.counters.dispatched += 1;
        self.note_demand(now);
    }
}
