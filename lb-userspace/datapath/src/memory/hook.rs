//! The tables from the point of view of a program at a hook, and what the program does with a
//! frame.

use std::{net::IpAddr, ptr::NonNull};

use lb_common::{
    abi::{
        Affinity, AffinityKey, ClusterIp, Config, Decision, DestinationClass, Device, Endpoint,
        EndpointLatency, EndpointLoad, EndpointMemory, EndpointState, FlowSchema, FragmentKey,
        Frontend, FrontendKey, Latencies, Plan, ServiceFlows, ServiceRange, ServiceStats,
        Shortages, SocketAffinityKey, TunnelSource,
    },
    addr::{Address, Ip4, Ip6},
    flow::{
        Hop as NextHopEntry, Record, Seats, Timeouts,
        hop::Hops,
        latency::UNIT_SHIFT,
        linger::{self, Lingering},
        queue::{self, KEPT, LevelQueues, Queue, Waiter},
        seats::{Asked, Full},
        slots::Slots,
        steps::Plain,
    },
    frame::Frame,
    parse::{self, Tuple},
    pipeline,
    select::{self, Policy, Range},
    service,
    tables::{NextHop, Services, Tables},
    verdict::{Reason, Verdict},
    work::Work,
};

use super::{
    Family, FlowTable, MemoryTables, Route, ip,
    shared::{HALF_OPEN, HOP_ENTRIES},
};

/// [`MemoryTables`] at a hook; `ANY_DEVICE` as in [`Tables::ANY_DEVICE`].
#[derive(Clone, Copy)]
pub struct Hook<'a, const ANY_DEVICE: bool> {
    tables: &'a MemoryTables,
    /// Whether the program's own table is still the old one, while the size changes.
    of_before: bool,
}

impl<'a, const ANY_DEVICE: bool> Hook<'a, ANY_DEVICE> {
    pub(super) fn new(tables: &'a MemoryTables) -> Self {
        Self {
            tables,
            of_before: false,
        }
    }

    /// The view of a program that still has the old table as its own, and also knows the new one.
    #[must_use]
    pub fn of_before(self) -> Self {
        Self {
            of_before: true,
            ..self
        }
    }

    /// The program's own table.
    fn own<A: Family>(&self) -> &'a FlowTable<A> {
        let tables = A::tables(self.tables);
        match &tables.former {
            Some(former) if self.of_before => former,
            _ => &tables.flows,
        }
    }

    /// The other table, while the size changes.
    fn other<A: Family>(&self) -> Option<&'a FlowTable<A>> {
        let tables = A::tables(self.tables);
        let former = tables.former.as_ref()?;
        Some(match self.of_before {
            true => &tables.flows,
            false => former,
        })
    }

    /// The tables themselves.
    pub fn tables(&self) -> &'a MemoryTables {
        self.tables
    }

    /// Handles a frame that arrived on a device.
    pub fn ingress<F: Frame>(&self, frame: &mut F) -> Verdict {
        match ethertype(frame) {
            Some(Ip4::ETHERTYPE) => pipeline::ingress::<Ip4, _, _>(self, frame, &mut work()),
            Some(Ip6::ETHERTYPE) => pipeline::ingress::<Ip6, _, _>(self, frame, &mut work()),
            _ => Verdict::pass(Reason::NotIp),
        }
    }

    /// Opens the flow of a connection that has waited and has its turn: [`pipeline::let_in`] of its SYN.
    pub fn let_in<F: Frame>(&self, frame: &F, card: u32) -> Reason {
        match ethertype(frame) {
            Some(Ip4::ETHERTYPE) => pipeline::let_in::<Ip4, _, _>(self, frame, &mut work(), card),
            Some(Ip6::ETHERTYPE) => pipeline::let_in::<Ip6, _, _>(self, frame, &mut work(), card),
            _ => Reason::NotIp,
        }
    }

    /// Tells the client of a connection that has waited that it is refused: [`pipeline::turn_away`].
    pub fn turn_away<F: Frame>(&self, frame: &mut F, schema: u32, reason: Reason) -> Verdict {
        match ethertype(frame) {
            Some(Ip4::ETHERTYPE) => {
                pipeline::turn_away::<Ip4, _, _>(self, frame, &mut work(), schema, reason)
            }
            Some(Ip6::ETHERTYPE) => {
                pipeline::turn_away::<Ip6, _, _>(self, frame, &mut work(), schema, reason)
            }
            _ => Verdict::pass(Reason::NotIp),
        }
    }

    /// Handles a frame that leaves by a device.
    pub fn egress<F: Frame>(&self, frame: &mut F) -> Verdict {
        match ethertype(frame) {
            Some(Ip4::ETHERTYPE) => pipeline::egress::<Ip4, _, _>(self, frame, &mut work()),
            Some(Ip6::ETHERTYPE) => pipeline::egress::<Ip6, _, _>(self, frame, &mut work()),
            _ => Verdict::pass(Reason::NotIp),
        }
    }
}

/// The EtherType of a frame, or that of the packet where it has no link header.
fn ethertype<F: Frame>(frame: &F) -> Option<u16> {
    if F::LINK_HEADER != 0 {
        return parse::ethertype(frame.packet());
    }
    match frame.packet().load::<u8>(0)? >> 4 {
        4 => Some(Ip4::ETHERTYPE),
        6 => Some(Ip6::ETHERTYPE),
        _ => None,
    }
}

fn work<A: Family>() -> Work<A> {
    Work::default()
}

impl<A: Family, const ANY_DEVICE: bool> Services<A> for Hook<'_, ANY_DEVICE> {
    fn config(&self) -> &Config {
        &self.tables.config
    }

    fn frontend(&self, key: &FrontendKey<A>) -> Option<Frontend> {
        A::tables(self.tables).frontends.get(key)
    }

    fn service_range(&self, index: u32) -> Option<&ServiceRange> {
        let range = self.tables.storage.service_ranges.pointer(index)?;
        // SAFETY: only a map writer writes it, which has the tables to itself.
        Some(unsafe { range.as_ref() })
    }

    fn cluster_ip(&self, address: Ip6) -> Option<ClusterIp> {
        self.tables.storage.cluster_ips.get(&address)
    }

    fn unknown_index(&self, tuple: &Tuple<A>) -> u64 {
        service::unknown_index(self, tuple)
    }

    fn plan(&self, service: u32) -> Option<&Plan> {
        self.tables.plan(service)
    }

    fn endpoint(&self, index: u32) -> Option<&Endpoint> {
        self.tables.endpoint(index)
    }

    fn less_loaded(&self, one: u32, other: u32, by_latency: bool) -> u32 {
        select::less_loaded::<A, _>(self, one, other, by_latency)
    }

    fn balanced(&self, set: Range, index: u32, factor: u32) -> u32 {
        select::balanced::<A, _>(self, set, index, factor)
    }

    fn with_room(&self, set: Range, index: u32, most: u32) -> u32 {
        pipeline::with_room::<A, _>(self, set, index, most)
    }

    fn sticky_index(&self, plan: &Plan, policy: Policy, tuple: &Tuple<A>) -> u64 {
        select::sticky_index(self, plan, policy, tuple)
    }

    fn maglev(&self, row: u32) -> Option<u16> {
        let rows = self.tables.storage.maglev.pointer(row / 4)?;
        // SAFETY: only a map writer writes them, which has the tables to itself.
        let rows = unsafe { rows.as_ref() };
        rows.positions.get((row % 4) as usize).copied()
    }

    fn source_allowed(&self, set: u32, address: Ip6) -> bool {
        self.tables
            .storage
            .source_ranges
            .longest(set, address)
            .is_some()
    }

    fn is_local(&self, address: Ip6) -> bool {
        self.tables.local_addresses.contains(&address.into())
    }

    fn device(&self, ifindex: u32) -> Device {
        let index = (ifindex as usize).checked_sub(1);
        let device = index.and_then(|index| self.tables.devices.get(index));
        device.copied().unwrap_or_default()
    }

    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        self.tables
            .learnt()
            .affinity
            .get(&affinity_key(key))
            .copied()
    }

    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity) {
        let mut learnt = self.tables.learnt();
        learnt.affinity.insert(affinity_key(key), *value);
    }

    fn socket_affinity(&self, key: &SocketAffinityKey) -> Option<Affinity> {
        self.tables.learnt().socket_affinity.get(key).copied()
    }

    fn remember_socket_affinity(&self, key: &SocketAffinityKey, value: &Affinity) {
        let mut learnt = self.tables.learnt();
        learnt.socket_affinity.insert(*key, *value);
    }

    fn endpoint_state(&self, endpoint: u32) -> Option<NonNull<EndpointState>> {
        self.tables.storage.endpoint_states.pointer(endpoint)
    }

    fn service_stats(&self, service: u32) -> Option<NonNull<ServiceStats>> {
        self.tables.storage.service_stats.pointer(service)
    }

    fn shortages(&self, service: u32) -> Option<NonNull<Shortages>> {
        self.tables.storage.service_shortages.pointer(service)
    }

    fn service_flows(&self, service: u32) -> Option<NonNull<ServiceFlows>> {
        self.tables.storage.service_flows.pointer(service)
    }

    fn random(&self) -> u32 {
        self.tables.random()
    }

    // One jiffy is a second here, as the configuration in memory says.
    fn jiffies(&self) -> u32 {
        self.tables
            .seconds
            .load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl<const ANY_DEVICE: bool> Plain for Hook<'_, ANY_DEVICE> {}

// SAFETY: slots are those of a `FlowTable`, which live, unmoved and aligned, as long as it.
unsafe impl<A: Family, const ANY_DEVICE: bool> Slots<A> for Hook<'_, ANY_DEVICE> {
    fn mask(&self) -> u32 {
        self.own::<A>().mask()
    }

    fn slot(&self, index: u32) -> Option<Record<A>> {
        self.own().slot(index)
    }

    fn seats(&self, index: u32) -> Option<NonNull<Seats>> {
        let (map, index) = self.tables.limit(index);
        map.pointer(index)
    }

    fn flow_schema(&self, number: u32) -> Option<NonNull<FlowSchema>> {
        self.tables.storage.flow_schemas.pointer(number)
    }

    fn endpoint_load(&self, endpoint: u32) -> Option<NonNull<EndpointLoad>> {
        self.tables.storage.endpoint_loads.pointer(endpoint)
    }

    fn endpoint_latency(&self, endpoint: u32) -> Option<NonNull<EndpointLatency>> {
        self.tables.storage.endpoint_latencies.pointer(endpoint)
    }

    fn latencies(&self, service: u32) -> Option<NonNull<Latencies>> {
        self.tables.storage.service_latencies.pointer(service)
    }

    fn stopwatch(&self) -> u32 {
        let units = (u64::from(Services::<A>::jiffies(self)) * 1_000_000_000) >> UNIT_SHIFT;
        (units as u32).max(1)
    }

    fn lingering(&self, level: u32) -> Option<NonNull<Lingering>> {
        self.tables.storage.lingering.pointer(level)
    }

    fn level_queues(&self, level: u32) -> Option<NonNull<LevelQueues>> {
        self.tables.storage.level_queues.pointer(level)
    }

    fn queue(&self, index: u32) -> Option<NonNull<Queue>> {
        self.tables.storage.queues.pointer(index)
    }

    fn party(&self, index: u32) -> Option<NonNull<u64>> {
        self.tables.storage.parties.pointer(index)
    }

    fn secret(&self) -> [u64; 2] {
        self.own::<A>().secret()
    }

    fn other_mask(&self) -> u32 {
        self.other::<A>().map_or(0, Slots::mask)
    }

    fn other_slot(&self, index: u32) -> Option<Record<A>> {
        self.other()?.slot(index)
    }

    fn now(&self) -> u32 {
        Services::<A>::jiffies(self)
    }

    fn timeouts(&self) -> Option<&Timeouts> {
        Some(&self.tables.timeouts)
    }

    fn count_half_open(&self, service: u32, change: i32) {
        if let Some(stats) = Services::<A>::service_stats(self, service) {
            // SAFETY: an element of a map, which stays; the word is only ever added to.
            unsafe {
                lb_common::fetch_add((&raw mut (*stats.as_ptr()).half_open).cast(), change as u32)
            };
        }
    }

    fn count_flows(&self, service: u32, change: i32) {
        if let Some(flows) = Services::<A>::service_flows(self, service) {
            // SAFETY: an element of a map, which stays; the word is only ever added to.
            unsafe {
                lb_common::fetch_add((&raw mut (*flows.as_ptr()).flows).cast(), change as u32)
            };
        }
    }
}

// SAFETY: the entries live, unmoved and aligned, as long as the tables.
unsafe impl<const ANY_DEVICE: bool> Hops for Hook<'_, ANY_DEVICE> {
    fn hop_mask(&self) -> u32 {
        HOP_ENTRIES - 1
    }

    fn hop(&self, index: u32) -> Option<NonNull<NextHopEntry>> {
        self.tables.shared.hop(index)
    }
}

impl<A: Family, const ANY_DEVICE: bool> Tables<A> for Hook<'_, ANY_DEVICE> {
    const ANY_DEVICE: bool = ANY_DEVICE;

    fn open_index(&self, work: &mut Work<A>, ifindex: u32) -> u64 {
        pipeline::open_index(self, work, ifindex)
    }

    fn finish_index(&self, work: &mut Work<A>) -> u64 {
        pipeline::finish_index(self, work)
    }

    fn take_seats(&self, asked: Asked, schema: u32) -> u32 {
        pipeline::take_seats::<A, _>(self, asked, schema)
    }

    fn in_the_way(&self, asked: Asked) -> Option<Full> {
        pipeline::in_the_way::<A, _>(self, asked)
    }

    fn collect(&self, level: u32) -> bool {
        linger::collect::<A, _>(self, level)
    }

    fn elsewhere(&self, set: Range, index: u32, left: u32) -> u32 {
        pipeline::elsewhere::<A, _>(self, set, index, left)
    }

    fn is_avoided(&self, endpoint: u32, limit: u32) -> bool {
        pipeline::is_avoided::<A, _>(self, endpoint, limit)
    }

    fn endpoint_memory(&self, endpoint: u32) -> Option<NonNull<EndpointMemory>> {
        self.tables.storage.endpoint_memory.pointer(endpoint)
    }

    fn half_open_mask(&self) -> u32 {
        HALF_OPEN - 1
    }

    fn share(&self) -> u16 {
        self.tables.shares[A::FAMILY as usize]
    }

    fn half_open_place(&self, index: u32) -> Option<NonNull<u64>> {
        A::tables(self.tables).half_open.place(index)
    }

    fn half_open_cursor(&self, ring: u32) -> Option<NonNull<u32>> {
        A::tables(self.tables).half_open.cursor(ring)
    }

    fn next_hop(
        &self,
        _protocol: u8,
        _source: &A,
        destination: &A,
        hop: &mut NextHopEntry,
    ) -> NextHop {
        match self.tables.route(ip(*destination)) {
            Route::To(found) => {
                *hop = found;
                NextHop::Known
            }
            Route::Unresolved(ifindex) => {
                hop.ifindex = ifindex;
                NextHop::Unresolved
            }
            Route::None => NextHop::None,
        }
    }

    fn way_back(&self, ifindex: u32) -> u32 {
        let ways = &self.tables.ways_back;
        ways.get(&ifindex).copied().unwrap_or(0)
    }

    fn tunnel_source(&self, ifindex: u32) -> Option<TunnelSource> {
        self.tables.tunnel_sources.get(&ifindex).copied()
    }

    fn destination_class(&self, index: u32) -> Option<&DestinationClass> {
        let class = self.tables.storage.destination_classes.pointer(index)?;
        // SAFETY: only a map writer writes them, which has the tables to itself.
        Some(unsafe { class.as_ref() })
    }

    fn source_class(&self, set: u32, address: Ip6) -> u32 {
        let class = self.tables.storage.source_classes.longest(set, address);
        class.unwrap_or(0)
    }

    fn decision(&self, index: u32) -> Option<Decision> {
        let decisions = &self.tables.storage.decisions;
        (index < decisions.len()).then(|| decisions.read(index))
    }

    fn shortest_queue(&self, level: u32, party: u64) -> u32 {
        queue::shortest::<A, _>(self, level, party)
    }

    fn park<F: Frame>(&self, frame: &F, work: &Work<A>, party: u64, queue: u32) -> bool {
        let mut packet = [0; KEPT];
        let Some(length) = frame.copy_to(&mut packet) else {
            return false;
        };
        self.tables.learnt().waiters.push(Waiter {
            party,
            level: work.seats.level(),
            schema: work.schema,
            queue,
            ifindex: frame.ifindex(),
            length,
            has_ethernet: (F::LINK_HEADER != 0).into(),
            is_inside: work.taker.is_inside().into(),
            pad: 0,
            packet,
        });
        true
    }

    fn fragment(&self, key: &FragmentKey) -> Option<u32> {
        self.tables
            .learnt()
            .fragments
            .get(&fragment_key(key))
            .copied()
    }

    fn remember_fragment(&self, key: &FragmentKey, flow: u32) {
        let mut learnt = self.tables.learnt();
        learnt.fragments.insert(fragment_key(key), flow);
    }

    fn may_answer(&self) -> bool {
        self.tables.may_answer()
    }
}

fn affinity_key(key: &AffinityKey) -> (u32, u32, IpAddr) {
    (key.service, key.set, key.client.into())
}

fn fragment_key(key: &FragmentKey) -> (IpAddr, IpAddr, u32, u32) {
    (
        key.source.into(),
        key.destination.into(),
        key.id,
        key.protocol,
    )
}
