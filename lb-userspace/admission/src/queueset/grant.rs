//! Seats that a connection has been given.

use super::arrival::Arrival;
use crate::seat_seconds::SeatSeconds;

/// Which seats are held, for whom and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seats {
    pub arrival: Arrival,
    /// Slot of its queue; none at a level without queues.
    pub queue: Option<u32>,
    /// In nanoseconds.
    pub taken_at: u64,
    /// Whether the level held more than its nominal limit with these seats.
    pub borrowed: bool,
    /// Whether they are counted among those of their flow.
    pub counted: bool,
}

/// The seats of one connection that executes. The queue set counts such connections and does not
/// know them one by one, so the caller keeps this, and gives it back exactly once: to
/// [`super::QueueSet::finish`] or [`super::QueueSet::abort`]. It cannot be copied.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the seats do not come back by themselves"]
pub struct Grant {
    pub(super) seats: Seats,
    pub(super) half_open: bool,
    /// What its queue was charged at its admission, apart from the time of its seats.
    pub(super) charged: SeatSeconds,
}

impl Grant {
    /// Seats that it holds.
    pub fn width(&self) -> u32 {
        self.seats.arrival.width()
    }

    /// Whether the level held more than its nominal limit with these seats, which then belong to
    /// other levels.
    pub fn is_borrowed(&self) -> bool {
        self.seats.borrowed
    }

    /// Whether its handshake is not complete.
    pub fn is_half_open(&self) -> bool {
        self.half_open
    }
}
