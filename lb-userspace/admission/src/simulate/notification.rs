//! The work that a write causes an API server after its answer, as API Priority and Fairness
//! estimates it (KEP-1040, "Width of Requests"). Connections have no watchers; simulated API loads
//! do.

/// Watchers that one seat notifies.
const WATCHERS_PER_SEAT: u32 = 10;
/// How long one seat takes for that, in nanoseconds.
const TIME_PER_SEAT: u64 = 5_000_000;
/// Most seats of any write.
const MAX_SEATS: u32 = 10;

/// Seats that stay taken after a request's end, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notification {
    pub seats: u32,
    /// In nanoseconds. With fewer seats than the work asks for, they stay taken for longer.
    pub time: u64,
}

impl Notification {
    /// The work after a write that `watchers` are notified of. `max_seats` is the level's limit for
    /// one request; 0 means none.
    pub fn of_write(watchers: u32, max_seats: u32) -> Self {
        if watchers < WATCHERS_PER_SEAT {
            return Self::default();
        }
        let wanted = watchers.div_ceil(WATCHERS_PER_SEAT);
        let max = match max_seats {
            0 => MAX_SEATS,
            max => max.min(MAX_SEATS),
        };
        let seats = wanted.min(max);
        let work = u64::from(wanted) * TIME_PER_SEAT;
        Self {
            seats,
            time: work / u64::from(seats),
        }
    }
}
