//! Work, in seat-seconds.

use std::{
    fmt,
    ops::{Add, AddAssign, Sub, SubAssign},
};

/// Nanoseconds of one seat that are one unit.
const UNIT: u64 = 10;
const UNITS_PER_SEAT_SECOND: u64 = 1_000_000_000 / UNIT;

/// Seats times time, in units of 10⁻⁸ seat-seconds, modulo 2⁶⁴. This is APF's fixed point: a
/// negative correction is added like any other value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeatSeconds(u64);

impl SeatSeconds {
    /// No work.
    pub const ZERO: Self = Self(0);
    /// The largest value.
    pub const MAX: Self = Self(u64::MAX);

    /// So many units.
    pub const fn from_units(units: u64) -> Self {
        Self(units)
    }

    /// In units.
    pub const fn units(self) -> u64 {
        self.0
    }

    /// Seats for a time in nanoseconds, possibly negative, rounded half away from zero.
    pub fn new(seats: f64, nanoseconds: i64) -> Self {
        Self((seats * nanoseconds as f64 / UNIT as f64).round() as i64 as u64)
    }

    /// Seats for the time from the clock's origin to a moment in nanoseconds, truncated to whole
    /// units per seat. Differences of two such values are exact.
    pub fn since_origin(seats: u64, now: u64) -> Self {
        Self(seats.wrapping_mul(now / UNIT))
    }

    /// Nanoseconds that so many seats take for this work, truncated.
    pub fn per_seat(self, seats: f64) -> u64 {
        (self.0 as f64 / seats * UNIT as f64) as u64
    }
}

impl Add for SeatSeconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
}

impl Sub for SeatSeconds {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }
}

impl AddAssign for SeatSeconds {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for SeatSeconds {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl fmt::Display for SeatSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (
            self.0 / UNITS_PER_SEAT_SECOND,
            self.0 % UNITS_PER_SEAT_SECOND,
        );
        write!(f, "{whole}.{part:08}ss")
    }
}
