//! How connections arrive at a level: into a queue, straight to their seats, or refused.

use super::{Arrival, Handle, Kind, Policy, QueueSet, Rejection, Verdict, connection::Connection};
use crate::shuffle::Dealer;

impl QueueSet {
    /// A connection asks for seats.
    pub fn arrive(&mut self, arrival: Arrival, now: u64) -> Verdict {
        self.synchronise(now);
        let mut connection = Connection::new(
            arrival.initial_seats,
            arrival.final_seats,
            arrival.additional_latency,
        );
        let width = connection.width();
        let (dealer, length_limit) = match self.kind {
            Kind::Queue {
                dealer,
                length_limit,
            } => (dealer, length_limit),
            Kind::Reject if !self.has_room(width, 0) => {
                return self.reject(Rejection::ConcurrencyLimit);
            }
            Kind::Exempt | Kind::Reject => {
                let Some(handle) = self.connections.insert(connection) else {
                    return self.reject(Rejection::ConcurrencyLimit);
                };
                self.take_seats(handle.index() as u32, now);
                return Verdict::Admitted(handle);
            }
        };

        let slot = self.choose_queue(&dealer, arrival.hash);
        let no_room = match self.policy.keeps_defects() {
            true => self.seats_in_use >= u64::from(self.limit),
            // All that could be dispatched already has been.
            false => true,
        };
        if no_room && self.queues.at(slot).waiting >= length_limit {
            return self.reject(Rejection::QueueFull);
        }
        connection.arrival_r = self.r;
        connection.work = arrival.work();
        let Some(handle) = self.connections.insert(connection) else {
            return self.reject(Rejection::QueueFull);
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
        self.waiting += 1;
        self.seats_waiting += u64::from(width);
        self.requested_seats += u64::from(width);
        self.note_demand(now);
        // Behind other waiters the arrival changes nothing, but APF tries a dispatch and counts it.
        self.ready |= self.queues.at(slot).waiting == 1 || self.policy == Policy::Exact;
        Verdict::Queued(handle)
    }

    /// Adds a connection that already holds seats, which this queue set did not give to it. It is
    /// counted, and charged from now on. `None` if there are too many connections to name it.
    pub fn adopt(&mut self, arrival: Arrival, now: u64) -> Option<Handle> {
        self.synchronise(now);
        let handle = self.connections.insert(Connection::new(
            arrival.initial_seats,
            arrival.final_seats,
            arrival.additional_latency,
        ))?;
        let index = handle.index() as u32;
        if let Kind::Queue { dealer, .. } = self.kind {
            let slot = self.choose_queue(&dealer, arrival.hash);
            self.enter(slot, now);
            let connection = self.connections.at_mut(index);
            connection.queue = slot;
            let width = connection.width();
            let executing = self.queues.at(slot).executing + 1;
            self.queues.set_executing(slot, executing);
            let queue = self.queues.at_mut(slot);
            queue.seats += u64::from(width);
            if self.policy.charges_continuously() {
                queue.begin_accruing(width, now);
            }
            self.requested_seats += u64::from(width);
        }
        self.take_seats(index, now);
        Some(handle)
    }

    /// The queue of the flow's hand with the least waiting work.
    fn choose_queue(&mut self, dealer: &Dealer, hash: u64) -> u32 {
        let hand = dealer.deal(hash);
        let start = (self.enqueues % u64::from(dealer.hand_size())) as usize;
        self.enqueues += 1;
        let slots = (0..hand.len()).map(|step| self.queues.slot(hand[(start + step) % hand.len()]));
        // The first of equals; a hand has at least one card.
        slots
            .min_by_key(|&slot| self.queues.at(slot).waiting_work)
            .unwrap_or_default()
    }

    /// Lets a queue that was idle start at the level's progress.
    fn enter(&mut self, slot: u32, now: u64) {
        let queue = self.queues.at_mut(slot);
        let ahead = self.policy.charges_continuously() && queue.usage(now) > self.r;
        if !queue.is_active() && !ahead {
            queue.set_usage(self.r, now);
        }
    }

    fn reject(&mut self, rejection: Rejection) -> Verdict {
        self.counters.count(rejection);
        Verdict::Rejected(rejection)
    }
}
