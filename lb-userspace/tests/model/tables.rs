//! The tables of a CPU's programs: a node with one Service, with flows that cross the host's stack.

use std::{ptr::NonNull, sync::atomic::Ordering};

use lb_common::{
    abi::{
        Affinity, AffinityKey, ClusterIp, Config, Decision, DestinationClass, Device, Endpoint,
        EndpointMemory, EndpointState, FragmentKey, Frontend, FrontendKey, FrontendKind, Plan,
        ServiceFlows, ServiceRange, ServiceStats, Shortages, SocketAffinityKey, TunnelSource,
    },
    addr::{Ip4, Ip6},
    flow::{
        Hop, Record, Seats, Timeouts,
        claim::{self, GRACE},
        end,
        hop::Hops,
        load,
        place::Place,
        queue, resize,
        seats::{self, Asked, Full},
        slots::{Purpose, Slots, Steps},
        table,
    },
    frame::Frame,
    parse::{Segment, Tuple},
    pipeline::{self, WITHOUT_RING},
    select::{self, Policy, Range},
    service,
    tables::{NextHop, Services, Tables},
    work::Work,
};

use crate::{
    mutations::Mutation,
    packets::{FRONTEND, FRONTEND_PORT},
    world::{Cpu, RECORDS, SECRET, SERVICE, Shared, TIMEOUTS},
};

impl Services<Ip4> for Cpu {
    fn config(&self) -> &Config {
        &self.world.config
    }

    fn frontend(&self, key: &FrontendKey<Ip4>) -> Option<Frontend> {
        let found = key.address == FRONTEND.into() && key.port == FRONTEND_PORT;
        found.then_some(Frontend {
            service: SERVICE,
            kind: FrontendKind::ClusterIp as u8,
            pad: 0,
            class: 0,
        })
    }

    fn service_range(&self, _index: u32) -> Option<&ServiceRange> {
        None
    }

    fn cluster_ip(&self, _address: Ip6) -> Option<ClusterIp> {
        None
    }

    fn unknown_index(&self, tuple: &Tuple<Ip4>) -> u64 {
        service::unknown_index(self, tuple)
    }

    fn plan(&self, _service: u32) -> Option<&Plan> {
        Some(&self.world.plan)
    }

    fn endpoint(&self, index: u32) -> Option<&Endpoint> {
        let index = index + self.world.endpoint_shift();
        self.world.endpoints.get(index as usize)
    }

    fn less_loaded(&self, one: u32, other: u32, by_latency: bool) -> u32 {
        select::less_loaded::<Ip4, _>(self, one, other, by_latency)
    }

    fn balanced(&self, set: Range, index: u32, factor: u32) -> u32 {
        select::balanced::<Ip4, _>(self, set, index, factor)
    }

    fn with_room(&self, set: Range, index: u32, most: u32) -> u32 {
        pipeline::with_room::<Ip4, _>(self, set, index, most)
    }

    fn sticky_index(&self, plan: &Plan, policy: Policy, tuple: &Tuple<Ip4>) -> u64 {
        select::sticky_index(self, plan, policy, tuple)
    }

    fn maglev(&self, _row: u32) -> Option<u16> {
        None
    }

    fn source_allowed(&self, _set: u32, _address: Ip6) -> bool {
        true
    }

    fn is_local(&self, _address: Ip6) -> bool {
        false
    }

    fn device(&self, _ifindex: u32) -> Device {
        Device::default()
    }

    fn affinity(&self, _key: &AffinityKey) -> Option<Affinity> {
        None
    }

    fn remember_affinity(&self, _key: &AffinityKey, _value: &Affinity) {}

    fn socket_affinity(&self, _key: &SocketAffinityKey) -> Option<Affinity> {
        None
    }

    fn remember_socket_affinity(&self, _key: &SocketAffinityKey, _value: &Affinity) {}

    fn endpoint_state(&self, _endpoint: u32) -> Option<NonNull<EndpointState>> {
        None
    }

    fn service_stats(&self, _service: u32) -> Option<NonNull<ServiceStats>> {
        None
    }

    fn shortages(&self, _service: u32) -> Option<NonNull<Shortages>> {
        None
    }

    fn service_flows(&self, _service: u32) -> Option<NonNull<ServiceFlows>> {
        None
    }

    fn indexes_of(&self, endpoint: u32) -> [u32; 2] {
        let first = 1 + self.world.endpoint_shift();
        [endpoint.wrapping_sub(first), u32::MAX]
    }

    fn random(&self) -> u32 {
        0
    }

    fn jiffies(&self) -> u32 {
        self.world.now()
    }
}

// SAFETY: the records are aligned, and live and stay in place as long as the world.
unsafe impl Slots<Ip4> for Cpu {
    fn mask(&self) -> u32 {
        RECORDS - 1
    }

    fn slot(&self, index: u32) -> Option<Record<Ip4>> {
        let own = self.world.own_table(self.number);
        (index < RECORDS).then(|| self.world.record(own + index))?
    }

    fn other_mask(&self) -> u32 {
        match self.world.setup.of_before {
            0 => 0,
            _ => RECORDS - 1,
        }
    }

    fn other_slot(&self, index: u32) -> Option<Record<Ip4>> {
        let other = RECORDS - self.world.own_table(self.number);
        (index < RECORDS).then(|| self.world.record(other + index))?
    }

    fn seats(&self, index: u32) -> Option<NonNull<Seats>> {
        self.world.limit(index)
    }

    fn secret(&self) -> [u64; 2] {
        SECRET
    }

    fn now(&self) -> u32 {
        (Slots::moment(self) >> 3) as u32
    }

    fn moment(&self) -> u64 {
        let ahead = match self.hasty.get() {
            true => (GRACE as u64 + 1) << 3,
            false => 0,
        };
        self.world.moment() + ahead
    }

    fn timeouts(&self) -> Option<&Timeouts> {
        Some(&TIMEOUTS)
    }

    fn count_half_open(&self, _service: u32, change: i32) {
        self.world.touch(Shared::HalfOpen);
        let times = match self.world.mutated(Mutation::SettledTwice) && change < 0 {
            true => 2,
            false => 1,
        };
        self.world
            .half_open
            .fetch_add(times * change, Ordering::SeqCst);
    }

    // The number is read only at the end, so the order of these changes does not matter.
    fn count_flows(&self, _service: u32, change: i32) {
        self.world.flows.fetch_add(change, Ordering::SeqCst);
    }
}

impl Steps<Ip4> for Cpu {
    fn join_party(&self, forward: u32, ports: u32, most: u32) -> u64 {
        seats::join_party(self, forward, ports, most)
    }

    fn leave_party(&self, forward: u32, ports: u32) -> u64 {
        seats::leave_party(self, forward, ports)
    }

    fn enter_party(&self, party: u64, most: u32) -> u64 {
        seats::enter_party::<Ip4, _>(self, party, most)
    }

    fn enter_endpoint(&self, endpoint: u32, most: u32) -> bool {
        load::enter_endpoint(self, endpoint, most)
    }

    fn leave_endpoint(&self, forward: u32, ports: u32) {
        seats::leave_endpoint(self, forward, ports);
    }

    fn approach(&self, hash: u64, other: u64) {
        table::approach(self, [hash, other]);
    }

    fn leave_ended(&self, index: u32) {
        seats::leave_ended(self, index);
    }

    fn charge(&self, place: Place, party: u64, ports: u32, is_over: bool) {
        queue::charge(self, place, party, ports, is_over);
    }

    fn linger(&self, place: Place, _schema: u32) -> Place {
        place
    }

    fn find_index(&self, tuple: &Tuple<Ip4>) -> u64 {
        // Consecutive checks see the same, so only one of them takes its turn.
        if self.looked.get() {
            return u64::MAX;
        }
        let index = table::find_index(self, tuple);
        if index == u64::MAX {
            // A program that checks again and again does so for longer than opening a flow takes.
            let hash = table::hash(tuple, SECRET);
            self.looked.set(!self.world.await_claim(self.number, hash));
        }
        index
    }

    fn claim_index(&self, tuple: &Tuple<Ip4>, hash: u64) -> u64 {
        self.looked.set(false);
        if self.world.setup.of_before != 0 && !self.world.has_claim(self.number) {
            // A program that wants to copy tries again for longer than another CPU needs to copy.
            self.world.await_claim(self.number, hash);
        }
        self.hasty
            .set(self.world.mutated(Mutation::NoGraceForClaims));
        let outcome = claim::claim_index(self, tuple, hash);
        self.hasty.set(false);
        outcome
    }

    fn has_rival(&self, tuple: &Tuple<Ip4>, hash: u64, outcome: u64) -> bool {
        !self.world.mutated(Mutation::NoRivalCheck) && claim::has_rival(self, tuple, hash, outcome)
    }

    fn gives_way(&self, index: u32, segment: &Segment, purpose: Purpose) -> bool {
        end::gives_way(self, index, segment, purpose)
    }

    fn find_other_index(&self, tuple: &Tuple<Ip4>) -> u64 {
        self.looked.set(false);
        table::find_other_index(self, tuple)
    }

    fn copy_index(&self, tuple: &Tuple<Ip4>) -> u64 {
        resize::copy_index(self, tuple)
    }

    fn end_other(&self, index: u32) {
        if !self.world.mutated(Mutation::CopiesStay) {
            resize::end_other::<Ip4, _>(self, index);
        }
    }
}

// SAFETY: there are no hops, so no pointer is returned.
unsafe impl Hops for Cpu {
    fn hop(&self, _index: u32) -> Option<NonNull<Hop>> {
        None
    }
}

impl Tables<Ip4> for Cpu {
    const ANY_DEVICE: bool = true;

    fn open_index(&self, work: &mut Work<Ip4>, ifindex: u32) -> u64 {
        if self.world.mutated(Mutation::SeatTakenBeforeClaim) {
            self.world.change_seats(1);
        }
        pipeline::open_index(self, work, ifindex)
    }

    fn finish_index(&self, work: &mut Work<Ip4>) -> u64 {
        if self.world.mutated(Mutation::SeatTakenBeforeClaim) {
            // It takes another one now.
            self.world.change_seats(-1);
        }
        pipeline::finish_index(self, work)
    }

    fn take_seats(&self, asked: Asked, schema: u32) -> u32 {
        pipeline::take_seats::<Ip4, _>(self, asked, schema)
    }

    fn in_the_way(&self, asked: Asked) -> Option<Full> {
        pipeline::in_the_way::<Ip4, _>(self, asked)
    }

    fn collect(&self, _level: u32) -> bool {
        false
    }

    fn elsewhere(&self, set: Range, index: u32, left: u32) -> u32 {
        pipeline::elsewhere::<Ip4, _>(self, set, index, left)
    }

    fn is_avoided(&self, endpoint: u32, limit: u32) -> bool {
        pipeline::is_avoided::<Ip4, _>(self, endpoint, limit)
    }

    fn endpoint_memory(&self, _endpoint: u32) -> Option<NonNull<EndpointMemory>> {
        None
    }

    fn half_open_mask(&self) -> u32 {
        0
    }

    fn share(&self) -> u16 {
        0
    }

    fn half_open(&self, _service: u32) -> u32 {
        self.world.touch(Shared::HalfOpen);
        let others = match self.world.setup.pressed {
            true => WITHOUT_RING,
            false => 0,
        };
        let own = self.world.half_open.load(Ordering::SeqCst);
        others.saturating_add_signed(own)
    }

    fn half_open_place(&self, _index: u32) -> Option<NonNull<u64>> {
        NonNull::new(self.world.place.get())
    }

    fn half_open_cursor(&self, _ring: u32) -> Option<NonNull<u32>> {
        NonNull::new(self.world.cursor.get())
    }

    fn way_back(&self, _ifindex: u32) -> u32 {
        0
    }

    fn tunnel_source(&self, _ifindex: u32) -> Option<TunnelSource> {
        None
    }

    fn next_hop(&self, _protocol: u8, _source: &Ip4, _to: &Ip4, _hop: &mut Hop) -> NextHop {
        NextHop::None
    }

    fn destination_class(&self, _index: u32) -> Option<&DestinationClass> {
        None
    }

    fn source_class(&self, _set: u32, _address: Ip6) -> u32 {
        0
    }

    fn shortest_queue(&self, _level: u32, _party: u64) -> u32 {
        queue::ALL_FULL
    }

    fn park<F: Frame>(&self, _: &F, _: &Work<Ip4>, _party: u64, _queue: u32) -> bool {
        false
    }

    fn decision(&self, _index: u32) -> Option<Decision> {
        None
    }

    fn fragment(&self, _key: &FragmentKey) -> Option<u32> {
        None
    }

    fn remember_fragment(&self, _key: &FragmentKey, _flow: u32) {}

    fn may_answer(&self) -> bool {
        false
    }
}
