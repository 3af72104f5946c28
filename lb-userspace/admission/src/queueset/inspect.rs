//! Looking into a queue set, as APF's debug endpoints do.

use super::{
    Counters, Handle, QueueSet,
    connection::{NONE, State},
};
use crate::seat_seconds::SeatSeconds;

/// One queue at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// What it has been charged.
    pub next_dispatch_r: SeatSeconds,
    /// Oldest first.
    pub waiting: Vec<Handle>,
    /// How many hold seats and are not over.
    pub executing: u32,
    /// Seats held, lingering ones included.
    pub seats_in_use: u64,
    /// Estimated work of the waiting connections.
    pub waiting_work: SeatSeconds,
}

impl QueueSet {
    /// Seats that may be held at present.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Seats that are held, lingering ones included.
    pub fn seats_in_use(&self) -> u64 {
        self.seats_in_use
    }

    /// Seats that connections wait for.
    pub fn seats_waiting(&self) -> u64 {
        self.seats_waiting
    }

    /// Seats held by connections with an incomplete handshake.
    pub fn half_open_seats(&self) -> u64 {
        self.half_open_seats
    }

    /// Connections that wait.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Connections that hold seats and are not over.
    pub fn executing(&self) -> u32 {
        self.executing
    }

    /// Whether no connection waits or executes; seats may linger.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.executing == 0
    }

    /// Whether it knows no connection at all, not even one with lingering seats.
    pub fn is_empty(&self) -> bool {
        self.connections.len() == 0
    }

    /// What has happened since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Arrivals that chose a queue, rejected ones included.
    pub fn enqueues(&self) -> u64 {
        self.enqueues
    }

    /// Progress of the level when it was last called.
    pub fn progress(&self) -> SeatSeconds {
        self.r
    }

    /// Index of the queue that was served last.
    pub fn last_served(&self) -> u32 {
        self.robin
    }

    /// Index of the queue that a connection is or was in; `None` at a level without queues.
    pub fn queue_of(&self, connection: Handle) -> Option<u32> {
        let entry = self.connections.at(self.connections.find(connection)?);
        (entry.queue != NONE).then(|| self.queues.at(entry.queue).index)
    }

    /// Whether a connection holds seats and is not over.
    pub fn is_executing(&self, connection: Handle) -> bool {
        self.find(connection, State::Executing).is_some()
    }

    /// All queues, in order, at the time of the last call.
    pub fn queues(&self) -> Vec<QueueState> {
        let now = self.synchronised_at;
        let states = self.queues.iter().map(|queue| {
            let mut waiting = Vec::with_capacity(queue.waiting as usize);
            let mut next = queue.head();
            while let Some(index) = next {
                waiting.push(self.connections.handle(index));
                next = Some(self.connections.at(index).next).filter(|&next| next != NONE);
            }
            QueueState {
                next_dispatch_r: queue.usage(now),
                waiting,
                executing: queue.executing,
                seats_in_use: queue.seats,
                waiting_work: queue.waiting_work,
            }
        });
        states.collect()
    }
}
