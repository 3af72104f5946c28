//! What is in the maps, for those who read counters while the map writer is at work.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use lb_common::{
    abi::{
        self, EndpointLatency, EndpointMemory, EndpointState, Latencies, ServiceFlows,
        ServiceStats, Shortages,
    },
    pipeline::FAILING,
};
use lb_datapath::maps::{Elements, Maps};
use lb_objects::IpFamily;

use super::{Key, service::Programmed};
use crate::plan::EndpointClass;

/// Service ports looked at before the map writer may go on.
const PAGE: usize = 256;

/// The service ports in the maps, and their counters: who reads these never waits for the map
/// writer longer than it takes to enter one service port, nor holds it up for long.
pub struct Roster {
    listed: RwLock<BTreeMap<Key, Listed>>,
    counters: RwLock<Counters>,
}

/// The maps that programs count in.
#[derive(Clone)]
struct Counters {
    stats: Arc<dyn Elements<ServiceStats>>,
    flows: Arc<dyn Elements<ServiceFlows>>,
    shortages: Arc<dyn Elements<Shortages>>,
    states: Arc<dyn Elements<EndpointState>>,
    memory: Arc<dyn Elements<EndpointMemory>>,
    latencies: Arc<dyn Elements<Latencies>>,
    endpoint_latencies: Arc<dyn Elements<EndpointLatency>>,
}

#[derive(Clone)]
struct Listed {
    id: u32,
    endpoints: Arc<[abi::Endpoint]>,
    /// The first so many of them are ready, the others terminating.
    ready: usize,
}

/// What the connections of a service port of one family have come to.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// The number by which flows name it.
    pub id: u32,
    pub stats: ServiceStats,
    /// Flows at this moment.
    pub flows: ServiceFlows,
    /// Connections that there was no room for.
    pub shortages: Shortages,
    /// How soon endpoints have answered.
    pub latencies: Latencies,
    /// Endpoints that have refused or not answered the latest connections.
    pub failing: Vec<SocketAddr>,
    /// Endpoints that are ready.
    pub ready: usize,
    /// Endpoints that are used only where none is ready.
    pub terminating: usize,
}

/// An endpoint of a service port, and what its connections have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointCounts {
    pub address: SocketAddr,
    /// If not, it is terminating: used only where none is ready.
    pub is_ready: bool,
    /// Connections sent to it so far.
    pub connections: u64,
    /// How many of the latest connections in a row it has refused or not answered; refused ones
    /// count several times.
    pub failures: u32,
    /// How soon it answers, smoothed, in [units of latency](lb_common::flow::latency::UNIT); 0 if it has
    /// never answered.
    pub latency: u32,
}

impl EndpointCounts {
    /// Whether new connections avoid it, if there is another one.
    pub fn is_failing(&self) -> bool {
        self.failures >= FAILING
    }
}

impl Roster {
    /// Of maps that hold nothing.
    pub(super) fn new(maps: &Maps) -> Self {
        Self {
            listed: RwLock::default(),
            counters: RwLock::new(Counters::of(maps)),
        }
    }

    /// Goes over to other maps.
    pub(super) fn reopen(&self, maps: &Maps) {
        let mut counters = self
            .counters
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *counters = Counters::of(maps);
    }

    /// Notes that a service port is in the maps.
    pub(super) fn enter(&self, key: &Key, programmed: &Programmed) {
        let counts = programmed.content.counts;
        let ready = EndpointClass::ALL.iter().zip(counts);
        let ready = ready.filter(|(class, _)| class.is_ready());
        let listed = Listed {
            id: programmed.id,
            endpoints: programmed.endpoints.clone(),
            ready: ready.map(|(_, count)| count as usize).sum(),
        };
        let mut all = self.write();
        match all.get_mut(key) {
            Some(known) => *known = listed,
            None => drop(all.insert(key.clone(), listed)),
        }
    }

    /// Notes that a service port is in the maps no more.
    pub(super) fn strike(&self, key: &Key) {
        self.write().remove(key);
    }

    /// Whether a service port is in the maps.
    pub fn has(&self, key: &Key) -> bool {
        self.read().contains_key(key)
    }

    /// Number of service ports in the maps.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells of every service port, in order, what has come to it. Takes time.
    pub fn tell(&self, mut tell: impl FnMut(&Key, Counts)) {
        let counters = self.counters();
        self.each(|key, listed| tell(key, counters.counts(listed)));
    }

    /// The service port of a family that has the most flows which have proved themselves, and how many it has; `None`
    /// if none has one. Takes time.
    pub fn busiest(&self, family: IpFamily) -> Option<(Key, u64)> {
        let counters = self.counters();
        let mut busiest: Option<(Key, u64)> = None;
        self.each(|key, listed| {
            let most = busiest.as_ref().map_or(0, |(_, most)| *most);
            if key.family == family && counters.proved(listed) > most {
                busiest = Some((key.clone(), counters.proved(listed)));
            }
        });
        busiest
    }

    fn each(&self, mut tell: impl FnMut(&Key, &Listed)) {
        let mut after = None;
        loop {
            let page = self.page(after.as_ref());
            for (key, listed) in &page {
                tell(key, listed);
            }
            match page.into_iter().next_back() {
                Some((last, _)) => after = Some(last),
                None => return,
            }
        }
    }

    /// Each endpoint of a service port in the maps, those that are ready first.
    pub fn endpoints(&self, key: &Key) -> Vec<EndpointCounts> {
        let listed = self.read().get(key).cloned();
        let counters = self.counters();
        listed.map_or_else(Vec::new, |listed| counters.endpoints(&listed).collect())
    }

    fn page(&self, after: Option<&Key>) -> Vec<(Key, Listed)> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let listed = self.read();
        let rest = listed.range((start, Bound::Unbounded));
        let rest = rest.map(|(key, listed)| (key.clone(), listed.clone()));
        rest.take(PAGE).collect()
    }

    fn counters(&self) -> Counters {
        let counters = self.counters.read().unwrap_or_else(PoisonError::into_inner);
        counters.clone()
    }

    // Whole after each change, so a thread that panicked leaves nothing half done.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Key, Listed>> {
        self.listed.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Key, Listed>> {
        self.listed.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    fn of(maps: &Maps) -> Self {
        Self {
            stats: maps.service_stats.clone(),
            flows: maps.service_flows.clone(),
            shortages: maps.service_shortages.clone(),
            states: maps.endpoint_states.clone(),
            memory: maps.endpoint_memory.clone(),
            latencies: maps.service_latencies.clone(),
            endpoint_latencies: maps.endpoint_latencies.clone(),
        }
    }

    fn counts(&self, listed: &Listed) -> Counts {
        let endpoints = listed.endpoints.iter();
        let fails = |endpoint: &&abi::Endpoint| self.memory.read(endpoint.id).failures >= FAILING;
        Counts {
            id: listed.id,
            stats: self.stats.read(listed.id),
            flows: self.flows.read(listed.id),
            shortages: self.shortages.read(listed.id),
            latencies: self.latencies.read(listed.id),
            failing: endpoints.filter(fails).map(address).collect(),
            ready: listed.ready,
            terminating: listed.endpoints.len().saturating_sub(listed.ready),
        }
    }

    /// Flows that have proved themselves.
    fn proved(&self, listed: &Listed) -> u64 {
        let flows = self.flows.read(listed.id).flows - self.stats.read(listed.id).half_open;
        u64::try_from(flows).unwrap_or(0)
    }

    fn endpoints(&self, listed: &Listed) -> impl Iterator<Item = EndpointCounts> {
        let endpoints = listed.endpoints.iter().enumerate();
        endpoints.map(|(index, endpoint)| EndpointCounts {
            address: address(endpoint),
            is_ready: index < listed.ready,
            connections: self.states.read(endpoint.id).connections,
            failures: self.memory.read(endpoint.id).failures,
            latency: self.endpoint_latencies.read(endpoint.id).smoothed,
        })
    }
}

fn address(endpoint: &abi::Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.address.into(), endpoint.port)
}
