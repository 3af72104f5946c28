//! From plans to tables: by the agent's own programmer.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64},
    },
};

use lb_common::{
    abi::{self, Config, EndpointMemory, EndpointState, ServiceFlows, ServiceStats, Shortages},
    flow::Timeouts,
};

use super::{FamilyTables, Learnt, MemoryTables, Service, shared::Shared, storage::Storage};
use crate::{
    plan::Plan,
    program::{Key, NodeFacts, NotProgrammed, Programmer, Settings},
};

impl MemoryTables {
    /// Tables without Services, on a node with these settings; each family's flow table has room for so many
    /// records, two for each flow.
    pub fn new(settings: &Settings<'_>, facts: NodeFacts, flow_records: u32) -> Self {
        let mut config = Config {
            hz: 1,
            ..Config::default()
        };
        settings.write(&mut config);
        let storage = Storage::default();
        let local_addresses = facts.local_addresses.iter().copied().collect();
        Self {
            config,
            timeouts: Timeouts::default(),
            shares: [0; 2],
            v4: FamilyTables::new(storage.frontends4.clone(), flow_records),
            v6: FamilyTables::new(storage.frontends6.clone(), flow_records),
            programmer: Programmer::empty(storage.maps(), facts),
            storage,
            services: BTreeMap::new(),
            local_addresses,
            detector: settings.detector.clone(),
            devices: Vec::new(),
            ways_back: HashMap::new(),
            routes: Vec::new(),
            seconds: AtomicU32::new(0),
            random: AtomicU64::new(0),
            answers_left: AtomicU32::new(u32::MAX),
            learnt: Mutex::new(Learnt::default()),
            shared: Shared::new(),
        }
    }

    /// Replaces all Services. Flows, affinity and counters stay; services and endpoints that are still there
    /// keep their numbers.
    pub fn program<'a>(&mut self, plans: impl IntoIterator<Item = &'a Plan>) {
        let ids = self.programmer.ids();
        let mut gone: HashSet<Key> = ids.map(|(key, _)| key.clone()).collect();
        self.services.clear();
        for plan in plans {
            let key = Key::of(plan);
            gone.remove(&key);
            // What has found no room is in `not_programmed`.
            let _ = self.programmer.apply(key.clone(), Some(plan));
            if let Some(id) = self.programmer.id(&key) {
                let service = Service {
                    name: key.name,
                    algorithm: plan.algorithm,
                    source_ranges: plan.source_ranges.clone(),
                };
                self.services.insert(id, service);
            }
        }
        for key in gone {
            let _ = self.programmer.apply(key, None);
        }
        self.programmer.settle();
        self.programmer.tidy();
    }

    /// Service ports that have found no room.
    pub fn not_programmed(&self) -> impl Iterator<Item = (&Key, NotProgrammed)> {
        self.programmer.waiting()
    }

    /// Makes everything that packets have left in the maps what it was before the first.
    pub(super) fn forget_counts(&self) {
        for service in self.services.keys() {
            let Storage {
                service_stats,
                service_shortages,
                service_flows,
                endpoint_memory,
                endpoint_states,
                ..
            } = &self.storage;
            service_stats.write(*service, &ServiceStats::default());
            service_shortages.write(*service, &Shortages::default());
            service_flows.write(*service, &ServiceFlows::default());
            for endpoint in self.plan(*service).into_iter().flat_map(|p| self.range(p)) {
                endpoint_memory.write(endpoint.id, &EndpointMemory::default());
                let state = EndpointState {
                    connections: 0,
                    ..endpoint_states.read(endpoint.id)
                };
                endpoint_states.write(endpoint.id, &state);
            }
        }
    }

    /// All endpoints of a plan.
    fn range(&self, plan: &abi::Plan) -> impl Iterator<Item = &abi::Endpoint> {
        let count: u32 = plan.counts.iter().sum();
        (plan.first..plan.first + count).filter_map(|index| self.endpoint(index))
    }
}
