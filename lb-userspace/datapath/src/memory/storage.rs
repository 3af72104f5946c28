//! The maps that plans are written to, in this process' memory.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use aya::Pod;
use lb_common::{
    abi::{
        ClusterIp, Decision, DestinationClass, Endpoint, EndpointLatency, EndpointLoad,
        EndpointMemory, EndpointState, FlowSchema, Frontend, FrontendKey, Latencies, MaglevRows,
        Plan, SERVICE_RANGES, Service, ServiceFlows, ServiceRange, ServiceStats, Shortages,
        SourceRangeKey,
    },
    addr::{Ip4, Ip6},
    entries,
    flow::{
        Seats,
        linger::Lingering,
        queue::{LevelQueues, Queue},
    },
};

use crate::{
    bpf::MappedArray,
    maps::{Elements, Entries, Incomplete, Lookup, Maps, SourceKey, WriteError},
};

/// Maps with as many entries as the kernel's. The map writer writes them through [`Self::maps`],
/// and packets read them.
pub struct Storage {
    pub frontends4: Arc<Table<FrontendKey<Ip4>, Frontend>>,
    pub frontends6: Arc<Table<FrontendKey<Ip6>, Frontend>>,
    pub cluster_ips: Arc<Table<Ip6, ClusterIp>>,
    pub service_ranges: Arc<MappedArray<ServiceRange>>,
    pub services: Arc<MappedArray<Service>>,
    pub plans: Arc<MappedArray<Plan>>,
    pub endpoints: Arc<MappedArray<Endpoint>>,
    pub endpoint_states: Arc<MappedArray<EndpointState>>,
    pub endpoint_memory: Arc<MappedArray<EndpointMemory>>,
    pub endpoint_loads: Arc<MappedArray<EndpointLoad>>,
    pub endpoint_latencies: Arc<MappedArray<EndpointLatency>>,
    pub service_latencies: Arc<MappedArray<Latencies>>,
    pub service_stats: Arc<MappedArray<ServiceStats>>,
    pub service_shortages: Arc<MappedArray<Shortages>>,
    pub service_flows: Arc<MappedArray<ServiceFlows>>,
    pub seats: Arc<MappedArray<Seats>>,
    pub maglev: Arc<MappedArray<MaglevRows>>,
    pub source_ranges: Arc<Trie<u8>>,
    pub levels: Arc<MappedArray<Seats>>,
    pub flow_schemas: Arc<MappedArray<FlowSchema>>,
    pub parties: Arc<MappedArray<u64>>,
    pub level_queues: Arc<MappedArray<LevelQueues>>,
    pub lingering: Arc<MappedArray<Lingering>>,
    pub queues: Arc<MappedArray<Queue>>,
    pub destination_classes: Arc<MappedArray<DestinationClass>>,
    pub source_classes: Arc<Trie<u32>>,
    pub decisions: Arc<MappedArray<Decision>>,
}

impl Default for Storage {
    /// Empty maps.
    fn default() -> Self {
        Self {
            frontends4: Table::new("FRONTENDS4", entries::FRONTENDS),
            frontends6: Table::new("FRONTENDS6", entries::FRONTENDS),
            cluster_ips: Table::new("CLUSTER_IPS", entries::CLUSTER_IPS),
            service_ranges: array(2 * SERVICE_RANGES as usize),
            services: array(entries::SERVICES),
            plans: array(entries::PLANS),
            endpoints: array(entries::ENDPOINTS),
            endpoint_states: array(entries::ENDPOINT_IDS),
            endpoint_memory: array(entries::ENDPOINT_IDS),
            endpoint_loads: array(entries::ENDPOINT_IDS),
            endpoint_latencies: array(entries::ENDPOINT_IDS),
            service_latencies: array(entries::SERVICES),
            service_stats: array(entries::SERVICES),
            service_shortages: array(entries::SERVICES),
            service_flows: array(entries::SERVICES),
            seats: array(entries::SEATS),
            maglev: array(entries::MAGLEV),
            source_ranges: Trie::new("SOURCE_RANGES", entries::SOURCE_RANGES),
            levels: array(entries::LEVELS),
            flow_schemas: array(entries::FLOW_SCHEMAS),
            parties: array(entries::PARTIES),
            level_queues: array(entries::LEVEL_QUEUES),
            lingering: array(entries::LEVELS),
            queues: array(entries::QUEUES),
            destination_classes: array(entries::DESTINATION_CLASSES),
            source_classes: Trie::new("SOURCE_CLASSES", entries::SOURCE_CLASSES),
            decisions: array(entries::DECISIONS),
        }
    }
}

impl Storage {
    /// The maps for a map writer. There is no grace period, because the writer has the tables to
    /// itself.
    pub fn maps(&self) -> Maps {
        Maps {
            frontends4: Box::new(self.frontends4.clone()),
            frontends6: Box::new(self.frontends6.clone()),
            cluster_ips: Box::new(self.cluster_ips.clone()),
            service_ranges: Box::new(self.service_ranges.clone()),
            services: Box::new(self.services.clone()),
            plans: Box::new(self.plans.clone()),
            endpoints: Box::new(self.endpoints.clone()),
            endpoint_states: Arc::new(self.endpoint_states.clone()),
            endpoint_memory: Arc::new(self.endpoint_memory.clone()),
            endpoint_loads: Box::new(self.endpoint_loads.clone()),
            endpoint_latencies: Arc::new(self.endpoint_latencies.clone()),
            service_latencies: Arc::new(self.service_latencies.clone()),
            service_stats: Arc::new(self.service_stats.clone()),
            service_shortages: Arc::new(self.service_shortages.clone()),
            service_flows: Arc::new(self.service_flows.clone()),
            seats: Arc::new(self.seats.clone()),
            maglev: Box::new(self.maglev.clone()),
            source_ranges: Box::new(self.source_ranges.clone()),
            levels: Arc::new(self.levels.clone()),
            flow_schemas: Arc::new(self.flow_schemas.clone()),
            level_queues: Arc::new(self.level_queues.clone()),
            queues: Arc::new(self.queues.clone()),
            destination_classes: Box::new(self.destination_classes.clone()),
            source_classes: Box::new(self.source_classes.clone()),
            decisions: Box::new(self.decisions.clone()),
            grace: Box::new(|| {}),
        }
    }
}

fn array<T: Pod>(len: usize) -> Arc<MappedArray<T>> {
    Arc::new(MappedArray::in_memory(len as u32))
}

/// A hash map.
pub struct Table<K, V> {
    name: &'static str,
    room: usize,
    entries: RwLock<HashMap<K, V>>,
}

impl<K: Hash + Eq, V: Copy> Table<K, V> {
    fn new(name: &'static str, room: usize) -> Arc<Self> {
        Arc::new(Self {
            name,
            room,
            entries: RwLock::default(),
        })
    }

    pub fn get(&self, key: &K) -> Option<V> {
        self.read().get(key).copied()
    }

    // The data is complete after each change, so it is valid even after a thread has panicked.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<K, V>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<K, V>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, V> Entries<K, V> for Arc<Table<K, V>>
where
    K: Copy + Eq + Hash + Send + Sync,
    V: Copy + Send + Sync,
{
    fn capacity(&self) -> u32 {
        self.room as u32
    }

    fn insert(&self, keys: &[K], values: &[V]) -> Result<(), Incomplete> {
        let mut entries = self.write();
        for (done, (key, value)) in keys.iter().zip(values).enumerate() {
            if entries.len() == self.room && !entries.contains_key(key) {
                return Err(full(self.name, self.room, done));
            }
            entries.insert(*key, *value);
        }
        Ok(())
    }

    fn remove(&self, keys: &[K]) -> Result<(), WriteError> {
        let mut entries = self.write();
        for key in keys {
            entries.remove(key);
        }
        Ok(())
    }

    fn all(&self) -> Result<Vec<(K, V)>, WriteError> {
        let entries = self.read();
        Ok(entries.iter().map(|(key, value)| (*key, *value)).collect())
    }
}

impl<K, V> Lookup<K, V> for Arc<Table<K, V>>
where
    K: Copy + Eq + Hash + Send + Sync,
    V: Copy + Send + Sync,
{
    fn get(&self, key: &K) -> Result<Option<V>, WriteError> {
        Ok((**self).get(key))
    }
}

/// A longest prefix match over addresses in numbered sets.
pub struct Trie<V> {
    name: &'static str,
    room: usize,
    prefixes: RwLock<BTreeMap<Prefix, V>>,
}

/// Number of the set, and how many bits of the address, in its IPv6-mapped form, count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    set: u32,
    bits: u32,
    address: [u8; 16],
}

/// Bits of a key before the address.
const SET_BITS: u32 = 32;

impl<V: Copy> Trie<V> {
    fn new(name: &'static str, room: usize) -> Arc<Self> {
        Arc::new(Self {
            name,
            room,
            prefixes: RwLock::default(),
        })
    }

    /// The value of a set's longest prefix of an address.
    pub fn longest(&self, set: u32, address: Ip6) -> Option<V> {
        use lb_common::addr::Address as _;
        let prefixes = self.read();
        let [first, end] = [set, set.saturating_add(1)].map(|set| Prefix {
            set,
            bits: 0,
            address: [0; 16],
        });
        // The shorter ones come first.
        let mut of_set = prefixes.range(first..end).rev();
        let found = of_set.find(|(prefix, _)| {
            let octets = prefix.address;
            address.within(Ip6 { octets }, prefix.bits)
        });
        found.map(|(_, value)| *value)
    }

    // The data is complete after each change, so it is valid even after a thread has panicked.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Prefix, V>> {
        self.prefixes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Prefix, V>> {
        self.prefixes
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<&SourceKey> for Prefix {
    fn from(key: &SourceKey) -> Self {
        Self {
            set: u32::from_be(key.data().set),
            bits: key.prefix_len() - SET_BITS,
            address: key.data().address.octets,
        }
    }
}

impl<V: Copy + Send + Sync> Entries<SourceKey, V> for Arc<Trie<V>> {
    fn capacity(&self) -> u32 {
        self.room as u32
    }

    fn insert(&self, keys: &[SourceKey], values: &[V]) -> Result<(), Incomplete> {
        let mut prefixes = self.write();
        for (done, (key, value)) in keys.iter().zip(values).enumerate() {
            let prefix = key.into();
            if prefixes.len() == self.room && !prefixes.contains_key(&prefix) {
                return Err(full(self.name, self.room, done));
            }
            prefixes.insert(prefix, *value);
        }
        Ok(())
    }

    fn remove(&self, keys: &[SourceKey]) -> Result<(), WriteError> {
        let mut prefixes = self.write();
        for key in keys {
            prefixes.remove(&key.into());
        }
        Ok(())
    }

    fn all(&self) -> Result<Vec<(SourceKey, V)>, WriteError> {
        let prefixes = self.read();
        let entry = |(prefix, value): (&Prefix, &V)| {
            let data = SourceRangeKey {
                set: prefix.set.to_be(),
                address: Ip6 {
                    octets: prefix.address,
                },
            };
            (SourceKey::new(prefix.bits + SET_BITS, data), *value)
        };
        Ok(prefixes.iter().map(entry).collect())
    }
}

fn full(map: &str, room: usize, done: usize) -> Incomplete {
    Incomplete {
        done,
        error: WriteError(format!("{map} is full: it has {room} entries")),
    }
}

impl<T: Pod + Send> Elements<T> for Arc<MappedArray<T>> {
    fn len(&self) -> u32 {
        (**self).len()
    }

    fn read(&self, index: u32) -> T {
        (**self).read(index)
    }

    fn write(&self, index: u32, value: &T) {
        (**self).write(index, value);
    }

    fn publish(&self, index: u32, offset: usize, value: u32) {
        Elements::publish(&**self, index, offset, value);
    }

    fn write_word(&self, index: u32, offset: usize, value: u64) {
        Elements::write_word(&**self, index, offset, value);
    }
}
