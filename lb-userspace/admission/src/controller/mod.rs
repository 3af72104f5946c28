//! All priority levels of a node together: their queues, and the limits between which seats move.
//!
//! The use is as that of a [`QueueSet`]: let everything that is due [`Controller::fire`], report
//! what happened, and [`Controller::dispatch`] what can be admitted. Seats move between levels
//! periodically. With connections, which do not wait for long, they also move as soon as one waits.

mod adjust;

use thiserror::Error;

use super::{
    borrowing::LevelDemand,
    level::Level,
    queueset::{Arrival, Dispatch, Expiry, Handle, Policy, QueueSet, Verdict},
    shuffle::DealerError,
};

/// The least time between adjustments that are made because a connection waits, in nanoseconds.
const MIN_INTERVAL: u64 = 10_000_000;

/// All priority levels.
#[derive(Clone, Debug)]
pub struct Controller {
    policy: Policy,
    /// A level keeps its place while it exists; later another level may take the place.
    levels: Vec<Controlled>,
    server_limit: u32,
    adjusted_at: u64,
    adjust_at: u64,
}

/// Names a level of a controller. Once the level is gone, the same id may name another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LevelId(usize);

impl LevelId {
    /// Small and dense, for use as an array index.
    pub fn index(self) -> usize {
        self.0
    }
}

#[derive(Clone, Debug)]
struct Controlled {
    level: Level,
    set: QueueSet,
    /// The highest limit that borrowing may give the level.
    max: u32,
    demand: LevelDemand,
    /// Seats that are given back within the reclaim target, estimated from recent periods.
    turnover: f64,
    /// Seats given back since the last adjustment.
    released: u64,
    /// Whether adjustments leave the limit alone.
    pinned: bool,
    stage: Stage,
}

/// Where a level is in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Configured,
    /// No longer configured. It keeps its seats until its last connection is gone.
    Quiescing,
    Gone,
}

/// Something that happens by the clock alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Expiry(LevelId, Expiry),
    /// Seats may have moved between levels.
    Adjusted,
}

/// Why a level is impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("priority level {level:?}: {error}")]
pub struct LevelError {
    pub level: String,
    pub error: DealerError,
}

impl Controller {
    /// Creates the levels, which share `server_limit` seats.
    ///
    /// # Errors
    /// If hands of the size that a level asks for cannot be dealt.
    pub fn new(
        levels: &[Level],
        server_limit: u32,
        policy: Policy,
        now: u64,
    ) -> Result<Self, LevelError> {
        let mut controller = Self {
            policy,
            levels: Vec::new(),
            server_limit,
            adjusted_at: now,
            adjust_at: now,
        };
        controller.configure(levels, server_limit, now)?;
        controller.adjust_at = controller.after(now);
        Ok(controller)
    }

    /// Changes the levels. One that is no longer configured takes no arrivals, but keeps its seats
    /// and its shares until all of its connections are gone.
    ///
    /// # Errors
    /// If hands of the size that a level asks for cannot be dealt. The levels before it have
    /// changed then.
    pub fn configure(
        &mut self,
        levels: &[Level],
        server_limit: u32,
        now: u64,
    ) -> Result<(), LevelError> {
        self.server_limit = server_limit;
        for known in self
            .levels
            .iter_mut()
            .filter(|known| known.stage != Stage::Gone)
        {
            known.stage = match levels.iter().any(|level| level.name == known.level.name) {
                true => Stage::Configured,
                false => Stage::Quiescing,
            };
        }
        for level in levels {
            let known = self
                .levels
                .iter_mut()
                .find(|known| known.stage == Stage::Configured && known.level.name == level.name);
            let refuse = |error| LevelError {
                level: level.name.clone(),
                error,
            };
            if let Some(known) = known {
                known.set.configure(&level.kind, now).map_err(refuse)?;
                known.level = level.clone();
                continue;
            }
            let added = Controlled::new(level, self.policy, now).map_err(refuse)?;
            match self
                .levels
                .iter_mut()
                .find(|known| known.stage == Stage::Gone)
            {
                Some(place) => *place = added,
                None => self.levels.push(added),
            }
        }
        self.adjust(now);
        Ok(())
    }

    /// The level with this name, if it takes arrivals.
    pub fn find(&self, name: &str) -> Option<LevelId> {
        let is_it =
            |known: &Controlled| known.level.name == name && known.stage == Stage::Configured;
        self.levels.iter().position(is_it).map(LevelId)
    }

    /// The name of a level.
    pub fn name(&self, level: LevelId) -> &str {
        &self.levels[level.0].level.name
    }

    /// All levels, also those that are no longer configured but still have connections.
    pub fn levels(&self) -> impl Iterator<Item = (&str, &QueueSet)> {
        let levels = self
            .levels
            .iter()
            .filter(|known| known.stage != Stage::Gone);
        levels.map(|known| (known.level.name.as_str(), &known.set))
    }

    /// The queues and seats of a level.
    pub fn level(&self, level: LevelId) -> &QueueSet {
        &self.levels[level.0].set
    }

    /// Fixes a level's limit. Borrowing leaves it alone from then on.
    pub fn pin_limit(&mut self, level: LevelId, limit: u32, now: u64) {
        let level = &mut self.levels[level.0];
        level.pinned = true;
        level.set.set_limit(limit, now);
    }

    /// A connection asks a level for seats.
    pub fn arrive(&mut self, level: LevelId, arrival: Arrival, now: u64) -> Verdict {
        let known = &mut self.levels[level.0];
        let verdict = known.set.arrive(arrival, now);
        if matches!(verdict, Verdict::Queued(_)) && self.policy == Policy::Connections {
            let limit = known.set.limit();
            let wanted = known.set.seats_in_use() + known.set.seats_waiting();
            if wanted > u64::from(limit) && limit < known.max && !known.pinned {
                let soon = now.max(self.adjusted_at.saturating_add(MIN_INTERVAL));
                self.adjust_at = self.adjust_at.min(soon);
            }
        }
        verdict
    }

    /// See [`QueueSet::establish`].
    pub fn establish(&mut self, level: LevelId, connection: Handle, now: u64) -> bool {
        self.levels[level.0].set.establish(connection, now)
    }

    /// See [`QueueSet::finish`].
    pub fn finish(&mut self, level: LevelId, connection: Handle, now: u64) -> bool {
        self.levels[level.0].note_released(|set| set.finish(connection, now))
    }

    /// See [`QueueSet::cancel`].
    pub fn cancel(&mut self, level: LevelId, connection: Handle, now: u64) -> bool {
        self.levels[level.0].set.cancel(connection, now)
    }

    /// See [`QueueSet::refuse`].
    pub fn refuse(&mut self, level: LevelId, connection: Handle, now: u64) -> bool {
        self.levels[level.0].set.refuse(connection, now)
    }

    /// Whether any timer of a queue is set (adjustments of limits not counted).
    pub fn has_timers(&self) -> bool {
        self.next_timer().is_some()
    }

    /// When something next happens by the clock alone.
    pub fn next_event(&self) -> u64 {
        let timer = self.next_timer();
        timer.map_or(self.adjust_at, |at| at.min(self.adjust_at))
    }

    fn next_timer(&self) -> Option<u64> {
        let levels = self.levels.iter();
        levels.filter_map(|level| level.set.next_timer()).min()
    }

    /// Lets the first event that is due by `now` happen. Returns when it was due, and what it was.
    pub fn fire(&mut self, now: u64) -> Option<(u64, Event)> {
        let at = self.next_event();
        if at > now {
            return None;
        }
        for (index, level) in self.levels.iter_mut().enumerate() {
            if level.set.next_timer() == Some(at) {
                let (_, expiry) = level.note_released(|set| set.fire(at))?;
                return Some((at, Event::Expiry(LevelId(index), expiry)));
            }
        }
        self.adjust(at);
        self.adjust_at = self.after(at);
        Some((at, Event::Adjusted))
    }

    /// Admits one waiting connection of any level, if possible.
    pub fn dispatch(&mut self, now: u64) -> Option<(LevelId, Dispatch)> {
        let mut levels = self.levels.iter_mut().enumerate();
        levels.find_map(|(index, level)| Some((LevelId(index), level.set.dispatch(now)?)))
    }
}

impl Controlled {
    /// A level without a limit yet.
    fn new(level: &Level, policy: Policy, now: u64) -> Result<Self, DealerError> {
        Ok(Self {
            level: level.clone(),
            set: QueueSet::new(&level.kind, policy, now)?,
            max: 0,
            demand: LevelDemand::default(),
            turnover: 0.0,
            released: 0,
            pinned: false,
            stage: Stage::Configured,
        })
    }

    /// Counts the seats that `call` frees.
    fn note_released<T>(&mut self, call: impl FnOnce(&mut QueueSet) -> T) -> T {
        let before = self.set.seats_in_use();
        let result = call(&mut self.set);
        self.released += before.saturating_sub(self.set.seats_in_use());
        result
    }
}
