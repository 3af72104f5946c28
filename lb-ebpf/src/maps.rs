//! All maps. Sizes given here are defaults; the agent sets them at load.

use crate::kernel::{
    claim_index4, claim_index6, copy_index4, copy_index6, copy_slot4, copy_slot6, end_other4,
    end_other6, find_index4, find_index6, find_other_index4, find_other_index6, finish_index4,
    finish_index6, gives_way4, gives_way6, has_rival4, has_rival6, open_index4, open_index6,
};
use aya_ebpf::{
    Global,
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray},
    macros::btf_map,
};
use lb_common::{
    abi::{
        Affinity, AffinityKey, Config, Device, Endpoint, EndpointMemory, EndpointState,
        FragmentKey, Frontend, FrontendKey, Limits, LocalAddress, MaglevRows, Plan, RejectBudget,
        Service, ServiceFlows, ServiceStats, Shortages, Socket, SocketKey, SourceRangeKey, entries,
    },
    addr::{Address, Ip4, Ip6},
    flow::{Flow, Hop, table::Purpose},
    parse::{Segment, Tuple},
    pipeline::{RINGS, Work},
    verdict::{COUNTERS, Hook},
};

/// The agent reads and writes these through memory, without system calls.
const MMAP: usize = BPF_F_MMAPABLE as usize;
const HOOKS: usize = Hook::ALL.len();

/// The node's settings.
#[btf_map]
pub static CONFIG: Array<Config, 1, MMAP> = Array::new();

/// What flows may take.
#[btf_map]
pub static LIMITS: Array<Limits, 1, MMAP> = Array::new();

/// Address, port and protocol → service, per family.
#[btf_map]
pub static FRONTENDS4: HashMap<FrontendKey<Ip4>, Frontend, { entries::FRONTENDS }> = HashMap::new();
#[btf_map]
pub static FRONTENDS6: HashMap<FrontendKey<Ip6>, Frontend, { entries::FRONTENDS }> = HashMap::new();

/// Service id → its published plan.
#[btf_map]
pub static SERVICES: Array<Service, { entries::SERVICES }, MMAP> = Array::new();

/// What to do with a service's connections.
#[btf_map]
pub static PLANS: Array<Plan, { entries::PLANS }, MMAP> = Array::new();

/// Endpoint slots; each plan has a contiguous range.
#[btf_map]
pub static ENDPOINTS: Array<Endpoint, { entries::ENDPOINTS }, MMAP> = Array::new();

/// Endpoint id → where it is, and its connections.
#[btf_map]
pub static ENDPOINT_STATES: Array<EndpointState, { entries::ENDPOINT_IDS }, MMAP> = Array::new();

/// Endpoint id → what is remembered of it for new flows.
#[btf_map]
pub static ENDPOINT_MEMORY: Array<EndpointMemory, { entries::ENDPOINT_IDS }, MMAP> = Array::new();

/// Service id → counters.
#[btf_map]
pub static SERVICE_STATS: Array<ServiceStats, { entries::SERVICES }, MMAP> = Array::new();

/// Service id → connections that there was no room for.
#[btf_map]
pub static SERVICE_SHORTAGES: Array<Shortages, { entries::SERVICES }, MMAP> = Array::new();

/// Service id → its flows.
#[btf_map]
pub static SERVICE_FLOWS: Array<ServiceFlows, { entries::SERVICES }, MMAP> = Array::new();

/// Maglev lookup tables, one after the other.
#[btf_map]
pub static MAGLEV: Array<MaglevRows, { entries::MAGLEV }, MMAP> = Array::new();

/// Who may use a LoadBalancer address.
#[btf_map]
pub static SOURCE_RANGES: LpmTrie<SourceRangeKey, u8, { entries::SOURCE_RANGES }> = LpmTrie::new();

/// The node's own addresses.
#[btf_map]
pub static LOCAL_ADDRESSES: HashMap<Ip6, LocalAddress, { entries::LOCAL_ADDRESSES }> =
    HashMap::new();

/// Devices that are not just any.
#[btf_map]
pub static DEVICES: HashMap<u32, Device, { entries::DEVICES }> = HashMap::new();

/// Interface index of a device with [`lb_common::abi::device_flag::WAY_BACK`] → that of the device which the way back to
/// a source must lead to, if not any will do.
#[btf_map]
pub static WAYS_BACK: HashMap<u32, u32, { entries::DEVICES }> = HashMap::new();

/// Which endpoint a client went to last (session affinity).
#[btf_map]
pub static AFFINITY: LruHashMap<AffinityKey, Affinity, 262_144> = LruHashMap::new();

/// Flows, one record per direction.
#[btf_map]
pub static FLOWS4: Array<Flow<Ip4>, 1_048_576, MMAP> = Array::new();
#[btf_map]
pub static FLOWS6: Array<Flow<Ip6>, 262_144, MMAP> = Array::new();

/// The flow tables of the other size, while the size changes; else nobody looks there.
#[btf_map]
pub static OTHER_FLOWS4: Array<Flow<Ip4>, 1, MMAP> = Array::new();
#[btf_map]
pub static OTHER_FLOWS6: Array<Flow<Ip6>, 1, MMAP> = Array::new();

/// Number of their records less one; 0 if there are none, and then the verifier drops all that has to do with
/// them. The agent sets it at load.
#[unsafe(no_mangle)]
pub static OTHER_MASK4: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static OTHER_MASK6: Global<u32> = Global::new(0);

/// Next hops of flows.
#[btf_map]
pub static HOPS: Array<Hop, { entries::HOPS }, MMAP> = Array::new();

/// Half-open flows of services under pressure, in the order they came; `RINGS` rings, one after the
/// other.
#[btf_map]
pub static HALF_OPEN4: Array<u64, 1_048_576> = Array::new();
#[btf_map]
pub static HALF_OPEN6: Array<u64, 1_048_576> = Array::new();

/// Places handed out in each ring, IPv4's first.
#[btf_map]
pub static HALF_OPEN_CURSORS: Array<u32, { 2 * RINGS as usize }> = Array::new();

/// Flows of packets that came in fragments.
#[btf_map]
pub static FRAGMENTS: LruHashMap<FragmentKey, u32, 8_192> = LruHashMap::new();

/// What a translated socket believes to talk to.
#[btf_map]
pub static SOCKETS: LruHashMap<SocketKey, Socket, 131_072> = LruHashMap::new();

/// Packets by hook and reason.
#[btf_map]
pub static PACKETS: PerCpuArray<u64, COUNTERS> = PerCpuArray::new();

/// What is left of this second's ICMP answers.
#[btf_map]
pub static REJECT_BUDGET: PerCpuArray<RejectBudget, 1> = PerCpuArray::new();

/// Room to work on a packet, by hook: one may run while another's packet is half done.
#[btf_map]
pub static WORK4: PerCpuArray<Work<Ip4>, HOOKS> = PerCpuArray::new();
#[btf_map]
pub static WORK6: PerCpuArray<Work<Ip6>, HOOKS> = PerCpuArray::new();

/// The maps that each family has for itself.
pub trait FamilyMaps: Address {
    fn work(hook: Hook) -> Option<*mut Work<Self>>;
    fn frontend(key: &FrontendKey<Self>) -> Option<Frontend>;
    fn flow(index: u32) -> Option<*mut Flow<Self>>;
    /// [`lb_common::pipeline::open_index`] as a function that the verifier looks at once.
    fn open_index(work: &mut Work<Self>, ifindex: u32) -> u64;
    /// [`lb_common::pipeline::finish_index`], likewise.
    fn finish_index(work: &mut Work<Self>) -> u64;
    /// [`lb_common::flow::table::find_index`], likewise.
    fn find_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::flow::table::claim_index`], likewise.
    fn claim_index(tuple: &Tuple<Self>, hash: u64) -> u64;
    /// [`lb_common::flow::table::has_rival`], likewise.
    fn has_rival(tuple: &Tuple<Self>, hash: u64, outcome: u64) -> bool;
    /// [`lb_common::flow::end::gives_way`], likewise.
    fn gives_way(index: u32, segment: &Segment, purpose: Purpose) -> bool;
    /// A record of the other table.
    fn other_flow(index: u32) -> Option<*mut Flow<Self>>;
    /// [`lb_common::flow::table::Slots::other_mask`].
    fn other_mask() -> u32;
    /// [`lb_common::flow::table::find_other_index`] as a function that the verifier looks at once.
    fn find_other_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::flow::resize::copy_index`], likewise.
    fn copy_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::flow::resize::end_other`], likewise.
    fn end_other(index: u32);
    /// [`lb_common::pipeline::copy_slot`], likewise; a [`lb_common::pipeline::Copied`].
    fn copy_slot(index: u32) -> u64;
    /// A place in the rings of half-open flows.
    fn half_open_place(index: u32) -> Option<*mut u64>;
    /// Places handed out in a ring so far.
    fn half_open_cursor(ring: u32) -> Option<*mut u32>;
}

impl FamilyMaps for Ip4 {
    #[inline(always)]
    fn work(hook: Hook) -> Option<*mut Work<Self>> {
        WORK4.get_ptr_mut(hook as u32)
    }

    #[inline(always)]
    fn frontend(key: &FrontendKey<Self>) -> Option<Frontend> {
        // SAFETY: eight bytes, replaced as a whole.
        unsafe { FRONTENDS4.get(key) }.copied()
    }

    #[inline(always)]
    fn flow(index: u32) -> Option<*mut Flow<Self>> {
        FLOWS4.get_ptr_mut(index)
    }

    #[inline(always)]
    fn open_index(work: &mut Work<Self>, ifindex: u32) -> u64 {
        open_index4(work, ifindex)
    }

    #[inline(always)]
    fn finish_index(work: &mut Work<Self>) -> u64 {
        finish_index4(work)
    }

    #[inline(always)]
    fn find_index(tuple: &Tuple<Self>) -> u64 {
        find_index4(tuple)
    }

    #[inline(always)]
    fn claim_index(tuple: &Tuple<Self>, hash: u64) -> u64 {
        claim_index4(tuple, hash)
    }

    #[inline(always)]
    fn has_rival(tuple: &Tuple<Self>, hash: u64, outcome: u64) -> bool {
        has_rival4(tuple, hash, outcome) != 0
    }

    #[inline(always)]
    fn gives_way(index: u32, segment: &Segment, purpose: Purpose) -> bool {
        gives_way4(segment, index, purpose as u32) != 0
    }

    #[inline(always)]
    fn other_flow(index: u32) -> Option<*mut Flow<Self>> {
        OTHER_FLOWS4.get_ptr_mut(index)
    }

    #[inline(always)]
    fn other_mask() -> u32 {
        OTHER_MASK4.load()
    }

    #[inline(always)]
    fn find_other_index(tuple: &Tuple<Self>) -> u64 {
        find_other_index4(tuple)
    }

    #[inline(always)]
    fn copy_index(tuple: &Tuple<Self>) -> u64 {
        copy_index4(tuple)
    }

    #[inline(always)]
    fn end_other(index: u32) {
        end_other4(index);
    }

    #[inline(always)]
    fn copy_slot(index: u32) -> u64 {
        copy_slot4(index)
    }

    #[inline(always)]
    fn half_open_place(index: u32) -> Option<*mut u64> {
        HALF_OPEN4.get_ptr_mut(index)
    }

    #[inline(always)]
    fn half_open_cursor(ring: u32) -> Option<*mut u32> {
        HALF_OPEN_CURSORS.get_ptr_mut(ring)
    }
}

impl FamilyMaps for Ip6 {
    #[inline(always)]
    fn work(hook: Hook) -> Option<*mut Work<Self>> {
        WORK6.get_ptr_mut(hook as u32)
    }

    #[inline(always)]
    fn frontend(key: &FrontendKey<Self>) -> Option<Frontend> {
        // SAFETY: as for IPv4.
        unsafe { FRONTENDS6.get(key) }.copied()
    }

    #[inline(always)]
    fn flow(index: u32) -> Option<*mut Flow<Self>> {
        FLOWS6.get_ptr_mut(index)
    }

    #[inline(always)]
    fn open_index(work: &mut Work<Self>, ifindex: u32) -> u64 {
        open_index6(work, ifindex)
    }

    #[inline(always)]
    fn finish_index(work: &mut Work<Self>) -> u64 {
        finish_index6(work)
    }

    #[inline(always)]
    fn find_index(tuple: &Tuple<Self>) -> u64 {
        find_index6(tuple)
    }

    #[inline(always)]
    fn claim_index(tuple: &Tuple<Self>, hash: u64) -> u64 {
        claim_index6(tuple, hash)
    }

    #[inline(always)]
    fn has_rival(tuple: &Tuple<Self>, hash: u64, outcome: u64) -> bool {
        has_rival6(tuple, hash, outcome) != 0
    }

    #[inline(always)]
    fn gives_way(index: u32, segment: &Segment, purpose: Purpose) -> bool {
        gives_way6(segment, index, purpose as u32) != 0
    }

    #[inline(always)]
    fn other_flow(index: u32) -> Option<*mut Flow<Self>> {
        OTHER_FLOWS6.get_ptr_mut(index)
    }

    #[inline(always)]
    fn other_mask() -> u32 {
        OTHER_MASK6.load()
    }

    #[inline(always)]
    fn find_other_index(tuple: &Tuple<Self>) -> u64 {
        find_other_index6(tuple)
    }

    #[inline(always)]
    fn copy_index(tuple: &Tuple<Self>) -> u64 {
        copy_index6(tuple)
    }

    #[inline(always)]
    fn end_other(index: u32) {
        end_other6(index);
    }

    #[inline(always)]
    fn copy_slot(index: u32) -> u64 {
        copy_slot6(index)
    }

    #[inline(always)]
    fn half_open_place(index: u32) -> Option<*mut u64> {
        HALF_OPEN6.get_ptr_mut(index)
    }

    #[inline(always)]
    fn half_open_cursor(ring: u32) -> Option<*mut u32> {
        HALF_OPEN_CURSORS.get_ptr_mut(RINGS + ring)
    }
}
