//! The order in which queues are served: by what each will have been charged after its head.
//!
//! While connections hold seats, all charges grow, each at its own pace. So in connection mode the
//! order is that of one moment, a *tick*: between ticks only queues that change are moved, as if
//! their charges had grown at the present pace since the tick. A tick is at most 10 ms ago when a
//! seat is given, so two queues are served in the wrong order only if they are closer together than
//! what their seats cost in 10 ms.

use super::{
    QueueSet,
    queue::Queue,
    tournament::{Conditions, Entry},
};
use crate::seat_seconds::SeatSeconds;

/// The time between ticks in nanoseconds.
const TICK: u64 = 10_000_000;
/// If fewer than one in so many queues have waiters, they are moved one by one.
const FEW: usize = 16;

/// The moment by which queues are ordered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tick {
    at: u64,
    /// Progress, and the expected hold of a connection, at that moment.
    r: SeatSeconds,
    hold: u64,
    /// Whether the level as a whole gave its seats back soon, which new queues are judged by.
    level_is_short: bool,
    /// Whether the order has to be made anew in any case.
    pub is_stale: bool,
}

impl QueueSet {
    /// Makes the order anew if it is time.
    pub(super) fn bring_order_up_to_date(&mut self, now: u64) {
        let continuous = self.policy.charges_continuously();
        let level_is_short = continuous && self.level_is_short();
        let due = continuous && now >= self.tick.at.saturating_add(TICK)
            || level_is_short != self.tick.level_is_short;
        if !due && !self.tick.is_stale {
            return;
        }
        let was_stale = self.tick.is_stale;
        self.tick = Tick {
            at: now,
            r: self.r,
            hold: self.mean_hold.nanoseconds(),
            level_is_short,
            is_stale: false,
        };
        if was_stale {
            self.order.clear(self.queues.len());
        }
        let waiting = self.queues.with_waiters();
        if waiting.len() * FEW < self.queues.len() as usize {
            for place in 0..waiting.len() {
                let slot = self.queues.with_waiters()[place];
                self.limit_debt(slot, now);
                self.reorder(slot);
            }
            return;
        }
        for place in 0..waiting.len() {
            self.limit_debt(self.queues.with_waiters()[place], now);
        }
        let mut order = std::mem::take(&mut self.order);
        let waiting = self.queues.with_waiters().iter();
        order.set_many(waiting.map(|&slot| (self.queues.at(slot).index, self.entry(slot))));
        self.order = order;
    }

    /// Puts a queue that has changed in its place.
    pub(super) fn reorder(&mut self, slot: u32) {
        if !self.tick.is_stale {
            self.order.set(self.queues.at(slot).index, self.entry(slot));
        }
    }

    /// Puts the queues in their places whose heads belong to a flow.
    pub(super) fn reorder_flow(&mut self, hash: u64) {
        let Some(dealer) = self.kind.dealer().filter(|_| !self.mixed_hands) else {
            // It may be waiting in queues of a hand that was dealt before.
            self.tick.is_stale = true;
            return;
        };
        for &index in &*dealer.deal(hash) {
            let slot = self.queues.slot(index);
            let head = self.queues.at(slot).head();
            if head.is_some_and(|head| self.connections.at(head).arrival.hash == hash) {
                self.reorder(slot);
            }
        }
    }

    /// A queue as it takes part, if it does.
    pub(super) fn entry(&self, slot: u32) -> Option<Entry> {
        let queue = self.queues.at(slot);
        let head = queue.head()?;
        let meets: Conditions = match self.policy.keeps_defects() {
            true => 0,
            false => self.meets(queue, queue.head_width, self.is_first_seat(head)),
        };
        Some(Entry {
            key: self.key(queue, head),
            meets,
        })
    }

    /// What a queue will have been charged when its head is served: the smallest comes first.
    fn key(&self, queue: &Queue, head: u32) -> u64 {
        if !self.policy.charges_continuously() {
            return (queue.usage(self.tick.at) + queue.head_work).units();
        }
        // What the flow of the head holds, in whatever queues, will cost it too: so a flow does not
        // profit from having several queues, and does not pay for others in them.
        let hash = self.connections.at(head).arrival.hash;
        let held = self.flows.find(hash).map_or(0, |flow| flow.seats);
        let seats = held + u64::from(queue.head_width);
        let expected = SeatSeconds::since_origin(seats, self.tick.hold);
        let finish_r = queue.usage(self.tick.at) + expected;
        // By how much it is ahead of the level, as a number that sorts: charges wrap around.
        (finish_r - self.tick.r).units() ^ (1 << 63)
    }
}
