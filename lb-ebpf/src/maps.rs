//! All maps. Sizes given here are defaults; the agent sets them at load.

use crate::kernel::{
    claim_index4, claim_index6, find_index4, find_index6, open_index4, open_index6,
};
use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray},
    macros::btf_map,
};
use lb_common::{
    abi::{
        Affinity, AffinityKey, Config, Device, Endpoint, EndpointState, FragmentKey, Frontend,
        FrontendKey, LocalAddress, MaglevRows, Plan, RejectBudget, Service, ServiceStats, Socket,
        SocketKey, SourceRangeKey,
    },
    addr::{Address, Ip4, Ip6},
    flow::Flow,
    parse::Tuple,
    pipeline::Work,
    verdict::{COUNTERS as COUNTER_COUNT, Hook},
};

/// The agent reads and writes these through memory, without system calls.
const MMAP: usize = BPF_F_MMAPABLE as usize;
const HOOKS: usize = Hook::ALL.len();

/// The node's settings.
#[btf_map]
pub static CONFIG: Array<Config, 1, MMAP> = Array::new();

/// Address, port and protocol → service, per family.
#[btf_map]
pub static FRONTENDS4: HashMap<FrontendKey<Ip4>, Frontend, 131_072> = HashMap::new();
#[btf_map]
pub static FRONTENDS6: HashMap<FrontendKey<Ip6>, Frontend, 131_072> = HashMap::new();

/// Service id → its published plan.
#[btf_map]
pub static SERVICES: Array<Service, 65_536, MMAP> = Array::new();

/// What to do with a service's connections.
#[btf_map]
pub static PLANS: Array<Plan, 131_072, MMAP> = Array::new();

/// Endpoint slots; each plan has a contiguous range.
#[btf_map]
pub static ENDPOINTS: Array<Endpoint, 1_048_576, MMAP> = Array::new();

/// Endpoint id → where it is, and its connections.
#[btf_map]
pub static ENDPOINT_STATES: Array<EndpointState, 524_288, MMAP> = Array::new();

/// Service id → counters.
#[btf_map]
pub static SERVICE_STATS: Array<ServiceStats, 65_536, MMAP> = Array::new();

/// Maglev lookup tables, one after the other.
#[btf_map]
pub static MAGLEV: Array<MaglevRows, 1_048_576, MMAP> = Array::new();

/// Who may use a LoadBalancer address.
#[btf_map]
pub static SOURCE_RANGES: LpmTrie<SourceRangeKey, u8, 65_536> = LpmTrie::new();

/// The node's own addresses.
#[btf_map]
pub static LOCAL_ADDRESSES: HashMap<Ip6, LocalAddress, 4_096> = HashMap::new();

/// Devices that are not just any.
#[btf_map]
pub static DEVICES: HashMap<u32, Device, 65_536> = HashMap::new();

/// Which endpoint a client went to last (session affinity).
#[btf_map]
pub static AFFINITY: LruHashMap<AffinityKey, Affinity, 262_144> = LruHashMap::new();

/// Flows, one record per direction.
#[btf_map]
pub static FLOWS4: Array<Flow<Ip4>, 1_048_576, MMAP> = Array::new();
#[btf_map]
pub static FLOWS6: Array<Flow<Ip6>, 262_144, MMAP> = Array::new();

/// Flows of packets that came in fragments.
#[btf_map]
pub static FRAGMENTS: LruHashMap<FragmentKey, u32, 8_192> = LruHashMap::new();

/// What a translated socket believes to talk to.
#[btf_map]
pub static SOCKETS: LruHashMap<SocketKey, Socket, 131_072> = LruHashMap::new();

/// Packets by hook and reason.
#[btf_map]
pub static COUNTERS: PerCpuArray<u64, COUNTER_COUNT> = PerCpuArray::new();

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
    fn open_index(work: &mut Work<Self>, ifindex: u32, tcp_flags: u8) -> u64;
    /// [`lb_common::flow::table::find_index`] as a function that the verifier looks at once.
    fn find_index(tuple: &Tuple<Self>) -> u64;
    /// [`lb_common::flow::table::claim_index`], likewise.
    fn claim_index(tuple: &Tuple<Self>, opens: bool) -> u64;
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
    fn open_index(work: &mut Work<Self>, ifindex: u32, tcp_flags: u8) -> u64 {
        open_index4(work, ifindex, tcp_flags.into())
    }

    #[inline(always)]
    fn find_index(tuple: &Tuple<Self>) -> u64 {
        find_index4(tuple)
    }

    #[inline(always)]
    fn claim_index(tuple: &Tuple<Self>, opens: bool) -> u64 {
        claim_index4(tuple, opens.into())
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
    fn open_index(work: &mut Work<Self>, ifindex: u32, tcp_flags: u8) -> u64 {
        open_index6(work, ifindex, tcp_flags.into())
    }

    #[inline(always)]
    fn find_index(tuple: &Tuple<Self>) -> u64 {
        find_index6(tuple)
    }

    #[inline(always)]
    fn claim_index(tuple: &Tuple<Self>, opens: bool) -> u64 {
        claim_index6(tuple, opens.into())
    }
}
