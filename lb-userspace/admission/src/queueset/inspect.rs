//! Looking into a queue set, as APF's debug endpoints do.

use super::{Counters, Grant, Handle, Holds, QueueSet, SchemaCounters, Wait, connection::NONE};
use crate::seat_seconds::SeatSeconds;

/// One queue at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// What it has been charged.
    pub next_dispatch_r: SeatSeconds,
    /// Oldest first.
    pub waiting: Vec<Handle>,
    /// Why the first of them waits.
    pub waits_for: Option<Wait>,
    /// What its other connections hold.
    pub holds: Holds,
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
        self.holds.seats
    }

    /// Seats that connections wait for.
    pub fn seats_waiting(&self) -> u64 {
        self.seats_waiting
    }

    /// Seats held by connections with an incomplete handshake.
    pub fn half_open_seats(&self) -> u64 {
        self.holds.half_open
    }

    /// Connections that wait.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Connections that hold seats and are not over.
    pub fn executing(&self) -> u32 {
        self.holds.executing
    }

    /// Whether no connection waits or executes; seats may linger.
    pub fn is_idle(&self) -> bool {
        self.waiting == 0 && self.holds.executing == 0
    }

    /// Whether no connection waits or holds seats, not even lingering ones.
    pub fn is_empty(&self) -> bool {
        self.is_idle() && self.holds.seats == 0 && self.connections.len() == 0
    }

    /// What has happened since the start.
    pub fn counters(&self) -> &Counters {
        &self.counts.level
    }

    /// The same for each flow schema, by its number in [`super::Arrival::schema`]. Schemas that had
    /// no connections here may be missing at the end.
    pub fn schemas(&self) -> &[SchemaCounters] {
        &self.counts.schemas
    }

    /// Seats that have come back from connections which held other levels' seats.
    pub fn borrowed_released(&self) -> u64 {
        self.borrowed_released
    }

    /// Queues of which flows are dealt hands.
    pub fn deck_size(&self) -> u32 {
        self.kind.queues()
    }

    /// All queues, also those that are kept beyond these until they are empty.
    pub fn queue_count(&self) -> u32 {
        self.queues.len()
    }

    /// Arrivals for which a queue was chosen here, rejected ones included.
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

    /// Index of the queue that a connection waits in; `None` if it does not wait.
    pub fn queue_of(&self, connection: Handle) -> Option<u32> {
        let entry = self.connections.at(self.connections.find(connection)?);
        entry
            .is_waiting()
            .then(|| self.queues.at(entry.queue).index)
    }

    /// The indexes of the queues in which somebody waits, in no order, with the time at which the
    /// first one in each began to.
    pub fn waiting_since(&self) -> impl Iterator<Item = (u32, u64)> {
        let waited_in = self.queues.with_waiters().iter();
        let waited_in = waited_in.map(|&slot| self.queues.at(slot));
        waited_in.filter_map(|queue| {
            let first = self.connections.at(queue.head()?);
            Some((queue.index, first.since))
        })
    }

    /// Index of the queue that an executing connection was in; `None` at a level without queues.
    pub fn queue_of_grant(&self, grant: &Grant) -> Option<u32> {
        Some(self.queues.at(grant.seats.queue?).index)
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
                waits_for: self.waits_for(queue.index),
                holds: queue.holds,
                waiting_work: queue.waiting_work,
            }
        });
        states.collect()
    }
}
