//! The limits of priority levels: who lends how many seats to whom, by what levels hold.
//!
//! The kernel lets connections in and counts them. Every half second the limits are set anew. If the
//! agent is away, they stay as they are.

use std::collections::BTreeMap;

use lb_admission::{
    configuration::InForce,
    controller::{Controller, LevelError},
    level::{Level, LevelKind, LimitResponse, Limited},
    queueset::{Holds, Policy},
};
use lb_common::flow::Seats;

/// How often limits are to be set, in nanoseconds.
pub const PERIOD: u64 = 500_000_000;

/// The levels of the node.
pub struct Levels {
    controller: Controller,
    /// What each level was seen to hold.
    seen: BTreeMap<String, Seen>,
}

/// What the kernel has counted of a level.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    holds: Holds,
    /// Seats taken so far, modulo 2^32.
    taken: u32,
    /// Connections refused so far.
    refused: u64,
    at: u64,
}

impl Levels {
    /// The levels of a configuration on a node with so many seats. Times are in nanoseconds.
    ///
    /// # Errors
    /// If the levels are impossible together, which a valid configuration's never are.
    pub fn new(in_force: &InForce, server_limit: u32, now: u64) -> Result<Self, LevelError> {
        let levels = without_queues(in_force);
        Ok(Self {
            controller: Controller::new(&levels, server_limit, Policy::Connections, now)?,
            seen: BTreeMap::new(),
        })
    }

    /// Goes over to another configuration.
    ///
    /// # Errors
    /// As [`Self::new`]; nothing has changed then.
    pub fn configure(
        &mut self,
        in_force: &InForce,
        server_limit: u32,
        now: u64,
    ) -> Result<(), LevelError> {
        let levels = without_queues(in_force);
        self.controller.configure(&levels, server_limit, now)
    }

    /// Takes over what the kernel has counted of all levels. Of those that are not among them nobody
    /// is left.
    pub fn observe_all(&mut self, counted: &BTreeMap<&str, Seats>, now: u64) {
        self.seen
            .retain(|name, _| self.controller.find_present(name).is_some());
        for (name, counted) in counted {
            self.observe(name, counted, now);
        }
        let seen = self.seen.iter().map(|(name, seen)| (name.clone(), *seen));
        let left: Vec<_> = seen
            .filter(|(name, _)| !counted.contains_key(name.as_str()))
            .collect();
        for (name, seen) in left {
            let nobody = Seats {
                word: u64::from(seen.taken) << 32,
                refused: seen.refused,
                ..Seats::default()
            };
            self.observe(&name, &nobody, now);
        }
    }

    /// Takes over what the kernel has counted of a level, which may be one that is no longer
    /// configured but still has connections. Others are ignored.
    fn observe(&mut self, name: &str, counted: &Seats, now: u64) {
        let Some(level) = self.controller.find_present(name) else {
            return;
        };
        let is_new = !self.seen.contains_key(name);
        let seen = self.seen.entry(name.to_owned()).or_default();
        let refused = match is_new {
            true => 0,
            false => counted.refused.saturating_sub(seen.refused),
        };
        seen.follow(counted, is_new, now);
        let controller = &mut self.controller;
        controller.observe_without_queue(level, seen.holds, now);
        controller.note_refused(level, refused, now);
    }

    /// Lets everything happen that is due.
    pub fn advance(&mut self, now: u64) {
        while self.controller.fire(now).is_some() {}
    }

    /// The limit of each level now.
    pub fn limits(&self) -> impl Iterator<Item = (&str, u32)> {
        let levels = self.controller.levels();
        levels.map(|(name, level)| (name, level.limit()))
    }
}

impl Seen {
    /// Who has come and gone since is not known one by one. So those that went are taken to have
    /// been there for as long as the others on average.
    fn follow(&mut self, counted: &Seats, is_new: bool, now: u64) {
        let used = u32::try_from(counted.used()).unwrap_or(0);
        let (came, came_at) = match is_new {
            true => (used, now),
            // In the middle of the time since, on average.
            false => (
                counted.taken().wrapping_sub(self.taken),
                self.at + (now - self.at) / 2,
            ),
        };
        let holds = &mut self.holds;
        holds.take(came, came_at);
        let went = u32::try_from(holds.seats.saturating_sub(used.into())).unwrap_or(u32::MAX);
        if went > 0 {
            let age = holds.held_time(now).per_seat(holds.seats as f64);
            holds.release(went, now.saturating_sub(age), now);
        }
        holds.executing = used;
        (self.taken, self.refused, self.at) = (counted.taken(), counted.refused, now);
    }
}

/// The levels as the kernel knows them: who finds no seat is refused at once.
fn without_queues(in_force: &InForce) -> Vec<Level> {
    let without_queues = |level: &Level| Level {
        kind: match &level.kind {
            LevelKind::Exempt => LevelKind::Exempt,
            LevelKind::Limited(limited) => LevelKind::Limited(Limited {
                response: LimitResponse::Reject,
                ..limited.clone()
            }),
        },
        ..level.clone()
    };
    in_force.levels.iter().map(without_queues).collect()
}

#[cfg(test)]
mod tests {
    use lb_admission::configuration::Configuration;

    use super::*;
    use crate::admission::objects::Objects;

    const SECOND: u64 = 1_000_000_000;

    /// Two levels: one lends half of its seats, the other has as many of its own.
    fn in_force() -> InForce {
        let level = |name: &str, lendable: u32| {
            format!(
                "---\napiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\nmetadata: {{name: {name}}}\n\
                 spec: {{type: Limited, limited: {{nominalConcurrencyShares: 50, \
                 lendablePercent: {lendable}, limitResponse: {{type: Reject}}}}}}\n"
            )
        };
        let text = level("lender", 50) + &level("other", 0);
        let mut objects = Objects::default();
        objects.read([("a.yaml".into(), Ok(text.into_bytes()))]);
        assert_eq!(objects.errors, []);
        let configuration: Configuration = objects.configuration;
        configuration.in_force()
    }

    fn counted(taken: u32, used: u32) -> Seats {
        Seats {
            word: u64::from(taken) << 32 | u64::from(used),
            ..Seats::default()
        }
    }

    fn limit(levels: &Levels, name: &str) -> u32 {
        let mut limits = levels.limits();
        limits.find(|(known, _)| *known == name).unwrap().1
    }

    #[test]
    fn a_level_in_demand_borrows_what_another_does_not_use() {
        let mut levels = Levels::new(&in_force(), 1050, 0).unwrap();
        assert!((500..=502).contains(&limit(&levels, "other")));
        let mut taken = 0;
        let mut highest = 0;
        for step in 1..60 {
            // Connections of a tenth of a second each, as many as it may have.
            let used = limit(&levels, "other");
            highest = highest.max(used);
            taken += used * 5;
            let now = step * PERIOD;
            levels.observe("other", &counted(taken, used), now);
            levels.observe("lender", &counted(0, 0), now);
            levels.advance(now);
        }
        assert!(highest > 700, "{highest}");
        assert!(limit(&levels, "lender") >= 250, "half is not lent");

        // The lender wants its own back.
        let mut used = 0;
        for step in 60..100 {
            used = limit(&levels, "lender");
            let now = step * PERIOD;
            let wants = Seats {
                refused: 40 * step,
                ..counted(used * step as u32, used)
            };
            levels.observe("lender", &wants, now);
            let of_other = limit(&levels, "other");
            taken += of_other * 5;
            levels.observe("other", &counted(taken, of_other), now);
            levels.advance(now);
        }
        assert!((500..=502).contains(&used), "{used}");
    }

    #[test]
    fn a_level_that_is_deleted_keeps_its_seats_until_its_connections_end() {
        let all = in_force();
        let mut fewer = all.clone();
        fewer.levels.retain(|level| level.name != "other");
        for knows_the_number in [true, false] {
            let mut levels = Levels::new(&all, 1050, 0).unwrap();
            let mut step = 0;
            let mut pass = |levels: &mut Levels, of_other: Option<Seats>| {
                // More than the time after which limits follow at the latest.
                for _ in 0..60 {
                    step += 1;
                    let lender = Some(("lender", counted(0, 0)));
                    let other = of_other.map(|seats| ("other", seats));
                    let all = lender.into_iter().chain(other).collect();
                    levels.observe_all(&all, step * PERIOD);
                    levels.advance(step * PERIOD);
                }
                step * PERIOD
            };
            let now = pass(&mut levels, Some(counted(40, 40)));
            levels.configure(&fewer, 1050, now).unwrap();
            pass(&mut levels, Some(counted(40, 40)));
            assert!(levels.limits().any(|(name, _)| name == "other"));
            pass(&mut levels, knows_the_number.then(|| counted(40, 0)));
            assert!(levels.limits().all(|(name, _)| name != "other"));
            assert!(levels.seen.len() < 3, "{:?}", levels.seen);
        }
    }

    #[test]
    fn who_holds_seats_for_long_borrows_little() {
        let mut levels = Levels::new(&in_force(), 1050, 0).unwrap();
        let mut used = 0;
        for step in 1..200 {
            used = limit(&levels, "other").max(used);
            levels.observe("other", &counted(used, used), step * PERIOD);
            levels.observe("lender", &counted(0, 0), step * PERIOD);
            levels.advance(step * PERIOD);
        }
        assert!(used < 600, "{used}");
    }

    #[test]
    fn what_was_there_before_the_agent_came_is_held_from_now_on() {
        let mut seen = Seen::default();
        seen.follow(&counted(1000, 40), true, SECOND);
        assert_eq!((seen.holds.executing, seen.holds.seats), (40, 40));
        seen.follow(&counted(1010, 30), false, 3 * SECOND);
        assert_eq!((seen.holds.seats, seen.holds.released), (30, 20));
        let held = seen.holds.held_time(3 * SECOND).per_seat(30.0);
        assert!((SECOND..=2 * SECOND).contains(&held), "{held}");
    }
}
