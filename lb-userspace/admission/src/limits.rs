//! How many seats each level gets: the limits that follow from the objects alone. A level's current
//! limit then moves between its minimum and maximum by borrowing.

use super::level::{Level, LevelKind};

/// The largest part of a level's nominal limit that one connection may take.
const MAX_WIDTH_SHARE: f64 = 0.15;

/// The limits of one level, in seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The level's own part of the node's seats.
    pub nominal: u32,
    /// The part of `nominal` that other levels may borrow.
    pub lendable: u32,
    /// The most that the level may borrow.
    pub borrowing: u32,
    /// `nominal - lendable`: seats that the level gets whenever it wants them.
    pub min: u32,
    /// `nominal + borrowing`.
    pub max: u32,
    /// The most seats of one connection; `None` for levels without queues, which have no such
    /// limit.
    pub max_seats: Option<u32>,
}

/// Divides `server_limit` seats, those of the whole node, among `levels`: the limits of each, in
/// the same order (KEP-1040, "Dispatching").
///
/// Nominal limits are rounded up, so together they may exceed `server_limit` by a few seats.
pub fn limits(levels: &[Level], server_limit: u32) -> Vec<Limits> {
    let total_shares: u64 = levels.iter().map(|level| u64::from(level.shares)).sum();
    let of_level = |level| Limits::new(level, total_shares, server_limit);
    levels.iter().map(of_level).collect()
}

impl Limits {
    fn new(level: &Level, total_shares: u64, server_limit: u32) -> Self {
        let nominal = match level.shares {
            0 => 0,
            shares => {
                let seats = u64::from(server_limit) * u64::from(shares);
                // At most `server_limit`, because no level has more than all shares.
                u32::try_from(seats.div_ceil(total_shares)).unwrap_or(server_limit)
            }
        };
        let lendable = percent_of(nominal, level.lendable_percent);
        let borrowing = match &level.kind {
            LevelKind::Exempt => server_limit,
            LevelKind::Limited(limited) => match limited.borrowing_limit_percent {
                Some(percent) => percent_of(nominal, percent),
                None => server_limit,
            },
        };
        Self {
            nominal,
            lendable,
            borrowing,
            min: nominal.saturating_sub(lendable),
            max: nominal.saturating_add(borrowing),
            max_seats: level
                .queuing()
                .map(|queuing| max_seats(nominal, queuing.hand_size)),
        }
    }
}

/// The most seats that one connection may take at a level with queues. So a wide connection neither
/// fills all queues of a hand, nor blocks the level for long while seats for it become free.
pub fn max_seats(nominal: u32, hand_size: u32) -> u32 {
    // Fits u32: it is smaller than `nominal`.
    let share = (f64::from(nominal) * MAX_WIDTH_SHARE).ceil() as u32;
    share.min(nominal / hand_size.max(1)).max(1)
}

/// Rounds half up, which is half away from zero for positive numbers. The result is at most
/// `u32::MAX`.
fn percent_of(seats: u32, percent: u32) -> u32 {
    let rounded = (u64::from(seats) * u64::from(percent) + 50) / 100;
    u32::try_from(rounded).unwrap_or(u32::MAX)
}
