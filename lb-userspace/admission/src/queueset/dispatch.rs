//! Which waiting connection gets the next seat.

use super::{
    Dispatch, QueueSet,
    gate::{FIRST_SEAT, HALF_OPEN_SHARE, SHORT_HOLDS},
    grant::{Grant, Seats},
    tournament::Conditions,
};
use crate::seat_seconds::SeatSeconds;

/// A queue whose head may be dispatched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) slot: u32,
    /// Whether it comes before all others, whatever they lack.
    is_leader: bool,
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
        self.admit_head(candidate?, now)
    }

    /// Chooses a queue with a head that fits. If the first in line does not fit, only flows without
    /// a seat may overtake it: they use the seats that are kept for them.
    pub(super) fn pick(&mut self, now: u64) -> Option<Candidate> {
        if self.holds.seats >= u64::from(self.limit) {
            return None;
        }
        self.bring_order_up_to_date(now);
        let mut required = self.required(1);
        // Without a candidate this is not a failed attempt, and is not counted.
        let first = loop {
            let (slot, meets) = self.first(required)?;
            let width = self.queues.at(slot).head_width;
            // What its width makes necessary is its own affair: others pass.
            let lacks = self.required(width) & !meets & (HALF_OPEN_SHARE | SHORT_HOLDS);
            if lacks == 0 {
                break slot;
            }
            required |= lacks;
        };
        let fitting = match self.fits(first) {
            true => Some(first),
            false if self.caps.first_seat_reserve == 0 => None,
            false => self
                .first(required | FIRST_SEAT)
                .map(|(slot, _)| slot)
                .filter(|&slot| self.fits(slot)),
        };
        self.counts.level.no_accommodation += u64::from(fitting.is_none());
        let slot = fitting?;
        let is_leader = self.first(0).is_some_and(|(leader, _)| leader == slot);
        Some(Candidate { slot, is_leader })
    }

    /// The first queue in line whose head meets conditions, and all that it meets.
    pub(super) fn first(&mut self, required: Conditions) -> Option<(u32, Conditions)> {
        loop {
            let index = self.order.first(required, self.robin)?;
            let slot = self.queues.slot(index);
            let entry = self.entry(slot);
            // Some conditions end by time alone. Others do not come to be met by time alone, but
            // for what is looked at every ten milliseconds.
            if entry == self.order.entry(index)
                && let Some(entry) = entry
            {
                return Some((slot, entry.meets));
            }
            self.order.set(index, entry);
        }
    }

    /// Whether there are seats for the head of a queue.
    fn fits(&self, slot: u32) -> bool {
        let queue = self.queues.at(slot);
        let reserve = match queue.head() {
            Some(head) if self.is_first_seat(head) => 0,
            _ => self.kept_back(),
        };
        self.has_room(queue.head_width, reserve)
    }

    /// Whether a connection may have `width` seats if `reserve` seats are to stay free. A
    /// connection that is wider than the limit may have them when nothing else executes.
    pub(super) fn has_room(&self, width: u32, reserve: u32) -> bool {
        if width > self.limit {
            return self.holds.executing == 0 && (self.limit > 0 || self.policy.keeps_defects());
        }
        self.holds.seats + u64::from(width) <= u64::from(self.limit.saturating_sub(reserve))
    }

    /// Whether a waiting connection belongs to a flow without a seat, where that matters.
    pub(super) fn is_first_seat(&self, connection: u32) -> bool {
        let hash = self.connections.at(connection).arrival.hash;
        self.caps.first_seat_reserve > 0
            && self.flows.find(hash).is_some_and(|flow| flow.seats == 0)
    }

    fn admit_head(&mut self, candidate: Candidate, now: u64) -> Option<Dispatch> {
        let slot = candidate.slot;
        let queue = self.queues.at(slot);
        let (index, width_waiting) = (queue.head()?, queue.head_width);
        if candidate.is_leader && self.policy.charges_continuously() {
            // The queue that is served was the most entitled, so none that becomes active later is
            // more entitled. One that was served only because others lack something says nothing.
            self.r = self.r.max(queue.usage(now));
        }
        self.timers.cancel(index, &mut self.connections);
        self.queues.take(index, &mut self.connections);
        let entry = *self.connections.at(index);
        let handle = self.connections.handle(index);
        self.connections.remove(index);
        self.waiting -= 1;
        self.counts.wait_no_more(&entry.arrival);

        let arrival = entry.arrival.narrowed(self.limit);
        let width = arrival.width();
        let waiting = match self.policy.keeps_defects() {
            true => width,
            false => width_waiting,
        };
        self.seats_waiting -= u64::from(waiting);
        self.requested_seats -= u64::from(width_waiting);
        let charged = match self.policy.charges_continuously() {
            true => SeatSeconds::ZERO,
            false => entry.work,
        };
        let mut seats = self.take_seats(arrival, Some(slot), now);
        seats.counted = self.policy.charges_continuously();
        if seats.counted {
            self.change_flow(arrival.hash, now, |flow| {
                flow.waiting = flow.waiting.saturating_sub(1);
                flow.seats += u64::from(width);
            });
        }
        let queue = self.queues.at_mut(slot);
        queue.charge(charged);
        queue.limit_credit(&self.connections, now);
        self.robin = queue.index;
        self.reorder(slot);
        Some(Dispatch {
            connection: handle,
            grant: Grant {
                seats,
                half_open: true,
                charged,
            },
        })
    }

    /// Counts a connection as executing and half-open from `now` on; its flow is another matter.
    pub(super) fn take_seats(
        &mut self,
        arrival: super::Arrival,
        queue: Option<u32>,
        now: u64,
    ) -> Seats {
        let width = arrival.width();
        let take = |holds: &mut super::Holds| {
            holds.take(width, now);
            holds.executing += 1;
            holds.half_open += u64::from(width);
        };
        take(&mut self.holds);
        if let Some(slot) = queue {
            self.queues.hold(slot, take);
            self.requested_seats += u64::from(width);
        }
        self.counts.execute(&arrival);
        self.note_demand(now);
        Seats {
            arrival,
            queue,
            taken_at: now,
            borrowed: self.holds.seats > u64::from(self.nominal),
            counted: false,
        }
    }
}
