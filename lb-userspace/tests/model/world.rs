//! The memory that CPUs and sweeper share, and the switches between them.

use std::{
    cell::{Cell, RefCell, UnsafeCell},
    mem::offset_of,
    net::IpAddr,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
};

use lb_common::{
    abi::{Config, Endpoint, Plan, config_flag, endpoint_flag},
    addr::{Ip4, Ip6},
    flow::{
        Flow, Record, Seats, Timeouts, flow_flag,
        place::Place,
        table::{GROUP, GROUPS},
        tag,
    },
    model::{self, Access},
};
use loom::sync::{Mutex, atomic::AtomicU32 as Switch};

use crate::{checker, mutations::Mutation, packets};

/// Records in a table: the smallest number that a search can work with.
pub const RECORDS: u32 = GROUP * GROUPS;
/// Secret of the hash.
pub const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
/// The tick at which scenarios start: later than everything in the table.
pub const BEGIN: u32 = 1_000;
/// How many ticks flows may be silent.
pub const TIMEOUTS: Timeouts = Timeouts {
    tcp: [20, 20, 40, 30, 10],
    udp: [20, 20, 40, 40, 40],
    port_held: 20,
    shortest: 10,
};
/// The only service.
pub const SERVICE: u32 = 1;

/// The initial state of a world.
#[derive(Clone, Default)]
pub struct Setup {
    pub cpus: usize,
    /// Whether the clock advances while threads run.
    pub time_passes: bool,
    /// Whether the service's budget of half-open flows is used up: each new one then ends the
    /// previous one.
    pub pressed: bool,
    /// Whether some live record may have lost its other direction at the end.
    pub leaves_halves: bool,
    /// Whether other endpoints serve by the time that threads run.
    pub replaced: bool,
    /// Whether packets may be dropped.
    pub loses_packets: bool,
    /// So many CPUs, the first ones, have programs whose own table is the old one. If there are
    /// any, the table's size changes.
    pub of_before: usize,
    /// The node's limit of connections and the Service's; 0 means none.
    pub limits: [u32; 2],
}

impl Setup {
    pub fn of(cpus: usize) -> Self {
        Self {
            cpus,
            ..Self::default()
        }
    }
}

/// Everything that threads share.
pub struct World {
    pub setup: Setup,
    pub mutation: Option<Mutation>,
    pub config: Config,
    pub plan: Plan,
    /// At first the first two serve; the last two may replace them.
    pub endpoints: [Endpoint; 4],
    /// The records of the table, then those of the old table, if there is one.
    records: Box<[UnsafeCell<Flow<Ip4>>]>,
    /// The time in eighths of ticks.
    clock: AtomicU64,
    pub half_open: AtomicI32,
    pub flows: AtomicI32,
    /// The ring of half-open flows, with a single place.
    pub place: UnsafeCell<u64>,
    pub cursor: UnsafeCell<u32>,
    /// The node's limit and the Service's.
    pub seats: [UnsafeCell<Seats>; 2],
    /// The points at which threads switch: tags, then all other words of records, then the rest.
    switches: Box<[Switch]>,
    /// Locked while a CPU runs a program.
    running: Box<[Mutex<()>]>,
    /// The CPU that is running, if any.
    active: Cell<Option<usize>>,
    /// The CPU that was the last to claim each record.
    claimers: Box<[Cell<usize>]>,
    /// The records that each CPU's program has seen in use.
    seen: Box<[RefCell<Sightings>]>,
    started: Cell<bool>,
    violations: RefCell<Vec<String>>,
    /// The accesses so far: a CPU or none, a switch, and the tag that was there.
    trace: RefCell<Vec<(Option<usize>, usize, u32)>>,
    /// A tag that a record gets as soon as the current access is done.
    after: Cell<Option<(u32, u32)>>,
}

/// Indexes of records, with their tags.
type Sightings = Vec<(u32, u32)>;

/// Switches beyond those of records.
#[derive(Clone, Copy, Debug)]
pub enum Shared {
    Clock,
    HalfOpen,
    Ring,
    Seats,
}

impl Shared {
    const ALL: [Self; 4] = [Self::Clock, Self::HalfOpen, Self::Ring, Self::Seats];
}

// SAFETY: all threads of an execution run in turn on one thread of the system.
unsafe impl Sync for World {}
// SAFETY: all threads of an execution run in turn on one thread of the system.
unsafe impl Send for World {}

impl World {
    pub fn new(setup: &Setup, mutation: Option<Mutation>) -> Self {
        model::observe(observe);
        let records = match setup.of_before {
            0 => RECORDS,
            _ => 2 * RECORDS,
        };
        let clean = || UnsafeCell::new(Flow::default());
        Self {
            setup: setup.clone(),
            mutation,
            config: Config {
                secret: SECRET,
                hz: 1,
                flow_mask4: RECORDS - 1,
                flags: match setup.limits[0] {
                    0 => 0,
                    _ => config_flag::CONNECTION_LIMIT,
                },
                ..Config::default()
            },
            plan: Plan {
                service: SERVICE,
                counts: [0, 0, 0, 2, 0, 0],
                seats: u32::from(setup.limits[1] != 0),
                ..Plan::default()
            },
            endpoints: [1, 2, 3, 4].map(|id| Endpoint {
                address: Ip6::from(IpAddr::from(packets::endpoint(id))),
                port: packets::ENDPOINT_PORT,
                flags: endpoint_flag::IN_CLUSTER,
                id,
            }),
            records: (0..records).map(|_| clean()).collect(),
            clock: AtomicU64::new(u64::from(BEGIN) << 3),
            half_open: AtomicI32::new(0),
            flows: AtomicI32::new(0),
            place: UnsafeCell::new(0),
            cursor: UnsafeCell::new(0),
            seats: setup.limits.map(|limit| {
                UnsafeCell::new(Seats {
                    limit,
                    ..Seats::default()
                })
            }),
            switches: (0..2 * records as usize + Shared::ALL.len())
                .map(|_| Switch::new(0))
                .collect(),
            running: (0..setup.cpus).map(|_| Mutex::new(())).collect(),
            active: Cell::new(None),
            claimers: (0..records).map(|_| Cell::new(0)).collect(),
            seen: (0..setup.cpus).map(|_| RefCell::default()).collect(),
            started: Cell::new(false),
            violations: RefCell::default(),
            trace: RefCell::default(),
            after: Cell::new(None),
        }
    }

    /// From now on the order of accesses matters.
    pub fn start(&self) {
        self.started.set(true);
    }

    /// The difference between the ids of endpoints that serve now and those at first.
    pub fn endpoint_shift(&self) -> u32 {
        match self.setup.replaced && self.started.get() {
            true => 2,
            false => 0,
        }
    }

    /// Notes that a thread starts, which no CPU runs so far.
    pub fn begin_thread(&self) {
        self.active.set(None);
    }

    /// From now on everything happens in a single order.
    pub fn stop(&self) {
        self.started.set(false);
        self.active.set(None);
        self.finish_access();
    }

    pub fn violation(&self, what: impl Into<String>) {
        self.violations.borrow_mut().push(what.into());
    }

    pub fn violations(&self) -> Vec<String> {
        self.violations.take()
    }

    pub fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub fn record(&self, index: u32) -> Option<Record<Ip4>> {
        NonNull::new(self.records.get(index as usize)?.get())
    }

    /// Number of records in all tables.
    pub fn len(&self) -> u32 {
        self.records.len() as u32
    }

    /// Index of the first record of a CPU's own table.
    pub fn own_table(&self, cpu: usize) -> u32 {
        match cpu < self.setup.of_before {
            true => RECORDS,
            false => 0,
        }
    }

    /// Whether a CPU runs that has the next table as its own.
    pub fn runs_next(&self) -> bool {
        self.active
            .get()
            .is_some_and(|cpu| self.own_table(cpu) == 0)
    }

    /// A word of a record, without a switch.
    pub fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        assert!(offset < size_of::<Flow<Ip4>>() && offset.is_multiple_of(4));
        let flow = self.records[index as usize].get();
        // SAFETY: the word is inside the table.
        unsafe { AtomicU32::from_ptr(flow.byte_add(offset).cast()) }
    }

    /// A record's tag, without a switch.
    pub fn tag(&self, index: u32) -> u32 {
        self.word(index, offset_of!(Flow<Ip4>, tag))
            .load(Ordering::SeqCst)
    }

    /// Gives a record another tag, without a switch.
    pub fn set_tag(&self, index: u32, tag: u32) {
        self.word(index, offset_of!(Flow<Ip4>, tag))
            .store(tag, Ordering::SeqCst);
    }

    /// A copy of a record, without a switch.
    pub fn flow(&self, index: u32) -> Flow<Ip4> {
        // SAFETY: the record is inside the table.
        unsafe { self.records[index as usize].get().read_volatile() }
    }

    /// Number of live records in the table.
    pub fn live(&self) -> usize {
        let tags = (0..RECORDS).map(|index| self.tag(index));
        tags.filter(|tag| tag::in_use(*tag)).count()
    }

    /// The time in eighths of ticks.
    pub fn moment(&self) -> u64 {
        if self.setup.time_passes {
            self.touch(Shared::Clock);
        }
        self.clock.load(Ordering::SeqCst)
    }

    /// The present tick.
    pub fn now(&self) -> u32 {
        (self.moment() >> 3) as u32
    }

    /// Sets the clock, without a switch.
    pub fn set_clock(&self, tick: u32) {
        self.clock.store(u64::from(tick) << 3, Ordering::SeqCst);
    }

    /// Lets some eighths of a tick pass. No program sees this happen twice, because programs end
    /// within microseconds.
    pub fn pass_time(&self, eighths: u32) {
        self.grace();
        self.touch(Shared::Clock);
        self.clock.fetch_add(u64::from(eighths), Ordering::SeqCst);
    }

    /// Returns when every program that was running at the call has returned.
    pub fn grace(&self) {
        for running in self.running.iter().filter(|_| self.started.get()) {
            let active = self.active.get();
            drop(running.lock().unwrap());
            self.active.set(active);
        }
    }

    /// Runs a program on a CPU. Until it ends, it may use the records that it has seen in use.
    pub fn run<T>(&self, cpu: usize, program: impl FnOnce() -> T) -> T {
        if !self.started.get() {
            return program();
        }
        let running = self.running[cpu].lock().unwrap();
        self.active.set(Some(cpu));
        let outcome = program();
        self.finish_access();
        for (index, before) in self.seen[cpu].take() {
            self.switch(index as usize);
            // An eviction changes everything but the generation.
            let generation = |tag| tag::evicted(tag::with_state(tag, tag::DEAD), 0);
            if generation(before) != generation(self.tag(index)) {
                self.violation(format!(
                    "record {index} is another flow's before its program has ended"
                ));
            }
        }
        self.active.set(None);
        drop(running);
        outcome
    }

    /// Lets other threads run before an access.
    pub fn touch(&self, shared: Shared) {
        self.switch(2 * self.records.len() + shared as usize);
    }

    /// The same before an access to a record's tag.
    pub fn touch_tag(&self, index: u32) {
        self.switch(index as usize);
    }

    /// The same before an access to any other word of a record.
    pub fn touch_fields(&self, index: u32) {
        self.switch((self.len() + index) as usize);
    }

    fn switch(&self, number: usize) {
        self.finish_access();
        if !self.started.get() {
            return;
        }
        let active = self.active.get();
        // Read and written, so that no two accesses to it can be exchanged.
        self.switches[number].fetch_or(0, Ordering::AcqRel);
        self.active.set(active);
        let tag = match number < self.records.len() {
            true => self.tag(number as u32),
            false => 0,
        };
        self.trace.borrow_mut().push((active, number, tag));
    }

    /// The accesses in their order, for people.
    pub fn schedule(&self) -> String {
        let trace = self.trace.borrow();
        let lines = trace.iter().map(|(cpu, number, tag)| {
            let who = cpu.map_or("agent".to_owned(), |cpu| format!("CPU {cpu}"));
            let (records, number) = (self.records.len(), *number);
            match number {
                _ if number < records => format!("{who}: tag of {number}, {tag:#x}"),
                _ if number < 2 * records => format!("{who}: fields of {}", number - records),
                _ => format!("{who}: {:?}", Shared::ALL[number - 2 * records]),
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns when no CPU has a claim in a CPU's own table for what may be the tuple with this
    /// hash. Returns whether there was one. The waiting CPU has no claim itself.
    pub fn await_claim(&self, cpu: usize, hash: u64) -> bool {
        let own = self.own_table(cpu);
        let claimed = |index: &u32| tag::may_become(self.tag(*index), hash);
        let Some(index) = (own..own + RECORDS)
            .find(claimed)
            .filter(|_| self.started.get())
        else {
            return false;
        };
        let active = self.active.get();
        let claimer = self.claimers[index as usize].get();
        drop(self.running[claimer].lock().unwrap());
        self.active.set(active);
        true
    }

    /// Whether a CPU has claimed a record that it has not published or given back.
    pub fn has_claim(&self, cpu: usize) -> bool {
        let claimed = |index: u32| tag::state(self.tag(index)) == tag::BUSY;
        (0..self.len()).any(|index| claimed(index) && self.claimers[index as usize].get() == cpu)
    }

    /// Gives a record another tag as soon as the next access is done.
    pub fn afterwards(&self, index: u32, tag: u32) {
        self.after.set(Some((index, tag)));
    }

    fn finish_access(&self) {
        if let Some((index, tag)) = self.after.take() {
            self.set_tag(index, tag);
        }
    }

    /// The limit at an index.
    pub fn limit(&self, index: u32) -> Option<NonNull<Seats>> {
        NonNull::new(self.seats.get(index as usize)?.get())
    }

    /// What is counted of a limit, without a switch.
    pub fn counted(&self, index: usize) -> Seats {
        // SAFETY: all threads of an execution run in turn.
        unsafe { self.seats[index].get().read_volatile() }
    }

    /// Puts both limits under pressure, without a switch.
    pub fn press(&self) {
        for seats in &self.seats {
            // SAFETY: all threads of an execution run in turn.
            unsafe { (*seats.get()).pressed = 1 };
        }
    }

    /// The agent gives seats back.
    pub fn seats_given_back(&self, place: Place) {
        for index in places(place) {
            self.touch(Shared::Seats);
            // SAFETY: all threads of an execution run in turn.
            let seats = unsafe { &mut *self.seats[index].get() };
            seats.word = seats.word.wrapping_sub(1);
        }
    }

    /// Changes the number of the Service's seats in use, without a switch.
    pub fn change_seats(&self, change: i32) {
        // SAFETY: all threads of an execution run in turn.
        let seats = unsafe { &mut *self.seats[1].get() };
        seats.word = seats.word.wrapping_add(i64::from(change) as u64);
    }

    fn is_of_seats(&self, word: *mut ()) -> bool {
        let start = self.seats.as_ptr() as usize;
        (start..start + size_of_val(&self.seats)).contains(&(word as usize))
    }

    /// Lets other threads run before a program's access to a word.
    fn before(&self, word: *mut (), access: Access) {
        let table = self.records.as_ptr() as usize;
        let offset = (word as usize).wrapping_sub(table);
        let size = size_of::<Flow<Ip4>>();
        let index = (offset / size) as u32;
        if index >= self.len() {
            if self.is_of_seats(word) {
                return self.touch(Shared::Seats);
            }
            let ring = [self.place.get().cast(), self.cursor.get().cast()];
            assert!(ring.contains(&word), "an access to what nobody knows of");
            return self.touch(Shared::Ring);
        }
        if offset % size != offset_of!(Flow<Ip4>, tag) {
            return self.touch_fields(index);
        }
        self.touch_tag(index);
        if let Access::CompareAndSwap { old, new } = access
            && self.tag(index) == old
        {
            if let Some(mutation) = self.mutation {
                mutation.before_swap(self, index, old, new);
            }
            if let (Some(cpu), tag::BUSY) = (self.active.get(), tag::state(new)) {
                self.claimers[index as usize].set(cpu);
            }
        }
        let tag = self.tag(index);
        if let (Some(cpu), true) = (self.active.get(), tag::in_use(tag)) {
            let mut seen = self.seen[cpu].borrow_mut();
            if !seen.iter().any(|(known, _)| *known == index) {
                seen.push((index, tag));
            }
        }
    }

    /// Whether a record is the endpoint's direction of a flow.
    pub fn is_reply(&self, index: u32) -> bool {
        self.flow(index).has(flow_flag::REPLY)
    }
}

/// Indexes of the limits of a place.
pub fn places(place: Place) -> impl Iterator<Item = usize> {
    let node = place.has_node().then_some(0);
    let service = Some(place.service() as usize).filter(|index| *index != 0);
    node.into_iter().chain(service)
}

/// Called before every access of the pipeline.
fn observe(word: *mut (), access: Access) {
    if let Some(world) = checker::world() {
        world.before(word, access);
    }
}

/// A CPU of a world.
pub struct Cpu {
    pub world: Arc<World>,
    pub number: usize,
    /// Whether the clock runs ahead for a claim: see [`Mutation`].
    pub hasty: Cell<bool>,
    /// Whether no other CPU was opening the flow that this CPU looks for.
    pub looked: Cell<bool>,
}

impl Cpu {
    pub fn new(world: &Arc<World>, number: usize) -> Self {
        Self {
            world: world.clone(),
            number,
            hasty: Cell::new(false),
            looked: Cell::new(false),
        }
    }
}
