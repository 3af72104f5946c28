//! The tables of the packet pipeline in this process' memory. They lead to the same decisions as
//! the kernel's, without a kernel: `explain` asks them, and tests send packets through them.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    ptr::NonNull,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use ipnet::IpNet;
use lb_common::{
    abi::{
        self, Config, Endpoint, EndpointLatency, EndpointLoad, EndpointMemory, EndpointState,
        Latencies, ServiceFlows, ServiceStats, Shortages,
    },
    addr::{Address, Ip4, Ip6},
    flow::{
        self, Timeouts,
        queue::{LevelQueues, Queue, Waiter},
    },
    pipeline,
};

pub use self::{
    family::{Family, FamilyTables},
    flows::FlowTable,
    frame::MemoryFrame,
    hook::Hook,
    storage::Storage,
};
use crate::{bpf::MappedArray, maps::Maps};

mod family;
mod flows;
mod frame;
mod hook;
mod shared;
mod storage;

/// All tables of the pipeline, with the maps that plans are written to ([`MemoryTables::maps`]).
///
/// What the kernel would supply is replaced: time stands still until [`MemoryTables::set_seconds`],
/// random numbers follow from [`MemoryTables::seed`], routes are those of
/// [`MemoryTables::add_route`]. Packets of several threads may use the tables at once.
pub struct MemoryTables {
    /// The settings that the pipeline reads. Tests may change them; everything else has methods.
    pub config: Config,
    /// How long flows may be silent. At first no flow times out.
    pub timeouts: Timeouts,
    /// [`abi::Limits::shares`]. At first the number of flows is not limited.
    pub shares: [u16; 2],
    v4: FamilyTables<Ip4>,
    v6: FamilyTables<Ip6>,
    storage: Storage,
    local_addresses: HashSet<IpAddr>,
    /// By interface index minus one.
    devices: Vec<abi::Device>,
    ways_back: HashMap<u32, u32>,
    tunnel_sources: HashMap<u32, abi::TunnelSource>,
    routes: Vec<(IpNet, Route)>,
    seconds: AtomicU32,
    random: AtomicU64,
    answers_left: AtomicU32,
    learnt: Mutex<Learnt>,
    shared: shared::Shared,
}

/// How packets to a network leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    To(flow::Hop),
    /// By a device, to a neighbour with an address that is not known yet.
    Unresolved(u32),
    None,
}

/// What packets leave behind, without flows and counters.
#[derive(Default)]
struct Learnt {
    /// By service id, set and client.
    affinity: HashMap<(u32, u32, IpAddr), abi::Affinity>,
    socket_affinity: HashMap<abi::SocketAffinityKey, abi::Affinity>,
    /// By source, destination, identification and protocol.
    fragments: HashMap<(IpAddr, IpAddr, u32, u32), u32>,
    /// Connections that have begun to wait.
    waiters: Vec<Waiter>,
}

impl MemoryTables {
    /// Empty tables with these settings. Each family's flow table has `flow_records` records, two
    /// for each flow.
    pub fn new(config: Config, local_addresses: HashSet<IpAddr>, flow_records: u32) -> Self {
        let storage = Storage::default();
        Self {
            config,
            timeouts: Timeouts::default(),
            shares: [0; 2],
            v4: FamilyTables::new(storage.frontends4.clone(), flow_records),
            v6: FamilyTables::new(storage.frontends6.clone(), flow_records),
            storage,
            local_addresses,
            devices: Vec::new(),
            ways_back: HashMap::new(),
            tunnel_sources: HashMap::new(),
            routes: Vec::new(),
            seconds: AtomicU32::new(0),
            random: AtomicU64::new(0),
            answers_left: AtomicU32::new(u32::MAX),
            learnt: Mutex::new(Learnt::default()),
            shared: shared::Shared::new(),
        }
    }

    /// The maps that plans are written to, for a map writer.
    pub fn maps(&self) -> Maps {
        self.storage.maps()
    }

    /// The tables as TC programs see them: any device can be sent to.
    pub fn tc(&self) -> Hook<'_, true> {
        Hook::new(self)
    }

    /// The tables as XDP programs see them: frames can be sent to
    /// [`abi::device_flag::XDP_TARGET`] devices with known neighbours only.
    pub fn xdp(&self) -> Hook<'_, false> {
        Hook::new(self)
    }

    /// The queues of priority levels, by the levels' numbers.
    pub fn level_queues(&self) -> &MappedArray<LevelQueues> {
        &self.storage.level_queues
    }

    /// Seats of a priority level that linger, by the level's number.
    pub fn lingering(&self, level: u32) -> u32 {
        self.storage.lingering.read(level).number()
    }

    /// A queue of a priority level, by its index.
    pub fn queue(&self, index: u32) -> Queue {
        self.storage.queues.read(index)
    }

    /// The same as a pointer, which is valid as long as these tables.
    pub fn queue_pointer(&self, index: u32) -> Option<NonNull<Queue>> {
        self.storage.queues.pointer(index)
    }

    /// Takes the connections that have begun to wait for a seat, as the agent does.
    pub fn take_waiters(&self) -> Vec<Waiter> {
        std::mem::take(&mut self.learnt().waiters)
    }

    /// Adds a device with these [`abi::device_flag`]s; returns its interface index.
    pub fn add_device(&mut self, flags: u32) -> u32 {
        self.devices.push(abi::Device { flags, address: 0 });
        self.devices.len() as u32
    }

    /// Sets the Ethernet address of a device. Without one, all frames that arrive on it are for the
    /// node.
    pub fn set_ethernet_address(&mut self, ifindex: u32, address: [u8; 6]) {
        let index = (ifindex as usize).checked_sub(1);
        if let Some(device) = index.and_then(|index| self.devices.get_mut(index)) {
            device.address = abi::Device::address_of(address);
        }
    }

    /// Sets the device that the way back to a source must lead to, for packets that arrive on a
    /// device with [`abi::device_flag::WAY_BACK`]. Without one, any device will do.
    pub fn set_way_back(&mut self, ifindex: u32, device: u32) {
        self.ways_back.insert(ifindex, device);
    }

    /// Makes a device a tunnel on which the node has these addresses.
    pub fn set_tunnel_source(&mut self, ifindex: u32, source: abi::TunnelSource) {
        self.tunnel_sources.insert(ifindex, source);
        self.config.flags |= abi::config_flag::TUNNELS;
    }

    /// Adds a route for packets to a network. The longest prefix is used.
    pub fn add_route(&mut self, network: IpNet, route: Route) {
        self.routes.push((network, route));
        // Next hops that flows have kept are out of date now.
        self.config.hop_generation = self.config.hop_generation.wrapping_add(1);
    }

    /// Sets the time, in seconds since boot; a tick of the coarse clock is a second.
    pub fn set_seconds(&self, seconds: u32) {
        self.seconds.store(seconds, Relaxed);
    }

    /// Starts another sequence of random numbers.
    pub fn seed(&self, seed: u64) {
        self.random.store(seed, Relaxed);
    }

    /// Allows so many more ICMP answers.
    pub fn set_answers_left(&self, answers: u32) {
        self.answers_left.store(answers, Relaxed);
    }

    /// The programmed plan of a service.
    pub fn plan(&self, service: u32) -> Option<&abi::Plan> {
        let Storage {
            services, plans, ..
        } = &self.storage;
        let service = services.pointer(service)?;
        // SAFETY: only a map writer writes it, which has the tables to itself.
        match unsafe { service.as_ref() }.plan {
            0 => None,
            // SAFETY: only a map writer writes it, which has the tables to itself.
            plan => plans.pointer(plan).map(|plan| unsafe { plan.as_ref() }),
        }
    }

    /// The endpoint at an index.
    pub fn endpoint(&self, index: u32) -> Option<&Endpoint> {
        let endpoint = self.storage.endpoints.pointer(index)?;
        // SAFETY: only a map writer writes it, which has the tables to itself.
        Some(unsafe { endpoint.as_ref() })
    }

    /// The counts of a service's first packets.
    pub fn stats(&self, service: u32) -> ServiceStats {
        self.storage.service_stats.read(service)
    }

    /// The number of a service's flows, as packets have counted them.
    pub fn flow_count(&self, service: u32) -> i32 {
        self.storage.service_flows.read(service).flows
    }

    /// A limit of connections, by its index in `SEATS`.
    pub fn seats(&self, index: u32) -> flow::Seats {
        let (map, index) = self.limit(index);
        map.read(index)
    }

    /// The connections that an endpoint has open, where they are counted, by its id.
    pub fn open_at(&self, endpoint: u32) -> i32 {
        self.storage.endpoint_loads.read(endpoint).open
    }

    /// The weight of an endpoint, by its id; 0 if its Service has none.
    pub fn weight_of(&self, endpoint: u32) -> u32 {
        self.storage.endpoint_loads.read(endpoint).weight
    }

    /// How soon a service's endpoints have answered.
    pub fn latencies(&self, service: u32) -> Latencies {
        self.storage.service_latencies.read(service)
    }

    /// Sets a limit of connections, and what is counted of it.
    pub fn set_seats(&self, index: u32, seats: &flow::Seats) {
        let (map, index) = self.limit(index);
        map.write(index, seats);
    }

    /// The map that has a limit, and its index there.
    fn limit(&self, index: u32) -> (&MappedArray<flow::Seats>, u32) {
        match index.checked_sub(flow::limit::LEVELS) {
            None => (&self.storage.seats, index),
            Some(level) => (&self.storage.levels, level),
        }
    }

    /// A flow schema and what is counted of it, by its number.
    pub fn flow_schema(&self, number: u32) -> abi::FlowSchema {
        self.storage.flow_schemas.read(number)
    }

    /// The connections of each party that has some.
    pub fn parties(&self) -> Vec<u32> {
        let elements = self.storage.parties.iter(0..self.storage.parties.len());
        let counts =
            elements.map(|(index, element)| flow::party::Members::read(index, element).connections);
        counts.filter(|count| *count != 0).collect()
    }

    /// Marks all parties that have connections as pressed.
    pub fn press_parties(&self) {
        let parties = &self.storage.parties;
        for (index, element) in parties.iter(0..parties.len()) {
            let members = flow::party::Members::read(index, element);
            if members.connections != 0 {
                flow::party::press(|index| parties.pointer(index), members.party, true);
            }
        }
    }

    /// Counts of the service's connections that found no room.
    pub fn shortages(&self, service: u32) -> Shortages {
        self.storage.service_shortages.read(service)
    }

    /// Connections sent to an endpoint, by its id.
    pub fn connections(&self, endpoint: u32) -> u64 {
        self.storage.endpoint_states.read(endpoint).connections
    }

    /// The family's flows.
    pub fn flows<A: Family>(&self) -> &FlowTable<A> {
        &A::tables(self).flows
    }

    /// The family's flows in the old table, while the size changes.
    pub fn former_flows<A: Family>(&self) -> Option<&FlowTable<A>> {
        A::tables(self).former.as_ref()
    }

    /// Starts a change of the flow tables' size: [`Self::flows`] are new, empty tables from now on.
    pub fn begin_resize(&mut self, flow_records: u32) {
        self.v4.resize(flow_records);
        self.v6.resize(flow_records);
    }

    /// Copies all flows that have not been copied, as the agent does. Returns the result for each.
    pub fn copy_flows(&self) -> Vec<pipeline::Copied> {
        let hook = self.tc();
        let v4 = (0..self.v4.former_len()).map(|index| pipeline::copy_slot::<Ip4, _>(&hook, index));
        let v6 = (0..self.v6.former_len()).map(|index| pipeline::copy_slot::<Ip6, _>(&hook, index));
        v4.chain(v6)
            .filter(|copied| *copied != pipeline::Copied::Nothing)
            .collect()
    }

    /// Ends the change: there is only one table again.
    pub fn end_resize(&mut self) {
        self.v4.former = None;
        self.v6.former = None;
    }

    /// Frees the records of dead flows, as the agent does after a grace period. Nobody else can use
    /// them, because the tables are borrowed exclusively.
    pub fn bury_dead_flows(&mut self) {
        self.v4.flows.bury_dead();
        self.v6.flows.bury_dead();
    }

    /// Forgets everything that packets have left behind, such as flows, with the counters of these
    /// services. Restarts time and random numbers: as if only programming had ever happened.
    pub fn forget(&mut self, services: impl IntoIterator<Item = u32>) {
        self.v4.flows.clear();
        self.v6.flows.clear();
        self.v4.half_open.clear();
        self.v6.half_open.clear();
        self.shared.clear();
        for service in services {
            self.forget_counts(service);
        }
        self.forget_seats(flow::limit::NODE);
        for level in 0..self.storage.levels.len() {
            self.forget_seats(flow::limit::LEVELS + level);
        }
        *self
            .learnt
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner) = Learnt::default();
        *self.seconds.get_mut() = 0;
        *self.random.get_mut() = 0;
        *self.answers_left.get_mut() = u32::MAX;
    }

    /// Resets what is counted of a limit.
    fn forget_seats(&self, index: u32) {
        let flow::Seats {
            limit,
            owner,
            flags,
            ..
        } = self.seats(index);
        let unused = flow::Seats {
            limit,
            owner,
            flags,
            ..flow::Seats::default()
        };
        if self.seats(index) != unused {
            self.set_seats(index, &unused);
        }
    }

    /// Resets the counters of a service and of its endpoints.
    fn forget_counts(&self, service: u32) {
        let Storage {
            service_stats,
            service_shortages,
            service_flows,
            service_latencies,
            endpoint_latencies,
            endpoint_memory,
            endpoint_loads,
            endpoint_states,
            ..
        } = &self.storage;
        service_stats.write(service, &ServiceStats::default());
        service_shortages.write(service, &Shortages::default());
        service_flows.write(service, &ServiceFlows::default());
        service_latencies.write(service, &Latencies::default());
        if let Some(plan) = self.plan(service) {
            self.forget_seats(plan.seats);
        }
        for endpoint in self.plan(service).into_iter().flat_map(|p| self.range(p)) {
            endpoint_memory.write(endpoint.id, &EndpointMemory::default());
            endpoint_latencies.write(endpoint.id, &EndpointLatency::default());
            let load = EndpointLoad {
                open: 0,
                ..endpoint_loads.read(endpoint.id)
            };
            endpoint_loads.write(endpoint.id, &load);
            let state = EndpointState {
                connections: 0,
                ..endpoint_states.read(endpoint.id)
            };
            endpoint_states.write(endpoint.id, &state);
        }
    }

    /// All endpoints of a plan.
    fn range(&self, plan: &abi::Plan) -> impl Iterator<Item = &Endpoint> {
        let count: u32 = plan.counts.iter().sum();
        (plan.first..plan.first + count).filter_map(|index| self.endpoint(index))
    }

    fn route(&self, destination: IpAddr) -> Route {
        let matching = self
            .routes
            .iter()
            .filter(|(net, _)| net.contains(&destination));
        matching
            .max_by_key(|(net, _)| net.prefix_len())
            .map_or(Route::None, |(_, route)| *route)
    }

    /// SplitMix64 (Steele et al., OOPSLA 2014); its upper half is used.
    fn random(&self) -> u32 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.random.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 32) as u32
    }

    fn may_answer(&self) -> bool {
        let taken = self
            .answers_left
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        taken.is_ok()
    }

    /// The data is complete after each change, so it is valid even after a thread has panicked.
    fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts an address of the pipeline to the standard library's type.
fn ip<A: Address>(address: A) -> IpAddr {
    address.to_mapped().into()
}
