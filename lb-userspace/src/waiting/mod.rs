//! Connections that wait for a seat of their priority level.
//!
//! Programs hand their SYNs over; a thread keeps them. As seats come free it decides who is next
//! ([`Levels`]), has the kernel open the flow, and sends the SYN on its way, which finds the flow there.
//! The flow is the ticket: the client's retransmission finds it as well, so nobody is let in twice. Who
//! waits for too long is told so.
//!
//! Nothing depends on this thread but those who wait: if it is away, programs refuse at once.

mod lately;
mod line;
mod room;
mod suspicion;
mod syn;
mod waits;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use lb_admission::{
    controller::LevelId,
    queueset::{Arrival, Handle, Rejection},
};
use lb_common::{
    flow::queue::{LevelQueues, Waiter, card_of, hash_of},
    verdict::Reason,
};
use lb_datapath::{
    Jiffies, Loaded, TickRate,
    waiters::{Arrivals, End, WaitEnder},
};

use self::{
    lately::Lately,
    room::{Room, Waiting},
    suspicion::{LONG, Suspicions},
    syn::Syn,
};
pub use self::{
    line::{Counts, Line},
    waits::Waits,
};
use crate::{
    admission::levels::{Counted, Levels, NotParked},
    flows::{Parties, SeatTable},
    map_writer::{Known, Numbered},
};

/// How often seats are looked for while somebody waits.
const TURN: Duration = Duration::from_millis(1);
/// How often programs are told that somebody looks after those who wait.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// For how long that holds: as long as a thread may be delayed without harm.
const PROMISE: Duration = Duration::from_secs(2);
/// For how long nobody waits at a level whose queues a flood has filled.
const OVERRUN: Duration = Duration::from_secs(30);
/// So many heartbeats with the same wrong number show that it is wrong for good.
const SIGNS: u32 = 4;
/// The most connections that are let in before others who want to know of the levels have a turn.
const BATCH: usize = 64;
/// The most that are taken over in one turn: so many a millisecond cost a part of a processor. Others are
/// refused by programs once the ring is full.
const ARRIVALS: usize = 32;

/// Keeps connections that wait in a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct WaitKeeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the keeper needs of the kernel.
pub struct Kernel {
    /// Takes the next connection that has begun to wait.
    pub arrivals: Box<dyn Source + Send>,
    pub seats: Arc<SeatTable>,
    pub parties: Parties,
    pub ender: Box<dyn Ender + Send>,
    /// Asks for a pass over the flow tables at once: [`FlowSweeper::alarm`](crate::flows::FlowSweeper::alarm).
    pub alarm: Box<dyn Fn() + Send>,
    /// The present tick of the clock that programs use.
    pub tick: Box<dyn Fn() -> io::Result<u32> + Send>,
    pub rate: TickRate,
}

/// Where connections that wait come from.
pub trait Source {
    /// Returns once there may be one, after this time at the latest.
    fn wait(&self, at_most: Duration);
    fn take(&mut self) -> Option<Waiter>;
}

/// Ends waits.
pub trait Ender {
    /// Returns what has become of the connection: [`WaitEnder::end`].
    fn end(&self, end: End, syn: &Syn, ifindex: u32) -> Option<Reason>;
}

impl Source for Arrivals {
    fn wait(&self, at_most: Duration) {
        if Arrivals::wait(self, at_most).is_err() {
            // Not without a pause, whatever is wrong.
            thread::sleep(at_most);
        }
    }

    fn take(&mut self) -> Option<Waiter> {
        Arrivals::take(self)
    }
}

impl Ender for WaitEnder {
    fn end(&self, end: End, syn: &Syn, ifindex: u32) -> Option<Reason> {
        match WaitEnder::end(self, end, &syn.bytes, syn.is_whole, ifindex) {
            Ok(reason) => reason,
            Err(error) => {
                tracing::debug!(ifindex, "cannot end the wait of a connection: {error}");
                None
            }
        }
    }
}

impl Kernel {
    /// That of the programs in the kernel. `alarm` asks for a pass over the flow tables.
    ///
    /// # Errors
    ///
    /// If maps cannot be opened, or the program that ends waits has not been loaded.
    pub fn open(
        loaded: &Loaded,
        seats: Arc<SeatTable>,
        alarm: Box<dyn Fn() + Send>,
    ) -> anyhow::Result<Self> {
        let (jiffies, rate) = (Jiffies::open()?, TickRate::of_kernel());
        Ok(Self {
            arrivals: Box::new(Arrivals::open(loaded)?),
            seats,
            parties: Parties::open(loaded)?,
            ender: Box::new(WaitEnder::new(loaded)?),
            alarm,
            tick: Box::new(move || Ok(rate.tick(jiffies.now()?))),
            rate,
        })
    }
}

impl WaitKeeper {
    /// Starts to look after those who wait.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub fn start(kernel: Kernel, line: Arc<Line>, numbered: Arc<Numbered>) -> io::Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let keeper = Keeper::new(kernel, line, numbered);
        let told = stop.clone();
        let thread = thread::Builder::new()
            .name("wait-keeper".to_owned())
            .spawn(move || keeper.run(&told))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for WaitKeeper {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it happened.
            let _ = thread.join();
        }
    }
}

struct Keeper {
    kernel: Kernel,
    line: Arc<Line>,
    numbered: Arc<Numbered>,
    known: Arc<Known>,
    room: Room,
    lately: Lately,
    next_heartbeat: Instant,
    /// Levels whose number of those who wait is wrong: that number, and at how many heartbeats.
    wrong: HashMap<u32, (u32, u32)>,
    /// Levels at which nobody waits, because a flood has filled their queues, and until when.
    overrun: HashMap<u32, Instant>,
    suspicions: Suspicions,
    counted: Counted,
}

impl Keeper {
    fn new(kernel: Kernel, line: Arc<Line>, numbered: Arc<Numbered>) -> Self {
        Self {
            known: numbered.known(),
            kernel,
            line,
            numbered,
            room: Room::default(),
            lately: Lately::default(),
            next_heartbeat: Instant::now(),
            wrong: HashMap::new(),
            overrun: HashMap::new(),
            suspicions: Suspicions::default(),
            counted: Counted::default(),
        }
    }

    fn run(mut self, stop: &AtomicBool) {
        // Of the time before nobody waits any more: their clients ask again.
        self.line.queues.forget_all();
        while self.kernel.arrivals.take().is_some() {}
        self.line.queues.forget_all();
        while !stop.load(Relaxed) {
            let pause = match (self.pass(), self.room.is_empty()) {
                (ARRIVALS.., _) => {
                    thread::sleep(TURN);
                    continue;
                }
                (_, true) => HEARTBEAT,
                (_, false) => TURN,
            };
            self.kernel.arrivals.wait(pause);
        }
        self.line.queues.forget_all();
    }

    /// Takes over who has begun to wait, turns away who has waited for too long, and lets in whoever
    /// there are seats for. Returns how many it has taken over.
    fn pass(&mut self) -> usize {
        self.known = self.numbered.known();
        if self.next_heartbeat <= Instant::now() {
            self.next_heartbeat = Instant::now() + HEARTBEAT;
            self.beat();
        }
        let line = self.line.clone();
        let mut guard = line.levels();
        let Some(levels) = guard.as_mut() else {
            // Without levels nobody waits.
            return 0;
        };
        let mut arrivals = 0;
        while arrivals < ARRIVALS
            && let Some(waiter) = self.kernel.arrivals.take()
        {
            self.arrive(levels, &waiter);
            arrivals += 1;
        }
        if self.room.is_empty() {
            return arrivals;
        }
        let now = self.line.now();
        self.kernel.seats.collect();
        for level in self.room.levels() {
            self.observe(levels, level, now);
        }
        if self.suspicions.are_due(now) {
            self.suspect(now);
            for level in self.room.levels() {
                self.follow_flood(levels, level, now);
            }
        }
        let mut late = levels.advance(now);
        late.append(&mut self.line.take_late());
        self.let_in(levels, now);
        drop(guard);
        // There may be many, and others want to know of the levels.
        for (level, connection) in late {
            if let Some(waiting) = self.leave(level, connection) {
                self.refuse(&waiting, Reason::TimeOut, now);
            }
        }
        arrivals
    }

    /// Takes over a connection that has begun to wait.
    fn arrive(&mut self, levels: &mut Levels, waiter: &Waiter) {
        let now = self.line.now();
        let Some(syn) = Syn::of(waiter) else {
            return self.line.queues.leave(waiter.level, waiter.queue);
        };
        match self.room.find(&syn) {
            Some(waiting) if waiting.syn.number == syn.number => {
                // It has come again: neither its place nor its deadline changes.
                waiting.syn = syn;
                return self.line.queues.leave(waiter.level, waiter.queue);
            }
            Some(_) => self.replace(levels, &syn, now),
            // Its flow is open, or has been.
            None if self.lately.has(&syn, now) => {
                return self.line.queues.leave(waiter.level, waiter.queue);
            }
            None => {}
        }
        let schema = self.known.schema(waiter.schema).map(|(schema, _)| schema);
        let waiting = Box::new(Waiting {
            syn,
            ifindex: waiter.ifindex,
            schema: waiter.schema,
            level: waiter.level,
            queue: waiter.queue,
            party: waiter.party,
            seats: schema.map_or(1, |schema| schema.seats),
            is_inside: waiter.is_inside != 0,
            since: now,
            until: now + schema.map_or(0, |schema| schema.longest_wait.as_nanos() as u64),
        });
        self.park(levels, waiting, now);
    }

    /// Forgets a connection whose client has begun another one from the same port.
    fn replace(&mut self, levels: &mut Levels, syn: &Syn, now: u64) {
        if let Some((level, connection)) = self.room.place(syn) {
            levels.cancel(level, connection, now);
            if let Some(waiting) = self.leave(level, connection) {
                self.count_in_vain(&waiting, now);
            }
        }
    }

    /// Has a connection wait that programs count as waiting, or ends its wait at once.
    fn park(&mut self, levels: &mut Levels, waiting: Box<Waiting>, now: u64) {
        let Err((refusal, waiting)) = self.try_park(levels, waiting, now) else {
            return;
        };
        self.line.queues.leave(waiting.level, waiting.queue);
        match refusal {
            Some(reason) => self.refuse(&waiting, reason, now),
            None => drop(self.end(&waiting, End::AskAgain)),
        }
    }

    /// The same. Returns it if it cannot wait, with the reason to refuse it, if there is one.
    fn try_park(
        &mut self,
        levels: &mut Levels,
        waiting: Box<Waiting>,
        now: u64,
    ) -> Result<(), (Option<Reason>, Box<Waiting>)> {
        let known = &self.known.levels;
        let Some(known) = known.iter().find(|known| known.number == waiting.level) else {
            return Err((None, waiting));
        };
        let (name, flow) = (&*known.level.name, hash_of(waiting.party));
        let connections = self.kernel.parties.connections(waiting.party);
        levels.observe_flow(name, flow, connections, waiting.seats, now);
        let queues = self.line.queues.of_level(waiting.level);
        let queue = waiting.queue.wrapping_sub(queues.first);
        let arrival = Arrival {
            schema: waiting.schema,
            ..Arrival::connection(flow, waiting.seats, 0, Some(waiting.until))
        };
        let parked = levels.park(name, queue, arrival, now);
        let refusal = match parked {
            Ok((level, connection)) => {
                let entered = self.room.enter(level, connection, waiting);
                return entered.map_err(|waiting| {
                    levels.cancel(level, connection, now);
                    (Some(Reason::QueueFull), waiting)
                });
            }
            Err(NotParked::NoQueue) => None,
            Err(NotParked::Rejected(Rejection::FlowLimit)) => Some(Reason::FlowLimit),
            Err(NotParked::Rejected(_)) => Some(Reason::QueueFull),
        };
        Err((refusal, waiting))
    }

    /// Lets connections in for which there are seats.
    fn let_in(&mut self, levels: &mut Levels, now: u64) {
        for _ in 0..BATCH {
            let Some((level, connection, grant)) = levels.next(now) else {
                break;
            };
            let Some(waiting) = self.room.leave(level, connection) else {
                levels.not_let_in(level, grant, now);
                continue;
            };
            let queues = self.line.queues.of_level(waiting.level);
            let queue = waiting.queue.wrapping_sub(queues.first);
            let card = card_of(queues.number, queues.hand, waiting.party, queue);
            // Before its client knows, who may want the place for another connection. Its level counts it
            // until it has its seat: others would come first.
            let programs = &self.line.queues;
            let was_counted = programs.leave_queue(waiting.level, waiting.queue);
            let became = self.end(&waiting, End::LetIn(card));
            if became == Some(Reason::Parked) {
                // Somebody has taken the seat who need not wait.
                if was_counted {
                    programs.return_to_queue(waiting.queue);
                }
                levels.not_let_in(level, grant, now);
                self.park(levels, waiting, now);
                break;
            }
            if was_counted {
                programs.leave_level(waiting.level);
            }
            match became {
                Some(Reason::Opened | Reason::ToEndpoint) => {
                    levels.let_in(level, grant, now);
                    self.lately.add(&waiting.syn, now);
                    let wait = waiting.waited(now);
                    self.line
                        .count(waiting.schema, |counts| counts.let_in.add(wait));
                }
                Some(Reason::FlowLimit) => {
                    levels.not_let_in(level, grant, now);
                    self.refuse(&waiting, Reason::FlowLimit, now);
                }
                // Its SYN has gone its way, and gets the answer that it gets there.
                _ => {
                    levels.not_let_in(level, grant, now);
                    self.count_in_vain(&waiting, now);
                }
            }
        }
    }

    /// Takes a connection out of the room: programs count it no longer as waiting.
    fn leave(&mut self, level: LevelId, connection: Handle) -> Option<Box<Waiting>> {
        let waiting = self.room.leave(level, connection)?;
        self.line.queues.leave(waiting.level, waiting.queue);
        Some(waiting)
    }

    fn refuse(&self, waiting: &Waiting, reason: Reason, now: u64) {
        self.count_in_vain(waiting, now);
        match reason {
            Reason::QueueFull => self.line.queues.count_refused(waiting.level),
            reason => self.line.count(waiting.schema, |counts| match reason {
                Reason::FlowLimit => counts.flow_limit += 1,
                _ => counts.timed_out += 1,
            }),
        }
        self.end(waiting, End::TurnAway(reason, waiting.schema));
    }

    /// Counts a connection that is not let in. One that is refused as it comes has not waited.
    fn count_in_vain(&self, waiting: &Waiting, now: u64) {
        let wait = waiting.waited(now);
        if !wait.is_zero() {
            self.line
                .count(waiting.schema, |counts| counts.in_vain.add(wait));
        }
    }

    fn end(&self, waiting: &Waiting, end: End) -> Option<Reason> {
        let ender = &self.kernel.ender;
        ender.end(end, &waiting.syn, waiting.ifindex)
    }

    /// Takes over what programs have counted of a level.
    fn observe(&mut self, levels: &mut Levels, level: u32, now: u64) {
        let known = &self.known;
        let configured = known.levels.iter().find(|known| known.number == level);
        let leaving = || known.leaving.iter().find(|(_, number)| **number == level);
        let name = configured.map(|known| &*known.level.name);
        let Some(name) = name.or_else(|| leaving().map(|(name, _)| &**name)) else {
            return;
        };
        let seats = &self.kernel.seats;
        self.line.read(level, seats, &mut self.counted);
        levels.observe(name, &self.counted, now);
    }

    /// Has handshakes looked for that nobody completes, if flows wait for their first seat for long at levels
    /// where those hold seats.
    fn suspect(&mut self, now: u64) {
        let Kernel { seats, parties, .. } = &self.kernel;
        let mut levels = BTreeSet::new();
        // There may be many.
        for waiting in self.room.iter() {
            if waiting.waited(now) >= LONG
                && !levels.contains(&waiting.level)
                && parties.connections(waiting.party) == 0
            {
                levels.insert(waiting.level);
            }
        }
        levels.retain(|level| seats.read_level(*level).pressed == 0);
        if self.suspicions.follow(levels, now) {
            (self.kernel.alarm)();
        }
    }

    /// Tells programs that somebody looks after those who wait, and puts their numbers right.
    fn beat(&mut self) {
        let Ok(tick) = (self.kernel.tick)() else {
            return;
        };
        // 0 means never.
        let until = tick.wrapping_add(self.kernel.rate.ticks(PROMISE)).max(1);
        let with_queues = self.known.levels.iter();
        let with_queues = with_queues.filter(|known| known.level.queuing().is_some());
        let numbers: Vec<u32> = with_queues.map(|known| known.number).collect();
        for level in &numbers {
            self.line.queues.promise(*level, until);
            self.check(*level);
        }
        let line = self.line.clone();
        let mut levels = line.levels();
        let Some(levels) = levels.as_mut() else {
            return;
        };
        let now = self.line.now();
        for (level, connection) in levels.evict_leaving(now) {
            self.ask_again(level, connection);
        }
        self.overrun.retain(|level, _| numbers.contains(level));
        for level in numbers {
            self.follow_flood(levels, level, now);
        }
        let flows = self.room.flows();
        for (level, party, seats) in flows {
            let known = &self.known.levels;
            if let Some(known) = known.iter().find(|known| known.number == level) {
                let connections = self.kernel.parties.connections(party);
                levels.observe_flow(&known.level.name, hash_of(party), connections, seats, now);
            }
        }
        for known in &self.known.levels {
            let kept = levels.kept_back(&known.level.name);
            line.queues.keep(known.number, kept);
        }
    }

    /// Has nobody wait at a level, for a while, if it is pressed and flows without a seat fill more than half
    /// of its queues: most of them are forged, and real clients would wait among them. Those who wait ask
    /// again, as whoever comes from now on.
    fn follow_flood(&mut self, levels: &mut Levels, level: u32, now: u64) {
        if self.kernel.seats.read_level(level).pressed != 0 && self.is_flooded(level) {
            let until = Instant::now() + OVERRUN;
            if self.overrun.insert(level, until).is_none() {
                tracing::warn!(
                    level,
                    "forged SYNs fill the queues of a priority level: nobody waits there for a while"
                );
            }
        }
        let is_overrun = match self.overrun.get(&level) {
            Some(until) => *until > Instant::now(),
            None => return,
        };
        self.line.queues.overrun(level, is_overrun);
        if !is_overrun {
            self.overrun.remove(&level);
            tracing::info!(level, "connections wait at a priority level again");
            return;
        }
        for (id, connection) in self.room.places(level) {
            levels.cancel(id, connection, now);
            self.ask_again(id, connection);
        }
    }

    /// Has programs look at the SYN of a connection anew that waits no longer.
    fn ask_again(&mut self, level: LevelId, connection: Handle) {
        if let Some(waiting) = self.leave(level, connection) {
            self.end(&waiting, End::AskAgain);
        }
    }

    /// Whether flows without a seat fill more than half of a level's queues.
    fn is_flooded(&self, level: u32) -> bool {
        let of = self.line.queues.of_level(level);
        let many = u64::from(of.number) * u64::from(of.length) / 2;
        if u64::from(of.waiting) <= many {
            return false;
        }
        let parties = &self.kernel.parties;
        let there = self.room.iter().filter(|waiting| waiting.level == level);
        let newcomers = there.filter(|waiting| parties.connections(waiting.party) == 0);
        newcomers.count() as u64 > many
    }

    /// Corrects how many programs believe to wait at a level, once that has been wrong for a while: they
    /// were exchanged, or those who waited were lost.
    fn check(&mut self, level: u32) {
        let of: LevelQueues = self.line.queues.of_level(level);
        let right = self.room.waiting(level);
        if of.waiting == right {
            self.wrong.remove(&level);
            return;
        }
        let (number, times) = self.wrong.entry(level).or_insert((of.waiting, 0));
        match *number == of.waiting {
            true => *times += 1,
            false => (*number, *times) = (of.waiting, 1),
        }
        if *times >= SIGNS {
            self.wrong.remove(&level);
            tracing::info!(
                level,
                counted = of.waiting,
                right,
                "corrected how many connections wait"
            );
            let room = &self.room;
            let queues = &self.line.queues;
            queues.correct(level, &of, |queue| room.waiting_in(level, queue));
        }
    }
}
