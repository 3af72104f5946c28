//! Which rules a queue set follows.

use crate::level::ConnectionLimits;

/// The rules for requests (as APF) or for connections. This table lists every difference; all other
/// code is shared.
///
/// | | `Exact` | `Connections` |
/// |---|---|---|
/// | a queue is charged | an estimate at dispatch, corrected at the end | while seats are held, with an estimate ahead that is taken back at the end |
/// | estimate | 3 ms | mean of the level's recent holds, 3 ms to 60 s |
/// | progress R | by the clock alone | also not behind the queue that is served |
/// | a queue idle before | starts at R | starts at R, or behind if it has had more |
/// | a queue that had more | waits however long it takes | for at most ten minutes of all seats |
/// | seats per queue, first seats, half-open seats | no limits | [`ConnectionLimits`] |
/// | a full queue | takes more while seats are free | is full |
/// | a waiter leaves | nothing is dispatched | what it held up is dispatched |
/// | limit 0 without queues | admits one at a time | admits none |
/// | seats waiting, after final seats were cut | drift upwards | are right |
///
/// Rows 7 to 10 of `Exact` are defects of kubernetes/apiserver that its traces contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Exact,
    Connections,
}

/// Limits on parts of a level's seats, in seats, computed for its current limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The most that the connections of one queue hold together, unless it is one wide connection.
    pub per_queue: u32,
    /// Seats that only queues without a seat may use.
    pub first_seat_reserve: u32,
    /// The most seats held by connections with an incomplete handshake.
    pub half_open: u32,
}

impl Policy {
    /// The limits on parts of `limit` seats.
    pub fn caps(self, limits: &ConnectionLimits, limit: u32) -> Caps {
        match self {
            Self::Exact => Caps {
                per_queue: u32::MAX,
                first_seat_reserve: 0,
                half_open: u32::MAX,
            },
            Self::Connections => Caps {
                per_queue: limits.seats_per_queue(limit),
                first_seat_reserve: limits.first_seat_reserve(limit),
                half_open: limits.half_open_seats(limit),
            },
        }
    }

    /// Whether queues are charged while seats are held rather than at the end.
    pub fn charges_continuously(self) -> bool {
        self == Self::Connections
    }

    /// Whether kubernetes/apiserver's known defects are kept.
    pub fn keeps_defects(self) -> bool {
        self == Self::Exact
    }
}
