//! All maps. Sizes given here are defaults; the agent sets them at load.

use aya_ebpf::{
    Global,
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, RingBuf, SkStorage},
    macros::btf_map,
};
use lb_common::{
    abi::{
        Affinity, AffinityKey, ClusterIp, Config, Decision, DestinationClass, Device, Endpoint,
        EndpointLatency, EndpointLoad, EndpointMemory, EndpointState, FlowSchema, FragmentKey,
        Frontend, FrontendKey, Latencies, Limits, LocalAddress, MaglevRows, Plan, RejectBudget,
        SERVICE_RANGES as RANGES, Service, ServiceFlows, ServiceRange, ServiceStats, Shortages,
        Socket, SocketAffinityKey, SocketKey, SocketSeats, SourceRangeKey, TunnelSource,
    },
    addr::{Ip4, Ip6},
    entries,
    flow::{
        Flow, Hop, Seats,
        linger::Lingering,
        queue::{LevelQueues, Queue, Waiter},
    },
    pipeline::RINGS,
    trace::Trace,
    verdict::{COUNTERS, Hook},
    work::Work,
};

/// The agent reads and writes these through memory, without system calls.
const MMAP: usize = BPF_F_MMAPABLE as usize;
/// Entries take memory when they are there.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;
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

/// ClusterIPs, of both families.
#[btf_map]
pub static CLUSTER_IPS: HashMap<Ip6, ClusterIp, { entries::CLUSTER_IPS }> = HashMap::new();

/// Addresses that may be ClusterIPs.
#[btf_map]
pub static SERVICE_RANGES: Array<ServiceRange, { 2 * RANGES as usize }, MMAP> = Array::new();

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

/// Endpoint id → the connections that it has open.
#[btf_map]
pub static ENDPOINT_LOADS: Array<EndpointLoad, { entries::ENDPOINT_IDS }, MMAP> = Array::new();

/// Endpoint id → how soon it answers.
#[btf_map]
pub static ENDPOINT_LATENCIES: Array<EndpointLatency, { entries::ENDPOINT_IDS }, MMAP> =
    Array::new();

/// Service id → how soon its endpoints answer.
#[btf_map]
pub static SERVICE_LATENCIES: Array<Latencies, { entries::SERVICES }, MMAP> = Array::new();

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

/// Devices with special properties; most devices have no entry.
#[btf_map]
pub static DEVICES: HashMap<u32, Device, { entries::DEVICES }> = HashMap::new();

/// Interface index of a device with [`lb_common::abi::device_flag::WAY_BACK`] → that of the device
/// which the way back to a source must lead to, if not any will do.
#[btf_map]
pub static WAYS_BACK: HashMap<u32, u32, { entries::DEVICES }> = HashMap::new();

/// Interface index of a tunnel → this node's addresses there.
#[btf_map]
pub static TUNNEL_SOURCES: HashMap<u32, TunnelSource, { entries::DEVICES }> = HashMap::new();

/// Which endpoint a client went to last (session affinity).
#[btf_map]
pub static AFFINITY: LruHashMap<AffinityKey, Affinity, 262_144> = LruHashMap::new();

/// Which endpoint an unconnected socket's datagrams went to last. Whoever opens sockets without number
/// finds only other sockets here.
#[btf_map]
pub static SOCKET_AFFINITY: LruHashMap<SocketAffinityKey, Affinity, 32_768> = LruHashMap::new();

/// Flows, one record per direction.
#[btf_map]
pub static FLOWS4: Array<Flow<Ip4>, 1_048_576, MMAP> = Array::new();
#[btf_map]
pub static FLOWS6: Array<Flow<Ip6>, 262_144, MMAP> = Array::new();

/// The flow tables of the other size, while the size changes. Otherwise they are not used.
#[btf_map]
pub static OTHER_FLOWS4: Array<Flow<Ip4>, 1, MMAP> = Array::new();
#[btf_map]
pub static OTHER_FLOWS6: Array<Flow<Ip6>, 1, MMAP> = Array::new();

/// Number of their records less one; 0 if there are none, and then the verifier drops all that has
/// to do with them. The agent sets it at load.
#[unsafe(no_mangle)]
pub static OTHER_MASK4: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
pub static OTHER_MASK6: Global<u32> = Global::new(0);

/// Limits of connections and the seats within them: the node's first, then Services'.
#[btf_map]
pub static SEATS: Array<Seats, { entries::SEATS }, MMAP> = Array::new();

/// Limits of priority levels, by their numbers.
#[btf_map]
pub static LEVELS: Array<Seats, { entries::LEVELS }, MMAP> = Array::new();

/// Flow schemas, by their numbers.
#[btf_map]
pub static FLOW_SCHEMAS: Array<FlowSchema, { entries::FLOW_SCHEMAS }, MMAP> = Array::new();

/// Parties that hold seats: a part of each one's hash and its connections.
#[btf_map]
pub static PARTIES: Array<u64, { entries::PARTIES }, MMAP> = Array::new();

/// Seats of priority levels that linger after the end of a connection, by the levels' numbers.
#[btf_map]
pub static LINGERING: Array<Lingering, { entries::LEVELS }, MMAP> = Array::new();

/// The queues of priority levels, by the levels' numbers.
#[btf_map]
pub static LEVEL_QUEUES: Array<LevelQueues, { entries::LEVEL_QUEUES }, MMAP> = Array::new();

/// Queues: the seats that are charged to each, and how many wait in it.
#[btf_map]
pub static QUEUES: Array<Queue, { entries::QUEUES }, MMAP> = Array::new();

/// Connections that have begun to wait, for the agent.
#[btf_map]
pub static WAITERS: RingBuf<Waiter, { entries::WAITERS }> = RingBuf::new();

/// Room to work on the SYN of a connection that has its turn.
#[btf_map]
pub static TURN_WORK4: PerCpuArray<Work<Ip4>, 1> = PerCpuArray::new();
#[btf_map]
pub static TURN_WORK6: PerCpuArray<Work<Ip6>, 1> = PerCpuArray::new();

/// Class of a frontend → the flow schema that takes its connections.
#[btf_map]
pub static DESTINATION_CLASSES: Array<DestinationClass, { entries::DESTINATION_CLASSES }, MMAP> =
    Array::new();

/// Networks by which flow schemas tell sources apart, in sets → class of the source.
#[btf_map]
pub static SOURCE_CLASSES: LpmTrie<SourceRangeKey, u32, { entries::SOURCE_CLASSES }> =
    LpmTrie::new();

/// Classes of destinations for which the source matters: their decisions, by class of the source.
#[btf_map]
pub static DECISIONS: Array<Decision, { entries::DECISIONS }, MMAP> = Array::new();

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

/// What each translated socket holds of limits.
#[btf_map]
pub static SOCKET_SEATS: SkStorage<SocketSeats> = SkStorage::new();

/// The same again by socket cookie, for kernels in which nobody may list the map above.
#[btf_map]
pub static SEATED_SOCKETS: HashMap<u64, SocketSeats, 131_072, ON_DEMAND> = HashMap::new();

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

/// What is asked of programs that trace packets; others do not look there. (What they log is in
/// `AYA_LOGS`, a map of the crate aya-log-ebpf.)
#[btf_map]
pub static TRACE: Array<Trace, 1, MMAP> = Array::new();
