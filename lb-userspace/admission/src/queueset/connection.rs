//! The connections that a queue set knows one by one, in one slab: those that wait, and those that
//! are over while their seats linger. The ones between are only counted.

use super::arrival::Arrival;
use crate::seat_seconds::SeatSeconds;

/// Stands for no connection, queue or timer.
pub const NONE: u32 = u32::MAX;

/// Names a connection that waits, until it is admitted or leaves its queue. After its end it names
/// it again while its seats linger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    index: u32,
    generation: u32,
}

impl Handle {
    /// Small and dense, so a caller may keep its own data in an array. Reused once the connection
    /// is gone.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In a queue.
    Waiting,
    /// Over, but its seats are not yet released.
    Lingering,
    /// The place in the slab is free.
    Free,
}

/// One connection. With its place in the timers it takes at most 128 octets, because a hundred
/// thousand may wait.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub arrival: Arrival,
    /// Progress of the level when the connection arrived.
    pub arrival_r: SeatSeconds,
    /// The estimated work of the connection.
    pub work: SeatSeconds,
    /// When it began to wait or, once it is over, when it was admitted; in nanoseconds.
    pub since: u64,
    /// Slot of its queue; [`NONE`] at a level without queues.
    pub queue: u32,
    /// Neighbours in the queue. In a free place, the next free place.
    pub previous: u32,
    pub next: u32,
    /// Its place in the heap of timers.
    pub timer: u32,
    generation: u32,
    pub state: State,
    /// Of lingering seats, as in [`super::grant::Seats`].
    pub borrowed: bool,
    pub counted: bool,
}

impl Connection {
    /// A connection that waits for a seat and is in no queue yet.
    pub fn new(arrival: Arrival) -> Self {
        Self {
            work: arrival.work(),
            arrival,
            arrival_r: SeatSeconds::ZERO,
            since: 0,
            queue: NONE,
            previous: NONE,
            next: NONE,
            timer: NONE,
            generation: 0,
            state: State::Waiting,
            borrowed: false,
            counted: false,
        }
    }

    /// Seats that it takes from its admission to their release.
    pub fn width(&self) -> u32 {
        self.arrival.width()
    }

    /// Whether it is in a queue.
    pub fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }
}

/// Connections at stable places, which are reused.
#[derive(Clone, Debug)]
pub struct Slab {
    connections: Vec<Connection>,
    first_free: u32,
    live: u32,
}

impl Slab {
    /// A slab without connections.
    pub fn new() -> Self {
        Self {
            connections: Vec::new(),
            first_free: NONE,
            live: 0,
        }
    }

    /// Adds a connection; `None` if there are no numbers left to name it.
    pub fn insert(&mut self, connection: Connection) -> Option<Handle> {
        let index = match self.first_free {
            NONE => u32::try_from(self.connections.len())
                .ok()
                .filter(|&index| index != NONE)?,
            free => free,
        };
        match self.connections.get_mut(index as usize) {
            Some(place) => {
                self.first_free = place.next;
                *place = Connection {
                    generation: place.generation,
                    ..connection
                };
            }
            None => self.connections.push(connection),
        }
        self.live += 1;
        Some(self.handle(index))
    }

    /// Frees a place. Its handle is no longer valid.
    pub fn remove(&mut self, index: u32) {
        let next = self.first_free;
        let place = self.at_mut(index);
        place.state = State::Free;
        place.generation = place.generation.wrapping_add(1);
        place.next = next;
        self.first_free = index;
        self.live -= 1;
    }

    /// The place of a connection, if it is still there.
    pub fn find(&self, handle: Handle) -> Option<u32> {
        let place = self.connections.get(handle.index as usize)?;
        let valid = place.generation == handle.generation && place.state != State::Free;
        valid.then_some(handle.index)
    }

    /// The handle of the connection at a place.
    pub fn handle(&self, index: u32) -> Handle {
        Handle {
            index,
            generation: self.at(index).generation,
        }
    }

    pub fn at(&self, index: u32) -> &Connection {
        &self.connections[index as usize]
    }

    pub fn at_mut(&mut self, index: u32) -> &mut Connection {
        &mut self.connections[index as usize]
    }

    /// How many connections there are.
    pub fn len(&self) -> u32 {
        self.live
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.connections.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queueset::timers::Timer;

    #[test]
    fn a_parked_connection_takes_at_most_128_octets() {
        assert!(size_of::<Connection>() + size_of::<Timer>() <= 128);
    }

    #[test]
    fn handles_end_with_their_connection() {
        let mut slab = Slab::new();
        let first = slab
            .insert(Connection::new(Arrival::connection(1, 1, 0, None)))
            .unwrap();
        let index = slab.find(first).unwrap();
        slab.remove(index);
        assert_eq!(slab.find(first), None);
        let second = slab
            .insert(Connection::new(Arrival::connection(1, 1, 0, None)))
            .unwrap();
        assert_eq!(second.index(), first.index());
        assert_eq!(slab.find(first), None);
        assert!(slab.find(second).is_some());
        assert_eq!(slab.len(), 1);
    }
}
