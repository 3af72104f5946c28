//! What a connection asks for, and why it may not get it.

use super::ESTIMATED_DURATION;
use crate::seat_seconds::SeatSeconds;

/// A connection that asks for seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The hash of its flow; see [`crate::flow_hash`].
    pub hash: u64,
    /// The caller's number of its flow schema, by which it is counted; small numbers are best.
    pub schema: u32,
    /// The most connections that its flow may have, beside what the level allows.
    pub most_of_flow: u32,
    /// Seats while it lasts. If `final_seats` is larger, it takes that number all the time.
    pub initial_seats: u32,
    /// Seats that stay taken for `additional_latency` after its end.
    pub final_seats: u32,
    /// In nanoseconds, see [`Self::final_seats`].
    pub additional_latency: u64,
    /// When it gives up waiting, in nanoseconds.
    pub deadline: Option<u64>,
}

/// Why a connection gets no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Its queue, or the node, already holds as many waiters as it may.
    QueueFull,
    /// All seats are taken, and the level has no queues.
    ConcurrencyLimit,
    /// Its flow already has as many connections as one may have.
    FlowLimit,
    /// It waited for as long as it may, or left its queue by itself.
    TimeOut,
}

impl Arrival {
    /// A connection that takes `width` seats until `linger` nanoseconds after its end.
    pub fn connection(hash: u64, width: u32, linger: u64, deadline: Option<u64>) -> Self {
        Self {
            hash,
            schema: 0,
            most_of_flow: u32::MAX,
            initial_seats: width,
            final_seats: if linger > 0 { width } else { 0 },
            additional_latency: linger,
            deadline,
        }
    }

    /// Seats that it takes from its admission to their release.
    pub fn width(&self) -> u32 {
        self.initial_seats.max(self.final_seats)
    }

    /// The same with at most `limit` final seats: the same work, done by fewer seats for longer.
    pub(super) fn narrowed(self, limit: u32) -> Self {
        if self.final_seats <= limit {
            return self;
        }
        let latency = i64::try_from(self.additional_latency).unwrap_or(i64::MAX);
        let work = SeatSeconds::new(f64::from(self.final_seats), latency);
        Self {
            additional_latency: work.per_seat(f64::from(limit)),
            final_seats: limit,
            ..self
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

impl Rejection {
    /// As in the metric label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue-full",
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::FlowLimit => "flow-limit",
            Self::TimeOut => "time-out",
        }
    }
}
