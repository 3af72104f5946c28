//! All priority levels of a node together: their queues, and the limits between which seats move.
//!
//! The use is as that of a [`QueueSet`]: let everything that is due [`Controller::fire`], report
//! what happened, and [`Controller::dispatch`] what can be admitted. Seats move between levels
//! periodically. With connections, which do not wait for long, they also move as soon as one waits.

mod adjust;

use std::collections::HashSet;

use thiserror::Error;

use super::{
    borrowing::LevelDemand,
    level::{Level, MAX_LEVELS},
    queueset::{Arrival, Dispatch, Expiry, Grant, Handle, Holds, Policy, QueueSet, Shape, Verdict},
    shuffle::DealerError,
};

/// The least time between adjustments, in nanoseconds.
const MIN_INTERVAL: u64 = 10_000_000;

/// All priority levels.
#[derive(Clone, Debug)]
pub struct Controller {
    policy: Policy,
    /// A level keeps its place while it exists; later another level may take the place.
    levels: Vec<Controlled>,
    server_limit: u32,
    /// When limits were last adjusted, for whatever reason.
    adjusted_at: u64,
    /// When the present period of demand began, and when it is to end.
    period_began: u64,
    period_ends: u64,
    /// When limits are to be adjusted because somebody waits, within the period.
    asked_for: Option<u64>,
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
    /// Borrowed seats that are given back within the reclaim target, estimated from recent periods.
    turnover: f64,
    /// Borrowed seats given back until the present period of demand.
    released_before: u64,
    /// Whether the level has already had limits adjusted in this period because somebody waits.
    has_asked: bool,
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

/// Why levels are impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LevelError {
    #[error("priority level {level:?}: {error}")]
    Shape { level: String, error: DealerError },
    #[error("there are two priority levels {0:?}")]
    Twice(String),
    /// There may be [`MAX_LEVELS`], and as many again that still have connections.
    #[error("{0} priority levels are too many")]
    TooMany(usize),
}

impl Controller {
    /// Creates the levels, which share `server_limit` seats.
    ///
    /// # Errors
    /// If hands of the size that a level asks for cannot be dealt, or there are too many levels.
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
            period_began: now,
            period_ends: now,
            asked_for: None,
        };
        controller.configure(levels, server_limit, now)?;
        controller.period_ends = controller.after(now);
        Ok(controller)
    }

    /// Changes the levels. One that is no longer configured takes no arrivals, but keeps its seats
    /// and its shares until all of its connections are gone.
    ///
    /// # Errors
    /// If hands of the size that a level asks for cannot be dealt, or there are too many levels.
    /// Nothing has changed then.
    pub fn configure(
        &mut self,
        levels: &[Level],
        server_limit: u32,
        now: u64,
    ) -> Result<(), LevelError> {
        let shapes = shapes(levels)?;
        let quiescing = self.levels.iter().filter(|known| {
            known.stage != Stage::Gone && levels.iter().all(|level| level.name != known.level.name)
        });
        let all = levels.len() + quiescing.count();
        if all > 2 * MAX_LEVELS {
            return Err(LevelError::TooMany(all));
        }
        self.server_limit = server_limit;
        for known in self.levels.iter_mut() {
            if known.stage != Stage::Gone {
                known.stage = Stage::Quiescing;
            }
        }
        for (level, shape) in levels.iter().zip(shapes) {
            let is_it = |known: &&mut Controlled| {
                known.stage != Stage::Gone && known.level.name == level.name
            };
            if let Some(known) = self.levels.iter_mut().find(is_it) {
                known.set.configure(shape, now);
                known.level = level.clone();
                known.stage = Stage::Configured;
                continue;
            }
            let added = Controlled::new(level, shape, self.policy, now);
            let is_free = |known: &&mut Controlled| known.stage == Stage::Gone;
            match self.levels.iter_mut().find(is_free) {
                Some(place) => *place = added,
                None => self.levels.push(added),
            }
        }
        match self.policy {
            // APF ends the period with every change.
            Policy::Exact => self.end_period(now),
            Policy::Connections => self.adjust_within_period(now),
        }
        Ok(())
    }

    /// The level with this name, if it takes arrivals.
    pub fn find(&self, name: &str) -> Option<LevelId> {
        let is_it =
            |known: &Controlled| known.level.name == name && known.stage == Stage::Configured;
        self.levels.iter().position(is_it).map(LevelId)
    }

    /// The level with this name, also if it is no longer configured but still has connections.
    pub fn find_present(&self, name: &str) -> Option<LevelId> {
        let is_it = |known: &Controlled| known.level.name == name && known.stage != Stage::Gone;
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

    /// Fixes a level's limit: so many seats are its own. Borrowing leaves it alone from then on.
    pub fn pin_limit(&mut self, level: LevelId, limit: u32, now: u64) {
        let level = &mut self.levels[level.0];
        level.pinned = true;
        level.set.set_nominal(limit);
        level.set.set_limit(limit, now);
    }

    /// A connection asks a level for seats.
    pub fn arrive(&mut self, level: LevelId, arrival: Arrival, now: u64) -> Verdict {
        let verdict = self.levels[level.0].set.arrive(arrival, now);
        self.note_arrival(level, &verdict, now);
        verdict
    }

    /// See [`QueueSet::arrive_in`].
    pub fn arrive_in(&mut self, level: LevelId, queue: u32, arrival: Arrival, now: u64) -> Verdict {
        let verdict = self.levels[level.0].set.arrive_in(queue, arrival, now);
        self.note_arrival(level, &verdict, now);
        verdict
    }

    /// Has limits adjusted soon if a connection waits and that may help it.
    fn note_arrival(&mut self, level: LevelId, verdict: &Verdict, now: u64) {
        if !matches!(verdict, Verdict::Queued(_)) || self.policy != Policy::Connections {
            return;
        }
        let known = &mut self.levels[level.0];
        let limit = known.set.limit();
        let wanted = known.set.seats_in_use() + known.set.seats_waiting();
        let may_help = limit < known.max && !known.pinned && !known.has_asked;
        if wanted > u64::from(limit) && may_help {
            // Once in a period: what is left of it changes little.
            known.has_asked = true;
            let soon = now.max(self.adjusted_at.saturating_add(MIN_INTERVAL));
            self.asked_for = Some(self.asked_for.map_or(soon, |at| at.min(soon)));
        }
    }

    /// See [`QueueSet::establish`].
    pub fn establish(&mut self, level: LevelId, grant: &mut Grant, now: u64) -> bool {
        self.levels[level.0].set.establish(grant, now)
    }

    /// See [`QueueSet::finish`].
    pub fn finish(&mut self, level: LevelId, grant: Grant, now: u64) {
        self.levels[level.0].set.finish(grant, now);
    }

    /// See [`QueueSet::abort`].
    pub fn abort(&mut self, level: LevelId, grant: Grant, now: u64) {
        self.levels[level.0].set.abort(grant, now);
    }

    /// See [`QueueSet::hand_over`].
    pub fn hand_over(&mut self, level: LevelId, grant: Grant, now: u64) {
        self.levels[level.0].set.hand_over(grant, now);
    }

    /// See [`QueueSet::observe`].
    pub fn observe(&mut self, level: LevelId, queue: u32, holds: Holds, now: u64) {
        self.levels[level.0].set.observe(queue, holds, now);
    }

    /// See [`QueueSet::observe_anew`].
    pub fn observe_anew(&mut self, level: LevelId, now: u64) {
        self.levels[level.0].set.observe_anew(now);
    }

    /// See [`QueueSet::observe_without_queue`].
    pub fn observe_without_queue(&mut self, level: LevelId, holds: Holds, now: u64) {
        self.levels[level.0].set.observe_without_queue(holds, now);
    }

    /// See [`QueueSet::note_refused`].
    pub fn note_refused(&mut self, level: LevelId, seats: u64, now: u64) {
        self.levels[level.0].set.note_refused(seats, now);
    }

    /// See [`QueueSet::observe_flow`].
    pub fn observe_flow(
        &mut self,
        level: LevelId,
        hash: u64,
        connections: u32,
        seats: u64,
        now: u64,
    ) {
        let known = &mut self.levels[level.0];
        known.set.observe_flow(hash, connections, seats, now);
    }

    /// See [`QueueSet::cancel`].
    pub fn cancel(&mut self, level: LevelId, connection: Handle, now: u64) -> bool {
        self.levels[level.0].set.cancel(connection, now)
    }

    /// See [`QueueSet::refuse`].
    pub fn refuse(&mut self, level: LevelId, connection: Handle, now: u64) -> bool {
        self.levels[level.0].set.refuse(connection, now)
    }

    /// Takes the waiting connections of levels that are no longer configured out of their queues.
    /// Those would be dispatched in time, too: this is for a caller who cannot let them in there.
    pub fn evict_leaving(&mut self, now: u64) -> Vec<(LevelId, Handle)> {
        let levels = self.levels.iter_mut().enumerate();
        let leaving = levels.filter(|(_, known)| known.stage == Stage::Quiescing);
        let evicted = leaving.flat_map(|(index, known)| {
            let evicted = known.set.evict(now).into_iter();
            evicted.map(move |connection| (LevelId(index), connection))
        });
        evicted.collect()
    }

    /// Whether any timer of a queue is set (adjustments of limits not counted).
    pub fn has_timers(&self) -> bool {
        self.next_timer().is_some()
    }

    /// When something next happens by the clock alone.
    pub fn next_event(&self) -> u64 {
        let timer = self.next_timer();
        timer.map_or(self.next_adjustment(), |at| at.min(self.next_adjustment()))
    }

    fn next_adjustment(&self) -> u64 {
        let asked_for = self.asked_for;
        asked_for.map_or(self.period_ends, |at| at.min(self.period_ends))
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
                let (_, expiry) = level.set.fire(at)?;
                return Some((at, Event::Expiry(LevelId(index), expiry)));
            }
        }
        if at < self.period_ends {
            self.adjust_within_period(at);
        } else {
            self.end_period(at);
            self.period_ends = self.after(at);
        }
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
    fn new(level: &Level, shape: Shape, policy: Policy, now: u64) -> Self {
        Self {
            level: level.clone(),
            set: QueueSet::new(shape, policy, now),
            max: 0,
            demand: LevelDemand::default(),
            turnover: 0.0,
            released_before: 0,
            has_asked: false,
            pinned: false,
            stage: Stage::Configured,
        }
    }
}

/// The shapes of levels, if all of them are possible together.
fn shapes(levels: &[Level]) -> Result<Vec<Shape>, LevelError> {
    if levels.len() > MAX_LEVELS {
        return Err(LevelError::TooMany(levels.len()));
    }
    let mut names = HashSet::new();
    let shape = |level: &Level| {
        Shape::new(&level.kind).map_err(|error| LevelError::Shape {
            level: level.name.clone(),
            error,
        })
    };
    for level in levels {
        if !names.insert(&level.name) {
            return Err(LevelError::Twice(level.name.clone()));
        }
    }
    levels.iter().map(shape).collect()
}
