//! The kernel's answers to what packets ask.

use core::{mem, ptr::NonNull};

use aya_ebpf::{
    bindings::{BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibParams},
    btf_maps::lpm_trie::Key,
    helpers::generated::{bpf_fib_lookup, bpf_get_prandom_u32, bpf_jiffies64, bpf_ktime_get_ns},
};
use lb_common::{
    abi::{
        Affinity, AffinityKey, ClusterIp, Config, Decision, DestinationClass, Device, Endpoint,
        EndpointLatency, EndpointLoad, EndpointMemory, EndpointState, FlowSchema, FragmentKey,
        Frontend, FrontendKey, Latencies, Limits, Plan, ServiceFlows, ServiceRange, ServiceStats,
        Shortages, SocketAffinityKey, SourceRangeKey, TunnelSource,
    },
    addr::{Address, Family, Ip6},
    flow::{
        Ethernet, Hop, Record, Seats, Timeouts,
        hop::Hops,
        latency::UNIT_SHIFT,
        limit,
        linger::Lingering,
        place::Place,
        queue::{LevelQueues, Queue},
        seats::{Asked, Full},
        slots::{Purpose, Slots, Steps},
    },
    frame::Frame,
    parse::{Segment, Tuple},
    select::{Policy, Range},
    tables::{NextHop, Services, Tables},
    verdict::{Hook, Reason},
    work::Work,
};

use crate::{
    family::FamilyMaps,
    maps::{
        AFFINITY, CLUSTER_IPS, CONFIG, DECISIONS, DESTINATION_CLASSES, DEVICES, ENDPOINT_LATENCIES,
        ENDPOINT_LOADS, ENDPOINT_MEMORY, ENDPOINT_STATES, ENDPOINTS, FLOW_SCHEMAS, FRAGMENTS, HOPS,
        LEVEL_QUEUES, LEVELS, LIMITS, LINGERING, LOCAL_ADDRESSES, MAGLEV, PACKETS, PARTIES, PLANS,
        QUEUES, REJECT_BUDGET, SEATS, SERVICE_FLOWS, SERVICE_LATENCIES, SERVICE_RANGES,
        SERVICE_SHORTAGES, SERVICE_STATS, SERVICES, SOCKET_AFFINITY, SOURCE_CLASSES, SOURCE_RANGES,
        TUNNEL_SOURCES, WAITERS, WAYS_BACK,
    },
    steps,
};

/// The maps and helpers, as a hook sees them.
pub struct Kernel<C, const ANY_DEVICE: bool, const TRACES: bool> {
    config: &'static Config,
    context: C,
    ifindex: u32,
}

impl<C, const ANY_DEVICE: bool, const TRACES: bool> Kernel<C, ANY_DEVICE, TRACES> {
    /// `None` until the agent has written the settings.
    #[inline(always)]
    pub fn new(context: C, ifindex: u32) -> Option<Self> {
        let config = CONFIG.get(0)?;
        (config.hz != 0).then_some(Self {
            config,
            context,
            ifindex,
        })
    }
}

/// Counts what happened to a packet.
#[inline(always)]
pub fn count(hook: Hook, reason: Reason) {
    if let Some(counter) = PACKETS.get_ptr_mut(hook.counter(reason)) {
        // SAFETY: the element is this CPU's.
        unsafe { *counter = (*counter).wrapping_add(1) };
    }
}

impl<A: FamilyMaps, C, const ANY_DEVICE: bool, const TRACES: bool> Services<A>
    for Kernel<C, ANY_DEVICE, TRACES>
{
    #[inline(always)]
    fn config(&self) -> &Config {
        self.config
    }

    #[inline(always)]
    fn frontend(&self, key: &FrontendKey<A>) -> Option<Frontend> {
        A::frontend(key)
    }

    #[inline(always)]
    fn service_range(&self, index: u32) -> Option<&ServiceRange> {
        SERVICE_RANGES.get(index)
    }

    #[inline(always)]
    fn cluster_ip(&self, address: Ip6) -> Option<ClusterIp> {
        // SAFETY: one word.
        unsafe { CLUSTER_IPS.get(address) }.copied()
    }

    #[inline(always)]
    fn unknown_index(&self, tuple: &Tuple<A>) -> u64 {
        A::unknown_index(tuple)
    }

    #[inline(always)]
    fn plan(&self, service: u32) -> Option<&Plan> {
        let entry = SERVICES.get_ptr(service)?;
        // SAFETY: an aligned word that the agent stores as a whole; read once.
        let plan = unsafe { (&raw const (*entry).plan).read_volatile() };
        if plan == 0 {
            return None;
        }
        PLANS.get(plan)
    }

    #[inline(always)]
    fn endpoint(&self, index: u32) -> Option<&Endpoint> {
        ENDPOINTS.get(index)
    }

    #[inline(always)]
    fn less_loaded(&self, one: u32, other: u32, by_latency: bool) -> u32 {
        steps::less_loaded(one, other, by_latency.into())
    }

    #[inline(always)]
    fn balanced(&self, set: Range, index: u32, factor: u32) -> u32 {
        steps::balanced(set.first, set.count, index, factor)
    }

    #[inline(always)]
    fn with_room(&self, set: Range, index: u32, most: u32) -> u32 {
        steps::with_room(set.first, set.count, index, most)
    }

    #[inline(always)]
    fn sticky_index(&self, plan: &Plan, policy: Policy, tuple: &Tuple<A>) -> u64 {
        A::sticky_index(plan, policy, tuple)
    }

    #[inline(always)]
    fn maglev(&self, row: u32) -> Option<u16> {
        let rows = MAGLEV.get(row / 4)?;
        rows.positions.get((row % 4) as usize).copied()
    }

    #[inline(never)]
    fn source_allowed(&self, set: u32, address: Ip6) -> bool {
        let key = Key::new(
            160,
            SourceRangeKey {
                set: set.to_be(),
                address,
            },
        );
        SOURCE_RANGES.get(&key).is_some()
    }

    #[inline(never)]
    fn is_local(&self, address: Ip6) -> bool {
        LOCAL_ADDRESSES.get_ptr(address).is_some()
    }

    #[inline(always)]
    fn device(&self, ifindex: u32) -> Device {
        // SAFETY: two words, of which any values will do.
        unsafe { DEVICES.get(ifindex) }.copied().unwrap_or_default()
    }

    #[inline(always)]
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity> {
        // SAFETY: two words; the endpoint id is checked against the endpoint itself.
        unsafe { AFFINITY.get(key) }.copied()
    }

    #[inline(always)]
    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity) {
        // A full table of an LRU map makes room; nothing else can fail.
        let _ = AFFINITY.insert(key, value, 0);
    }

    #[inline(always)]
    fn socket_affinity(&self, key: &SocketAffinityKey) -> Option<Affinity> {
        // SAFETY: two words; the endpoint id is checked against the endpoint itself.
        unsafe { SOCKET_AFFINITY.get(key) }.copied()
    }

    #[inline(always)]
    fn remember_socket_affinity(&self, key: &SocketAffinityKey, value: &Affinity) {
        // A full table of an LRU map makes room; nothing else can fail.
        let _ = SOCKET_AFFINITY.insert(key, value, 0);
    }

    #[inline(always)]
    fn endpoint_state(&self, endpoint: u32) -> Option<NonNull<EndpointState>> {
        ENDPOINT_STATES.get_ptr_mut(endpoint).and_then(NonNull::new)
    }

    #[inline(always)]
    fn service_stats(&self, service: u32) -> Option<NonNull<ServiceStats>> {
        SERVICE_STATS.get_ptr_mut(service).and_then(NonNull::new)
    }

    #[inline(always)]
    fn shortages(&self, service: u32) -> Option<NonNull<Shortages>> {
        SERVICE_SHORTAGES
            .get_ptr_mut(service)
            .and_then(NonNull::new)
    }

    #[inline(always)]
    fn service_flows(&self, service: u32) -> Option<NonNull<ServiceFlows>> {
        SERVICE_FLOWS.get_ptr_mut(service).and_then(NonNull::new)
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        // SAFETY: no arguments.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn jiffies(&self) -> u32 {
        // SAFETY: no arguments.
        unsafe { bpf_jiffies64() as u32 }
    }
}

// SAFETY: elements of an array map live as long as the map; memory-mappable arrays start on a page,
// so records of 64 and 128 bytes are aligned.
unsafe impl<A: FamilyMaps, C, const ANY_DEVICE: bool, const TRACES: bool> Slots<A>
    for Kernel<C, ANY_DEVICE, TRACES>
{
    #[inline(always)]
    fn mask(&self) -> u32 {
        self.config.flow_mask::<A>()
    }

    #[inline(always)]
    fn slot(&self, index: u32) -> Option<Record<A>> {
        A::flow(index).and_then(NonNull::new)
    }

    #[inline(always)]
    fn seats(&self, index: u32) -> Option<NonNull<Seats>> {
        match index.checked_sub(limit::LEVELS) {
            None => SEATS.get_ptr_mut(index),
            Some(level) => LEVELS.get_ptr_mut(level),
        }
        .and_then(NonNull::new)
    }

    #[inline(always)]
    fn secret(&self) -> [u64; 2] {
        self.config.secret
    }

    #[inline(always)]
    fn other_mask(&self) -> u32 {
        A::other_mask()
    }

    #[inline(always)]
    fn other_slot(&self, index: u32) -> Option<Record<A>> {
        if A::other_mask() == 0 {
            return None;
        }
        A::other_flow(index).and_then(NonNull::new)
    }

    #[inline(always)]
    fn now(&self) -> u32 {
        // Not by way of `moment`: for that, programs in 6.1 have no room on their stacks. SAFETY:
        // no arguments.
        (unsafe { bpf_jiffies64() } >> (self.config.tick_shift & 63)) as u32
    }

    #[inline(always)]
    fn moment(&self) -> u64 {
        // SAFETY: no arguments.
        let jiffies = unsafe { bpf_jiffies64() };
        jiffies << 3 >> (self.config.tick_shift & 63)
    }

    #[inline(always)]
    fn timeouts(&self) -> Option<&Timeouts> {
        LIMITS.get(0).map(|limits| &limits.timeouts)
    }

    #[inline(always)]
    fn flow_schema(&self, number: u32) -> Option<NonNull<FlowSchema>> {
        FLOW_SCHEMAS.get_ptr_mut(number).and_then(NonNull::new)
    }

    #[inline(always)]
    fn endpoint_load(&self, endpoint: u32) -> Option<NonNull<EndpointLoad>> {
        ENDPOINT_LOADS.get_ptr_mut(endpoint).and_then(NonNull::new)
    }

    #[inline(always)]
    fn endpoint_latency(&self, endpoint: u32) -> Option<NonNull<EndpointLatency>> {
        ENDPOINT_LATENCIES
            .get_ptr_mut(endpoint)
            .and_then(NonNull::new)
    }

    #[inline(always)]
    fn latencies(&self, service: u32) -> Option<NonNull<Latencies>> {
        SERVICE_LATENCIES
            .get_ptr_mut(service)
            .and_then(NonNull::new)
    }

    #[inline(always)]
    fn stopwatch(&self) -> u32 {
        // SAFETY: no arguments.
        let now = unsafe { bpf_ktime_get_ns() } >> UNIT_SHIFT;
        // 0 would mean that nothing is measured.
        (now as u32).max(1)
    }

    #[inline(always)]
    fn level_queues(&self, level: u32) -> Option<NonNull<LevelQueues>> {
        LEVEL_QUEUES.get_ptr_mut(level).and_then(NonNull::new)
    }

    #[inline(always)]
    fn lingering(&self, level: u32) -> Option<NonNull<Lingering>> {
        LINGERING.get_ptr_mut(level).and_then(NonNull::new)
    }

    #[inline(always)]
    fn queue(&self, index: u32) -> Option<NonNull<Queue>> {
        QUEUES.get_ptr_mut(index).and_then(NonNull::new)
    }

    #[inline(always)]
    fn party(&self, index: u32) -> Option<NonNull<u64>> {
        PARTIES.get_ptr_mut(index).and_then(NonNull::new)
    }

    #[inline(always)]
    fn count_half_open(&self, service: u32, change: i32) {
        if let Some(stats) = SERVICE_STATS.get_ptr_mut(service) {
            // SAFETY: a counter in a map, only ever added to.
            unsafe { lb_common::fetch_add((&raw mut (*stats).half_open).cast(), change as u32) };
        }
    }

    #[inline(always)]
    fn count_flows(&self, service: u32, change: i32) {
        if let Some(flows) = SERVICE_FLOWS.get_ptr_mut(service) {
            // SAFETY: a counter in a map, only ever added to.
            unsafe { lb_common::fetch_add((&raw mut (*flows).flows).cast(), change as u32) };
        }
    }
}

impl<A: FamilyMaps, C, const ANY_DEVICE: bool, const TRACES: bool> Steps<A>
    for Kernel<C, ANY_DEVICE, TRACES>
{
    #[inline(always)]
    fn find_index(&self, tuple: &Tuple<A>) -> u64 {
        A::find_index(tuple)
    }

    #[inline(always)]
    fn claim_index(&self, tuple: &Tuple<A>, hash: u64) -> u64 {
        A::claim_index(tuple, hash)
    }

    #[inline(always)]
    fn has_rival(&self, tuple: &Tuple<A>, hash: u64, outcome: u64) -> bool {
        A::has_rival(tuple, hash, outcome)
    }

    #[inline(always)]
    fn gives_way(&self, index: u32, segment: &Segment, purpose: Purpose) -> bool {
        A::gives_way(index, segment, purpose)
    }

    #[inline(always)]
    fn join_party(&self, forward: u32, ports: u32, most: u32) -> u64 {
        A::join_party(forward, ports, most)
    }

    #[inline(always)]
    fn leave_party(&self, forward: u32, ports: u32) -> u64 {
        A::leave_party(forward, ports)
    }

    #[inline(always)]
    fn enter_party(&self, party: u64, most: u32) -> u64 {
        steps::enter_party(party, most)
    }

    #[inline(always)]
    fn enter_endpoint(&self, endpoint: u32, most: u32) -> bool {
        steps::enter_endpoint(endpoint, most) != 0
    }

    #[inline(always)]
    fn leave_endpoint(&self, forward: u32, ports: u32) {
        A::leave_endpoint(forward, ports);
    }

    #[inline(always)]
    fn approach(&self, hash: u64, other: u64) {
        A::approach(hash, other);
    }

    #[inline(always)]
    fn leave_ended(&self, index: u32) {
        A::leave_ended(index);
    }

    #[inline(always)]
    fn charge(&self, place: Place, party: u64, ports: u32, is_over: bool) {
        steps::charge(place.number(), party, ports, is_over.into());
    }

    #[inline(always)]
    fn linger(&self, place: Place, schema: u32) -> Place {
        Place::from_u32(steps::linger(place.number(), schema))
    }

    #[inline(always)]
    fn find_other_index(&self, tuple: &Tuple<A>) -> u64 {
        A::find_other_index(tuple)
    }

    #[inline(always)]
    fn copy_index(&self, tuple: &Tuple<A>) -> u64 {
        A::copy_index(tuple)
    }

    #[inline(always)]
    fn end_other(&self, index: u32) {
        A::end_other(index);
    }
}

// SAFETY: elements of a map, aligned to eight bytes and 32 bytes apart, live as long as the
// program.
unsafe impl<C, const ANY_DEVICE: bool, const TRACES: bool> Hops for Kernel<C, ANY_DEVICE, TRACES> {
    #[inline(always)]
    fn hop(&self, index: u32) -> Option<NonNull<Hop>> {
        HOPS.get_ptr_mut(index).and_then(NonNull::new)
    }
}

impl<A: FamilyMaps, C: Context, const ANY_DEVICE: bool, const TRACES: bool> Tables<A>
    for Kernel<C, ANY_DEVICE, TRACES>
{
    const ANY_DEVICE: bool = ANY_DEVICE;
    const TRACES: bool = TRACES;

    #[inline(always)]
    fn open_index(&self, work: &mut Work<A>, ifindex: u32) -> u64 {
        A::open_index(work, ifindex)
    }

    #[inline(always)]
    fn finish_index(&self, work: &mut Work<A>) -> u64 {
        A::finish_index(work)
    }

    #[inline(always)]
    fn take_seats(&self, asked: Asked, schema: u32) -> u32 {
        steps::take_seats(asked.number(), schema)
    }

    #[inline(always)]
    fn in_the_way(&self, asked: Asked) -> Option<Full> {
        Full::from_number(steps::in_the_way(asked.number()))
    }

    #[inline(always)]
    fn collect(&self, level: u32) -> bool {
        steps::collect(level) != 0
    }

    #[inline(always)]
    fn elsewhere(&self, set: Range, index: u32, left: u32) -> u32 {
        steps::elsewhere(set.first, set.count, index, left)
    }

    #[inline(always)]
    fn is_avoided(&self, endpoint: u32, limit: u32) -> bool {
        steps::is_avoided(endpoint, limit) != 0
    }

    #[inline(always)]
    fn endpoint_memory(&self, endpoint: u32) -> Option<NonNull<EndpointMemory>> {
        ENDPOINT_MEMORY.get_ptr_mut(endpoint).and_then(NonNull::new)
    }

    #[inline(always)]
    fn half_open_mask(&self) -> u32 {
        LIMITS.get(0).map_or(0, |limits| limits.half_open_mask)
    }

    #[inline(always)]
    fn share(&self) -> u16 {
        LIMITS.get(0).map_or(0, Limits::share::<A>)
    }

    #[inline(always)]
    fn half_open_place(&self, index: u32) -> Option<NonNull<u64>> {
        A::half_open_place(index).and_then(NonNull::new)
    }

    #[inline(always)]
    fn half_open_cursor(&self, ring: u32) -> Option<NonNull<u32>> {
        A::half_open_cursor(ring).and_then(NonNull::new)
    }

    #[inline(never)]
    fn next_hop(&self, protocol: u8, source: &A, destination: &A, hop: &mut Hop) -> NextHop {
        // SAFETY: integers and unions of integers only.
        let mut params: FibParams = unsafe { mem::zeroed() };
        params.ifindex = self.ifindex;
        params.l4_protocol = protocol;
        // Any length asks for the route's MTU.
        params.__bindgen_anon_1.tot_len = 1;
        match A::FAMILY {
            Family::V4 => {
                params.family = 2; // AF_INET
                params.__bindgen_anon_3.ipv4_src = source.halves().0 as u32;
                params.__bindgen_anon_4.ipv4_dst = destination.halves().0 as u32;
            }
            Family::V6 => {
                params.family = 10; // AF_INET6
                params.__bindgen_anon_3.ipv6_src = words(*source);
                params.__bindgen_anon_4.ipv6_dst = words(*destination);
            }
        }
        // SAFETY: the context is the program's, the parameters are as long as said.
        let result = unsafe {
            bpf_fib_lookup(
                self.context.pointer(),
                &raw mut params,
                size_of::<FibParams>() as i32,
                0,
            )
        };
        hop.ifindex = params.ifindex;
        hop.ethernet = Ethernet {
            to: params.dmac,
            from: params.smac,
        };
        // SAFETY: a number whatever was stored.
        hop.mtu = unsafe { params.__bindgen_anon_1.mtu_result };
        match result as u32 {
            BPF_FIB_LKUP_RET_SUCCESS => NextHop::Known,
            BPF_FIB_LKUP_RET_NO_NEIGH => NextHop::Unresolved,
            _ => NextHop::None,
        }
    }

    #[inline(always)]
    fn way_back(&self, ifindex: u32) -> u32 {
        // SAFETY: one word.
        unsafe { WAYS_BACK.get(ifindex) }.copied().unwrap_or(0)
    }

    #[inline(always)]
    fn tunnel_source(&self, ifindex: u32) -> Option<TunnelSource> {
        // SAFETY: two addresses; a packet that meets a change of one finds the other half next time.
        unsafe { TUNNEL_SOURCES.get(ifindex) }.copied()
    }

    #[inline(always)]
    fn destination_class(&self, index: u32) -> Option<&DestinationClass> {
        DESTINATION_CLASSES.get(index)
    }

    #[inline(never)]
    fn source_class(&self, set: u32, address: Ip6) -> u32 {
        let key = Key::new(
            160,
            SourceRangeKey {
                set: set.to_be(),
                address,
            },
        );
        SOURCE_CLASSES.get(&key).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn decision(&self, index: u32) -> Option<Decision> {
        DECISIONS.get(index).copied()
    }

    #[inline(always)]
    fn shortest_queue(&self, level: u32, party: u64) -> u32 {
        steps::shortest_queue(level, party)
    }

    #[inline(always)]
    fn park<F: Frame>(&self, frame: &F, work: &Work<A>, party: u64, queue: u32) -> bool {
        let Some(mut entry) = WAITERS.reserve(0) else {
            return false;
        };
        let waiter = entry.as_mut_ptr();
        // SAFETY: room that is this program's alone until it is submitted; every field is written.
        let copied = unsafe {
            (*waiter).party = party;
            (*waiter).level = work.seats.level();
            (*waiter).schema = work.schema;
            (*waiter).queue = queue;
            (*waiter).ifindex = frame.ifindex();
            (*waiter).has_ethernet = (F::LINK_HEADER != 0).into();
            (*waiter).is_inside = work.taker.is_inside().into();
            (*waiter).pad = 0;
            frame.copy_to(&mut (*waiter).packet)
        };
        let Some(length) = copied else {
            entry.discard(0);
            return false;
        };
        // SAFETY: as above.
        unsafe { (*waiter).length = length };
        entry.submit(0);
        true
    }

    #[inline(always)]
    fn fragment(&self, key: &FragmentKey) -> Option<u32> {
        // SAFETY: one word.
        unsafe { FRAGMENTS.get(key) }.copied()
    }

    #[inline(always)]
    fn remember_fragment(&self, key: &FragmentKey, flow: u32) {
        // A full table of an LRU map makes room; nothing else can fail.
        let _ = FRAGMENTS.insert(key, flow, 0);
    }

    #[inline(always)]
    fn may_answer(&self) -> bool {
        let Some(budget) = REJECT_BUDGET.get_ptr_mut(0) else {
            return false;
        };
        let jiffies = Services::<A>::jiffies(self);
        let second = jiffies.checked_div(self.config.hz).unwrap_or(0);
        // SAFETY: the element is this CPU's.
        let budget = unsafe { &mut *budget };
        if budget.second != second {
            budget.second = second;
            budget.left = self.config.reject_rate;
        }
        if budget.left == 0 {
            return false;
        }
        budget.left -= 1;
        true
    }
}

/// A program's context, as helpers take it.
pub trait Context {
    fn pointer(&self) -> *mut core::ffi::c_void;
}

impl Context for *mut aya_ebpf::bindings::xdp_md {
    #[inline(always)]
    fn pointer(&self) -> *mut core::ffi::c_void {
        self.cast()
    }
}

impl Context for *mut aya_ebpf::bindings::__sk_buff {
    #[inline(always)]
    fn pointer(&self) -> *mut core::ffi::c_void {
        self.cast()
    }
}

impl Context for () {
    #[inline(always)]
    fn pointer(&self) -> *mut core::ffi::c_void {
        core::ptr::null_mut()
    }
}

/// An IPv6 address as the four words that helpers take.
#[inline(always)]
fn words<A: Address>(address: A) -> [u32; 4] {
    // SAFETY: sixteen bytes, any of which are valid words.
    unsafe { mem::transmute(address.to_mapped().octets) }
}
