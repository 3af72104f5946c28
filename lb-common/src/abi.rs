//! The maps' keys and values: the interface between kernel and user space.
//!
//! Ports and numbers are in host order, addresses are octets in network order, IPv4 in maps shared
//! by both families in its IPv6-mapped form. Padding is explicit.
//!
//! Another version of node-lb, newer or older, adopts the maps as they are, so that connections
//! live on. So a layout grows by maps with new names, and by bits and padding that no version has
//! used before; [`crate::flow::flow_flag`] shows this for a flow's record. A change that is
//! impossible in this way raises [`VERSION`], and then connections do not live on.

use core::cmp::Ordering;

use crate::{
    addr::{Address, Family, Ip4, Ip6},
    flow::{
        Timeouts,
        deadline::DEADLINES,
        latency::BUCKETS,
        party::PartyRule,
        place::{LevelSeats, Place},
    },
    verdict::Reason,
};

/// Version of the layouts in this file; part of the path that maps are pinned under.
pub const VERSION: u32 = 2;

/// `SO_PRIORITY` of sockets that the programs leave alone: those by which the agent reaches the API
/// server. A mark would serve as well, but other people's routing rules and firewalls know marks.
/// Its low bits are zero, as in the default, for queueing disciplines that choose by them; more
/// than 6 needs `CAP_NET_ADMIN`.
pub const OWN_SOCKET_PRIORITY: u32 = 0x6e6c_0000;

/// Declares a map type: `repr(C)`, plain, of a size that must not change unnoticed.
macro_rules! layout {
    ($($ty:ty = $size:literal),* $(,)?) => {
        $(
            const _: () = assert!(size_of::<$ty>() == $size);
            // SAFETY: `repr(C)` without implicit padding (the sizes above are the sums of the
            // fields), every field plain.
            #[cfg(feature = "user")]
            unsafe impl aya::Pod for $ty {}
        )*
    };
}

layout! {
    Ip6 = 16,
    FrontendKey<Ip4> = 8,
    FrontendKey<Ip6> = 20,
    Frontend = 8,
    Service = 8,
    Plan = 64,
    Endpoint = 24,
    EndpointState = 16,
    EndpointMemory = 16,
    EndpointLoad = 8,
    EndpointLatency = 16,
    Latencies = 128,
    ServiceStats = 32,
    Shortages = 16,
    ServiceFlows = 8,
    MaglevRows = 8,
    SourceRangeKey = 20,
    AffinityKey = 24,
    SocketAffinityKey = 16,
    Affinity = 8,
    FragmentKey = 40,
    LocalAddress = 4,
    ClusterIp = 4,
    ServiceRange = 24,
    Device = 8,
    TunnelSource = 20,
    Config = 128,
    Limits = 56,
    DestinationClass = 24,
    Decision = 8,
    FlowSchema = 128,
    SocketKey = 32,
    Socket = 24,
    SocketSeats = 24,
    RejectBudget = 8,
    crate::flow::Hop = 32,
    crate::flow::Seats = 64,
    crate::flow::queue::LevelQueues = 40,
    crate::flow::linger::Lingering = 4112,
    crate::flow::queue::Queue = 16,
    crate::flow::queue::Waiter = 296,
    crate::flow::Flow<Ip4> = 64,
    crate::flow::Flow<Ip6> = 128,
    crate::trace::Trace = 152,
}

/// Key of `FRONTENDS4` and `FRONTENDS6`: an address, port and protocol a Service is reached at.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FrontendKey<A> {
    pub address: A,
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// 1 if only the node's own sockets reach it: a node port at a loopback address. Packets to such
    /// an address come from a neighbour who must not reach what listens there (CVE-2020-8558), so
    /// for packets it is always 0.
    pub sockets: u8,
}

/// Value of `FRONTENDS4` and `FRONTENDS6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Index into `SERVICES`.
    pub service: u32,
    /// A [`FrontendKind`].
    pub kind: u8,
    pub pad: u8,
    /// What connection admission makes of it: index into `DESTINATION_CLASSES`. Other versions have
    /// 0 there.
    pub class: u16,
}

/// The kind of a Service's address that a frontend is. If two kinds share one address and port, the
/// lesser one has it, whatever their numbers: a load balancer IP keeps its source ranges, and an
/// external IP or load balancer IP that equals a node address takes precedence over a node port.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrontendKind {
    ClusterIp = 0,
    NodePort = 1,
    LoadBalancerIp = 2,
    ExternalIp = 3,
}

impl FrontendKind {
    /// The kind with this number; unknown numbers count as ClusterIP.
    #[inline(always)]
    pub fn from_u8(kind: u8) -> Self {
        match kind {
            1 => Self::NodePort,
            2 => Self::LoadBalancerIp,
            3 => Self::ExternalIp,
            _ => Self::ClusterIp,
        }
    }

    /// External frontends follow externalTrafficPolicy, the cluster IP internalTrafficPolicy.
    pub fn is_external(self) -> bool {
        self != Self::ClusterIp
    }

    /// As in the API's field names: `ClusterIP`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancerIp => "LoadBalancerIP",
            Self::ExternalIp => "ExternalIP",
        }
    }

    fn rank(self) -> u8 {
        match self {
            Self::ClusterIp => 0,
            Self::LoadBalancerIp => 1,
            Self::ExternalIp => 2,
            Self::NodePort => 3,
        }
    }
}

impl Ord for FrontendKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for FrontendKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Element of `SERVICES`, indexed by service id: a service port on this node.
///
/// Writing `plan` (four aligned bytes, one store) publishes a new state: a packet sees the plan
/// before or the plan after, never a mix.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Index into `PLANS`; 0 means that the service is not programmed.
    pub plan: u32,
    /// Hash of the service port's name, by which a later agent recognises it.
    pub name_hash: u32,
}

/// Number of endpoint classes in a [`Plan`].
pub const CLASSES: usize = 6;

/// Element of `PLANS`: one published state of a service port. Never changed while published, reused
/// only when no CPU can still be reading it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Service id.
    pub service: u32,
    /// Index in `ENDPOINTS` of the first endpoint.
    pub first: u32,
    /// Number of endpoints per class: local ready; local ready, hinted; remote ready, hinted;
    /// remote ready; local terminating; remote terminating.
    pub counts: [u32; CLASSES],
    /// [`plan_flag`]s.
    pub flags: u32,
    /// Session affinity timeout in seconds; 0 means no affinity.
    pub affinity_seconds: u32,
    /// Set of source ranges in `SOURCE_RANGES` that LoadBalancer addresses are open to; 0 means
    /// all.
    pub source_set: u32,
    /// First row of the Cluster set's lookup table in `MAGLEV`.
    pub maglev_cluster: u32,
    /// First row of the Local set's lookup table in `MAGLEV`.
    pub maglev_local: u32,
    /// Length of either lookup table in rows, a prime; 0 means that endpoints are picked at random.
    pub maglev_rows: u32,
    /// Index in `SEATS` of its Service's limit; 0 means none.
    pub seats: u32,
    /// The most connections that each endpoint may have; 0 means no limit.
    pub most: u32,
}

/// Bits of [`Plan::flags`].
pub mod plan_flag {
    /// Topology hints are in force: the Cluster set is the two hinted classes.
    pub const HINTED: u32 = 1 << 0;
    /// internalTrafficPolicy is Local.
    pub const INTERNAL_LOCAL: u32 = 1 << 1;
    /// externalTrafficPolicy is Local.
    pub const EXTERNAL_LOCAL: u32 = 1 << 2;
    /// Its connections do not count against the node's limit.
    pub const LONG_RUNNING: u32 = 1 << 3;
    /// Its connections are let in when limits are reached: the cluster depends on them.
    pub const EXEMPT: u32 = 1 << 4;
    /// Of two endpoints drawn at random, the one with fewer connections open is picked.
    pub const LEAST_CONNECTIONS: u32 = 1 << 5;
    /// Rows of the lookup tables are drawn at random, whoever the client is: the tables are there only
    /// because endpoints have different weights.
    pub const DRAWN: u32 = 1 << 6;
    /// With [`LEAST_CONNECTIONS`]: the one that answers sooner is picked, by
    /// [`crate::flow::latency::is_quicker`]. Versions that do not know it go by connections.
    pub const LEAST_LATENCY: u32 = 1 << 7;
    /// From this bit on: how many connections an endpoint that lookup tables pick may have open, in
    /// percent of the mean; 0 means any number. Versions that do not know it set no bound.
    pub const BALANCE_SHIFT: u32 = 16;
}

/// Element of `ENDPOINTS`: one endpoint slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    pub address: Ip6,
    pub port: u16,
    /// [`endpoint_flag`]s.
    pub flags: u16,
    /// Endpoint id: index into `ENDPOINT_STATES`, stable while the endpoint exists.
    pub id: u32,
}

/// Bits of [`Endpoint::flags`].
pub mod endpoint_flag {
    /// The endpoint runs on this node.
    pub const LOCAL: u16 = 1 << 0;
    /// The endpoint's address is one of the node's own (a host-network pod).
    pub const HOST: u16 = 1 << 1;
    /// The address lies in the cluster's pod network, where no other rule has to rewrite it.
    pub const IN_CLUSTER: u16 = 1 << 2;
}

/// Element of `ENDPOINT_STATES`, indexed by endpoint id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointState {
    /// Its positions in `ENDPOINTS`: in the published plan, and in the plan before or after it.
    pub slots: [u32; 2],
    /// Connections sent to it so far.
    pub connections: u64,
}

/// Element of `ENDPOINT_MEMORY`, indexed by endpoint id: what programs remember about an endpoint
/// for new flows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointMemory {
    /// Ports for source NAT handed out so far. The next one is always the one that has been free
    /// for longest.
    pub ports: u32,
    /// [`crate::flow::Flow::hop`] of the latest flow with source NAT.
    pub hop: u32,
    /// SYNs in a row that it has refused or not answered. Refused ones count several times.
    pub failures: u32,
    /// Tick of the latest of them, or of the latest connection that was sent to try it.
    pub failed_at: u32,
}

/// Element of `ENDPOINT_LOADS`, indexed by endpoint id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointLoad {
    /// Connections that are open, where they are counted: see [`crate::flow::load`]. CPUs add and
    /// subtract out of order, so it may be below zero for a moment.
    pub open: i32,
    /// How many of them count as one, beside the other endpoints of the Service; 0 counts as 1.
    pub weight: u32,
}

/// Element of `ENDPOINT_LATENCIES`, indexed by endpoint id: how soon it answers new flows; see
/// [`crate::flow::latency`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointLatency {
    /// Smoothed, in [units of latency](crate::flow::latency::UNIT); 0 if it has never answered.
    pub smoothed: u32,
    /// Tick of its latest answer.
    pub measured_at: u32,
    /// Tick of the latest connection that was sent to find out whether its latency is another by now.
    pub tried_at: u32,
    pub pad: u32,
}

/// Element of `SERVICE_LATENCIES`, indexed by service id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// How many flows were answered within each [bucket](crate::flow::latency::bucket), modulo 2^32.
    pub buckets: [u32; BUCKETS],
}

/// Element of `SERVICE_STATS`, indexed by service id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Connections forwarded.
    pub connections: u64,
    /// First packets answered with an ICMP unreachable or a refused `connect`.
    pub rejected: u64,
    /// First packets dropped.
    pub dropped: u64,
    /// Flows that have not proved themselves; see [`crate::flow::Stage::Handshake`]. CPUs add and
    /// subtract out of order, so it may be below zero for a moment.
    pub half_open: i32,
    /// Flows among them that gave way to a newer one, modulo 2^32.
    pub gave_way: u32,
}

/// Element of `SERVICE_SHORTAGES`, indexed by service id: first packets dropped because there was
/// no room for their connections. [`ServiceStats::dropped`] has them too.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortages {
    /// Because no record was free: [`FlowTableFull`](crate::verdict::Reason::FlowTableFull).
    pub flow_table_full: u64,
    /// Because no port towards the endpoint was free:
    /// [`SnatPortsExhausted`](crate::verdict::Reason::SnatPortsExhausted).
    pub snat_ports_exhausted: u64,
}

/// Element of `SERVICE_FLOWS`, indexed by service id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceFlows {
    /// Flows in any stage. CPUs add and subtract out of order, so it may be below zero for a
    /// moment.
    pub flows: i32,
    pub pad: u32,
}

/// Rows in one element of `MAGLEV`.
pub const MAGLEV_ROWS: u32 = 4;

/// Element of `MAGLEV`: four rows, each the position of an endpoint in its service's range.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaglevRows {
    pub positions: [u16; MAGLEV_ROWS as usize],
}

/// Key data of `SOURCE_RANGES`, behind the prefix length (32 bits of set, then the address).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRangeKey {
    /// Number of the set, in network order, since the trie compares bit by bit.
    pub set: u32,
    pub address: Ip6,
}

/// Key of `AFFINITY`: a client of a service port.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AffinityKey {
    pub service: u32,
    /// Which set the endpoint was picked from: 0 Cluster, 1 Local.
    pub set: u32,
    pub client: Ip6,
}

/// Key of `SOCKET_AFFINITY`: an unconnected socket of the node's own, and a service port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketAffinityKey {
    /// Socket cookie.
    pub cookie: u64,
    pub service: u32,
    /// As in [`AffinityKey`].
    pub set: u32,
}

/// Value of `AFFINITY` and `SOCKET_AFFINITY`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Affinity {
    /// Endpoint id.
    pub endpoint: u32,
    /// Time of the client's last new connection, or of the socket's last datagram but for a second, in
    /// jiffies.
    pub jiffies: u32,
}

/// Key of `FRAGMENTS`: what the fragments of one IP packet have in common; or, with a token as the id
/// and zeros, a packet that crosses the stack half translated.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FragmentKey {
    pub source: Ip6,
    pub destination: Ip6,
    pub id: u32,
    /// IP protocol number.
    pub protocol: u32,
}

/// Value of `LOCAL_ADDRESSES`: every address with an entry is one of this node's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalAddress {
    pub pad: u32,
}

/// Value of `CLUSTER_IPS`: every address with an entry is a ClusterIP of a Service.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterIp {
    /// [`cluster_ip_flag`]s.
    pub flags: u32,
}

/// Bits of [`ClusterIp::flags`].
pub mod cluster_ip_flag {
    /// It has ports of SCTP, which passes untouched.
    pub const SCTP: u32 = 1 << 0;
}

/// Ranges of addresses in `SERVICE_RANGES` per family, IPv4's first.
pub const SERVICE_RANGES: u32 = 8;

/// Element of `SERVICE_RANGES`: addresses that may be ClusterIPs. Those that are used come first;
/// no ClusterIP is outside.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceRange {
    pub network: Ip6,
    /// Prefix length in the family, so at most 32 for IPv4.
    pub prefix: u32,
    /// [`service_range_flag`]s; 0 means that neither this one nor those after it are used.
    pub flags: u32,
}

/// Bits of [`ServiceRange::flags`].
pub mod service_range_flag {
    pub const USED: u32 = 1 << 0;
    /// It is a ServiceCIDR: all of its addresses are for Services.
    pub const SERVICE_CIDR: u32 = 1 << 1;
}

/// Value of `DEVICES`, keyed by interface index.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// [`device_flag`]s.
    pub flags: u32,
    /// The last four octets of its Ethernet address, as they lie in a frame; 0 means that any frame
    /// is for this host.
    pub address: u32,
}

impl Device {
    /// The value of [`Self::address`] for a device with this Ethernet address.
    pub fn address_of([_, _, end @ ..]: [u8; 6]) -> u32 {
        u32::from_ne_bytes(end)
    }
}

/// Bits of [`Device::flags`].
pub mod device_flag {
    /// Frames may be redirected to the device from XDP.
    pub const XDP_TARGET: u32 = 1 << 0;
    /// Local pods are behind the device (detect-local-mode by interface).
    pub const PODS: u32 = 1 << 1;
    /// It is a port of another device, as of a bridge, or below one with an Ethernet address of its
    /// own (macvlan): frames for these come by it.
    pub const PORT: u32 = 1 << 2;
    /// The kernel accepts no IPv4 packets from it that have one of the node's own addresses as
    /// source (`accept_local`).
    pub const NO_OWN_SOURCES: u32 = 1 << 3;
    /// It also accepts none to whose source no way back leads, or another one than `WAYS_BACK` says
    /// (`rp_filter`).
    pub const WAY_BACK: u32 = 1 << 4;
}

/// Value of `TUNNEL_SOURCES`: the node's own addresses on a tunnel, for source NAT towards
/// endpoints that it leads to. Unspecified where it has none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelSource {
    pub v4: Ip4,
    pub v6: Ip6,
}

impl TunnelSource {
    /// The address of a family.
    #[inline(always)]
    pub fn address<A: Address>(&self) -> A {
        of_family(self.v4, self.v6)
    }
}

/// The one of two addresses that is of a family.
#[inline(always)]
fn of_family<A: Address>(v4: Ip4, v6: Ip6) -> A {
    match A::FAMILY {
        Family::V4 => A::from_mapped(v4.to_mapped()),
        Family::V6 => A::from_mapped(v6),
    }
}

/// The only element of `CONFIG`: the node's settings.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Secret of the flow tables' hash.
    pub secret: [u64; 2],
    /// The node's network namespace, as `bpf_get_netns_cookie` names it.
    pub netns_cookie: u64,
    /// [`config_flag`]s.
    pub flags: u32,
    /// Raised whenever a route or neighbour changed: next hops that were kept are looked up again.
    pub hop_generation: u32,
    /// Source addresses for source NAT.
    pub node4: Ip4,
    pub node6: Ip6,
    /// Sources that are local pods (detect-local-mode by CIDR).
    pub pods4: Ip4,
    pub pods6: Ip6,
    /// Prefix lengths of the above; larger than 128 means none.
    pub pods4_prefix: u32,
    pub pods6_prefix: u32,
    /// First port and number of ports for source NAT.
    pub snat_first: u32,
    pub snat_count: u32,
    /// Length of one tick of the kernel's coarse clock, as a number of bits to shift jiffies by.
    pub tick_shift: u32,
    /// Jiffies per second.
    pub hz: u32,
    /// ICMP answers per second and CPU.
    pub reject_rate: u32,
    /// Slots in each flow table less one.
    pub flow_mask4: u32,
    pub flow_mask6: u32,
    /// A [`resize_stage`], in the settings of programs that have the flow tables of the next size.
    pub resize: u32,
    /// In these settings, [`Self::hop_generation`] of the settings in force when the change began.
    /// Every agent raises it when it starts, so an older version that has run since then is
    /// noticed.
    pub resize_since: u32,
    pub pad: [u32; 3],
}

/// How far a change of the flow tables' size has come: [`Config::resize`].
pub mod resize_stage {
    /// Not begun, or some programs do not know of the next tables yet: it can be taken back.
    pub const PREPARED: u32 = 0;
    /// All programs know both tables, and some may open flows in the next ones.
    pub const BOTH: u32 = 1;
    /// All flows are in the next tables.
    pub const COPIED: u32 = 2;
}

/// Records that one run of the program `copy_flows` looks at.
pub const COPY_BATCH: u32 = 256;

/// Words of the context (`cb`) by which the agent and `copy_flows` communicate.
pub mod copy_word {
    /// In: index of the first record.
    pub const FIRST: usize = 0;
    /// In: the address family.
    pub const FAMILY: usize = 1;
    /// Out: flows that are copied now, and were not before.
    pub const COPIED: usize = 2;
    /// Out: flows that could not be copied.
    pub const LEFT: usize = 3;
}

/// Words of the context (`cb`) by which the agent and `end_wait` communicate.
pub mod turn_word {
    /// In: [`LET_IN`], [`ASK_AGAIN`], or the [`Reason`](crate::verdict::Reason) to turn the connection away.
    pub const COMMAND: usize = 0;
    /// In: to turn it away, the number of its flow schema; to let it in, the
    /// [card](crate::flow::party::Taker::card) of the queue in which it waited.
    pub const DETAIL: usize = 1;
    /// In: the device by which the SYN came and comes in again once the connection has a flow; 0 if
    /// it does not.
    pub const IFINDEX: usize = 2;
    /// Out: the [`Reason`](crate::verdict::Reason) with which that ended.
    pub const REASON: usize = 3;

    /// The connection has its turn.
    pub const LET_IN: u32 = u32::MAX;
    /// Its SYN comes in as if it had not waited.
    pub const ASK_AGAIN: u32 = u32::MAX - 1;
}

/// The element of `LIMITS`: what flows may use, and for how long.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How long they may stay silent.
    pub timeouts: Timeouts,
    /// Half-open flows that a service may have under pressure, minus one.
    pub half_open_mask: u32,
    /// How many flows that have proved themselves one service may have, for IPv4 and IPv6: in
    /// 65,536ths of what the flow table can hold. The agent sets it to what is free. 0 means no
    /// limit.
    pub shares: [u16; 2],
}

impl Limits {
    /// [`Self::shares`] of the family.
    #[inline(always)]
    pub fn share<A: Address>(&self) -> u16 {
        self.shares[A::FAMILY as usize]
    }
}

/// Bits of [`Config::flags`].
pub mod config_flag {
    /// Local pods are recognised by their source address.
    pub const DETECT_BY_CIDR: u32 = 1 << 0;
    /// Local pods are recognised by the device on which they arrive.
    pub const DETECT_BY_DEVICE: u32 = 1 << 1;
    /// All traffic to ClusterIPs gets source NAT.
    pub const MASQUERADE_ALL: u32 = 1 << 2;
    /// Service traffic bypasses the host's netfilter where both directions can.
    pub const BYPASS: u32 = 1 << 3;
    /// Sockets in any network namespace are translated, not only the node's own.
    pub const SOCKETS_OF_PODS: u32 = 1 << 4;
    /// TCP connections begin only with a SYN: later segments without a flow belong to another
    /// service proxy.
    pub const HANDOVER_IN: u32 = 1 << 5;
    /// New connections belong to another service proxy.
    pub const HANDOVER_OUT: u32 = 1 << 6;
    /// New connections avoid endpoints that have just failed.
    pub const AVOID_FAILING: u32 = 1 << 7;
    /// Connections count against the node's limit.
    pub const CONNECTION_LIMIT: u32 = 1 << 8;
    /// `TUNNEL_SOURCES` has entries.
    pub const TUNNELS: u32 = 1 << 9;
    /// Flow schemas take connections, which count against their levels' limits instead of the node's.
    pub const ADMISSION: u32 = 1 << 10;
    /// ClusterIPs refuse what is to none of their ports, and what is to an address in a ServiceCIDR
    /// without a Service is dropped.
    pub const REFUSE_UNKNOWN: u32 = 1 << 11;
    /// SCTP is translated; otherwise it passes untouched.
    pub const SCTP: u32 = 1 << 12;
}

/// Element of `DESTINATION_CLASSES`: frontends that all flow schemas treat alike, and which schema
/// takes their connections. Never changed while a frontend refers to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DestinationClass {
    /// Where the source's address does not matter.
    pub decision: Decision,
    /// Set of networks in `SOURCE_CLASSES` by which sources are told apart; 0 means that they are
    /// not.
    pub set: u32,
    /// Index in `DECISIONS` of the decision for source class 0, and how many there are.
    pub first: u32,
    pub count: u32,
    pub pad: u32,
}

/// Element of `DECISIONS`: the flow schema that takes a connection, by its number, for each
/// [`Origin`](crate::service::Origin): 16 bits each, from the lowest on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decision {
    pub schemas: u64,
}

impl Decision {
    /// Bits for one origin.
    const BITS: u32 = 16;
    const ONE: u64 = (1 << Self::BITS) - 1;

    /// These schemas, in the order of the origins' numbers.
    pub fn new(schemas: [u16; 3]) -> Self {
        let [a, b, c] = schemas.map(u64::from);
        Self {
            schemas: a | b << Self::BITS | c << (2 * Self::BITS),
        }
    }

    /// The schema of every origin, if it is the same for all of them.
    #[inline(always)]
    pub fn of_all(self) -> Option<u32> {
        let one = self.schemas & Self::ONE;
        let all = one | one << Self::BITS | one << (2 * Self::BITS);
        (self.schemas == all).then_some(one as u32)
    }

    /// The schema of connections from an origin, by its number.
    #[inline(always)]
    pub fn of(self, origin: u32) -> u32 {
        (self.schemas >> ((origin & 3) * Self::BITS) & Self::ONE) as u32
    }
}

/// Element of `FLOW_SCHEMAS`. Number 0 is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSchema {
    /// What each of its connections takes: seats of its priority level, an index into `LEVELS`.
    pub seats: LevelSeats,
    /// What a client is told whose connection finds no seat: a [`RejectAnswer`] of eight bits for
    /// each of the reasons that [`RejectAnswer::of`] names.
    pub answers: u32,
    /// Connections that were let in.
    pub admitted: u64,
    /// Those of them that were let in above the limit, because it is only audited.
    pub over: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Hash of its name, by which a later agent recognises it; 0 means that it is nobody's.
    pub owner: u64,
    /// What tells its parties apart, and how many connections each may have.
    pub rule: PartyRule,
    /// Connections that were refused because their party had as many as it may have.
    pub refused_parties: u64,
    /// Connections that were let in and not counted in their party, because there was no room for it.
    pub uncounted: u64,
    /// When its connections have run into each [`Deadline`](crate::flow::Deadline), in ticks of the
    /// coarse clock; 0 means never.
    pub deadlines: [u32; DEADLINES],
    /// 1 if those who run into one are only counted.
    pub is_audited: u32,
    /// Connections that have run into each.
    pub expired: [u64; DEADLINES],
}

/// How a client is told that its connection is refused.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectAnswer {
    /// TCP reset; for UDP ICMP port unreachable.
    Reset = 0,
    /// ICMP "administratively prohibited"; for UDP port unreachable.
    Icmp = 1,
    /// Not at all.
    Drop = 2,
}

impl RejectAnswer {
    /// What [`FlowSchema::answers`] say for a reason: bits 0-7 are for [`Reason::ConcurrencyLimit`] and
    /// [`Reason::FlowLimit`], 8-15 for [`Reason::QueueFull`], and 16-23 for [`Reason::TimeOut`].
    #[inline(always)]
    pub fn of(answers: u32, reason: Reason) -> Self {
        Self::from_u32(match reason {
            Reason::QueueFull => answers >> 8 & 0xff,
            Reason::TimeOut => answers >> 16 & 0xff,
            _ => answers & 0xff,
        })
    }

    /// [`FlowSchema::answers`]: what is told where all seats are taken, where the queue is full, and
    /// after a wait in vain.
    pub fn join(full: Self, queue_full: Self, time_out: Self) -> u32 {
        full as u32 | (queue_full as u32) << 8 | (time_out as u32) << 16
    }

    /// The answer with this number; unknown numbers count as a reset.
    #[inline(always)]
    pub fn from_u32(answer: u32) -> Self {
        match answer {
            1 => Self::Icmp,
            2 => Self::Drop,
            _ => Self::Reset,
        }
    }
}

/// Key of `SOCKETS`: a socket and the endpoint it was sent to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SocketKey {
    /// Socket cookie.
    pub cookie: u64,
    pub address: Ip6,
    pub port: u16,
    pub protocol: u16,
    pub pad: u32,
}

/// Value of `SOCKETS`: the frontend that the socket believes to talk to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Socket {
    pub address: Ip6,
    pub port: u16,
    pub pad: u16,
    /// Service id.
    pub service: u32,
}

/// Value of `SOCKET_SEATS`, which is the socket's own: what a socket holds that was translated. All zero
/// before it is translated to a Service whose connections are counted. `SEATED_SOCKETS` has those that are not, by
/// the socket's cookie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketSeats {
    /// The [party](crate::flow::party) in which it is counted; 0 means none.
    pub party: u64,
    /// Bits 0-22: number of the [`Place`] whose seats it holds; 0 means none. Above: how long they
    /// [linger](crate::flow::linger) after its end, in two moments each.
    pub seats: u32,
    /// Id of the endpoint that it was translated to; 0 means none.
    pub endpoint: u32,
    /// Service id.
    pub service: u32,
    /// A number of the socket's, by which its party's [queue](crate::flow::queue::charged) is drawn.
    pub ports: u32,
}

impl SocketSeats {
    const LINGER: u32 = 23;
    const LONGEST: u32 = u32::MAX >> Self::LINGER;

    /// [`Self::seats`] of a socket with the seats of a place, which linger for so many moments.
    #[inline(always)]
    pub fn holding(place: Place, linger: u32) -> u32 {
        place.number() | linger.div_ceil(2).min(Self::LONGEST) << Self::LINGER
    }

    /// The place whose seats it holds.
    #[inline(always)]
    pub fn place(&self) -> Place {
        Place::from_u32(self.seats)
    }

    /// For how many moments they linger after its end.
    #[inline(always)]
    pub fn linger(&self) -> u32 {
        2 * (self.seats >> Self::LINGER)
    }
}

/// The only element, per CPU, of `REJECT_BUDGET`: a token bucket for ICMP answers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RejectBudget {
    /// Second of the last answer, since boot.
    pub second: u32,
    /// Answers left in that second.
    pub left: u32,
}

impl Config {
    /// Whether there is a detector of local pods at all.
    #[inline(always)]
    pub fn has_detector<A: Address>(&self) -> bool {
        self.flags & config_flag::DETECT_BY_DEVICE != 0
            || self.flags & config_flag::DETECT_BY_CIDR != 0 && self.pods::<A>().1 <= 128
    }

    /// Network and prefix length of local pods.
    #[inline(always)]
    pub fn pods<A: Address>(&self) -> (A, u32) {
        let prefix = match A::FAMILY {
            Family::V4 => self.pods4_prefix,
            Family::V6 => self.pods6_prefix,
        };
        (of_family(self.pods4, self.pods6), prefix)
    }

    /// This node's address for source NAT.
    #[inline(always)]
    pub fn node<A: Address>(&self) -> A {
        of_family(self.node4, self.node6)
    }

    /// Slots in the family's flow table less one.
    #[inline(always)]
    pub fn flow_mask<A: Address>(&self) -> u32 {
        match A::FAMILY {
            Family::V4 => self.flow_mask4,
            Family::V6 => self.flow_mask6,
        }
    }
}
