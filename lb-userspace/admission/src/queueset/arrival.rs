//! The calls to a queue set, and its answers.

use super::{ESTIMATED_DURATION, connection::Handle};
use crate::seat_seconds::SeatSeconds;

/// What has happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub dispatched: u64,
    pub queue_full: u64,
    pub concurrency_limit: u64,
    pub time_out: u64,
    /// Attempts to dispatch that failed although there were free seats.
    pub no_accommodation: u64,
    pub epoch_advances: u64,
}

/// A connection that asks for seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The hash of its flow; see [`crate::flow_hash`]. Ignored at a level without queues.
    pub hash: u64,
    /// Seats while it lasts. If `final_seats` is larger, it takes that number all the time.
    pub initial_seats: u32,
    /// Seats that stay taken for `additional_latency` after its end.
    pub final_seats: u32,
    /// In nanoseconds, see [`Self::final_seats`].
    pub additional_latency: u64,
    /// When it gives up waiting, in nanoseconds.
    pub deadline: Option<u64>,
}

/// The answer to an [`Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has its seats.
    Admitted(Handle),
    /// It is in a queue. [`super::QueueSet::dispatch`] returns it when it is admitted, which may be
    /// at once.
    Queued(Handle),
    Rejected(Rejection),
}

/// Why a connection gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Its queue, or the node, already holds as many waiters as it may.
    QueueFull,
    /// All seats are taken, and the level has no queues.
    ConcurrencyLimit,
    /// It waited for as long as it may, or left its queue by itself.
    TimeOut,
}

/// A connection that was in a queue, possibly for no time at all, and has its seats now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    pub connection: Handle,
    /// Whether the level now holds more than its nominal limit, with seats that belong to other
    /// levels.
    pub borrowed: bool,
}

/// Something that happens by the clock alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// A waiter's deadline has passed: [`Rejection::TimeOut`]. Its handle is no longer valid.
    TimedOut(Handle),
    /// The seats that lingered after the end of a connection are free now. Its handle is no longer
    /// valid.
    Released(Handle),
}

impl Arrival {
    /// A connection that takes `width` seats until `linger` nanoseconds after its end.
    pub fn connection(hash: u64, width: u32, linger: u64, deadline: Option<u64>) -> Self {
        Self {
            hash,
            initial_seats: width,
            final_seats: if linger > 0 { width } else { 0 },
            additional_latency: linger,
            deadline,
        }
    }

    /// Its estimated cost, before anything is known of it.
    pub(super) fn work(&self) -> SeatSeconds {
        let nanoseconds = |time| i64::try_from(time).unwrap_or(i64::MAX);
        SeatSeconds::new(
            f64::from(self.initial_seats),
            nanoseconds(ESTIMATED_DURATION),
        ) + SeatSeconds::new(
            f64::from(self.final_seats),
            nanoseconds(self.additional_latency),
        )
    }
}

impl Counters {
    pub(super) fn count(&mut self, rejection: Rejection) {
        match rejection {
            Rejection::QueueFull => self.queue_full += 1,
            Rejection::ConcurrencyLimit => self.concurrency_limit += 1,
            Rejection::TimeOut => self.time_out += 1,
        }
    }
}

impl Rejection {
    /// As in the metric label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::TimeOut => "time-out",
        }
    }
}
