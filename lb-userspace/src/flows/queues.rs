//! The queues of priority levels, in which programs count as well: seats that are charged to each, and
//! those who wait.

use std::{
    collections::HashMap,
    mem::offset_of,
    ops::Range,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
};

use lb_common::{
    entries,
    flow::{
        Seats,
        queue::{LevelQueues, Queue, charged},
    },
};
use lb_datapath::{Loaded, bpf::MappedArray};

use super::{drift::Drifts, seats::drift};

/// `LEVEL_QUEUES` and `QUEUES`: see [`lb_common::flow::queue`].
#[derive(Debug)]
pub struct Queues {
    levels: MappedArray<LevelQueues>,
    queues: MappedArray<Queue>,
}

impl Queues {
    /// The maps of the programs in the kernel.
    ///
    /// # Errors
    ///
    /// If they cannot be opened or mapped into memory.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        Ok(Self::new(
            MappedArray::new(&loaded.map("LEVEL_QUEUES")?)?,
            MappedArray::new(&loaded.map("QUEUES")?)?,
        ))
    }

    /// Queues of this process alone, without any.
    pub fn in_memory() -> Self {
        Self::new(
            MappedArray::in_memory(entries::LEVEL_QUEUES as u32),
            MappedArray::in_memory(entries::QUEUES as u32),
        )
    }

    pub fn new(levels: MappedArray<LevelQueues>, queues: MappedArray<Queue>) -> Self {
        Self { levels, queues }
    }

    /// The queues of a level.
    pub fn of_level(&self, level: u32) -> LevelQueues {
        match level < self.levels.len() {
            true => self.levels.read(level),
            false => LevelQueues::default(),
        }
    }

    /// Each queue of a level, in order.
    pub fn each(&self, of: &LevelQueues) -> impl Iterator<Item = Queue> {
        self.indexes(of).map(|index| self.queues.read(index))
    }

    /// What is charged to each queue of a level, into `words`.
    pub fn read(&self, of: &LevelQueues, words: &mut Vec<u64>) {
        words.clear();
        words.extend(self.indexes(of).map(|index| self.word(index)));
    }

    /// The indexes of a level's queues.
    fn indexes(&self, of: &LevelQueues) -> Range<u32> {
        let end = of.first.saturating_add(of.number).min(self.queues.len());
        of.first.min(end)..end
    }

    fn word(&self, index: u32) -> u64 {
        let word = self.queues.u64_at(index, offset_of!(Queue, word));
        word.load(SeqCst)
    }

    /// Index of the queue that is charged for a connection, if its level has queues; see
    /// [`charged`].
    pub fn charged(&self, level: u32, party: u64, card: u32, ports: u32) -> Option<u32> {
        let of = self.of_level(level);
        let queue = (of.number != 0).then(|| charged(of.number, of.hand, party, card, ports))?;
        Some(of.first.saturating_add(queue)).filter(|index| *index < self.queues.len())
    }

    /// A queue is charged no longer for so many seats.
    pub fn give_back(&self, index: u32, seats: i32) {
        let word = self.queues.u64_at(index, offset_of!(Queue, word));
        word.fetch_sub(i64::from(seats) as u64, SeqCst);
    }

    /// Promises to look after those who wait at a level until this tick.
    pub fn promise(&self, level: u32, until: u32) {
        let word = self.levels.u32_at(level, offset_of!(LevelQueues, until));
        word.store(until, SeqCst);
    }

    /// Whether somebody waits at any level.
    pub fn are_waited_in(&self) -> bool {
        let waiting = |level| {
            let word = self.levels.u32_at(level, offset_of!(LevelQueues, waiting));
            word.load(SeqCst) != 0
        };
        (0..self.levels.len()).any(waiting)
    }

    /// Sets whether nobody waits at a level, because a flood would fill its queues.
    pub fn overrun(&self, level: u32, is_overrun: bool) {
        let word = self.levels.u32_at(level, offset_of!(LevelQueues, overrun));
        word.store(is_overrun.into(), SeqCst);
    }

    /// Sets how many free seats of a level are kept for parties without any.
    pub fn keep(&self, level: u32, seats: u32) {
        let word = self.levels.u32_at(level, offset_of!(LevelQueues, kept));
        word.store(seats, SeqCst);
    }

    /// Counts a connection that found no room to wait at a level.
    pub fn count_refused(&self, level: u32) {
        let word = self.levels.u64_at(level, offset_of!(LevelQueues, refused));
        word.fetch_add(1, SeqCst);
    }

    /// A connection waits no longer that programs have counted in this queue of a level. If the level has
    /// other queues by now, it is not counted any more.
    pub fn leave(&self, level: u32, queue: u32) {
        if self.leave_queue(level, queue) {
            self.leave_level(level);
        }
    }

    /// Leaves its place in the queue to others, who have to wait behind it until its level does not count
    /// it either. Returns whether it was counted.
    pub fn leave_queue(&self, level: u32, queue: u32) -> bool {
        let is_there = self.indexes(&self.of_level(level)).contains(&queue);
        if is_there {
            one_less(self.queues.u32_at(queue, offset_of!(Queue, waiting)));
        }
        is_there
    }

    /// The rest of it, once the connection has its seat.
    pub fn leave_level(&self, level: u32) {
        one_less(self.levels.u32_at(level, offset_of!(LevelQueues, waiting)));
    }

    /// Takes back what [left](Self::leave_queue) the queue.
    pub fn return_to_queue(&self, queue: u32) {
        let word = self.queues.u32_at(queue, offset_of!(Queue, waiting));
        word.fetch_add(1, SeqCst);
    }

    /// Forgets all who wait, for whom nobody has looked: programs let nobody wait until the next promise.
    pub fn forget_all(&self) {
        for level in 0..self.levels.len() {
            let of = self.levels.read(level);
            self.promise(level, 0);
            self.overrun(level, false);
            if of.number != 0 {
                self.correct(level, &of, |_| 0);
            }
        }
    }

    /// Sets how many wait in each queue of a level, by the queue's index.
    pub fn correct(&self, level: u32, of: &LevelQueues, waiting: impl Fn(u32) -> u32) {
        let mut all = 0;
        for index in self.indexes(of) {
            let right = waiting(index);
            all += right;
            let word = self.queues.u32_at(index, offset_of!(Queue, waiting));
            word.store(right, SeqCst);
        }
        let word = self.levels.u32_at(level, offset_of!(LevelQueues, waiting));
        word.store(all, SeqCst);
    }
}

/// Counts one less. The number may have been corrected meanwhile.
fn one_less(word: &AtomicU32) {
    let _ = word.fetch_update(SeqCst, SeqCst, |waiting| waiting.checked_sub(1));
}

/// Compares what programs charge with the flows that hold seats, and corrects the difference, as
/// [`super::seats::Recount`] does. There is one when the number of a level's queues has changed.
#[derive(Debug, Default)]
pub struct QueueRecount {
    before: Vec<(u32, u64)>,
    drifts: Drifts<u32>,
}

impl QueueRecount {
    /// To be called before a scan.
    pub fn begin(&mut self, queues: &Queues) {
        let levels = (0..queues.levels.len()).map(|level| queues.of_level(level));
        let all = levels.flat_map(|of| queues.indexes(&of));
        self.before = all.map(|index| (index, queues.word(index))).collect();
    }

    /// To be called after it; `held` are the seats that flows were seen to hold, by the index of the queue
    /// that is to be charged.
    pub fn end(&mut self, queues: &Queues, held: &HashMap<u32, u32>) {
        self.drifts.begin();
        let seats = |word| Seats {
            word,
            ..Seats::default()
        };
        for (index, before) in std::mem::take(&mut self.before) {
            let held = held.get(&index).copied().unwrap_or(0);
            let drift = drift(&seats(before), &seats(queues.word(index)), held, 0);
            if drift == 0 {
                continue;
            }
            let certain = self.drifts.certain(index, drift.into()) as i32;
            if certain != 0 {
                queues.give_back(index, certain);
            }
        }
    }
}
