//! A flow table in plain memory, and what programs do with it.

use std::{
    cell::UnsafeCell,
    mem::zeroed,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use lb_common::{
    addr::Ip4,
    flow::{
        Flow, flow_flag,
        table::{self, Record, Refused, Slots},
        tag,
    },
    parse::{TCP, Tuple, UDP},
};
use node_lb::flows::{
    Records, Timeouts,
    clock::TickRate,
    stats::{Removed, ServiceCounts, TableStats},
    sweep::TableSweeper,
};

/// One tick is one second.
pub const RATE: TickRate = TickRate { hz: 1, shift: 0 };
const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

pub struct Table(Box<[UnsafeCell<Flow<Ip4>>]>);

// SAFETY: used as the kernel and the agent use their shared memory: tags atomically, all else by who
// owns the record.
unsafe impl Sync for Table {}
// SAFETY: plain memory.
unsafe impl Send for Table {}

impl Table {
    pub fn new(records: usize) -> Arc<Self> {
        // SAFETY: numbers only.
        let empty = || UnsafeCell::new(unsafe { zeroed() });
        Arc::new(Self((0..records).map(|_| empty()).collect()))
    }

    /// Opens a flow as the packet path does: both directions or none.
    pub fn open(&self, flow: &NewFlow) -> Option<Record<Ip4>> {
        self.open_slowly(flow, || {})
    }

    /// The same, with a pause wherever others can see it half done.
    pub fn open_slowly(&self, flow: &NewFlow, pause: impl Fn()) -> Option<Record<Ip4>> {
        let (tuple, answers) = (flow.tuple(), flow.answers());
        let mut refused = Refused::default();
        let forward = table::claim(self, &tuple, false, &mut refused)?;
        pause();
        let Some(reply) = table::claim(self, &answers, false, &mut refused) else {
            forward.release();
            return None;
        };
        let (mut there, mut back) = (forward.record(), reply.record());
        // SAFETY: claimed, so nobody else's.
        unsafe {
            let (there, back) = (there.as_mut(), back.as_mut());
            let indices = (there.peer, back.peer);
            let flags = if flow.udp { flow_flag::UDP } else { 0 }
                | if flow.source_nat {
                    flow_flag::SOURCE_NAT
                } else {
                    0
                };
            fill(there, &tuple, &answers, flow, flags);
            fill(back, &answers, &tuple, flow, flags | flow_flag::REPLY);
            (back.peer, there.peer) = indices;
        }
        pause();
        reply.publish();
        pause();
        forward.publish();
        Some(there)
    }

    /// Claims a flow's first record and goes no further.
    pub fn claim_only(&self, flow: &NewFlow) {
        let mut refused = Refused::default();
        // A claim is given back or published by hand, never by being dropped.
        assert!(table::claim(self, &flow.tuple(), false, &mut refused).is_some());
    }

    /// Ends a flow as the packet path does.
    pub fn end(&self, record: Record<Ip4>) {
        self.end_slowly(record, || {});
    }

    /// The same, with a pause when it is half done.
    pub fn end_slowly(&self, record: Record<Ip4>, pause: impl Fn()) {
        let peer = self.slot(self.peer(record)).unwrap();
        if table::kill(record) {
            pause();
            table::kill(peer);
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

    /// Whether answers are rewritten.
    pub fn has_answers(&self, flow: &NewFlow) -> bool {
        table::find(self, &flow.answers()).is_some()
    }

    /// Number of records in a state.
    pub fn count(&self, state: u32) -> usize {
        let tags = (0..self.len()).map(|index| self.tag(index).load(Ordering::SeqCst));
        tags.filter(|tag| tag::state(*tag) == state).count()
    }

    fn len(&self) -> u32 {
        self.0.len() as u32
    }

    fn tag(&self, index: u32) -> &AtomicU32 {
        let flow = self.0[index as usize].get();
        // SAFETY: tags are only accessed atomically or volatilely.
        unsafe { AtomicU32::from_ptr(&raw mut (*flow).tag) }
    }

    fn peer(&self, record: Record<Ip4>) -> u32 {
        // SAFETY: live, so nobody writes it.
        unsafe { record.as_ref() }.peer
    }
}

// SAFETY: the memory is as long-lived as the table and aligned by its type.
unsafe impl Slots<Ip4> for Table {
    fn mask(&self) -> u32 {
        self.len() - 1
    }

    fn slot(&self, index: u32) -> Option<Record<Ip4>> {
        NonNull::new(self.0.get(index as usize)?.get())
    }

    fn secret(&self) -> [u64; 2] {
        SECRET
    }

    fn find_index(&self, tuple: &Tuple<Ip4>) -> u64 {
        table::find_index(self, tuple)
    }

    fn claim_index(&self, tuple: &Tuple<Ip4>, opens: bool) -> u64 {
        table::claim_index(self, tuple, opens)
    }
}

/// The agent's view of the table, which counts the records that are read.
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

    fn tag(&self, index: u32) -> &AtomicU32 {
        self.table.tag(index)
    }

    fn read(&self, index: u32) -> Flow<Ip4> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: inside the table; volatile, since programs may write the times.
        unsafe { self.table.0[index as usize].get().read_volatile() }
    }
}

/// A sweeper and what it says.
pub struct Sweeping {
    sweeper: TableSweeper<Ip4, View>,
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
        let sweeper = TableSweeper::new(view, table.len() - 1, SECRET);
        Self {
            sweeper: sweeper.unwrap(),
            reads,
            timeouts: Timeouts::new(&node_lb::config::FlowTimeouts::default(), RATE),
            stats: TableStats::default(),
            services: ServiceCounts::default(),
            removed: Removed::default(),
        }
    }

    /// A whole pass at a second; no program is running.
    pub fn pass(&mut self, now: u32) {
        self.pass_with(now, || {});
    }

    /// A whole pass, with a way to wait for programs.
    pub fn pass_with(&mut self, now: u32, grace: impl FnOnce()) {
        self.services = ServiceCounts::default();
        self.stats = self
            .sweeper
            .scan(now, &self.timeouts, &mut self.services, &mut self.removed);
        if self.sweeper.needs_grace() {
            grace();
        }
        self.sweeper.release();
    }

    /// Records read since this was asked last.
    pub fn reads(&self) -> u64 {
        self.reads.swap(0, Ordering::Relaxed)
    }

    pub fn sweeper(&self) -> &TableSweeper<Ip4, View> {
        &self.sweeper
    }
}

/// A flow to open: `client` port to frontend 10.96.0.1:80, sent to `endpoint`.
#[derive(Clone, Copy, Debug)]
pub struct NewFlow {
    /// Tells flows apart.
    pub client: u32,
    pub frontend: SocketAddrV4,
    pub endpoint: SocketAddrV4,
    pub service: u32,
    pub udp: bool,
    pub source_nat: bool,
    /// Of the two directions.
    pub seen: (u8, u8),
    pub last_seen: u32,
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
            last_seen: 0,
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

    pub fn seen(self, forward: u8, reply: u8) -> Self {
        Self {
            seen: (forward, reply),
            ..self
        }
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
    flags: u16,
) {
    let reply = flags & flow_flag::REPLY != 0;
    record.source = tuple.source;
    record.destination = tuple.destination;
    record.source_port = tuple.source_port;
    record.destination_port = tuple.destination_port;
    record.seen = if reply { flow.seen.1 } else { flow.seen.0 };
    record.flags = flags;
    record.last_seen = flow.last_seen;
    record.service = flow.service;
    record.rewrite.source = opposite.destination;
    record.rewrite.destination = opposite.source;
    record.rewrite.source_port = opposite.destination_port;
    record.rewrite.destination_port = opposite.source_port;
}
