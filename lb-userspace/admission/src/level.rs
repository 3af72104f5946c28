//! A priority level as admission uses it: valid, with every default filled in.

/// Name of the mandatory level that is never limited.
pub const EXEMPT: &str = "exempt";
/// Name of the mandatory level that takes what no other flow schema takes.
pub const CATCH_ALL: &str = "catch-all";

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
    /// At least 1.
    pub queues: u32,
    /// Queues that one flow may use, at least 1.
    pub hand_size: u32,
    /// Connections that may wait in one queue, at least 1.
    pub queue_length_limit: u32,
}

/// Limits that connections need and requests do not, because connections hold their seats for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most seats that the connections of one queue may hold together; `None` is half the level's
    /// current limit.
    pub max_seats_per_queue: Option<u32>,
    /// Part of the current limit that only queues without a seat may use, 0 to 100.
    pub first_seat_reserve_percent: u32,
    /// The most seats held by connections with an incomplete handshake; `None` means a quarter of
    /// the current limit, but at least 16.
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
            max_seats_per_queue: None,
            first_seat_reserve_percent: 5,
            max_half_open_seats: None,
        }
    }
}

impl ConnectionLimits {
    /// The most seats that one queue may hold while the level's limit is `current`.
    pub fn seats_per_queue(&self, current: u32) -> u32 {
        self.max_seats_per_queue.unwrap_or(current.div_ceil(2))
    }

    /// Seats of `current` that only queues holding none may use, rounded down.
    pub fn first_seat_reserve(&self, current: u32) -> u32 {
        let reserve =
            u64::from(current) * u64::from(self.first_seat_reserve_percent.min(100)) / 100;
        u32::try_from(reserve).unwrap_or(current)
    }

    /// The most seats that half-open connections may hold while the level's limit is `current`.
    pub fn half_open_seats(&self, current: u32) -> u32 {
        self.max_half_open_seats
            .unwrap_or((current / 4).max(MIN_HALF_OPEN_SEATS))
            .min(current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limits_follow_the_current_limit() {
        let limits = ConnectionLimits::default();
        for (current, queue, reserve, half_open) in [
            (0, 0, 0, 0),
            (1, 1, 0, 1),
            (10, 5, 0, 10),
            (20, 10, 1, 16),
            (101, 51, 5, 25),
            (u32::MAX, 1 << 31, u32::MAX / 20, u32::MAX / 4),
        ] {
            assert_eq!(limits.seats_per_queue(current), queue, "{current}");
            assert_eq!(limits.first_seat_reserve(current), reserve, "{current}");
            assert_eq!(limits.half_open_seats(current), half_open, "{current}");
        }
        let limits = ConnectionLimits {
            max_seats_per_queue: Some(7),
            first_seat_reserve_percent: 100,
            max_half_open_seats: Some(40),
        };
        assert_eq!(limits.seats_per_queue(10), 7);
        assert_eq!(limits.first_seat_reserve(10), 10);
        assert_eq!(limits.half_open_seats(30), 30);
    }
}
