//! Moving seats between levels.

use super::{Controlled, Controller, Stage};
use crate::{
    borrowing::{Claim, adjust},
    level::Level,
    limits::{Limits, limits},
    queueset::Policy,
};

/// How often limits are adjusted for requests (APF), in nanoseconds.
const PERIOD: u64 = 10_000_000_000;
/// How often limits are adjusted for connections, in nanoseconds.
const CONNECTION_PERIOD: u64 = 500_000_000;
/// The part of the smoothed demand that is left after one period.
const RETAINED: f64 = 0.977;
/// The same for periods of any length: after so many seconds 1/e is left.
const RETENTION: f64 = 430.0;
/// Lent seats should come back within so many seconds.
const RECLAIM_TARGET: f64 = 5.0;

impl Controller {
    /// When the next adjustment is due after one at `now`.
    pub(super) fn after(&self, now: u64) -> u64 {
        now.saturating_add(self.period())
    }

    /// For a simulator: skips adjustments before `until`. Until then nothing may be due and no
    /// connection may wait, and there must have been two adjustments since something last happened.
    /// What the skipped ones would change fades with time alone, so the next one computes the same.
    pub fn skip_adjustments(&mut self, until: u64) {
        let until = self.next_timer().map_or(until, |at| at.min(until));
        let skipped = until.saturating_sub(self.adjust_at) / self.period();
        self.adjust_at += skipped * self.period();
    }

    fn period(&self) -> u64 {
        match self.policy {
            Policy::Exact => PERIOD,
            Policy::Connections => CONNECTION_PERIOD,
        }
    }

    /// Moves seats between levels by what they wanted since the last adjustment.
    pub(super) fn adjust(&mut self, now: u64) {
        let seconds = now.saturating_sub(self.adjusted_at) as f64 / 1e9;
        self.adjusted_at = now;
        let retained = match self.policy {
            // By the number of periods, skipped ones included, whenever the adjustments were.
            Policy::Exact => RETAINED.powf((seconds * 1e9 / PERIOD as f64).floor().max(1.0)),
            Policy::Connections => (-seconds / RETENTION).exp(),
        };
        for known in &mut self.levels {
            if known.stage == Stage::Quiescing && known.set.is_empty() {
                known.stage = Stage::Gone;
            }
            if self.policy == Policy::Connections {
                known.set.limit_debts(now);
            }
            let period = known.set.end_demand_period(now);
            known.demand.observe(&period, retained);
            let released = std::mem::take(&mut known.released) as f64;
            known.turnover = known.turnover * (-seconds / RECLAIM_TARGET).exp() + released;
        }

        let places: Vec<usize> = (0..self.levels.len())
            .filter(|&place| self.levels[place].stage != Stage::Gone)
            .collect();
        let levels: Vec<Level> = places
            .iter()
            .map(|&place| self.levels[place].level.clone())
            .collect();
        let mut claims = Vec::with_capacity(places.len());
        for (&place, limits) in places.iter().zip(limits(&levels, self.server_limit)) {
            let known = &mut self.levels[place];
            known.set.set_nominal(limits.nominal);
            known.max = limits.max;
            claims.push(known.claim(&limits, self.policy));
        }
        // Limits of levels are consistent, so there always is an allocation. If not, limits stay.
        let Ok(adjustment) = adjust(&claims) else {
            return;
        };
        for (&place, current) in places.iter().zip(adjustment.current) {
            let known = &mut self.levels[place];
            if !known.pinned && known.set.limit() != current {
                known.set.set_limit(current, now);
            }
        }
    }
}

impl Controlled {
    /// What the level may get. A level that holds connections for long could not give seats back.
    /// So it may borrow only as many as it gives back anyway within the reclaim target.
    fn claim(&self, limits: &Limits, policy: Policy) -> Claim {
        let Limits {
            nominal, min, max, ..
        } = *limits;
        let reclaimable = nominal.saturating_add(self.turnover.max(1.0) as u32);
        Claim {
            exempt: self.level.limited().is_none(),
            nominal,
            min,
            max: match policy {
                Policy::Exact => max,
                Policy::Connections => max.min(reclaimable),
            },
            demand: self.demand,
        }
    }
}
