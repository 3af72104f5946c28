//! Which rules a queue set follows.

use crate::level::ConnectionLimits;

/// The rules for requests (as APF) or for connections. This table lists every difference; all other
/// code is shared.
///
/// | | `Exact` | `Connections` |
/// |---|---|---|
/// | a queue is charged | an estimate at dispatch, corrected at the end | while seats are held |
/// | for its order, each seat of its head's flow counts | nothing | the mean of recent holds, 3 ms to 60 s |
/// | progress R | by the clock alone | also not behind the queue that is served, if it is first in line |
/// | a queue idle before | starts at R | starts at R, or behind if it has had more |
/// | a queue that had more | waits however long it takes | for at most ten seconds of a fair share |
/// | of queues with equally much waiting | the next one in turn | one that can be served, then the one charged least |
/// | a flow's connections, first seats, half-open seats | no limits | [`ConnectionLimits`] |
/// | seats of other levels | for every queue | for queues that give seats back soon |
/// | the order is decided | by the moment | by moments ten milliseconds apart, and what changed since |
/// | a full queue | takes more while seats are free | is full |
/// | a waiter leaves | nothing is dispatched | what it held up is dispatched |
/// | limit 0 without queues | admits one at a time | admits none |
/// | seats waiting, after final seats were cut | drift upwards | are right |
///
/// The last four rows of `Exact` are defects of kubernetes/apiserver that its traces contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Exact,
    Connections,
}

/// Limits on parts of a level's seats, computed for its current limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The most connections of one flow, waiting ones included.
    pub per_flow: u32,
    /// Seats that only flows without a seat may use.
    pub first_seat_reserve: u32,
    /// The most seats held by connections with an incomplete handshake.
    pub half_open: u32,
    /// Of those, what every queue may hold even if others hold all.
    pub half_open_share: u32,
}

impl Policy {
    /// The limits on parts of `limit` seats of a level with so many queues.
    pub fn caps(self, limits: &ConnectionLimits, limit: u32, queues: u32) -> Caps {
        match self {
            Self::Exact => Caps {
                per_flow: u32::MAX,
                first_seat_reserve: 0,
                half_open: u32::MAX,
                half_open_share: u32::MAX,
            },
            Self::Connections => {
                let half_open = limits.half_open_seats(limit, queues);
                Caps {
                    per_flow: limits.max_connections_per_flow.unwrap_or(u32::MAX),
                    first_seat_reserve: match queues {
                        0 => 0,
                        _ => limits.first_seat_reserve(limit),
                    },
                    half_open,
                    half_open_share: (half_open / queues.max(1)).max(1),
                }
            }
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
