//! Timers of connections: a binary heap in which every connection knows its place, so that a timer
//! can be removed at once when it is no longer needed.

use super::connection::{NONE, Slab};

/// When something happens to a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    /// In nanoseconds.
    at: u64,
    /// Breaks ties: timers of the same time fire in the order in which they were set.
    order: u32,
    connection: u32,
}

/// At most one timer for each connection of a slab.
#[derive(Clone, Debug, Default)]
pub struct Timers {
    heap: Vec<Timer>,
    set: u32,
}

impl Timers {
    /// The earliest timer: when, and for which connection.
    pub fn first(&self) -> Option<(u64, u32)> {
        self.heap.first().map(|timer| (timer.at, timer.connection))
    }

    /// Sets the timer of a connection that has none.
    pub fn set(&mut self, connection: u32, at: u64, slab: &mut Slab) {
        self.set = self.set.wrapping_add(1);
        self.heap.push(Timer {
            at,
            order: self.set,
            connection,
        });
        self.rise(self.heap.len() - 1, slab);
    }

    /// Removes a connection's timer, if it has one.
    pub fn cancel(&mut self, connection: u32, slab: &mut Slab) {
        let place = std::mem::replace(&mut slab.at_mut(connection).timer, NONE) as usize;
        if place >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.sink(place, slab);
            self.rise(place, slab);
        }
    }

    fn before(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.heap[one], self.heap[other]);
        (one.at, one.order) < (other.at, other.order)
    }

    fn rise(&mut self, mut place: usize, slab: &mut Slab) {
        while place > 0 && self.before(place, (place - 1) / 2) {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place, slab);
            place = (place - 1) / 2;
        }
        self.note(place, slab);
    }

    fn sink(&mut self, mut place: usize, slab: &mut Slab) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let smaller =
                children.reduce(|one, other| if self.before(other, one) { other } else { one });
            let Some(child) = smaller.filter(|&child| self.before(child, place)) else {
                break;
            };
            self.heap.swap(place, child);
            self.note(place, slab);
            place = child;
        }
        self.note(place, slab);
    }

    /// Stores in a connection the place of its timer.
    fn note(&self, place: usize, slab: &mut Slab) {
        // There are no more timers than connections, which have 32-bit numbers.
        slab.at_mut(self.heap[place].connection).timer = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::queueset::{arrival::Arrival, connection::Connection};

    proptest! {
        #[test]
        fn timers_fire_in_order_and_cancelled_ones_never(
            timers in prop::collection::vec((0..20_u64, any::<bool>()), 1..60),
        ) {
            let mut slab = Slab::new();
            let mut heap = Timers::default();
            let mut expected = Vec::new();
            let mut cancelled = Vec::new();
            for &(at, cancel) in &timers {
                let arrival = Arrival::connection(1, 1, 0, None);
                let handle = slab.insert(Connection::new(arrival)).unwrap();
                let index = slab.find(handle).unwrap();
                heap.set(index, at, &mut slab);
                if cancel { cancelled.push(index) } else { expected.push((at, index)) }
            }
            for index in cancelled {
                heap.cancel(index, &mut slab);
                heap.cancel(index, &mut slab);
            }
            expected.sort_by_key(|&(at, _)| at);
            let mut fired = Vec::new();
            while let Some((at, index)) = heap.first() {
                heap.cancel(index, &mut slab);
                fired.push((at, index));
            }
            prop_assert_eq!(fired, expected);
        }
    }
}
