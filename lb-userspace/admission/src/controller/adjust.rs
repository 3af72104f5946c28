//! Moving seats between levels.

use super::{Controlled, Controller, Stage};
use crate::{
    borrowing::{Claim, LevelDemand, adjust},
    level::Level,
    limits::{Limits, limits},
    queueset::{Policy, RECLAIM_TARGET},
};

/// How often limits are adjusted for requests (APF), in nanoseconds.
const PERIOD: u64 = 10_000_000_000;
/// How often limits are adjusted for connections, in nanoseconds.
const CONNECTION_PERIOD: u64 = 500_000_000;
/// The part of the smoothed demand that is left after one period.
const RETAINED: f64 = 0.977;
/// The same for periods of any length: after so many seconds 1/e is left.
const RETENTION: f64 = 430.0;

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
        let skipped = until.saturating_sub(self.period_ends) / self.period();
        self.period_ends += skipped * self.period();
    }

    fn period(&self) -> u64 {
        match self.policy {
            Policy::Exact => PERIOD,
            Policy::Connections => CONNECTION_PERIOD,
        }
    }

    /// Ends the period of demand, and moves seats between levels by what they wanted in it.
    pub(super) fn end_period(&mut self, now: u64) {
        let seconds = now.saturating_sub(self.period_began) as f64 / 1e9;
        self.period_began = now;
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
            let released = known.set.borrowed_released() - known.released_before;
            known.released_before += released;
            let forgotten = (-seconds * 1e9 / RECLAIM_TARGET as f64).exp();
            known.turnover = known.turnover * forgotten + released as f64;
            known.has_asked = false;
        }
        let demands = self.levels.iter().map(|known| known.demand).collect();
        self.divide(demands, now);
    }

    /// Moves seats between levels by what they want now. The period of demand goes on: it is judged
    /// at its own length, whatever happens in it.
    pub(super) fn adjust_within_period(&mut self, now: u64) {
        let demand = |known: &mut Controlled| {
            let period = known.set.demand(now);
            let present = known.set.seats_in_use() + known.set.seats_waiting();
            LevelDemand {
                high_watermark: period.max.round(),
                smoothed: known.demand.smoothed.max(present as f64),
            }
        };
        let demands = self.levels.iter_mut().map(demand).collect();
        self.divide(demands, now);
    }

    /// Divides the seats by what each of the levels wants.
    fn divide(&mut self, demands: Vec<LevelDemand>, now: u64) {
        self.adjusted_at = now;
        self.asked_for = None;
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
            if !known.pinned {
                known.set.set_nominal(limits.nominal);
            }
            let claim = known.claim(&limits, demands[place], self.policy);
            known.max = claim.max;
            claims.push(claim);
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
    /// So it may borrow only as many as it gives back of borrowed ones within the reclaim target.
    fn claim(&self, limits: &Limits, demand: LevelDemand, policy: Policy) -> Claim {
        let Limits {
            nominal, min, max, ..
        } = *limits;
        let loan = self.set.least_loan().max(self.turnover as u32);
        let reclaimable = nominal.saturating_add(loan);
        Claim {
            exempt: self.level.limited().is_none(),
            nominal,
            min,
            max: match policy {
                Policy::Exact => max,
                Policy::Connections => max.min(reclaimable),
            },
            demand,
        }
    }
}
