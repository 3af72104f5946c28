//! How connections arrive at a level: into a queue, straight to their seats, or refused.

use std::cmp::Ordering;

use super::{
    Arrival, Grant, Kind, Policy, QueueSet, Rejection, Verdict,
    connection::Connection,
    flows::Flow,
    gate::{HALF_OPEN_SHARE, SHORT_HOLDS},
    queue::Queue,
};
use crate::{seat_seconds::SeatSeconds, shuffle::Dealer};

impl QueueSet {
    /// A connection asks for seats.
    pub fn arrive(&mut self, arrival: Arrival, now: u64) -> Verdict {
        self.ask(arrival, None, now)
    }

    /// The same for a connection whose queue the caller has chosen, by its index. If hands are not
    /// dealt of such a queue (any more), this queue set chooses.
    pub fn arrive_in(&mut self, queue: u32, arrival: Arrival, now: u64) -> Verdict {
        self.ask(arrival, Some(queue), now)
    }

    fn ask(&mut self, arrival: Arrival, queue: Option<u32>, now: u64) -> Verdict {
        self.synchronise(now);
        let width = arrival.width();
        self.some_flows_limited |= arrival.most_of_flow < u32::MAX;
        if self.counts_flows() && self.is_flow_full(&arrival) {
            return self.reject(&arrival, Rejection::FlowLimit, now);
        }
        let (dealer, length_limit) = match self.kind {
            Kind::Queue {
                dealer,
                length_limit,
            } => (dealer, length_limit),
            Kind::Reject if !self.has_room_without_queue(width) => {
                self.note_refused(arrival.width().into(), now);
                return self.reject(&arrival, Rejection::ConcurrencyLimit, now);
            }
            Kind::Exempt | Kind::Reject => return Verdict::Admitted(self.admit(arrival, now)),
        };

        let chosen = queue.filter(|&queue| queue < dealer.deck_size());
        let slot = match chosen {
            Some(queue) => self.queues.slot(queue),
            None => self.choose_queue(&dealer, &arrival, now),
        };
        let no_room = match self.policy.keeps_defects() {
            true => self.holds.seats >= u64::from(self.limit),
            // All that could be dispatched already has been.
            false => true,
        };
        if no_room && self.queues.at(slot).waiting >= length_limit {
            return self.reject(&arrival, Rejection::QueueFull, now);
        }
        let mut connection = Connection::new(arrival);
        connection.arrival_r = self.r;
        connection.since = now;
        let Some(handle) = self.connections.insert(connection) else {
            return self.reject(&arrival, Rejection::QueueFull, now);
        };
        let index = handle.index() as u32;
        self.enter(slot, now);
        self.queues.push(slot, index, &mut self.connections);
        self.queues
            .at_mut(slot)
            .limit_credit(&self.connections, now);
        if let Some(deadline) = arrival.deadline {
            self.timers.set(index, deadline, &mut self.connections);
        }
        self.mixed_hands &= self.waiting > 0;
        self.mixed_hands |= chosen.is_some_and(|queue| !dealer.deal(arrival.hash).contains(&queue));
        self.waiting += 1;
        self.seats_waiting += u64::from(width);
        self.requested_seats += u64::from(width);
        self.counts.wait(&arrival);
        if self.counts_flows() {
            self.change_flow(arrival.hash, now, |flow| {
                flow.connections += 1;
                flow.waiting += 1;
            });
        }
        self.note_demand(now);
        self.reorder(slot);
        // Behind other waiters the arrival changes nothing, but APF tries a dispatch and counts it.
        self.ready |= self.queues.at(slot).waiting == 1 || self.policy == Policy::Exact;
        Verdict::Queued(handle)
    }

    /// Adds a connection that already holds seats, which this queue set did not give to it. It is
    /// counted, and charged from now on.
    pub fn adopt(&mut self, arrival: Arrival, now: u64) -> Grant {
        self.synchronise(now);
        let Kind::Queue { dealer, .. } = self.kind else {
            return self.admit(arrival, now);
        };
        let slot = self.choose_queue(&dealer, &arrival, now);
        self.enter(slot, now);
        let grant = self.give(arrival, Some(slot), now);
        self.reorder(slot);
        grant
    }

    /// Gives seats to a connection that does not wait in a queue.
    fn admit(&mut self, arrival: Arrival, now: u64) -> Grant {
        self.give(arrival, None, now)
    }

    fn give(&mut self, arrival: Arrival, queue: Option<u32>, now: u64) -> Grant {
        let mut seats = self.take_seats(arrival, queue, now);
        seats.counted = self.counts_flows();
        if seats.counted {
            self.change_flow(arrival.hash, now, |flow| {
                flow.connections += 1;
                flow.seats += u64::from(arrival.width());
            });
        }
        Grant {
            seats,
            half_open: true,
            charged: SeatSeconds::ZERO,
        }
    }

    /// Whether a connection may have its seats at a level without queues.
    fn has_room_without_queue(&self, width: u32) -> bool {
        let lacks = self.required(width);
        self.has_room(width, 0)
            && lacks & HALF_OPEN_SHARE == 0
            && (lacks & SHORT_HOLDS == 0 || self.level_is_short())
    }

    /// Whether anything depends on what single flows have. Connections that came while nothing did
    /// stay uncounted.
    pub(super) fn counts_flows(&self) -> bool {
        self.policy.charges_continuously()
            && match self.kind {
                Kind::Exempt => false,
                Kind::Reject => self.caps.per_flow < u32::MAX || self.some_flows_limited,
                Kind::Queue { .. } => true,
            }
    }

    fn is_flow_full(&self, arrival: &Arrival) -> bool {
        let flow = self.flows.find(arrival.hash);
        let connections = flow.map_or(0, |flow| flow.connections);
        connections >= self.caps.per_flow.min(arrival.most_of_flow)
    }

    /// Changes a flow's numbers.
    pub(super) fn change_flow(&mut self, hash: u64, now: u64, change: impl FnOnce(&mut Flow)) {
        // One that has become less entitled is put in its place when it comes first.
        if self.flows.change(hash, now, change) {
            self.reorder_flow(hash);
        }
    }

    /// The same when a connection leaves.
    pub(super) fn leave_flow(&mut self, hash: u64, now: u64, change: impl FnOnce(&mut Flow)) {
        self.change_flow(hash, now, change);
        self.flows.let_go(hash, now);
    }

    /// The queue of the flow's hand for an arrival: the one with the least waiting work. Of equals,
    /// for connections, one whose own holds do not keep the arrival waiting; then the one that has
    /// been charged least; then the next in turn.
    fn choose_queue(&mut self, dealer: &Dealer, arrival: &Arrival, now: u64) -> u32 {
        let hand = dealer.deal(arrival.hash);
        let start = (self.enqueues % u64::from(dealer.hand_size())) as usize;
        self.enqueues += 1;
        let slots = (0..hand.len()).map(|step| self.queues.slot(hand[(start + step) % hand.len()]));
        let required = self.required(arrival.width()) & (HALF_OPEN_SHARE | SHORT_HOLDS);
        let order = |&one: &u32, &other: &u32| {
            let (one, other) = (self.queues.at(one), self.queues.at(other));
            let work = one.waiting_work.cmp(&other.waiting_work);
            if work != Ordering::Equal || !self.policy.charges_continuously() {
                return work;
            }
            let lacks = |queue| required & !self.meets(queue, arrival.width(), false) != 0;
            let charge = |queue: &Queue| {
                let seats =
                    SeatSeconds::since_origin(queue.holds.seats, self.mean_hold.nanoseconds());
                (queue.usage(now) + seats - self.r).units() as i64
            };
            let lacking = lacks(one).cmp(&lacks(other));
            lacking.then_with(|| charge(one).cmp(&charge(other)))
        };
        // The first of equals; a hand has at least one card.
        slots.min_by(order).unwrap_or_default()
    }

    /// Lets a queue that was idle start at the level's progress.
    fn enter(&mut self, slot: u32, now: u64) {
        let queue = self.queues.at_mut(slot);
        let is_ahead = (queue.usage(now) - self.r).units() as i64 > 0;
        let ahead = self.policy.charges_continuously() && is_ahead;
        if !queue.is_active() && !ahead {
            queue.set_usage(self.r, now);
        }
        if ahead {
            self.limit_debt(slot, now);
        }
    }

    fn reject(&mut self, arrival: &Arrival, rejection: Rejection, now: u64) -> Verdict {
        self.counts.reject(arrival, rejection);
        self.flows.let_go(arrival.hash, now);
        Verdict::Rejected(rejection)
    }
}
