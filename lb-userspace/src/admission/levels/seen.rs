//! What the kernel counts, as what connections hold.

use lb_admission::queueset::Holds;
use lb_common::flow::Seats;

/// What the kernel has counted of a level.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub level: Seats,
    /// Of each of its queues, a word like [`Seats::word`]. Those that are missing hold nothing.
    pub queues: Vec<u64>,
}

/// Seats in use, and taken so far modulo 2^32.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    pub used: u32,
    pub taken: u32,
}

/// Connections that are counted together, and what is known of them one by one: nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub holds: Holds,
    /// [`Count::taken`] as it was; `None` if it is another count from now on.
    taken: Option<u32>,
    /// The word that the queue set has, if it has not changed the numbers itself since.
    pub told: Option<u64>,
}

/// The same for a level.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Those that are in no queue.
    pub outside: Seen,
    pub queues: Vec<Seen>,
    /// Connections refused so far.
    pub refused: u64,
    pub at: u64,
}

impl Count {
    /// Reads a word like [`Seats::word`].
    pub fn of(word: u64) -> Self {
        let seats = Seats {
            word,
            ..Seats::default()
        };
        Self {
            used: u32::try_from(seats.used()).unwrap_or(0),
            taken: seats.taken(),
        }
    }

    /// What is left of a sum without one of its parts. The kernel goes on while both are read, so a
    /// part may be more than the sum.
    pub fn without(self, part: Self) -> Self {
        Self {
            used: self.used.saturating_sub(part.used),
            taken: self.taken.wrapping_sub(part.taken),
        }
    }
}

impl Seen {
    /// Takes over a count; the last one was at `since`.
    ///
    /// Who has come and gone since is not known one by one. So those that came are taken to have come
    /// in the middle, and those that went to have been there for as long as the others on average.
    pub fn follow(&mut self, counted: Count, since: u64, now: u64) {
        let taken = self.taken.unwrap_or(counted.taken);
        // What is left of a sum may seem to go back for a moment.
        let newly_taken = u32::try_from(counted.taken.wrapping_sub(taken) as i32).unwrap_or(0);
        self.taken = Some(taken.wrapping_add(newly_taken));
        let holds = &mut self.holds;
        let seats = u32::try_from(holds.seats).unwrap_or(u32::MAX);
        let came = newly_taken.max(counted.used.saturating_sub(seats));
        holds.take(came, since + now.saturating_sub(since) / 2);
        let went = u32::try_from(holds.seats.saturating_sub(counted.used.into()));
        let went = went.unwrap_or(u32::MAX);
        if went > 0 {
            let age = holds.held_time(now).per_seat(holds.seats as f64);
            holds.release(went, now.saturating_sub(age), now);
        }
        holds.executing = counted.used;
    }

    /// A word that says that nobody is left.
    fn nobody(&self) -> u64 {
        u64::from(self.taken.unwrap_or(0)) << 32
    }
}

impl Observed {
    /// A level with so many queues that is counted for the first time.
    pub fn new(queues: u32, counted: &Counted, now: u64) -> Self {
        Self {
            outside: Seen::default(),
            queues: vec![Seen::default(); queues as usize],
            refused: counted.level.refused,
            at: now,
        }
    }

    /// The level has other queues, which are counted from zero. Its connections are in none of them.
    pub fn renew(&mut self, queues: u32) {
        for seen in &self.queues {
            self.outside.holds += seen.holds;
        }
        self.outside.taken = None;
        self.queues = vec![Seen::default(); queues as usize];
    }

    /// The queue set changes what a queue holds, by itself.
    pub fn touch(&mut self, queue: u32) {
        if let Some(seen) = self.queues.get_mut(queue as usize) {
            seen.told = None;
        }
    }

    /// What the kernel would count if nobody were left.
    pub fn nobody(&self) -> Counted {
        let queues: Vec<u64> = self.queues.iter().map(Seen::nobody).collect();
        let all = queues.iter().copied().chain([self.outside.nobody()]);
        Counted {
            level: Seats {
                word: all.fold(0, u64::wrapping_add),
                refused: self.refused,
                ..Seats::default()
            },
            queues,
        }
    }
}
