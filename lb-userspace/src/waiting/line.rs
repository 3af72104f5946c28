//! What is shared between those who set the limits of levels, those who let connections in that wait,
//! and those who ask.

use std::{
    collections::BTreeMap,
    ops::AddAssign,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use lb_admission::{controller::LevelId, queueset::Handle};

use super::waits::Waits;
use crate::{
    admission::levels::{Counted, Levels},
    flows::{Queues, SeatTable},
    map_writer::NumberedSchema,
};

/// The levels of the node, once there are any, and what became of connections that waited.
pub struct Line {
    /// The numbers that programs count.
    pub queues: Queues,
    /// Times of the levels count from here.
    pub origin: Instant,
    levels: Mutex<Option<Levels>>,
    late: Mutex<Vec<(LevelId, Handle)>>,
    /// By the number of a flow schema: its name, and what is counted of it.
    counts: Mutex<BTreeMap<u32, (Whose, Counts)>>,
}

/// A flow schema by name, and its tenant or nothing.
type Whose = [String; 2];

/// What became of the connections of a flow schema that had to wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waits of connections that were let in.
    pub let_in: Waits,
    /// Waits of connections that were not: they were refused, or their clients gave up. Those whose level
    /// was deleted meanwhile are in neither; they ask again.
    pub in_vain: Waits,
    /// Connections that were refused because they had waited for too long.
    pub timed_out: u64,
    /// Connections that were refused because their flow had, or wanted, as many as it may have.
    pub flow_limit: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.let_in += other.let_in;
        self.in_vain += other.in_vain;
        self.timed_out += other.timed_out;
        self.flow_limit += other.flow_limit;
    }
}

impl Line {
    pub fn new(queues: Queues) -> Self {
        Self {
            queues,
            origin: Instant::now(),
            levels: Mutex::default(),
            late: Mutex::default(),
            counts: Mutex::default(),
        }
    }

    /// The time for the levels, in nanoseconds. It must not go back for them, so whoever gives it to them
    /// has them for oneself already.
    pub fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
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

    /// For how long the first one in each queue of a level has waited there, by the queue's index; queues
    /// in which nobody waits are left out.
    pub fn longest_waits(&self, level: &str) -> BTreeMap<u32, Duration> {
        let levels = self.levels();
        let now = self.now();
        let since = levels.iter().flat_map(|levels| levels.waiting_since(level));
        since
            .map(|(queue, since)| (queue, Duration::from_nanos(now - since)))
            .collect()
    }

    /// Goes over to these flow schemas. One whose number was another's before begins with nothing counted.
    pub fn set_schemas(&self, schemas: &[NumberedSchema]) {
        let mut counts = lock(&self.counts);
        let mut begin = |number, now: [&str; 2]| {
            let (name, counts) = counts.entry(number).or_default();
            let now = now.map(str::to_owned);
            if *name != now {
                (*name, *counts) = (now, Counts::default());
            }
        };
        for schema in schemas {
            begin(schema.number, [&*schema.name, ""]);
            for tenant in &schema.tenants {
                begin(tenant.number, [&*schema.name, &*tenant.name]);
            }
        }
    }

    /// What is counted of a flow schema, by its number.
    pub fn counts(&self, schema: u32) -> Counts {
        let counts = lock(&self.counts);
        let of_schema = counts.get(&schema).map(|(_, counts)| counts);
        of_schema.cloned().unwrap_or_default()
    }

    pub(super) fn count(&self, schema: u32, change: impl FnOnce(&mut Counts)) {
        if let Some((_, counts)) = lock(&self.counts).get_mut(&schema) {
            change(counts);
        }
    }
}

// Whole after each change, so a thread that panicked leaves nothing half done.
fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(name: &str, number: u32) -> NumberedSchema {
        NumberedSchema {
            name: name.to_owned(),
            level: "tenants".to_owned(),
            number,
            tenants: Vec::new(),
            most_per_flow: None,
            longest_wait: Duration::from_secs(1),
            seats: 1,
        }
    }

    #[test]
    fn a_schema_keeps_what_is_counted_of_it_until_its_number_is_anothers() {
        let line = Line::new(Queues::in_memory());
        let timed_out = |number| line.counts(number).timed_out;
        let (shop, web) = (schema("shop", 1), schema("web", 2));
        line.set_schemas(&[shop.clone(), web.clone()]);
        for number in [1, 2, 2] {
            line.count(number, |counts| counts.timed_out += 1);
        }
        // It is deleted, and comes back.
        line.set_schemas(&[web]);
        line.set_schemas(&[shop]);
        assert_eq!((timed_out(1), timed_out(2)), (1, 2));
        line.set_schemas(&[schema("other", 2)]);
        assert_eq!((timed_out(1), timed_out(2)), (1, 0));
    }
}
