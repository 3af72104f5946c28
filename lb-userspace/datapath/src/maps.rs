//! The maps that plans are written to, behind traits, so that the map writer can be tested without
//! a kernel.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use anyhow::Context as _;
use aya::{Pod, maps::MapData};
use lb_common::{
    abi::{
        ClusterIp, Decision, DestinationClass, Endpoint, EndpointLatency, EndpointLoad,
        EndpointMemory, EndpointState, FlowSchema, Frontend, FrontendKey, Latencies, MaglevRows,
        Plan, Service, ServiceFlows, ServiceRange, ServiceStats, Shortages, SourceRangeKey,
    },
    addr::{Ip4, Ip6},
    flow::{
        Seats,
        queue::{LevelQueues, Queue},
    },
};
use thiserror::Error;

pub use crate::bpf::Position;
use crate::{
    Loaded,
    bpf::{BatchError, BatchMap, MappedArray, synchronize_rcu},
};

/// An array with elements that the kernel reads while they change.
#[expect(
    clippy::len_without_is_empty,
    reason = "the kernel makes no empty arrays"
)]
pub trait Elements<T>: Send + Sync {
    /// Number of elements.
    fn len(&self) -> u32;
    /// A copy of an element.
    fn read(&self, index: u32) -> T;
    /// Overwrites an element that no program reads yet, or that is wrong as it is.
    fn write(&self, index: u32, value: &T);
    /// Replaces four bytes in one step, after everything that was written before.
    fn publish(&self, index: u32, offset: usize, value: u32);
    /// Replaces eight bytes in one step.
    fn write_word(&self, index: u32, offset: usize, value: u64);
}

/// A map of keys to values.
pub trait Entries<K, V>: Send + Sync {
    /// How many entries there is room for.
    fn capacity(&self) -> u32;
    /// Inserts entries or replaces their values, in this order.
    ///
    /// # Errors
    ///
    /// If there is no room for all of them. The error says how many were inserted.
    fn insert(&self, keys: &[K], values: &[V]) -> Result<(), Incomplete>;
    /// Removes entries. It is no error if some do not exist.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, for which there is no known reason.
    fn remove(&self, keys: &[K]) -> Result<(), WriteError>;
    /// All entries.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, for which there is no known reason.
    fn all(&self) -> Result<Vec<(K, V)>, WriteError>;
    /// Some entries from a position on, which moves behind them. Entries that come or go between
    /// two parts may be missing; none need be there before the position is the end.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, for which there is no known reason.
    fn part(&self, position: &mut Position) -> Result<Vec<(K, V)>, WriteError> {
        match std::mem::replace(position, Position::End) {
            Position::End => Ok(Vec::new()),
            _ => self.all(),
        }
    }
}

/// A map in which programs look up keys as they are.
pub trait Lookup<K, V>: Entries<K, V> {
    /// The value of a key.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, for which there is no known reason.
    fn get(&self, key: &K) -> Result<Option<V>, WriteError>;
}

/// A map that could not be written or read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct WriteError(pub String);

/// Not all entries could be inserted: the first `done` were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incomplete {
    pub done: usize,
    pub error: WriteError,
}

/// A network as a key of `SOURCE_RANGES` and `SOURCE_CLASSES`: prefix length first, then set and
/// address.
pub type SourceKey = aya::maps::lpm_trie::Key<SourceRangeKey>;

/// Everything that plans are written to. Counters are shared: others read them meanwhile.
pub struct Maps {
    pub frontends4: Box<dyn Lookup<FrontendKey<Ip4>, Frontend>>,
    pub frontends6: Box<dyn Lookup<FrontendKey<Ip6>, Frontend>>,
    pub cluster_ips: Box<dyn Lookup<Ip6, ClusterIp>>,
    pub service_ranges: Box<dyn Elements<ServiceRange>>,
    pub services: Box<dyn Elements<Service>>,
    pub plans: Box<dyn Elements<Plan>>,
    pub endpoints: Box<dyn Elements<Endpoint>>,
    pub endpoint_states: Arc<dyn Elements<EndpointState>>,
    pub endpoint_memory: Arc<dyn Elements<EndpointMemory>>,
    pub endpoint_loads: Box<dyn Elements<EndpointLoad>>,
    pub endpoint_latencies: Arc<dyn Elements<EndpointLatency>>,
    pub service_latencies: Arc<dyn Elements<Latencies>>,
    pub service_stats: Arc<dyn Elements<ServiceStats>>,
    pub service_shortages: Arc<dyn Elements<Shortages>>,
    pub service_flows: Arc<dyn Elements<ServiceFlows>>,
    pub seats: Arc<dyn Elements<Seats>>,
    pub maglev: Box<dyn Elements<MaglevRows>>,
    pub source_ranges: Box<dyn Entries<SourceKey, u8>>,
    pub levels: Arc<dyn Elements<Seats>>,
    pub flow_schemas: Arc<dyn Elements<FlowSchema>>,
    pub level_queues: Arc<dyn Elements<LevelQueues>>,
    pub queues: Arc<dyn Elements<Queue>>,
    pub destination_classes: Box<dyn Elements<DestinationClass>>,
    pub source_classes: Box<dyn Entries<SourceKey, u32>>,
    pub decisions: Box<dyn Elements<Decision>>,
    /// Waits until no program can still be reading what has been unpublished.
    pub grace: Box<dyn Fn() + Send + Sync>,
}

impl Maps {
    /// Opens the maps of the programs in the kernel.
    ///
    /// # Errors
    ///
    /// If they cannot be opened or mapped into memory.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        Self::by_name(|name| Ok(loaded.map(name)?))
    }

    /// Opens the maps that are pinned in a directory.
    ///
    /// # Errors
    ///
    /// If one of them is not there, or they cannot be opened or mapped into memory.
    pub fn pinned(directory: &Path) -> anyhow::Result<Self> {
        Self::by_name(|name| {
            let path = directory.join(name);
            MapData::from_pin(&path).with_context(|| format!("cannot open {}", path.display()))
        })
    }

    fn by_name(map: impl Fn(&str) -> anyhow::Result<MapData>) -> anyhow::Result<Self> {
        Ok(Self {
            frontends4: Box::new(BatchMap::new(&map("FRONTENDS4")?)?),
            frontends6: Box::new(BatchMap::new(&map("FRONTENDS6")?)?),
            cluster_ips: Box::new(BatchMap::new(&map("CLUSTER_IPS")?)?),
            service_ranges: Box::new(MappedArray::new(&map("SERVICE_RANGES")?)?),
            services: Box::new(MappedArray::new(&map("SERVICES")?)?),
            plans: Box::new(MappedArray::new(&map("PLANS")?)?),
            endpoints: Box::new(MappedArray::new(&map("ENDPOINTS")?)?),
            endpoint_states: Arc::new(MappedArray::new(&map("ENDPOINT_STATES")?)?),
            endpoint_memory: Arc::new(MappedArray::new(&map("ENDPOINT_MEMORY")?)?),
            endpoint_loads: Box::new(MappedArray::new(&map("ENDPOINT_LOADS")?)?),
            endpoint_latencies: Arc::new(MappedArray::new(&map("ENDPOINT_LATENCIES")?)?),
            service_latencies: Arc::new(MappedArray::new(&map("SERVICE_LATENCIES")?)?),
            service_stats: Arc::new(MappedArray::new(&map("SERVICE_STATS")?)?),
            service_shortages: Arc::new(MappedArray::new(&map("SERVICE_SHORTAGES")?)?),
            service_flows: Arc::new(MappedArray::new(&map("SERVICE_FLOWS")?)?),
            seats: Arc::new(MappedArray::new(&map("SEATS")?)?),
            maglev: Box::new(MappedArray::new(&map("MAGLEV")?)?),
            source_ranges: Box::new(BatchMap::new(&map("SOURCE_RANGES")?)?),
            levels: Arc::new(MappedArray::new(&map("LEVELS")?)?),
            flow_schemas: Arc::new(MappedArray::new(&map("FLOW_SCHEMAS")?)?),
            level_queues: Arc::new(MappedArray::new(&map("LEVEL_QUEUES")?)?),
            queues: Arc::new(MappedArray::new(&map("QUEUES")?)?),
            destination_classes: Box::new(MappedArray::new(&map("DESTINATION_CLASSES")?)?),
            source_classes: Box::new(BatchMap::new(&map("SOURCE_CLASSES")?)?),
            decisions: Box::new(MappedArray::new(&map("DECISIONS")?)?),
            grace: Box::new(synchronize_rcu),
        })
    }
}

impl<T: Pod + Send> Elements<T> for MappedArray<T> {
    fn len(&self) -> u32 {
        self.len()
    }

    fn read(&self, index: u32) -> T {
        self.read(index)
    }

    fn write(&self, index: u32, value: &T) {
        self.write(index, value);
    }

    fn publish(&self, index: u32, offset: usize, value: u32) {
        self.u32_at(index, offset).store(value, Ordering::SeqCst);
    }

    fn write_word(&self, index: u32, offset: usize, value: u64) {
        self.u64_at(index, offset).store(value, Ordering::Release);
    }
}

impl<K: Pod + Send + Sync, V: Pod + Send + Sync> Entries<K, V> for BatchMap<K, V> {
    fn capacity(&self) -> u32 {
        self.max_entries()
    }

    fn insert(&self, keys: &[K], values: &[V]) -> Result<(), Incomplete> {
        self.update(keys, values).map_err(|error| Incomplete {
            done: match error {
                BatchError::Full { done, .. } | BatchError::Stopped { done, .. } => done,
                _ => 0,
            },
            error: error.into(),
        })
    }

    fn remove(&self, keys: &[K]) -> Result<(), WriteError> {
        self.delete(keys)?;
        Ok(())
    }

    fn all(&self) -> Result<Vec<(K, V)>, WriteError> {
        Ok(self.entries()?)
    }

    fn part(&self, position: &mut Position) -> Result<Vec<(K, V)>, WriteError> {
        Ok(self.part(position, PART)?)
    }
}

/// Entries in a part: a fraction of a millisecond's work.
const PART: usize = 1024;

impl<K: Pod + Send + Sync, V: Pod + Send + Sync> Lookup<K, V> for BatchMap<K, V> {
    fn get(&self, key: &K) -> Result<Option<V>, WriteError> {
        Ok(self.get(key)?)
    }
}

impl From<BatchError> for WriteError {
    fn from(error: BatchError) -> Self {
        Self(error.to_string())
    }
}
