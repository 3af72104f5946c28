//! Maps in memory that check, after every single write, what a program would find in them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem::offset_of,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard},
};

use lb_common::{
    abi::{
        ClusterIp, Decision, DestinationClass, Endpoint, EndpointLatency, EndpointLoad,
        EndpointMemory, EndpointState, FlowSchema, Frontend, FrontendKey, Latencies, MaglevRows,
        Plan, SERVICE_RANGES, Service, ServiceFlows, ServiceRange, ServiceStats, Shortages,
    },
    addr::{Ip4, Ip6},
    flow::{
        Seats,
        deadline::DEADLINES,
        place::LevelSeats,
        queue::{LevelQueues, Queue},
    },
};
use lb_datapath::maps::{Elements, Entries, Incomplete, Lookup, Maps, SourceKey, WriteError};

use crate::map_writer::{frontends::Address, tables::NO_TABLE};

/// Capacities of the maps.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub frontends: usize,
    pub services: usize,
    pub plans: usize,
    pub endpoints: usize,
    pub endpoint_states: usize,
    pub maglev: usize,
    pub source_ranges: usize,
    /// Of destinations, of sources, and decisions.
    pub classes: usize,
}

/// More than any test needs.
pub const ROOMY: Sizes = Sizes {
    frontends: 1000,
    services: 200,
    plans: 400,
    endpoints: 2000,
    endpoint_states: 1000,
    maglev: 1000,
    source_ranges: 1000,
    classes: 100,
};

/// What a program finds at an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub kind: u8,
    /// `None` if the service is not programmed.
    pub plan: Option<PlanView>,
}

/// The meaning of a plan, whatever its numbers are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanView {
    pub counts: [u32; 6],
    pub flags: u32,
    pub affinity_seconds: u32,
    pub endpoints: Vec<(SocketAddr, u16)>,
    pub source_ranges: BTreeSet<(u32, [u8; 16])>,
    /// The tables of the Cluster set and of the Local set.
    pub tables: Option<[Vec<SocketAddr>; 2]>,
}

/// Set, prefix length, address.
type Network = (u32, u32, [u8; 16]);

/// An element of an array, or a set of source ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Element {
    Service(u32),
    Plan(u32),
    Slot(u32),
    Rows(u32),
    Set(u32),
    Class(u32),
    Decision(u32),
    /// Networks of `SOURCE_CLASSES`.
    Networks(u32),
}

pub struct State {
    pub sizes: Sizes,
    pub frontends: BTreeMap<Address, Frontend>,
    pub cluster_ips: BTreeMap<IpAddr, ClusterIp>,
    pub service_ranges: Vec<ServiceRange>,
    pub services: Vec<Service>,
    pub plans: Vec<Plan>,
    pub endpoints: Vec<Endpoint>,
    pub endpoint_states: Vec<EndpointState>,
    pub endpoint_memory: Vec<EndpointMemory>,
    pub endpoint_loads: Vec<EndpointLoad>,
    pub service_stats: Vec<ServiceStats>,
    service_shortages: Vec<Shortages>,
    pub service_flows: Vec<ServiceFlows>,
    pub service_latencies: Vec<Latencies>,
    pub endpoint_latencies: Vec<EndpointLatency>,
    pub seats: Vec<Seats>,
    pub levels: Vec<Seats>,
    pub flow_schemas: Vec<FlowSchema>,
    pub level_queues: Vec<LevelQueues>,
    pub queues: Vec<Queue>,
    pub destination_classes: Vec<DestinationClass>,
    pub decisions: Vec<Decision>,
    pub source_classes: BTreeMap<Network, u32>,
    pub maglev: Vec<MaglevRows>,
    pub source_ranges: BTreeMap<Network, u8>,
    /// What programs may find at each address now; `None` while nothing is checked.
    pub allowed: Option<HashMap<Address, HashSet<Option<View>>>>,
    /// Elements that a program may be using.
    seen: HashSet<Element>,
    /// Whether others have written to the maps: then anything may change, until it is as it was.
    pub is_spoilt: bool,
    pub writes: usize,
    /// Number of calls that would be system calls.
    pub calls: usize,
    pub graces: usize,
}

/// The maps, shared with the map writer under test.
#[derive(Clone)]
pub struct Kernel(Arc<Mutex<State>>);

impl Kernel {
    pub fn new(sizes: Sizes) -> Self {
        Self(Arc::new(Mutex::new(State {
            sizes,
            frontends: BTreeMap::new(),
            cluster_ips: BTreeMap::new(),
            service_ranges: vec![ServiceRange::default(); 2 * SERVICE_RANGES as usize],
            services: vec![Service::default(); sizes.services],
            plans: vec![Plan::default(); sizes.plans],
            endpoints: vec![Endpoint::default(); sizes.endpoints],
            endpoint_states: vec![EndpointState::default(); sizes.endpoint_states],
            endpoint_memory: vec![EndpointMemory::default(); sizes.endpoint_states],
            endpoint_loads: vec![EndpointLoad::default(); sizes.endpoint_states],
            service_stats: vec![ServiceStats::default(); sizes.services],
            service_shortages: vec![Shortages::default(); sizes.services],
            service_flows: vec![ServiceFlows::default(); sizes.services],
            service_latencies: vec![Latencies::default(); sizes.services],
            endpoint_latencies: vec![EndpointLatency::default(); sizes.endpoint_states],
            seats: vec![Seats::default(); 8],
            levels: vec![Seats::default(); 8],
            flow_schemas: vec![FlowSchema::default(); 16],
            level_queues: vec![LevelQueues::default(); 8],
            queues: vec![Queue::default(); 32],
            destination_classes: vec![DestinationClass::default(); sizes.classes],
            decisions: vec![Decision::default(); sizes.classes],
            source_classes: BTreeMap::new(),
            maglev: vec![MaglevRows::default(); sizes.maglev],
            source_ranges: BTreeMap::new(),
            allowed: None,
            seen: HashSet::new(),
            is_spoilt: false,
            writes: 0,
            calls: 0,
            graces: 0,
        })))
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn maps(&self) -> Maps {
        let grace = self.clone();
        Maps {
            frontends4: Box::new(self.clone()),
            frontends6: Box::new(self.clone()),
            cluster_ips: Box::new(self.clone()),
            service_ranges: self.plain(|s| &mut s.service_ranges),
            services: self.array(|s| &mut s.services, Element::Service),
            plans: self.array(|s| &mut s.plans, Element::Plan),
            endpoints: self.array(|s| &mut s.endpoints, Element::Slot),
            endpoint_states: self.plain(|s| &mut s.endpoint_states).into(),
            endpoint_memory: self.plain(|s| &mut s.endpoint_memory).into(),
            endpoint_loads: self.plain(|s| &mut s.endpoint_loads),
            service_stats: self.plain(|s| &mut s.service_stats).into(),
            service_shortages: self.plain(|s| &mut s.service_shortages).into(),
            service_flows: self.plain(|s| &mut s.service_flows).into(),
            service_latencies: self.plain(|s| &mut s.service_latencies).into(),
            endpoint_latencies: self.plain(|s| &mut s.endpoint_latencies).into(),
            seats: self.plain(|s| &mut s.seats).into(),
            maglev: self.array(|s| &mut s.maglev, Element::Rows),
            source_ranges: Box::new(self.clone()),
            levels: self.plain(|s| &mut s.levels).into(),
            flow_schemas: self.plain(|s| &mut s.flow_schemas).into(),
            level_queues: self.plain(|s| &mut s.level_queues).into(),
            queues: self.plain(|s| &mut s.queues).into(),
            destination_classes: self.array(|s| &mut s.destination_classes, Element::Class),
            source_classes: Box::new(self.clone()),
            decisions: self.array(|s| &mut s.decisions, Element::Decision),
            grace: Box::new(move || {
                let mut state = grace.state();
                state.graces += 1;
                state.seen = state.reachable();
            }),
        }
    }

    fn array<T: Copy + Poke + Send + 'static>(
        &self,
        field: fn(&mut State) -> &mut Vec<T>,
        element: fn(u32) -> Element,
    ) -> Box<dyn Elements<T>> {
        Box::new(Array {
            kernel: self.clone(),
            field,
            element: Some(element),
        })
    }

    fn plain<T: Copy + Poke + Send + 'static>(
        &self,
        field: fn(&mut State) -> &mut Vec<T>,
    ) -> Box<dyn Elements<T>> {
        Box::new(Array {
            kernel: self.clone(),
            field,
            element: None,
        })
    }
}

impl State {
    /// What a program finds at an address.
    pub fn view(&self, address: &Address) -> Option<View> {
        let frontend = self.frontends.get(address)?;
        let plan = match self.services[frontend.service as usize].plan {
            0 => None,
            plan => Some(self.plan_view(frontend.service, plan)),
        };
        Some(View {
            kind: frontend.kind,
            plan,
        })
    }

    /// Index of the published plan of a service.
    pub fn published(&self, service: u32) -> u32 {
        self.services[service as usize].plan
    }

    /// The published plan of a service.
    pub fn content(&self, service: u32) -> Plan {
        self.plans[self.published(service) as usize]
    }

    /// All addresses and what a program finds there.
    pub fn views(&self) -> BTreeMap<Address, View> {
        let addresses = self.frontends.keys();
        addresses
            .map(|address| (*address, self.view(address).unwrap()))
            .collect()
    }

    fn plan_view(&self, service: u32, plan: u32) -> PlanView {
        let plan = &self.plans[plan as usize];
        assert_eq!(plan.service, service, "the plan is of another service");
        let count = plan.counts.iter().sum::<u32>();
        let slots = plan.first..plan.first + count;
        let endpoints = slots.map(|slot| {
            let endpoint = &self.endpoints[slot as usize];
            let state = &self.endpoint_states[endpoint.id as usize];
            assert!(
                state.slots.contains(&slot),
                "endpoint {} is in slot {slot}, its state says {:?}",
                endpoint.id,
                state.slots
            );
            let address = SocketAddr::new(endpoint.address.into(), endpoint.port);
            (address, endpoint.flags)
        });
        let endpoints: Vec<_> = endpoints.collect();
        let table = |first: u32| match first {
            NO_TABLE => Vec::new(),
            _ => (first..first + plan.maglev_rows)
                .map(|row| self.maglev[row as usize / 4].positions[row as usize % 4])
                .map(|position| endpoints[usize::from(position)].0)
                .collect(),
        };
        let tables = [plan.maglev_cluster, plan.maglev_local];
        PlanView {
            counts: plan.counts,
            flags: plan.flags,
            affinity_seconds: plan.affinity_seconds,
            source_ranges: self
                .source_ranges
                .keys()
                .filter(|(set, ..)| *set == plan.source_set && *set != 0)
                .map(|(_, prefix, address)| (*prefix, *address))
                .collect(),
            tables: (plan.maglev_rows != 0).then(|| tables.map(table)),
            endpoints,
        }
    }

    /// Everything that a program can reach.
    fn reachable(&self) -> HashSet<Element> {
        let frontends = self.frontends.values();
        let mut reachable: HashSet<_> = frontends.map(|f| Element::Service(f.service)).collect();
        for frontend in self.frontends.values().filter(|f| f.class != 0) {
            let class = &self.destination_classes[usize::from(frontend.class)];
            reachable.insert(Element::Class(frontend.class.into()));
            reachable.insert(Element::Networks(class.set));
            reachable.extend((class.first..class.first + class.count).map(Element::Decision));
        }
        for service in &self.services {
            let plan = self.plans.get(service.plan as usize);
            let Some(plan) = plan.filter(|_| service.plan != 0) else {
                continue;
            };
            let count = plan.counts.iter().fold(0, |sum, n| n.saturating_add(sum));
            let elements =
                |first: u32| first / 4..first / 4 + plan.maglev_rows.min(1000).div_ceil(4);
            reachable.insert(Element::Plan(service.plan));
            let end = plan.first.saturating_add(count.min(1000));
            reachable.extend((plan.first..end).map(Element::Slot));
            reachable.insert(Element::Set(plan.source_set));
            for first in [plan.maglev_cluster, plan.maglev_local] {
                reachable.extend(elements(first.min(1000)).map(Element::Rows));
            }
        }
        reachable
    }

    /// To be called before an element changes, except by publication.
    fn before(&self, element: Element) {
        assert!(
            self.is_spoilt || !self.seen.contains(&element),
            "{element:?} changes although a program may be looking at it"
        );
    }

    /// To be called after each write.
    fn after(&mut self) {
        self.writes += 1;
        let reachable = self.reachable();
        self.seen.extend(reachable);
        let Some(allowed) = &self.allowed else {
            return;
        };
        for (address, allowed) in allowed {
            let found = self.view(address);
            assert!(
                allowed.contains(&found),
                "neither old nor new at {address:?}: {found:#?} is none of {allowed:#?}"
            );
        }
    }
}

/// Changes of parts of an element.
trait Poke {
    fn poke(&mut self, offset: usize, value: u64);
}

impl Poke for Service {
    fn poke(&mut self, offset: usize, value: u64) {
        assert_eq!(offset, offset_of!(Service, plan));
        self.plan = value as u32;
    }
}

impl Poke for ServiceRange {
    fn poke(&mut self, offset: usize, value: u64) {
        assert_eq!(offset, offset_of!(ServiceRange, flags));
        self.flags = value as u32;
    }
}

impl Poke for EndpointState {
    fn poke(&mut self, offset: usize, value: u64) {
        assert_eq!(offset, offset_of!(EndpointState, slots));
        self.slots = [value as u32, (value >> 32) as u32];
    }
}

impl Poke for EndpointLoad {
    fn poke(&mut self, offset: usize, value: u64) {
        assert_eq!(offset, offset_of!(EndpointLoad, weight));
        self.weight = value as u32;
    }
}

impl Poke for Seats {
    fn poke(&mut self, offset: usize, value: u64) {
        let field = match offset {
            _ if offset == offset_of!(Seats, flags) => &mut self.flags,
            _ if offset == offset_of!(Seats, limit) => &mut self.limit,
            _ if offset == offset_of!(Seats, owner) => return self.owner = value,
            _ => panic!("{offset} is not changed alone"),
        };
        *field = value as u32;
    }
}

impl Poke for LevelQueues {
    fn poke(&mut self, offset: usize, value: u64) {
        let field = match offset {
            _ if offset == offset_of!(LevelQueues, first) => &mut self.first,
            _ if offset == offset_of!(LevelQueues, number) => &mut self.number,
            _ if offset == offset_of!(LevelQueues, hand) => &mut self.hand,
            _ if offset == offset_of!(LevelQueues, length) => &mut self.length,
            _ if offset == offset_of!(LevelQueues, waiting) => &mut self.waiting,
            _ if offset == offset_of!(LevelQueues, overrun) => &mut self.overrun,
            _ => panic!("{offset} is not changed alone"),
        };
        *field = value as u32;
    }
}

impl Poke for FlowSchema {
    fn poke(&mut self, offset: usize, value: u64) {
        let deadlines = offset_of!(FlowSchema, deadlines);
        let field = match offset {
            _ if offset == offset_of!(FlowSchema, owner) => return self.owner = value,
            _ if offset == offset_of!(FlowSchema, seats) => {
                self.seats = LevelSeats::from_u32(value as u32);
                return;
            }
            _ if offset == offset_of!(FlowSchema, answers) => &mut self.answers,
            _ if offset == offset_of!(FlowSchema, rule.most) => &mut self.rule.most,
            _ if offset == offset_of!(FlowSchema, rule.by) => &mut self.rule.by,
            _ if offset == offset_of!(FlowSchema, is_audited) => &mut self.is_audited,
            _ if (deadlines..deadlines + 4 * DEADLINES).contains(&offset) => {
                &mut self.deadlines[(offset - deadlines) / 4]
            }
            _ => panic!("{offset} is not changed alone"),
        };
        *field = value as u32;
    }
}

macro_rules! never_poked {
    ($($ty:ty),*) => {
        $(impl Poke for $ty {
            fn poke(&mut self, offset: usize, _: u64) {
                panic!("only whole elements are written, not {offset}");
            }
        })*
    };
}

never_poked!(
    Plan,
    Endpoint,
    EndpointLatency,
    EndpointMemory,
    Latencies,
    ServiceStats,
    Shortages,
    ServiceFlows,
    MaglevRows,
    Queue,
    DestinationClass,
    Decision
);

struct Array<T> {
    kernel: Kernel,
    field: fn(&mut State) -> &mut Vec<T>,
    /// What its elements are to readers, if they follow indices to them.
    element: Option<fn(u32) -> Element>,
}

impl<T: Copy + Poke> Elements<T> for Array<T> {
    fn len(&self) -> u32 {
        (self.field)(&mut self.kernel.state()).len() as u32
    }

    fn read(&self, index: u32) -> T {
        (self.field)(&mut self.kernel.state())[index as usize]
    }

    fn write(&self, index: u32, value: &T) {
        let mut state = self.kernel.state();
        if let Some(element) = self.element {
            state.before(element(index));
        }
        (self.field)(&mut state)[index as usize] = *value;
        state.after();
    }

    fn publish(&self, index: u32, offset: usize, value: u32) {
        self.write_word(index, offset, value.into());
    }

    fn write_word(&self, index: u32, offset: usize, value: u64) {
        let mut state = self.kernel.state();
        (self.field)(&mut state)[index as usize].poke(offset, value);
        state.after();
    }
}

/// A family of frontends.
trait Family: Copy {
    fn ip(self) -> IpAddr;
    fn of(ip: IpAddr) -> Option<Self>;
}

impl Family for Ip4 {
    fn ip(self) -> IpAddr {
        self.into()
    }

    fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(v4) => Some(v4.into()),
            IpAddr::V6(_) => None,
        }
    }
}

impl Family for Ip6 {
    fn ip(self) -> IpAddr {
        IpAddr::V6(self.octets.into())
    }

    fn of(ip: IpAddr) -> Option<Self> {
        match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => Some(v6.into()),
        }
    }
}

fn address<A: Family>(key: &FrontendKey<A>) -> Address {
    ((key.address.ip(), key.port).into(), key.protocol)
}

impl<A: Family> Entries<FrontendKey<A>, Frontend> for Kernel {
    fn capacity(&self) -> u32 {
        self.state().sizes.frontends as u32
    }

    fn insert(&self, keys: &[FrontendKey<A>], values: &[Frontend]) -> Result<(), Incomplete> {
        let mut state = self.state();
        state.calls += 1;
        for (done, (key, value)) in keys.iter().zip(values).enumerate() {
            let address = address(key);
            let of_family = state.frontends.keys();
            let count = of_family.filter(|(a, _)| A::of(a.ip()).is_some()).count();
            if !state.frontends.contains_key(&address) && count == state.sizes.frontends {
                let error = WriteError("FRONTENDS is full".into());
                return Err(Incomplete { done, error });
            }
            state.frontends.insert(address, *value);
            state.after();
        }
        Ok(())
    }

    fn remove(&self, keys: &[FrontendKey<A>]) -> Result<(), WriteError> {
        let mut state = self.state();
        state.calls += usize::from(!keys.is_empty());
        for key in keys {
            if state.frontends.remove(&address(key)).is_some() {
                state.after();
            }
        }
        Ok(())
    }

    fn all(&self) -> Result<Vec<(FrontendKey<A>, Frontend)>, WriteError> {
        let state = self.state();
        let entries = state.frontends.iter();
        Ok(entries
            .filter_map(|((address, protocol), value)| {
                let key = FrontendKey {
                    address: A::of(address.ip())?,
                    port: address.port(),
                    protocol: *protocol,
                    sockets: u8::from(address.ip().is_loopback()),
                };
                Some((key, *value))
            })
            .collect())
    }
}

impl<A: Family> Lookup<FrontendKey<A>, Frontend> for Kernel {
    fn get(&self, key: &FrontendKey<A>) -> Result<Option<Frontend>, WriteError> {
        Ok(self.state().frontends.get(&address(key)).copied())
    }
}

/// ClusterIPs: each service port has one at most, and so there is room for all.
impl Entries<Ip6, ClusterIp> for Kernel {
    fn capacity(&self) -> u32 {
        self.state().sizes.services as u32
    }

    fn insert(&self, keys: &[Ip6], values: &[ClusterIp]) -> Result<(), Incomplete> {
        let mut state = self.state();
        for (key, value) in keys.iter().zip(values) {
            state.cluster_ips.insert((*key).into(), *value);
        }
        assert!(state.cluster_ips.len() <= state.sizes.services);
        Ok(())
    }

    fn remove(&self, keys: &[Ip6]) -> Result<(), WriteError> {
        let mut state = self.state();
        for key in keys {
            state.cluster_ips.remove(&(*key).into());
        }
        Ok(())
    }

    fn all(&self) -> Result<Vec<(Ip6, ClusterIp)>, WriteError> {
        let state = self.state();
        let entries = state.cluster_ips.iter();
        Ok(entries.map(|(ip, entry)| ((*ip).into(), *entry)).collect())
    }
}

impl Lookup<Ip6, ClusterIp> for Kernel {
    fn get(&self, key: &Ip6) -> Result<Option<ClusterIp>, WriteError> {
        Ok(self.state().cluster_ips.get(&(*key).into()).copied())
    }
}

/// Value of a trie of networks.
trait OfNetwork: Copy + Send + Sync {
    const MAP: &'static str;
    /// To be called before an entry changes.
    fn before(state: &State, entry: &Network);
    fn trie(state: &mut State) -> &mut BTreeMap<Network, Self>;
    fn room(sizes: &Sizes) -> usize;
}

impl OfNetwork for u8 {
    const MAP: &'static str = "SOURCE_RANGES";

    fn before(state: &State, (set, ..): &Network) {
        state.before(Element::Set(*set));
    }

    fn trie(state: &mut State) -> &mut BTreeMap<Network, Self> {
        &mut state.source_ranges
    }

    fn room(sizes: &Sizes) -> usize {
        sizes.source_ranges
    }
}

impl OfNetwork for u32 {
    const MAP: &'static str = "SOURCE_CLASSES";

    fn before(state: &State, (set, prefix, _): &Network) {
        // Pods come and go, each with one write.
        if *prefix != 32 + 128 {
            state.before(Element::Networks(*set));
        }
    }

    fn trie(state: &mut State) -> &mut BTreeMap<Network, Self> {
        &mut state.source_classes
    }

    fn room(sizes: &Sizes) -> usize {
        sizes.classes
    }
}

impl<V: OfNetwork> Entries<SourceKey, V> for Kernel {
    fn capacity(&self) -> u32 {
        V::room(&self.state().sizes) as u32
    }

    fn insert(&self, keys: &[SourceKey], values: &[V]) -> Result<(), Incomplete> {
        let mut state = self.state();
        state.calls += 1;
        for (done, (key, value)) in keys.iter().zip(values).enumerate() {
            let entry = network(key);
            V::before(&state, &entry);
            if V::trie(&mut state).len() == V::room(&state.sizes) {
                let error = WriteError(format!("{} is full", V::MAP));
                return Err(Incomplete { done, error });
            }
            V::trie(&mut state).insert(entry, *value);
            state.after();
        }
        Ok(())
    }

    fn remove(&self, keys: &[SourceKey]) -> Result<(), WriteError> {
        let mut state = self.state();
        state.calls += 1;
        for key in keys {
            let entry = network(key);
            V::before(&state, &entry);
            if V::trie(&mut state).remove(&entry).is_some() {
                state.after();
            }
        }
        Ok(())
    }

    fn all(&self) -> Result<Vec<(SourceKey, V)>, WriteError> {
        let mut state = self.state();
        let entries = V::trie(&mut state).iter();
        Ok(entries
            .map(|((set, prefix, octets), value)| (source_key(*set, *prefix, *octets), *value))
            .collect())
    }
}

fn source_key(set: u32, prefix: u32, octets: [u8; 16]) -> SourceKey {
    let data = lb_common::abi::SourceRangeKey {
        set: set.to_be(),
        address: Ip6::from(std::net::Ipv6Addr::from(octets)),
    };
    SourceKey::new(prefix, data)
}

fn network(key: &SourceKey) -> Network {
    let data = key.data();
    (
        u32::from_be(data.set),
        key.prefix_len(),
        data.address.octets,
    )
}
