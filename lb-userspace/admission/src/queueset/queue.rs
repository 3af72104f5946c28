//! The queues of a level: each is a first-in, first-out list of waiting connections, with what the
//! queue has been charged.

use super::{
    connection::{NONE, Slab, State},
    holds::{Holds, MeanHold},
};
use crate::seat_seconds::SeatSeconds;

/// One queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    first: u32,
    last: u32,
    /// Width and work of the first connection, kept here for the choice among queues.
    pub head_width: u32,
    pub head_work: SeatSeconds,
    pub waiting: u32,
    /// What its connections hold.
    pub holds: Holds,
    /// How long its connections lasted lately.
    pub mean_hold: MeanHold,
    /// Whether somebody else counts what it holds, see [`super::QueueSet::observe`].
    pub observed: bool,
    /// Estimated work of its waiting connections.
    pub waiting_work: SeatSeconds,
    /// What it has been charged. With continuous charging, what its holds used comes on top.
    base: SeatSeconds,
    /// Whether it is charged while seats are held.
    continuous: bool,
    /// Index among the level's queues. It changes when queues before it are removed.
    pub index: u32,
    /// Its place in the list of queues with waiters.
    listed: u32,
}

impl Queue {
    fn new(index: u32, continuous: bool, mean_hold: MeanHold) -> Self {
        Self {
            first: NONE,
            last: NONE,
            head_width: 0,
            head_work: SeatSeconds::ZERO,
            waiting: 0,
            holds: Holds::default(),
            mean_hold,
            observed: false,
            waiting_work: SeatSeconds::ZERO,
            base: SeatSeconds::ZERO,
            continuous,
            index,
            listed: NONE,
        }
    }

    /// Whether it counts among the queues that share the seats.
    pub fn is_active(&self) -> bool {
        self.waiting > 0 || self.holds.executing > 0
    }

    /// Whether it has no waiter and holds no seat.
    pub fn is_empty(&self) -> bool {
        !self.is_active() && self.holds.seats == 0
    }

    fn set_head(&mut self, connection: u32, slab: &Slab) {
        self.first = connection;
        if connection != NONE {
            let head = slab.at(connection);
            self.head_width = head.width();
            self.head_work = head.work;
        }
    }

    /// The connection that has waited longest.
    pub fn head(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// What the queue has been charged: APF's `nextDispatchR`, the progress at which its next
    /// waiter is due.
    pub fn usage(&self, now: u64) -> SeatSeconds {
        self.base + self.used(now)
    }

    /// Sets what the queue has been charged.
    pub fn set_usage(&mut self, usage: SeatSeconds, now: u64) {
        self.base = usage - self.used(now);
    }

    /// Charges for work. A value that wraps around (a negative one) takes a charge back.
    pub fn charge(&mut self, work: SeatSeconds) {
        self.base += work;
    }

    fn used(&self, now: u64) -> SeatSeconds {
        match self.continuous {
            true => self.holds.used(now),
            false => SeatSeconds::ZERO,
        }
    }

    /// Removes credit from before its oldest waiter came: a queue that wanted less than its part
    /// cannot save the rest up.
    pub fn limit_credit(&mut self, slab: &Slab, now: u64) {
        if let Some(head) = self.head() {
            let arrival_r = slab.at(head).arrival_r;
            if self.usage(now) < arrival_r {
                self.set_usage(arrival_r, now);
            }
        }
    }
}

/// The queues of a level, in order. A queue keeps its slot while it exists; its index may change.
#[derive(Clone, Debug, Default)]
pub struct Queues {
    slots: Vec<Queue>,
    free: Vec<u32>,
    /// Slots by index.
    order: Vec<u32>,
    /// Slots of queues with waiters, in no order.
    waiting: Vec<u32>,
    active: u32,
}

impl Queues {
    /// How many there are.
    pub fn len(&self) -> u32 {
        // Decks have at most 2^26 cards.
        self.order.len() as u32
    }

    /// How many queues have a waiter or an executing connection.
    pub fn active(&self) -> u32 {
        self.active
    }

    /// The slot of the queue with an index.
    pub fn slot(&self, index: u32) -> u32 {
        self.order[index as usize]
    }

    pub fn at(&self, slot: u32) -> &Queue {
        &self.slots[slot as usize]
    }

    pub fn at_mut(&mut self, slot: u32) -> &mut Queue {
        &mut self.slots[slot as usize]
    }

    /// The queues in order.
    pub fn iter(&self) -> impl Iterator<Item = &Queue> {
        self.order.iter().map(|&slot| self.at(slot))
    }

    /// Slots of the queues with waiters, in no order.
    pub fn with_waiters(&self) -> &[u32] {
        &self.waiting
    }

    /// Adds empty queues until there are `number`.
    pub fn grow(&mut self, number: u32, continuous: bool, mean_hold: MeanHold) {
        for index in self.len()..number {
            let queue = Queue::new(index, continuous, mean_hold);
            let slot = match self.free.pop() {
                Some(slot) => {
                    *self.at_mut(slot) = queue;
                    slot
                }
                None => {
                    self.slots.push(queue);
                    self.slots.len() as u32 - 1
                }
            };
            self.order.push(slot);
        }
    }

    /// Removes an empty queue; those after it move up. Returns the index that it had.
    pub fn remove(&mut self, slot: u32) -> u32 {
        let index = self.at(slot).index;
        self.order.remove(index as usize);
        for position in index as usize..self.order.len() {
            let moved = self.order[position];
            self.at_mut(moved).index = position as u32;
        }
        self.free.push(slot);
        index
    }

    /// Appends a connection to a queue.
    pub fn push(&mut self, slot: u32, connection: u32, slab: &mut Slab) {
        self.update(slot, |queue| {
            let entry = slab.at_mut(connection);
            entry.state = State::Waiting;
            entry.queue = slot;
            entry.next = NONE;
            entry.previous = queue.last;
            queue.waiting_work += entry.work;
            queue.waiting += 1;
            match queue.last {
                NONE => queue.set_head(connection, slab),
                last => slab.at_mut(last).next = connection,
            }
            queue.last = connection;
        });
    }

    /// Takes a waiting connection out of its queue.
    pub fn take(&mut self, connection: u32, slab: &mut Slab) {
        let entry = *slab.at(connection);
        self.update(entry.queue, |queue| {
            queue.waiting_work -= entry.work;
            queue.waiting -= 1;
            match entry.previous {
                NONE => queue.set_head(entry.next, slab),
                previous => slab.at_mut(previous).next = entry.next,
            }
            match entry.next {
                NONE => queue.last = entry.previous,
                next => slab.at_mut(next).previous = entry.previous,
            }
        });
    }

    /// Changes what the connections of a queue hold.
    pub fn hold<T>(&mut self, slot: u32, change: impl FnOnce(&mut Holds) -> T) -> T {
        self.update(slot, |queue| change(&mut queue.holds))
    }

    /// Changes a queue's members and updates the lists over all queues.
    fn update<T>(&mut self, slot: u32, change: impl FnOnce(&mut Queue) -> T) -> T {
        let queue = &mut self.slots[slot as usize];
        let was_active = queue.is_active();
        let result = change(queue);
        match (was_active, queue.is_active()) {
            (false, true) => self.active += 1,
            (true, false) => self.active -= 1,
            _ => {}
        }
        if queue.waiting > 0 && queue.listed == NONE {
            queue.listed = self.waiting.len() as u32;
            self.waiting.push(slot);
        } else if queue.waiting == 0 && queue.listed != NONE {
            let place = std::mem::replace(&mut queue.listed, NONE);
            self.waiting.swap_remove(place as usize);
            if let Some(&moved) = self.waiting.get(place as usize) {
                self.at_mut(moved).listed = place;
            }
        }
        result
    }
}
