//! What is shared between those who set the limits of levels, those who let connections in that wait,
//! and those who ask.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lb_admission::{controller::LevelId, queueset::Handle};

use crate::{
    admission::levels::{Counted, Levels},
    flows::{Queues, SeatTable},
};

/// The levels of the node, once there are any, and what became of connections that waited.
pub struct Line {
    /// The numbers that programs count.
    pub queues: Queues,
    levels: Mutex<Option<Levels>>,
    late: Mutex<Vec<(LevelId, Handle)>>,
    counts: Mutex<BTreeMap<u32, Counts>>,
}

/// What became of the connections of a flow schema that had to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were let in.
    pub let_in: u64,
    /// For how long they waited together, in nanoseconds.
    pub waited: u64,
    /// Connections that were refused because they had waited for too long.
    pub timed_out: u64,
    /// Connections that were refused because their flow had, or wanted, as many as it may have.
    pub flow_limit: u64,
}

impl Counts {
    /// For how long those who were let in have waited, on average.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.waited.checked_div(self.let_in).unwrap_or(0))
    }
}

impl Line {
    pub fn new(queues: Queues) -> Self {
        Self {
            queues,
            levels: Mutex::default(),
            late: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// What programs have counted of a level, by its number.
    pub fn read(&self, level: u32, seats: &SeatTable, counted: &mut Counted) {
        counted.level = seats.read_level(level);
        let queues = self.queues.of_level(level);
        self.queues.read(&queues, &mut counted.queues);
    }

    /// Notes who has waited for too long, for the keeper to tell them.
    pub fn add_late(&self, late: Vec<(LevelId, Handle)>) {
        lock(&self.late).extend(late);
    }

    /// Takes those who have been noted so.
    pub(super) fn take_late(&self) -> Vec<(LevelId, Handle)> {
        std::mem::take(&mut lock(&self.late))
    }

    /// The levels, for oneself alone.
    pub fn levels(&self) -> MutexGuard<'_, Option<Levels>> {
        lock(&self.levels)
    }

    /// What is counted of a flow schema, by its number.
    pub fn counts(&self, schema: u32) -> Counts {
        lock(&self.counts).get(&schema).copied().unwrap_or_default()
    }

    pub(super) fn count(&self, schema: u32, change: impl FnOnce(&mut Counts)) {
        change(lock(&self.counts).entry(schema).or_default());
    }
}

// Whole after each change, so a thread that panicked leaves nothing half done.
fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}
