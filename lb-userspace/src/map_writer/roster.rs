//! What is in the maps, for those who read counters while the map writer is at work.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    ops::Bound,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use lb_common::{
    abi::{self, EndpointMemory, ServiceStats, Shortages},
    pipeline::FAILING,
};
use lb_datapath::maps::{Elements, Maps};

use super::Key;

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
    shortages: Arc<dyn Elements<Shortages>>,
    memory: Arc<dyn Elements<EndpointMemory>>,
}

#[derive(Clone)]
struct Listed {
    id: u32,
    endpoints: Arc<[abi::Endpoint]>,
}

/// What the connections of a service port of one family have come to.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub stats: ServiceStats,
    /// Connections that there was no room for.
    pub shortages: Shortages,
    /// Endpoints that have refused or not answered the latest connections.
    pub failing: Vec<SocketAddr>,
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

    /// Notes that a service port is in the maps, with these endpoints.
    pub(super) fn enter(&self, key: &Key, id: u32, endpoints: &Arc<[abi::Endpoint]>) {
        let endpoints = endpoints.clone();
        let listed = Listed { id, endpoints };
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
        let mut after = None;
        loop {
            let page = self.page(after.as_ref());
            for (key, listed) in &page {
                tell(key, counters.counts(listed));
            }
            match page.into_iter().next_back() {
                Some((last, _)) => after = Some(last),
                None => return,
            }
        }
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
            shortages: maps.service_shortages.clone(),
            memory: maps.endpoint_memory.clone(),
        }
    }

    fn counts(&self, listed: &Listed) -> Counts {
        let endpoints = listed.endpoints.iter();
        let fails = |endpoint: &&abi::Endpoint| self.memory.read(endpoint.id).failures >= FAILING;
        Counts {
            stats: self.stats.read(listed.id),
            shortages: self.shortages.read(listed.id),
            failing: endpoints
                .filter(fails)
                .map(|endpoint| SocketAddr::new(endpoint.address.into(), endpoint.port))
                .collect(),
        }
    }
}
