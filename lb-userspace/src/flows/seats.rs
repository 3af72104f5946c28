//! The seats that flows hold: given back for programs, and counted anew.

use std::{
    collections::HashMap,
    io,
    mem::offset_of,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use lb_common::flow::{
    Seats,
    limit::{LEVEL_NUMBERS, LEVELS, LIMITS, NODE},
    linger::{self, Lingering, MOMENTS},
    place::Place,
};
use lb_datapath::{Jiffies, Loaded, TickRate, bpf::MappedArray};

use super::{drift::Drifts, loads::Loads, pressure::Pressure};

/// The limits in `SEATS` and `LEVELS`, which programs count as well, by their indexes: see
/// [`lb_common::flow::limit`]; the connections of endpoints, and seats that linger.
#[derive(Debug)]
pub struct SeatTable {
    limits: Arc<MappedArray<Seats>>,
    levels: Arc<MappedArray<Seats>>,
    lingering: Arc<MappedArray<Lingering>>,
    clock: Option<(Jiffies, TickRate)>,
    loads: Loads,
    /// The most seats in use in the latest second, by index.
    highest: Mutex<HashMap<u32, u32>>,
    pressure: Mutex<Pressure>,
    corrected: AtomicU64,
}

impl SeatTable {
    /// The maps of the programs in the kernel.
    ///
    /// # Errors
    ///
    /// If they cannot be opened or mapped into memory.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        let map = |name| anyhow::Ok(Arc::new(MappedArray::new(&loaded.map(name)?)?));
        Ok(Self {
            lingering: Arc::new(MappedArray::new(&loaded.map("LINGERING")?)?),
            clock: Some((Jiffies::open()?, TickRate::of_kernel())),
            ..Self::new(map("SEATS")?, map("LEVELS")?, Loads::open(loaded)?)
        })
    }

    /// Limits in memory, without a clock: seats that linger stay.
    pub fn new(
        limits: Arc<MappedArray<Seats>>,
        levels: Arc<MappedArray<Seats>>,
        loads: Loads,
    ) -> Self {
        Self {
            lingering: Arc::new(MappedArray::in_memory(levels.len())),
            clock: None,
            limits,
            levels,
            loads,
            highest: Mutex::default(),
            pressure: Mutex::default(),
            corrected: AtomicU64::new(0),
        }
    }

    /// Limits of this process alone, without any.
    pub fn in_memory() -> Self {
        let array = |elements| Arc::new(MappedArray::in_memory(elements));
        let (limits, levels) = (array(LIMITS as u32), array(LEVEL_NUMBERS as u32));
        Self::new(limits, levels, Loads::in_memory())
    }

    /// A limit and what is counted of it.
    pub fn read(&self, index: u32) -> Seats {
        let (map, index) = self.element(index);
        map.read(index)
    }

    /// A priority level's limit and what is counted of it, by its number.
    pub fn read_level(&self, level: u32) -> Seats {
        self.levels.read(level)
    }

    /// The most seats of a priority level that were in use in the latest second.
    pub fn highest_of_level(&self, level: u32) -> u32 {
        self.highest(LEVELS + level)
    }

    /// Sets the limit of a priority level, by its number.
    pub fn limit_level(&self, level: u32, limit: u32) {
        let word = self.levels.u32_at(level, offset_of!(Seats, limit));
        word.store(limit, SeqCst);
    }

    /// Sets the node's limit; 0 means none. Who is within it stays. Returns whether it was another.
    pub fn limit_node(&self, limit: u32) -> bool {
        let word = |offset| self.limits.u32_at(NODE, offset);
        let flags = word(offset_of!(Seats, flags)).swap(0, SeqCst);
        let before = word(offset_of!(Seats, limit)).swap(limit, SeqCst);
        (before, flags) != (limit, 0)
    }

    /// Sets how many slow handshakes a priority level bears before it is pressed; `None` means a
    /// quarter of its limit, as for other limits.
    pub fn set_patience(&self, level: u32, handshakes: Option<u32>) {
        lock(&self.pressure).set_patience(level, handshakes);
    }

    /// Decides at tick `now` which limits [are pressed](lb_common::flow::limit::is_pressed): those
    /// with too many [slow handshakes](super::stats::ServiceCounts::slow_handshakes), now or a short
    /// while ago. `slow` says how many there are, by index. Returns whether there is one.
    pub fn press(&self, now: u32, slow: impl Fn(u32) -> u32) -> bool {
        let mut pressure = lock(&self.pressure);
        let mut some_are = false;
        for index in self.indexes() {
            let read = self.read(index);
            let is_pressed = pressure.presses(index, &read, slow(index), now);
            if is_pressed != (read.pressed != 0) {
                self.pressed_word(index).store(is_pressed.into(), SeqCst);
            }
            some_are |= is_pressed;
        }
        some_are
    }

    /// The seats of slow handshakes that the latest pass has found within a limit.
    pub fn slow_handshakes(&self, index: u32) -> u32 {
        lock(&self.pressure).slow(index)
    }

    /// Whether a limit is pressed.
    pub fn is_pressed(&self, index: u32) -> bool {
        self.pressed_word(index).load(Relaxed) != 0
    }

    /// Whether some limit is, or has been, a Service's.
    pub fn have_services(&self) -> bool {
        let mut services = self.limits.iter(NODE + 1..self.limits.len());
        services.any(|(_, limit)| limit.owner != 0)
    }

    /// The connections of endpoints, for Services with a limit.
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// Gives back the seats of a flow that has ended, and counts the connections of its endpoint less; 0
    /// means that it is counted at none.
    pub fn give_back(&self, place: Place, endpoint: u32) {
        self.loads.leave(endpoint);
        for (index, width) in place.limits() {
            self.word(index).fetch_sub(width.into(), SeqCst);
        }
    }

    /// Gives back the seats of levels that have lingered for long enough.
    pub fn collect(&self) {
        let levels = 0..self.lingering.len();
        let mut lingering = levels
            .filter(|level| self.lingering(*level) != 0)
            .peekable();
        if lingering.peek().is_none() {
            return;
        }
        // Without the clock, programs do it when a level is full.
        let Some(Ok(now)) = self.clock.as_ref().map(|(clock, rate)| {
            let jiffies = clock.now()?;
            io::Result::Ok(rate.moment(jiffies))
        }) else {
            return;
        };
        for level in lingering {
            self.collect_at(level, now);
        }
    }

    /// The same of one level at this moment.
    fn collect_at(&self, level: u32, now: u32) {
        if let (Some(lingering), Some(seats)) =
            (self.lingering.pointer(level), self.levels.pointer(level))
        {
            linger::gather(lingering, seats, now, MOMENTS);
        }
    }

    /// Seats of a level, by its number, that linger after the end of connections.
    pub fn lingering(&self, level: u32) -> u32 {
        self.came(level).wrapping_sub(self.went(level))
    }

    /// Seats of a level that have begun to linger so far, modulo 2^32.
    fn came(&self, level: u32) -> u32 {
        let word = self.lingering.u32_at(level, offset_of!(Lingering, came));
        word.load(SeqCst)
    }

    /// Those of them that were given back.
    fn went(&self, level: u32) -> u32 {
        let word = self.lingering.u32_at(level, offset_of!(Lingering, went));
        word.load(SeqCst)
    }

    /// Begins a new second: [`Self::highest`] tells of the one that ends.
    pub fn tick(&self) {
        let mut highest = lock(&self.highest);
        highest.clear();
        for index in self.indexes() {
            let used = used(self.word(index).load(Relaxed));
            let word = self.highest_word(index);
            if used == 0 && word.load(Relaxed) == 0 {
                continue;
            }
            highest.insert(index, word.swap(used.max(0) as u32, Relaxed));
        }
    }

    /// The most seats that were in use in the latest second.
    pub fn highest(&self, index: u32) -> u32 {
        let known = lock(&self.highest).get(&index).copied();
        let present = used(self.word(index).load(Relaxed)).max(0) as u32;
        known.unwrap_or(present)
    }

    /// By how many seats [`Recount`] has corrected the numbers so far.
    pub fn corrected(&self) -> u64 {
        self.corrected.load(Relaxed)
    }

    fn word(&self, index: u32) -> &AtomicU64 {
        let (map, index) = self.element(index);
        map.u64_at(index, offset_of!(Seats, word))
    }

    fn pressed_word(&self, index: u32) -> &AtomicU32 {
        let (map, index) = self.element(index);
        map.u32_at(index, offset_of!(Seats, pressed))
    }

    fn highest_word(&self, index: u32) -> &AtomicU32 {
        let (map, index) = self.element(index);
        map.u32_at(index, offset_of!(Seats, highest))
    }

    /// The map that has a limit, and its index there.
    fn element(&self, index: u32) -> (&MappedArray<Seats>, u32) {
        match index.checked_sub(LEVELS) {
            None => (&self.limits, index),
            Some(level) => (&self.levels, level),
        }
    }

    /// The indexes of all limits.
    fn indexes(&self) -> Range<u32> {
        0..LEVELS + self.levels.len()
    }

    /// What programs have counted of all limits.
    fn all(&self) -> Vec<Seats> {
        let word = |index| Seats {
            word: self.word(index).load(SeqCst),
            ..Seats::default()
        };
        self.indexes().map(word).collect()
    }

    /// Changes the number of seats in use, but not how many were taken.
    fn correct(&self, index: u32, drift: i32) {
        self.word(index).fetch_sub(i64::from(drift) as u64, SeqCst);
        let seats = u64::from(drift.unsigned_abs());
        self.corrected.fetch_add(seats, Relaxed);
        tracing::info!(
            index,
            drift,
            "corrected the number of connections within a limit"
        );
    }
}

// Whole after each change, so a thread that panicked leaves nothing half done.
fn lock<T>(numbers: &Mutex<T>) -> MutexGuard<'_, T> {
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn used(word: u64) -> i32 {
    word as i32
}

/// Compares what programs count with the seats that flows hold, and corrects the difference. One
/// remains where an agent, or a program of another version, ended flows and did not give their
/// seats back.
///
/// Meanwhile programs go on taking seats and giving them back. How many of either is known, so a
/// scan shows between which numbers the truth lies. Only what is out of these bounds is a drift,
/// and only one that two scans in a row show is corrected: a program may have been between the
/// record and the number when one of them began or ended.
#[derive(Debug, Default)]
pub struct Recount {
    before: Vec<Seats>,
    /// [`Lingering::came`] of levels, by their numbers.
    came: Vec<u32>,
    drifts: Drifts<u32>,
}

impl Recount {
    /// To be called before a scan.
    pub fn begin(&mut self, table: &SeatTable) {
        self.before = table.all();
        self.came = (0..table.lingering.len())
            .map(|level| table.came(level))
            .collect();
    }

    /// To be called after it; `held` are the seats of a limit that flows were seen to hold.
    pub fn end(&mut self, table: &SeatTable, held: impl Fn(u32) -> u32) {
        self.drifts.begin();
        // Before what programs have counted: what they have given back since counts as given back.
        let lingering: Vec<_> = self.lingering(table).collect();
        let counted = table.indexes().zip(self.before.iter().zip(table.all()));
        for (index, (before, after)) in counted {
            let level = index.checked_sub(LEVELS).map(|level| level as usize);
            let (linger, lately) = level.map_or((0, 0), |level| lingering[level]);
            let drift = drift(before, &after, held(index) + linger, lately);
            if drift == 0 {
                continue;
            }
            let certain = self.drifts.certain(index, drift.into()) as i32;
            if certain != 0 {
                table.correct(index, certain);
            }
        }
    }

    /// Of each level, by its number: seats that linger, and how many have begun to since the scan began. The
    /// scan may have seen those in their flows as well.
    fn lingering(&self, table: &SeatTable) -> impl Iterator<Item = (u32, u32)> {
        let levels = (0..).zip(&self.came);
        levels.map(|(level, before)| {
            let lately = table.came(level).wrapping_sub(*before);
            (table.lingering(level), lately)
        })
    }
}

/// By how many seats, at least, the number in use is wrong after a scan that has seen `held` of
/// them. So many may have been seen twice.
pub fn drift(before: &Seats, after: &Seats, held: u32, twice: u32) -> i32 {
    let held = i64::from(held);
    let taken = i64::from(after.taken().wrapping_sub(before.taken()));
    let given_back = taken - (i64::from(after.used()) - i64::from(before.used()));
    let seen = i64::from(after.used()) - held;
    // Seats that were taken behind the scan were not seen, and those given back behind it were.
    let most = seen + given_back.max(0) + i64::from(twice);
    let least = seen - taken.max(0);
    let drift = if least > 0 {
        least
    } else if most < 0 {
        most
    } else {
        0
    };
    drift.clamp(i64::from(-i32::MAX), i64::from(i32::MAX)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: u64 = 1 << 32 | 1;

    fn seats(taken: u64, given_back: u64) -> Seats {
        Seats {
            word: (TAKEN * taken).wrapping_sub(given_back),
            ..Seats::default()
        }
    }

    #[test]
    fn what_happened_during_the_scan_is_no_drift() {
        let before = seats(10, 2);
        // Five came and four went: of those that came all or none were seen, of those that went
        // too.
        let after = seats(15, 6);
        for held in 4..=13 {
            assert_eq!(drift(&before, &after, held, 0), 0, "{held}");
        }
        assert_eq!(drift(&before, &after, 3, 0), 1);
        assert_eq!(drift(&before, &after, 14, 0), -1);
    }

    #[test]
    fn without_changes_every_difference_is_a_drift() {
        let same = seats(10, 2);
        assert_eq!(drift(&same, &same, 8, 0), 0);
        assert_eq!(drift(&same, &same, 5, 0), 3);
        assert_eq!(drift(&same, &same, 9, 0), -1);
        let too_few = seats(1, 3);
        assert_eq!(too_few.used(), -2);
        assert_eq!(drift(&too_few, &too_few, 0, 0), -2);
    }

    #[test]
    fn only_what_two_scans_show_is_corrected() {
        let table = SeatTable::in_memory();
        table.word(NODE).fetch_add(TAKEN * 5, SeqCst);
        let mut recount = Recount::default();
        let mut scan = |held| {
            recount.begin(&table);
            recount.end(&table, |index| if index == NODE { held } else { 0 });
            table.read(NODE).used()
        };
        assert_eq!(scan(2), 5, "seen once");
        assert_eq!(scan(5), 5, "and gone");
        assert_eq!(scan(2), 5);
        assert_eq!(scan(3), 3, "no more than both scans show");
        assert_eq!(scan(3), 3);
        assert_eq!((scan(4), scan(4)), (3, 4));
        assert_eq!(table.read(NODE).taken(), 5);
        assert_eq!(table.corrected(), 3);
    }

    #[test]
    fn seats_that_linger_are_in_use_and_come_back() {
        const LEVEL: u32 = 7;
        let table = SeatTable::in_memory();
        let mut recount = Recount::default();
        let mut scan = |held: u32, meanwhile: &dyn Fn()| {
            recount.begin(&table);
            meanwhile();
            recount.end(
                &table,
                |index| if index == LEVELS + LEVEL { held } else { 0 },
            );
            (table.read_level(LEVEL).used(), table.lingering(LEVEL))
        };
        let nothing = || {};
        table.word(LEVELS + LEVEL).fetch_add(TAKEN * 9, SeqCst);
        // Some linger, and others begin to when the scan has seen them in their flows.
        let add = |width, free| {
            let lingering = table.lingering.pointer(LEVEL).unwrap();
            linger::add(lingering, width, free);
        };
        add(3, 50);
        assert_eq!(scan(6, &nothing), (9, 3));
        for (held, free) in [(6, 60), (5, 61)] {
            assert_eq!(scan(held, &|| add(1, free)).0, 9);
        }
        assert_eq!(scan(4, &nothing), (9, 5));
        assert_eq!(scan(4, &|| table.collect_at(LEVEL, 59)), (6, 2));
        assert_eq!(scan(4, &|| table.collect_at(LEVEL, 61)), (4, 0));
        assert_eq!((scan(4, &nothing), scan(4, &nothing)), ((4, 0), (4, 0)));
        assert_eq!(table.corrected(), 0);
        // What is missing is missed all the same.
        add(1, 100);
        assert_eq!((scan(4, &nothing), scan(4, &nothing)), ((4, 1), (5, 1)));
    }

    #[test]
    fn the_highest_number_is_that_of_the_latest_second() {
        let table = SeatTable::in_memory();
        table.word(NODE).fetch_add(TAKEN * 3, SeqCst);
        table.highest_word(NODE).store(9, SeqCst);
        table.tick();
        assert_eq!(table.highest(NODE), 9);
        table.tick();
        assert_eq!(table.highest(NODE), 3);
        table.give_back(Place::NODE, 0);
        table.tick();
        assert_eq!(table.highest(NODE), 3, "as the second began");
        table.tick();
        assert_eq!(table.highest(NODE), 2);
        assert_eq!(table.highest(1), 0);
    }
}
