//! Borrowing: sets the levels' current limits by what each level wants and what others leave unused
//! (KEP-1040, "Dispatching").

use super::{
    allocation::{AllocationError, Class, allocate},
    demand::DemandStatistics,
};

/// What a level wants, in seats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LevelDemand {
    /// The most seats that it wanted at once in the last period.
    pub high_watermark: f64,
    /// Mean plus deviation, smoothed: it rises at once and falls slowly.
    pub smoothed: f64,
}

impl LevelDemand {
    /// Adds a period. If the new value is lower, `retained` (0 to 1) is the part of the old value
    /// that stays.
    pub fn observe(&mut self, period: &DemandStatistics, retained: f64) {
        self.high_watermark = period.max.round();
        if period.duration > 0.0 {
            let deviation = if period.deviation.is_nan() {
                0.0
            } else {
                period.deviation
            };
            let envelope = period.average + deviation;
            let fallen = retained * self.smoothed + (1.0 - retained) * envelope;
            self.smoothed = envelope.max(fallen);
        }
    }
}

/// A level that takes part. All limits are in seats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Never limited: the seats it uses are taken from what the others share.
    pub exempt: bool,
    pub nominal: u32,
    /// Seats that it keeps even if it wants none, at most `nominal`.
    pub min: u32,
    /// The most that it may have, at least `nominal`.
    pub max: u32,
    pub demand: LevelDemand,
}

impl Claim {
    /// Seats that it must get if possible: what it wants of its own seats.
    pub fn min_current(&self) -> u32 {
        // Saturates; demand is not negative.
        let wanted = self.demand.high_watermark as u32;
        match self.exempt {
            true => self.min.max(wanted),
            false => self.min.max(wanted.min(self.nominal)),
        }
    }

    /// Seats that it would like to get.
    pub fn target(&self) -> f64 {
        f64::from(self.min_current()).max(self.demand.smoothed)
    }
}

/// Limits that follow from the claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Adjustment {
    /// For each claim, in the order of the claims.
    pub current: Vec<u32>,
    /// Each level gets its target times this, bounds apart; zero if levels get less than they must.
    pub fair_fraction: f64,
}

/// Divides all seats of the levels, that is the sum of their nominal limits.
///
/// Seats of exempt levels are taken off only if they leave too little for what the others must
/// get, as kubernetes/apiserver does it; the sum may then exceed that of the nominal limits.
///
/// # Errors
/// If the claims contradict each other. The limits should then stay as they are.
pub fn adjust(claims: &[Claim]) -> Result<Adjustment, AllocationError> {
    let sum = |exempt: bool, of: fn(&Claim) -> u32| -> i64 {
        let claims = claims.iter().filter(|claim| claim.exempt == exempt);
        claims.map(|claim| i64::from(of(claim))).sum()
    };
    let total = sum(true, |claim| claim.nominal) + sum(false, |claim| claim.nominal);
    let remaining = total - sum(true, Claim::min_current);
    let min = sum(false, |claim| claim.min);
    let min_current = sum(false, Claim::min_current);

    let limited: Vec<&Claim> = claims.iter().filter(|claim| !claim.exempt).collect();
    let (seats, fair_fraction): (Vec<u32>, f64) = if remaining <= min {
        (limited.iter().map(|claim| claim.min).collect(), 0.0)
    } else if remaining <= min_current {
        let part = (remaining - min) as f64 / (min_current - min) as f64;
        let between = |claim: &&Claim| {
            let above = f64::from(claim.min_current() - claim.min);
            claim.min + (above * part).round() as u32
        };
        (limited.iter().map(between).collect(), 0.0)
    } else {
        let class = |claim: &&Claim| Class {
            lower: f64::from(claim.min_current()),
            target: claim.target(),
            upper: f64::from(claim.max),
        };
        let classes: Vec<Class> = limited.iter().map(class).collect();
        let allocation = allocate(total, &classes)?;
        let seats = allocation.seats.iter().map(|seats| seats.round() as u32);
        (seats.collect(), allocation.fair_fraction)
    };

    let mut seats = seats.into_iter();
    let of_claim = |claim: &Claim| match claim.exempt {
        true => claim.min_current(),
        false => seats.next().unwrap_or(claim.min),
    };
    Ok(Adjustment {
        current: claims.iter().map(of_claim).collect(),
        fair_fraction,
    })
}
