//! What must hold for a waiting connection to get its seats, and why one waits.

use super::{
    QueueSet,
    holds::{Turnover, turnover},
    queue::Queue,
    tournament::Conditions,
};

/// The flow of the queue's head holds no seat.
pub const FIRST_SEAT: Conditions = 1;
/// The queue holds no more half-open seats than are kept for it.
pub const HALF_OPEN_SHARE: Conditions = 2;
/// The queue's connections soon give their seats back.
pub const SHORT_HOLDS: Conditions = 4;
/// All of them.
pub const ALL: Conditions = FIRST_SEAT | HALF_OPEN_SHARE | SHORT_HOLDS;

/// Why the first connection of a queue waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For a turn: it can be admitted now, or others come first.
    Turn,
    /// No seat is free.
    Seat,
    /// Not so many seats are free as it takes.
    Width,
    /// The seats that are free are kept for flows without any.
    FirstSeats,
    /// The queue's connections hold all half-open places that they may.
    HalfOpen,
    /// The seats that are free belong to other levels, and the queue's connections last too long
    /// to borrow them.
    Lending,
}

impl Wait {
    /// As in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Seat => "seat",
            Self::Width => "width",
            Self::FirstSeats => "first-seats",
            Self::HalfOpen => "half-open",
            Self::Lending => "lending",
        }
    }
}

impl QueueSet {
    /// What a connection of `width` must meet to get its seats now.
    pub(super) fn required(&self, width: u32) -> Conditions {
        if self.policy.keeps_defects() {
            return 0;
        }
        let width = u64::from(width);
        let mut required = 0;
        if self.holds.seats + width + u64::from(self.kept_back()) > u64::from(self.limit) {
            required |= FIRST_SEAT;
        }
        if self.holds.half_open > 0 && self.holds.half_open + width > u64::from(self.caps.half_open)
        {
            required |= HALF_OPEN_SHARE;
        }
        // One connection may borrow without proof.
        if self.holds.seats > u64::from(self.nominal) {
            required |= SHORT_HOLDS;
        }
        required
    }

    /// What the head of a queue meets, or would if it had one.
    pub(super) fn meets(&self, queue: &Queue, width: u32, is_first_seat: bool) -> Conditions {
        if self.policy.keeps_defects() {
            return 0;
        }
        let mut meets = 0;
        if is_first_seat {
            meets |= FIRST_SEAT;
        }
        let half_open = queue.holds.half_open;
        if half_open == 0 || half_open + u64::from(width) <= u64::from(self.caps.half_open_share) {
            meets |= HALF_OPEN_SHARE;
        }
        if self.is_short(queue) {
            meets |= SHORT_HOLDS;
        }
        meets
    }

    /// Seats that are free, and kept for flows without any: no more than there are such flows.
    pub fn kept_back(&self) -> u32 {
        match self.caps.first_seat_reserve {
            0 => 0,
            reserve => reserve.min(self.flows.claimants()),
        }
    }

    /// Seats that the level may borrow without having shown that it gives them back: one, beside
    /// those that are kept.
    pub fn least_loan(&self) -> u32 {
        self.kept_back().saturating_add(1)
    }

    /// Whether a queue gives its seats back soon. Of one that has not shown it yet, a first
    /// connection is believed to last as long as others of the level.
    fn is_short(&self, queue: &Queue) -> bool {
        let now = self.synchronised_at;
        match turnover(&queue.holds, &queue.mean_hold, now) {
            Turnover::Short => true,
            Turnover::Long => false,
            Turnover::Unknown => queue.holds.seats == 0 && self.level_is_short(),
        }
    }

    /// The same for the whole level.
    pub(super) fn level_is_short(&self) -> bool {
        let of_level = turnover(&self.holds, &self.mean_hold, self.synchronised_at);
        of_level == Turnover::Short
    }

    /// Why the first connection of a queue waits; `None` if none does. `queue` is an index.
    pub fn waits_for(&self, queue: u32) -> Option<Wait> {
        if queue >= self.queues.len() {
            return None;
        }
        let queue = self.queues.at(self.queues.slot(queue));
        let head = queue.head()?;
        let width = queue.head_width;
        let (in_use, limit) = (self.holds.seats, u64::from(self.limit));
        if in_use >= limit {
            return Some(Wait::Seat);
        }
        let meets = self.meets(queue, width, self.is_first_seat(head));
        let lacks = self.required(width) & !meets;
        let is_too_wide = width > self.limit && self.holds.executing > 0
            || width <= self.limit && in_use + u64::from(width) > limit;
        Some(if lacks & HALF_OPEN_SHARE != 0 {
            Wait::HalfOpen
        } else if lacks & SHORT_HOLDS != 0 {
            Wait::Lending
        } else if is_too_wide {
            Wait::Width
        } else if lacks & FIRST_SEAT != 0 && width <= self.limit {
            Wait::FirstSeats
        } else {
            Wait::Turn
        })
    }
}
