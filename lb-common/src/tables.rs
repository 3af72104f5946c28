//! What a packet may ask: the state that decisions depend on. The kernel answers from maps, tests
//! and `explain` from memory.

use core::ptr::NonNull;

use crate::{
    abi::{
        Affinity, AffinityKey, ClusterIp, Config, Decision, DestinationClass, Device, Endpoint,
        EndpointMemory, EndpointState, FragmentKey, Frontend, FrontendKey, Plan, ServiceFlows,
        ServiceRange, ServiceStats, Shortages, SocketAffinityKey, TunnelSource,
    },
    addr::{Address, Ip6},
    atomic,
    flow::{
        Hop,
        hop::Hops,
        seats::{Asked, Full},
        slots::Slots,
    },
    frame::Frame,
    parse::Tuple,
    select::{Policy, Range},
    verdict::Reason,
    work::Work,
};

/// State that the choice of an endpoint depends on.
pub trait Services<A: Address> {
    /// The node's settings.
    fn config(&self) -> &Config;
    /// The frontend with an address, port and protocol, if there is one.
    fn frontend(&self, key: &FrontendKey<A>) -> Option<Frontend>;
    /// A range of addresses that may be ClusterIPs, by its index.
    fn service_range(&self, index: u32) -> Option<&ServiceRange>;
    /// What is known of a ClusterIP; `None` if the address is none.
    fn cluster_ip(&self, address: Ip6) -> Option<ClusterIp>;
    /// [`unknown_index`](crate::service::unknown_index), which in the kernel is a function that the
    /// verifier looks at by itself, and only once.
    fn unknown_index(&self, tuple: &Tuple<A>) -> u64;
    /// The published plan of a service.
    fn plan(&self, service: u32) -> Option<&Plan>;
    /// The endpoint at an index.
    fn endpoint(&self, index: u32) -> Option<&Endpoint>;
    /// [`less_loaded`](crate::select::less_loaded), which in the kernel is a function that the
    /// verifier looks at by itself, and only once.
    fn less_loaded(&self, one: u32, other: u32, by_latency: bool) -> u32;
    /// [`balanced`](crate::select::balanced), likewise.
    fn balanced(&self, set: Range, index: u32, factor: u32) -> u32;
    /// [`with_room`](crate::pipeline::with_room), likewise.
    fn with_room(&self, set: Range, index: u32, most: u32) -> u32;
    /// [`sticky_index`](crate::select::sticky_index), likewise.
    fn sticky_index(&self, plan: &Plan, policy: Policy, tuple: &Tuple<A>) -> u64;
    /// Position of an endpoint in its service's range, at a row of a Maglev lookup table.
    fn maglev(&self, row: u32) -> Option<u16>;
    /// Whether a set of source ranges has the address.
    fn source_allowed(&self, set: u32, address: Ip6) -> bool;
    /// Whether the address is one of this node's.
    fn is_local(&self, address: Ip6) -> bool;
    /// What is special about a device; nothing about most.
    fn device(&self, ifindex: u32) -> Device;
    /// The endpoint that a client went to last, if it is remembered.
    fn affinity(&self, key: &AffinityKey) -> Option<Affinity>;
    /// Remembers the endpoint that a client goes to.
    fn remember_affinity(&self, key: &AffinityKey, value: &Affinity);
    /// The endpoint that an unconnected socket's datagrams went to last, if it is remembered.
    fn socket_affinity(&self, key: &SocketAffinityKey) -> Option<Affinity>;
    /// Remembers the endpoint that an unconnected socket's datagrams go to.
    fn remember_socket_affinity(&self, key: &SocketAffinityKey, value: &Affinity);
    /// Where an endpoint is, by its id, and its connections. The pointer stays valid until the
    /// program ends, and the numbers are only accessed atomically. The same holds for the counters
    /// of services.
    fn endpoint_state(&self, endpoint: u32) -> Option<NonNull<EndpointState>>;
    /// The counters of a service.
    fn service_stats(&self, service: u32) -> Option<NonNull<ServiceStats>>;
    /// The counters of a service's connections that found no room.
    fn shortages(&self, service: u32) -> Option<NonNull<Shortages>>;
    /// The flows of a service.
    fn service_flows(&self, service: u32) -> Option<NonNull<ServiceFlows>>;
    /// An unpredictable number.
    fn random(&self) -> u32;
    /// The kernel's clock, of which [`Config::hz`] are a second. Starts anew at its end.
    fn jiffies(&self) -> u32;

    /// Where an endpoint is now, by its id.
    #[inline(always)]
    fn indexes_of(&self, endpoint: u32) -> [u32; 2] {
        let state = self.endpoint_state(endpoint);
        // SAFETY: elements of maps stay; the agent stores each word as a whole.
        state.map_or([u32::MAX; 2], |state| unsafe {
            (&raw const (*state.as_ptr()).slots).read()
        })
    }

    /// Counts a connection to an endpoint.
    #[inline(always)]
    fn count_connection(&self, service: u32, endpoint: u32) {
        if let Some(stats) = self.service_stats(service) {
            // SAFETY: elements of maps stay; the word is a counter.
            unsafe { atomic::add(&raw mut (*stats.as_ptr()).connections, 1) };
        }
        if let Some(state) = self.endpoint_state(endpoint) {
            // SAFETY: elements of maps stay; the word is a counter.
            unsafe { atomic::add(&raw mut (*state.as_ptr()).connections, 1) };
        }
    }

    /// Counts a refused or dropped first packet.
    #[inline(always)]
    fn count_refusal(&self, service: u32, reason: Reason) {
        if let Some(stats) = self.service_stats(service) {
            let stats = stats.as_ptr();
            // SAFETY: elements of maps stay; the word is a counter.
            unsafe {
                match reason {
                    Reason::Parked => {}
                    _ if reason == Reason::NoEndpoints || reason.is_limit() => {
                        atomic::add(&raw mut (*stats).rejected, 1);
                    }
                    _ => atomic::add(&raw mut (*stats).dropped, 1),
                }
            }
        }
        if matches!(reason, Reason::FlowTableFull | Reason::SnatPortsExhausted)
            && let Some(shortages) = self.shortages(service)
        {
            let shortages = shortages.as_ptr();
            // SAFETY: elements of maps stay; the word is a counter.
            unsafe {
                atomic::add(
                    match reason {
                        Reason::FlowTableFull => &raw mut (*shortages).flow_table_full,
                        _ => &raw mut (*shortages).snat_ports_exhausted,
                    },
                    1,
                );
            }
        }
    }
}

/// State and services of the kernel that only packets need, sockets do not.
pub trait Tables<A: Address>: Services<A> + Slots<A> + Hops {
    /// Whether frames can be sent to any device and neighbours be resolved (TC), or only frames
    /// with a complete header to certain devices (XDP).
    const ANY_DEVICE: bool;
    /// Whether the pipeline notes what it decides in [`Work::trail`]. Nothing is compiled for it
    /// where it does not.
    const TRACES: bool = false;

    /// [`open_index`](crate::pipeline::open_index), which in the kernel is a function that the
    /// verifier looks at by itself, and only once.
    fn open_index(&self, work: &mut Work<A>, ifindex: u32) -> u64;
    /// [`finish_index`](crate::pipeline::finish_index), likewise.
    fn finish_index(&self, work: &mut Work<A>) -> u64;
    /// [`take_seats`](crate::pipeline::take_seats), likewise.
    fn take_seats(&self, asked: Asked, schema: u32) -> u32;
    /// [`in_the_way`](crate::pipeline::in_the_way), likewise.
    fn in_the_way(&self, asked: Asked) -> Option<Full>;
    /// [`collect`](crate::flow::linger::collect), likewise.
    fn collect(&self, level: u32) -> bool;
    /// [`elsewhere`](crate::pipeline::elsewhere), likewise.
    fn elsewhere(&self, set: Range, index: u32, left: u32) -> u32;
    /// [`is_avoided`](crate::pipeline::is_avoided), likewise.
    fn is_avoided(&self, endpoint: u32, limit: u32) -> bool;
    /// What is remembered of an endpoint, by its id; its numbers are only accessed atomically.
    fn endpoint_memory(&self, endpoint: u32) -> Option<NonNull<EndpointMemory>>;
    /// [`crate::abi::Limits::half_open_mask`].
    fn half_open_mask(&self) -> u32;
    /// [`crate::abi::Limits::share`] of the family.
    fn share(&self) -> u16;
    /// A place in the rings of half-open flows: index of the client's direction, and its tag in the
    /// upper half.
    fn half_open_place(&self, index: u32) -> Option<NonNull<u64>>;
    /// Places handed out in a ring so far.
    fn half_open_cursor(&self, ring: u32) -> Option<NonNull<u32>>;
    /// Looks up where a packet with these addresses leaves, into `hop`.
    fn next_hop(&self, protocol: u8, source: &A, destination: &A, hop: &mut Hop) -> NextHop;
    /// The device that the way back to a source must lead to, for packets that came by a device; 0
    /// means any.
    fn way_back(&self, ifindex: u32) -> u32;
    /// This node's addresses on the tunnel that a device is; `None` if it is none.
    fn tunnel_source(&self, ifindex: u32) -> Option<TunnelSource>;
    /// A class of frontends.
    fn destination_class(&self, index: u32) -> Option<&DestinationClass>;
    /// The class of a source: that of the longest network of a set which has the address.
    fn source_class(&self, set: u32, address: Ip6) -> u32;
    /// A decision of connection admission.
    fn decision(&self, index: u32) -> Option<Decision>;
    /// [`shortest`](crate::flow::queue::shortest) of a level, by its number.
    fn shortest_queue(&self, level: u32, party: u64) -> u32;
    /// Hands a SYN of this party to the agent, which keeps it until its connection has its turn. Returns
    /// whether there was room. `queue` is the index of the queue that counts the connection.
    fn park<F: Frame>(&self, frame: &F, work: &Work<A>, party: u64, queue: u32) -> bool;
    /// Index of the flow that a packet's first fragment was of.
    fn fragment(&self, key: &FragmentKey) -> Option<u32>;
    /// Remembers the flow of a packet's first fragment, by the flow's index.
    fn remember_fragment(&self, key: &FragmentKey, flow: u32);
    /// Whether one more ICMP answer may be sent.
    fn may_answer(&self) -> bool;

    /// Flows of a service that have not proved themselves.
    #[inline(always)]
    fn half_open(&self, service: u32) -> u32 {
        let stats = self.service_stats(service);
        // SAFETY: elements of maps stay; the word is a counter.
        let count = stats.map_or(0, |stats| unsafe {
            (&raw const (*stats.as_ptr()).half_open).read()
        });
        u32::try_from(count).unwrap_or(0)
    }

    /// Whether a service has as many flows as it may have, so that it cannot take the others' room
    /// by opening more. Half-open flows have their own budget, in which the oldest gives way, so a
    /// flood of them causes no refusals.
    #[inline(always)]
    fn is_at_share(&self, service: u32) -> bool {
        let share = u64::from(self.share());
        let Some(flows) = self.service_flows(service).filter(|_| share != 0) else {
            return false;
        };
        // SAFETY: elements of maps stay; the word is a counter.
        let flows = unsafe { (&raw const (*flows.as_ptr()).flows).read() };
        let proved = i64::from(flows) - i64::from(self.half_open(service));
        // Two records to a flow.
        let most = ((u64::from(self.mask()) + 1) * share) >> 17;
        proved >= most as i64
    }

    /// Counts one of them that gave way to a newer one.
    #[inline(always)]
    fn count_gave_way(&self, service: u32) {
        if let Some(stats) = self.service_stats(service) {
            // SAFETY: elements of maps stay; the word is a counter.
            unsafe { atomic::fetch_add(&raw mut (*stats.as_ptr()).gave_way, 1) };
        }
    }
}

/// How much is known of where a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Device, addresses and MTU.
    Known,
    /// The device; the neighbour's address is not known yet.
    Unresolved,
    /// There is no route.
    None,
}
