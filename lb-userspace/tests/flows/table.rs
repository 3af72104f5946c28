//! A flow table in plain memory, and what programs do with it.

use std::{
    cell::UnsafeCell,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
};

use lb_common::{
    abi::{EndpointLoad, FlowSchema},
    addr::Ip4,
    flow::{
        Flow, Record, Timeouts,
        claim::{self, Claim, Refused},
        flow_flag,
        limit::{self, LEVELS, Seats},
        load,
        party::{self, Taker},
        place::Place,
        record::{self, read_tag},
        seats::{self, client_of},
        slots::{Purpose, Slots, Steps},
        steps::Plain,
        table, tag,
    },
    parse::{Segment, TCP, Tuple, UDP, tcp_flag},
};
use lb_datapath::{TickRate, bpf::MappedArray};
use node_lb::{
    config::FlowTimeouts,
    flows::{
        Loads, Parties, Queues, Records, Reset, SeatTable,
        stats::{Counted, Removed, ServiceCounts, TableStats},
        sweep::TableSweeper,
        timeouts, under_pressure,
    },
};

/// One tick is one second.
pub const RATE: TickRate = TickRate { hz: 1, shift: 0 };
/// The endpoint of flows that are counted there.
const ENDPOINT: u32 = 5;
const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// A plain SYN.
pub const SYN: Segment = Segment {
    sequence: 0,
    next: 1,
    acknowledged: 0,
    stamp: 0,
    window: 0,
    flags: tcp_flag::SYN,
    scale: 0,
};

pub struct Table {
    records: Box<[UnsafeCell<Flow<Ip4>>]>,
    /// The time in seconds that programs see.
    clock: AtomicU32,
    timeouts: Timeouts,
    /// The count, by programs and sweeper, of flows that have not proved themselves.
    half_open: AtomicI32,
    /// The same count of all flows.
    flows: AtomicI32,
    /// Limits, which take no seats by themselves here.
    pub limits: Arc<MappedArray<Seats>>,
    /// The same as the agent sees them.
    pub seats: SeatTable,
    levels: Arc<MappedArray<Seats>>,
    loads: Arc<MappedArray<EndpointLoad>>,
    /// Parties, which programs and the agent count.
    pub parties: Arc<Parties>,
    elements: Arc<MappedArray<u64>>,
    pub schemas: Arc<MappedArray<FlowSchema>>,
}

// SAFETY: used as the kernel and the agent use their shared memory: tags are accessed atomically,
// all other fields only by the owner of the record.
unsafe impl Sync for Table {}
// SAFETY: plain memory, which is not bound to a thread.
unsafe impl Send for Table {}

impl Table {
    /// A table in which claims never end other flows.
    pub fn new(records: usize) -> Arc<Self> {
        Self::with_timeouts(records, Timeouts::default())
    }

    /// A table in which claims end flows that have been silent for too long.
    pub fn with_timeouts(records: usize, timeouts: Timeouts) -> Arc<Self> {
        let empty = || UnsafeCell::new(Flow::default());
        let limits = Arc::new(MappedArray::in_memory(limit::LIMITS as u32));
        let levels = Arc::new(MappedArray::in_memory(limit::LEVEL_NUMBERS as u32));
        let elements = Arc::new(MappedArray::in_memory(party::PARTIES as u32));
        let schemas = Arc::new(MappedArray::in_memory(16));
        let loads = Arc::new(MappedArray::in_memory(ENDPOINT + 1));
        Arc::new(Self {
            records: (0..records).map(|_| empty()).collect(),
            clock: AtomicU32::new(0),
            timeouts,
            half_open: AtomicI32::new(0),
            flows: AtomicI32::new(0),
            seats: SeatTable::new(limits.clone(), levels.clone(), Loads::new(loads.clone())),
            limits,
            levels,
            loads,
            parties: Arc::new(Parties::new(
                elements.clone(),
                schemas.clone(),
                Queues::in_memory(),
            )),
            elements,
            schemas,
        })
    }

    /// The connections that the endpoint of all flows has open, where they are counted.
    pub fn open_at_endpoint(&self) -> i32 {
        self.loads.read(ENDPOINT).open
    }

    /// The connections of each party that has some.
    pub fn members(&self) -> Vec<u32> {
        let elements = self.elements.iter(0..self.elements.len());
        let counts =
            elements.map(|(index, element)| party::Members::read(index, element).connections);
        counts.filter(|count| *count != 0).collect()
    }

    /// Sets the tick of the clock.
    pub fn tick(&self, now: u32) {
        self.clock.store(now, Ordering::SeqCst);
    }

    /// All flows.
    pub fn flows(&self) -> i32 {
        self.flows.load(Ordering::SeqCst)
    }

    /// Flows that have not proved themselves.
    pub fn half_open(&self) -> i32 {
        self.half_open.load(Ordering::SeqCst)
    }

    /// Opens a flow as the packet path does: both directions or none.
    pub fn open(&self, flow: &NewFlow) -> Option<Record<Ip4>> {
        self.open_slowly(flow, || {})
    }

    /// The same, with a pause wherever others can see it half done.
    pub fn open_slowly(&self, flow: &NewFlow, pause: impl Fn()) -> Option<Record<Ip4>> {
        let (tuple, answers) = (flow.tuple(), flow.answers());
        let forward = self.claim(&tuple).ok()?;
        pause();
        let Ok(reply) = self.claim(&answers) else {
            forward.release();
            return None;
        };
        let (mut there, mut back) = (forward.record(), reply.record());
        // SAFETY: the record is claimed, so it belongs to this thread.
        unsafe {
            let (there, back) = (there.as_mut(), back.as_mut());
            let indices = (there.peer, back.peer);
            let transport = flow_flag::NUMBERED | if flow.udp { flow_flag::UDP } else { 0 };
            let source_nat = if flow.source_nat {
                flow_flag::SOURCE_NAT
            } else {
                0
            };
            let flags = transport | source_nat;
            fill(there, &tuple, &answers, flow, flags | flow.seen.0);
            there.service = flow.taker.beside(flow.service);
            there.flags |= flow.taker.in_flags();
            fill(
                back,
                &answers,
                &tuple,
                flow,
                flags | flow.seen.1 | flow_flag::REPLY,
            );
            (back.peer, there.peer) = indices;
        }
        pause();
        reply.publish(match flow.place.is_none() {
            true => tag::LIVE,
            false => self.seat(back, flow),
        });
        pause();
        let state = if flow.half { tag::HALF } else { tag::LIVE };
        forward.publish(state);
        self.flows.fetch_add(1, Ordering::SeqCst);
        if flow.half {
            self.half_open.fetch_add(1, Ordering::SeqCst);
        }
        Some(there)
    }

    /// Takes the seats of a flow, and returns the state of its endpoint's direction.
    fn seat(&self, mut reply: Record<Ip4>, flow: &NewFlow) -> u32 {
        for index in [flow.place.service(), limit::NODE] {
            let counts = index != limit::NODE || flow.place.has_node();
            if counts && let Some(seats) = self.seats(index) {
                assert!(limit::try_take(seats, 1, 0));
            }
        }
        // SAFETY: the record is claimed, so it belongs to this thread.
        let back = unsafe { reply.as_mut() };
        back.service = flow.place.beside(flow.service);
        back.flags |= flow.place.in_flags();
        if flow.place.counts_at_endpoint() {
            let mut forward = self.slot(back.peer).expect("the other direction");
            // SAFETY: claimed, too.
            unsafe { forward.as_mut().detail = ENDPOINT };
            assert!(load::enter_endpoint(self, ENDPOINT, 0));
        }
        if flow.place.level() != 0 {
            let level = self.levels.pointer(flow.place.level()).unwrap();
            limit::take_anyway(level, flow.place.width());
            let (forward, ports) = client_of(reply);
            assert_eq!(self.join_party(forward, ports, u32::MAX), party::JOINED);
        }
        tag::SEATED
    }

    /// Claims a flow's first record and does nothing else.
    pub fn claim_only(&self, flow: &NewFlow) {
        // A claim is given back or published by hand, never by being dropped.
        assert!(self.claim(&flow.tuple()).is_ok());
    }

    fn claim(&self, tuple: &Tuple<Ip4>) -> Result<Claim<Ip4>, Refused> {
        let mut refused = Refused::default();
        let hash = table::hash(tuple, self.secret());
        claim::claim(self, tuple, hash, &SYN, Purpose::Plain, &mut refused).ok_or(refused)
    }

    /// Ends a flow as the packet path does.
    pub fn end(&self, record: Record<Ip4>) {
        self.end_slowly(record, || {});
    }

    /// The same, with a pause between its steps.
    pub fn end_slowly(&self, record: Record<Ip4>, pause: impl Fn()) {
        let peer = self.slot(self.peer(record)).unwrap();
        let now = self.now();
        if record::kill_if(record, read_tag(record), now) {
            pause();
            if seats::kill(self, peer, now) {
                seats::leave_ended(self, self.peer(peer));
            }
        }
    }

    /// Both records of a flow.
    pub fn pair(&self, flow: &NewFlow) -> Option<(Record<Ip4>, Record<Ip4>)> {
        let forward = table::find(self, &flow.tuple())?;
        Some((forward, self.slot(self.peer(forward)).unwrap()))
    }

    pub fn has(&self, flow: &NewFlow) -> bool {
        table::find(self, &flow.tuple()).is_some() && self.has_answers(flow)
    }

    /// Whether there is a record for the answers.
    pub fn has_answers(&self, flow: &NewFlow) -> bool {
        table::find(self, &flow.answers()).is_some()
    }

    /// Number of records in a state.
    pub fn count(&self, state: u32) -> usize {
        let tags = (0..self.len()).map(|index| self.tag(index).load(Ordering::SeqCst));
        tags.filter(|tag| tag::state(*tag) == state).count()
    }

    fn len(&self) -> u32 {
        self.records.len() as u32
    }

    fn tag(&self, index: u32) -> &AtomicU32 {
        let flow = self.records[index as usize].get();
        // SAFETY: tags are only accessed atomically or volatilely.
        unsafe { AtomicU32::from_ptr(&raw mut (*flow).tag) }
    }

    fn peer(&self, record: Record<Ip4>) -> u32 {
        // SAFETY: the record is live, so no thread writes this field.
        unsafe { record.as_ref() }.peer
    }
}

impl Plain for Table {}

// SAFETY: the records live as long as the table, and their type aligns them.
unsafe impl Slots<Ip4> for Table {
    fn mask(&self) -> u32 {
        self.len() - 1
    }

    fn slot(&self, index: u32) -> Option<Record<Ip4>> {
        NonNull::new(self.records.get(index as usize)?.get())
    }

    fn seats(&self, index: u32) -> Option<NonNull<Seats>> {
        self.limits.pointer(index)
    }

    fn endpoint_load(&self, endpoint: u32) -> Option<NonNull<EndpointLoad>> {
        self.loads.pointer(endpoint)
    }

    fn flow_schema(&self, number: u32) -> Option<NonNull<FlowSchema>> {
        self.schemas.pointer(number)
    }

    fn party(&self, index: u32) -> Option<NonNull<u64>> {
        self.elements.pointer(index)
    }

    fn secret(&self) -> [u64; 2] {
        SECRET
    }

    fn now(&self) -> u32 {
        self.clock.load(Ordering::SeqCst)
    }

    fn timeouts(&self) -> Option<&Timeouts> {
        Some(&self.timeouts)
    }

    fn count_half_open(&self, _service: u32, change: i32) {
        self.half_open.fetch_add(change, Ordering::SeqCst);
    }

    fn count_flows(&self, _service: u32, change: i32) {
        self.flows.fetch_add(change, Ordering::SeqCst);
    }
}

/// The agent's view of the table. It counts how many records are read.
pub struct View {
    table: Arc<Table>,
    reads: Arc<AtomicU64>,
}

impl View {
    pub fn new(table: &Arc<Table>) -> Self {
        Self {
            table: table.clone(),
            reads: Arc::default(),
        }
    }
}

impl Records<Ip4> for View {
    fn len(&self) -> u32 {
        self.table.len()
    }

    fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        assert!(offset < size_of::<Flow<Ip4>>() && offset.is_multiple_of(4));
        let flow = self.table.records[index as usize].get();
        // SAFETY: the word is inside the table; programs write it as a whole.
        unsafe { AtomicU32::from_ptr(flow.byte_add(offset).cast()) }
    }

    fn read(&self, index: u32) -> Flow<Ip4> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the record is inside the table; volatile, because programs may write the times
        // meanwhile.
        unsafe { self.table.records[index as usize].get().read_volatile() }
    }
}

/// A sweeper and what it has reported.
pub struct Sweeping {
    table: Arc<Table>,
    sweeper: TableSweeper<Ip4, View>,
    configured: Timeouts,
    /// The timeouts in force, which are shorter under pressure.
    timeouts: Timeouts,
    reads: Arc<AtomicU64>,
    pub stats: TableStats,
    pub services: ServiceCounts,
    pub removed: Removed,
}

impl Sweeping {
    pub fn new(table: &Arc<Table>) -> Self {
        let view = View::new(table);
        let reads = view.reads.clone();
        let counted = table.clone();
        let count = Box::new(move |_, more: Counted| {
            counted.flows.fetch_add(more.flows, Ordering::SeqCst);
            counted
                .half_open
                .fetch_add(more.half_open, Ordering::SeqCst);
        });
        let given_back = table.clone();
        let give_back =
            Box::new(move |place, endpoint| given_back.seats.give_back(place, endpoint));
        let sweeper = TableSweeper::new(
            view,
            table.len() - 1,
            SECRET,
            count,
            give_back,
            table.parties.clone(),
        );
        let configured = timeouts(&FlowTimeouts::default(), RATE);
        Self {
            table: table.clone(),
            sweeper: sweeper.unwrap(),
            reads,
            configured,
            timeouts: configured,
            stats: TableStats::default(),
            services: ServiceCounts::default(),
            removed: Removed::default(),
        }
    }

    /// Has newer half-open flows replace the oldest from so many on.
    pub fn with_half_open_budget(self, flows: u32) -> Self {
        let sweeper = self.sweeper.with_half_open_budget(flows);
        Self { sweeper, ..self }
    }

    /// Has all flows stay for so many silent seconds.
    pub fn timeouts_are(&mut self, seconds: u32) {
        self.configured = Timeouts {
            tcp: [seconds; 5],
            udp: [seconds; 5],
            port_held: seconds,
            shortest: seconds,
        };
        self.timeouts = self.configured;
    }

    /// A whole pass at second `now`, while no program is running.
    pub fn pass(&mut self, now: u32) {
        self.pass_with(now, || {});
    }

    /// A whole pass, with a function that waits for programs.
    pub fn pass_with(&mut self, now: u32, grace: impl FnOnce()) {
        self.services = match self.table.parties.are_counted() {
            true => ServiceCounts::default().with_parties(),
            false => ServiceCounts::default(),
        };
        self.stats = self
            .sweeper
            .scan(now, &self.timeouts, &mut self.services, &mut self.removed);
        let seats = &self.table.seats;
        seats.press(now, |limit| self.services.slow_handshakes(limit));
        let counted = self.services.clone().take_parties();
        let is_level_pressed = |level| seats.is_pressed(LEVELS + level);
        self.table.parties.press(now, &counted, is_level_pressed);
        self.sweeper
            .unseat_handshakes(|limit| seats.is_pressed(limit));
        if self.sweeper.needs_grace() {
            grace();
        }
        self.sweeper.release();
        self.timeouts = under_pressure(&self.configured, self.stats.fill(), RATE);
    }

    /// Number of records read since the last call.
    pub fn reads(&self) -> u64 {
        self.reads.swap(0, Ordering::Relaxed)
    }

    /// The resets that are due after the latest pass.
    pub fn resets(&mut self) -> Vec<Reset> {
        self.sweeper.resets()
    }

    pub fn sweeper(&self) -> &TableSweeper<Ip4, View> {
        &self.sweeper
    }
}

/// A flow to open: `client` port to frontend 10.96.0.1:80, sent to `endpoint`.
#[derive(Clone, Copy, Debug)]
pub struct NewFlow {
    /// Identifies the flow.
    pub client: u32,
    pub frontend: SocketAddrV4,
    pub endpoint: SocketAddrV4,
    pub service: u32,
    pub udp: bool,
    pub source_nat: bool,
    /// [`flow_flag`]s that the packets of the two directions have shown.
    pub seen: (u32, u32),
    /// Whether it has not proved itself.
    pub half: bool,
    pub last_seen: u32,
    /// The limits that it counts against.
    pub place: Place,
    /// The flow schema that has taken it.
    pub taker: Taker,
}

impl NewFlow {
    pub fn tcp(client: u32) -> Self {
        Self {
            client,
            frontend: SocketAddrV4::new(Ipv4Addr::new(10, 96, 0, 1), 80),
            endpoint: SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 7), 8080),
            service: 1,
            udp: false,
            source_nat: false,
            seen: (0, 0),
            half: false,
            last_seen: 0,
            place: Place::NONE,
            taker: Taker::default(),
        }
    }

    pub fn udp(client: u32) -> Self {
        Self {
            udp: true,
            ..Self::tcp(client)
        }
    }

    pub fn source_nat(self) -> Self {
        Self {
            source_nat: true,
            ..self
        }
    }

    pub fn seen(self, forward: u32, reply: u32) -> Self {
        Self {
            seen: (forward, reply),
            ..self
        }
    }

    pub fn half(self) -> Self {
        Self { half: true, ..self }
    }

    pub fn at(self, last_seen: u32) -> Self {
        Self { last_seen, ..self }
    }

    pub fn endpoint(&self) -> SocketAddr {
        self.endpoint.into()
    }

    fn tuple(&self) -> Tuple<Ip4> {
        self.to(self.frontend)
    }

    fn answers(&self) -> Tuple<Ip4> {
        let tuple = self.to(self.endpoint);
        Tuple {
            source: tuple.destination,
            destination: tuple.source,
            source_port: tuple.destination_port,
            destination_port: tuple.source_port,
            ..tuple
        }
    }

    fn to(&self, destination: SocketAddrV4) -> Tuple<Ip4> {
        Tuple {
            source: Ipv4Addr::from(0xc000_0000 | self.client >> 12).into(),
            destination: (*destination.ip()).into(),
            source_port: (self.client & 0xfff) as u16 + 1,
            destination_port: destination.port(),
            protocol: if self.udp { UDP } else { TCP },
            pad: [0; 3],
        }
    }
}

fn fill(
    record: &mut Flow<Ip4>,
    tuple: &Tuple<Ip4>,
    opposite: &Tuple<Ip4>,
    flow: &NewFlow,
    flags: u32,
) {
    record.source = tuple.source;
    record.destination = tuple.destination;
    record.source_port = tuple.source_port;
    record.destination_port = tuple.destination_port;
    record.flags = flags;
    record.last_seen = flow.last_seen;
    record.service = flow.service;
    record.rewrite.source = opposite.destination;
    record.rewrite.destination = opposite.source;
    record.rewrite.source_port = opposite.destination_port;
    record.rewrite.destination_port = opposite.source_port;
}
