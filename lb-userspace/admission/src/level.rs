//! A priority level as admission uses it: valid, with every default filled in.

/// Name of the mandatory level that is never limited.
pub const EXEMPT: &str = "exempt";
/// Name of the mandatory level that takes what no other flow schema takes.
pub const CATCH_ALL: &str = "catch-all";

/// The most levels of a node. The kernel knows them by numbers of eight bits, and a level that is
/// deleted keeps its own while it has connections.
pub const MAX_LEVELS: usize = 128;
/// The most queues of all levels together.
pub const MAX_ALL_QUEUES: u32 = 65_536;
/// The most queues of a level.
pub const MAX_QUEUES: u32 = 4096;
/// The most connections that may wait in one queue.
pub const MAX_QUEUE_LENGTH: u32 = 65_536;
/// Seats for half-open connections that every level has, as far as its limit allows.
const MIN_HALF_OPEN_SEATS: u32 = 16;

/// A priority level: a share of the node's seats and what happens when they are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    pub name: String,
    /// Weight among all levels when the node's seats are divided; zero gives none.
    pub shares: u32,
    /// Part of the nominal limit that other levels may borrow, 0 to 100.
    pub lendable_percent: u32,
    pub kind: LevelKind,
}

/// Whether a level limits its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Every connection is admitted at once; its seats are counted.
    Exempt,
    Limited(Limited),
}

/// How a limited level limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// How much may be borrowed, in percent of the nominal limit, possibly above 100. `None` means
    /// as much as the whole node has.
    pub borrowing_limit_percent: Option<u32>,
    pub response: LimitResponse,
    pub connections: ConnectionLimits,
    /// Whether connections that find no seat are only counted, and let in.
    pub audited: bool,
}

/// What happens to a connection that finds no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitResponse {
    Reject,
    Queue(Queuing),
}

/// The shape of a level's queues. Valid values have `hand_size <= queues`, and a hand uses at most
/// 60 bits of a flow's hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queuing {
    /// 1 to [`MAX_QUEUES`].
    pub queues: u32,
    /// Queues that one flow may use, at least 1.
    pub hand_size: u32,
    /// Connections that may wait in one queue, 1 to [`MAX_QUEUE_LENGTH`].
    pub queue_length_limit: u32,
}

/// Limits that connections need and requests do not, because connections hold their seats for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections of one flow, waiting ones included; `None` means no limit.
    pub max_connections_per_flow: Option<u32>,
    /// Part of the current limit that only flows without a seat may use, 0 to 100. No more seats
    /// are kept than there are flows that could claim one.
    pub first_seat_reserve_percent: u32,
    /// The most seats held by connections with an incomplete handshake. Each queue has its part of
    /// them that others cannot use up. `None` means a quarter of the current limit, but at least
    /// 16; no limit at a level with less than two queues, where nothing could tell those apart that
    /// use up the places.
    pub max_half_open_seats: Option<u32>,
}

impl Level {
    /// The level `exempt` as it is without an object of that name.
    pub fn exempt() -> Self {
        Self {
            name: EXEMPT.to_owned(),
            shares: 0,
            lendable_percent: 0,
            kind: LevelKind::Exempt,
        }
    }

    /// The level `catch-all`, which no object can change.
    pub fn catch_all() -> Self {
        Self {
            name: CATCH_ALL.to_owned(),
            shares: 5,
            lendable_percent: 0,
            kind: LevelKind::Limited(Limited {
                borrowing_limit_percent: None,
                response: LimitResponse::Reject,
                connections: ConnectionLimits::default(),
                audited: false,
            }),
        }
    }

    /// The limits of the level; `None` if it is exempt.
    pub fn limited(&self) -> Option<&Limited> {
        match &self.kind {
            LevelKind::Exempt => None,
            LevelKind::Limited(limited) => Some(limited),
        }
    }

    /// The level's queues, if it has any.
    pub fn queuing(&self) -> Option<Queuing> {
        match self.limited()?.response {
            LimitResponse::Reject => None,
            LimitResponse::Queue(queuing) => Some(queuing),
        }
    }
}

impl LimitResponse {
    /// As in the object's `limitResponse.type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reject => "Reject",
            Self::Queue(_) => "Queue",
        }
    }
}

impl LevelKind {
    /// As in the object's `spec.type`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Exempt => "Exempt",
            Self::Limited(_) => "Limited",
        }
    }
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections_per_flow: None,
            first_seat_reserve_percent: 5,
            max_half_open_seats: None,
        }
    }
}

impl ConnectionLimits {
    /// Seats of `current` that only flows holding none may use, rounded down.
    pub fn first_seat_reserve(&self, current: u32) -> u32 {
        let reserve =
            u64::from(current) * u64::from(self.first_seat_reserve_percent.min(100)) / 100;
        u32::try_from(reserve).unwrap_or(current)
    }

    /// The most seats that half-open connections may hold while the limit of the level, which has
    /// so many queues, is `current`.
    pub fn half_open_seats(&self, current: u32, queues: u32) -> u32 {
        let default = match queues {
            0 | 1 => current,
            _ => (current / 4).max(MIN_HALF_OPEN_SEATS),
        };
        self.max_half_open_seats.unwrap_or(default).min(current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limits_follow_the_current_limit() {
        let limits = ConnectionLimits::default();
        for (current, reserve, half_open) in [
            (0, 0, 0),
            (1, 0, 1),
            (10, 0, 10),
            (20, 1, 16),
            (101, 5, 25),
            (u32::MAX, u32::MAX / 20, u32::MAX / 4),
        ] {
            assert_eq!(limits.first_seat_reserve(current), reserve, "{current}");
            assert_eq!(limits.half_open_seats(current, 64), half_open, "{current}");
            assert_eq!(limits.half_open_seats(current, 1), current, "{current}");
        }
        let limits = ConnectionLimits {
            max_connections_per_flow: Some(7),
            first_seat_reserve_percent: 100,
            max_half_open_seats: Some(40),
        };
        assert_eq!(limits.first_seat_reserve(10), 10);
        assert_eq!(limits.half_open_seats(30, 64), 30);
        assert_eq!(limits.half_open_seats(100, 0), 40);
    }
}
