//! From plans to maps: numbers and ranges for everything, and only the differences written.
//!
//! A change is written where nobody reads yet and published by one store of four bytes, the service's
//! plan index. What it replaces is reused only after a grace period, when no packet can still be
//! looking at it. After a restart the maps themselves say which numbers are in use.

mod adopt;
pub mod maglev;
pub mod maps;
mod ranges;
mod service;
mod sources;
mod tables;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem::offset_of,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use lb_common::abi;
use thiserror::Error;

use self::{
    adopt::Inherited,
    maps::{Maps, WriteError},
    ranges::{Numbers, Ranges},
    service::{Frontends, Programmed},
    sources::SourceSets,
    tables::LookupTables,
};
use crate::{
    model::{IpFamily, Protocol},
    plan::{Plan, ServicePortName},
};

/// What of this node is part of every service's entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses of the node's own devices.
    pub local_addresses: BTreeSet<IpAddr>,
    /// The cluster's pod networks: nobody rewrites addresses between them.
    pub cluster_networks: Vec<IpNet>,
    /// Rows of a Maglev lookup table, a prime.
    pub maglev_rows: u32,
}

/// A service port of one family: what an entry in the maps is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub name: ServicePortName,
    pub family: IpFamily,
}

impl Key {
    /// The key of a plan's entry.
    pub fn of(plan: &Plan) -> Self {
        Self {
            name: plan.name.clone(),
            family: plan.family,
        }
    }
}

/// Why a service port is not, or not completely, in the maps. What was there before stays in force.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotProgrammed {
    #[error("no service number is free: SERVICES has {0} entries")]
    Services(u32),
    #[error("no plan number is free: PLANS has {0} entries")]
    Plans(u32),
    #[error("no room for {wanted} endpoints: ENDPOINTS has {free} of {size} slots free")]
    Endpoints { wanted: u32, free: u32, size: u32 },
    #[error("no endpoint number is free: ENDPOINT_STATES has {0} entries")]
    EndpointStates(u32),
    #[error("no room for a Maglev lookup table of {rows} rows: MAGLEV is full")]
    Maglev { rows: u32 },
    #[error("{0} endpoints are too many for Maglev, which takes {max}", max = u16::MAX)]
    TooManyForMaglev(usize),
    #[error(transparent)]
    Map(#[from] WriteError),
}

/// Keeps the maps equal to the plans.
pub struct Programmer {
    maps: Maps,
    facts: NodeFacts,
    ids: Numbers,
    plans: Numbers,
    slots: Ranges,
    endpoint_ids: Numbers,
    lookup_tables: LookupTables,
    source_sets: SourceSets,
    frontends: Frontends,
    programmed: HashMap<Key, Programmed>,
    /// Service ports that could not be written, with what they want to be.
    waiting: BTreeMap<Key, (Plan, NotProgrammed)>,
    inherited: Option<Inherited>,
    garbage: Garbage,
}

/// What may be reused after a grace period.
#[derive(Debug, Default)]
struct Garbage {
    ids: Vec<u32>,
    plans: Vec<u32>,
    slots: Vec<std::ops::Range<u32>>,
    endpoint_ids: Vec<u32>,
    lookup_tables: Vec<u32>,
    source_sets: Vec<u32>,
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.ids.is_empty()
            && self.plans.is_empty()
            && self.slots.is_empty()
            && self.endpoint_ids.is_empty()
            && self.lookup_tables.is_empty()
            && self.source_sets.is_empty()
    }
}

impl Programmer {
    /// Takes over what the maps hold.
    ///
    /// # Errors
    ///
    /// If the maps cannot be read.
    pub fn new(maps: Maps, facts: NodeFacts) -> Result<Self, WriteError> {
        let mut programmer = Self {
            ids: Numbers::new(1..maps.services.len()),
            plans: Numbers::new(1..maps.plans.len()),
            slots: Ranges::new(0..maps.endpoints.len()),
            endpoint_ids: Numbers::new(1..maps.endpoint_states.len()),
            lookup_tables: LookupTables::new(maps.maglev.len()),
            source_sets: SourceSets::default(),
            frontends: Frontends::default(),
            programmed: HashMap::new(),
            waiting: BTreeMap::new(),
            inherited: None,
            garbage: Garbage::default(),
            maps,
            facts,
        };
        programmer.inherit()?;
        Ok(programmer)
    }

    /// Makes the entry of a service port equal to its plan, or removes it.
    ///
    /// # Errors
    ///
    /// Says what there is no room for. The entry is tried again by [`Programmer::settle`].
    pub fn apply(&mut self, key: Key, plan: Option<&Plan>) -> Result<(), NotProgrammed> {
        self.waiting.remove(&key);
        // SCTP passes untouched: there is nothing to look up for it.
        let Some(plan) = plan.filter(|plan| plan.name.protocol != Protocol::Sctp) else {
            self.withdraw(&key);
            return Ok(());
        };
        let outcome = self.write(&key, plan);
        if let Err(error) = &outcome {
            self.waiting.insert(key, (plan.clone(), error.clone()));
        }
        outcome
    }

    /// Ends a round of changes: lets what was replaced be reused, and gives those that had no room
    /// another try.
    pub fn settle(&mut self) {
        if !self.garbage.is_empty() {
            (self.maps.grace)();
            self.collect();
        }
        for (key, (plan, _)) in std::mem::take(&mut self.waiting) {
            // Whatever is wrong is kept in `waiting` again.
            let _ = self.apply(key, Some(&plan));
        }
    }

    /// Removes what the maps held at the start and no plan has claimed since: to be called when every
    /// Service is known.
    pub fn finish_adoption(&mut self) {
        if let Some(inherited) = self.inherited.take() {
            self.discard(inherited);
        }
    }

    /// Takes over facts about the node; if this says that they changed, every plan has to be applied
    /// again.
    #[must_use]
    pub fn set_facts(&mut self, facts: NodeFacts) -> bool {
        let changed = self.facts != facts;
        self.facts = facts;
        changed
    }

    /// Service ports that are not in the maps as they should be.
    pub fn waiting(&self) -> impl Iterator<Item = (&Key, &NotProgrammed)> {
        self.waiting.iter().map(|(key, (_, error))| (key, error))
    }

    /// Number of service ports in the maps.
    pub fn len(&self) -> usize {
        self.programmed.len()
    }

    /// Whether no service port is in the maps.
    pub fn is_empty(&self) -> bool {
        self.programmed.is_empty()
    }

    /// Number of a service port, as flows and counters name it.
    pub fn id(&self, key: &Key) -> Option<u32> {
        self.programmed.get(key).map(|programmed| programmed.id)
    }

    /// Every service port in the maps with its number.
    pub fn ids(&self) -> impl Iterator<Item = (&Key, u32)> {
        self.programmed
            .iter()
            .map(|(key, programmed)| (key, programmed.id))
    }

    /// What a service port's connections have come to.
    pub fn stats(&self, id: u32) -> abi::ServiceStats {
        self.maps.service_stats.read(id)
    }

    /// Connections sent to each endpoint of a service port.
    pub fn endpoint_connections(&self, key: &Key) -> Vec<(SocketAddr, u64)> {
        let endpoints = self
            .programmed
            .get(key)
            .into_iter()
            .flat_map(|p| &p.endpoint_ids);
        endpoints
            .map(|(address, id)| (*address, self.maps.endpoint_states.read(*id).connections))
            .collect()
    }

    /// Reuses what no packet can be looking at any more.
    fn collect(&mut self) {
        let garbage = std::mem::take(&mut self.garbage);
        for id in garbage.ids {
            self.ids.release(id);
        }
        for plan in garbage.plans {
            self.plans.release(plan);
        }
        for range in garbage.slots {
            self.slots.release(range);
        }
        for id in garbage.endpoint_ids {
            self.endpoint_ids.release(id);
        }
        for table in garbage.lookup_tables {
            self.lookup_tables.release(table);
        }
        for set in garbage.source_sets {
            self.source_sets.release(set, &self.maps);
        }
    }

    /// Runs `take`; if there is nothing left, once more after a grace period.
    fn take<T>(&mut self, take: impl Fn(&mut Self) -> Option<T>) -> Option<T> {
        if let Some(taken) = take(self) {
            return Some(taken);
        }
        if self.garbage.is_empty() {
            return None;
        }
        (self.maps.grace)();
        self.collect();
        take(self)
    }

    /// Publishes a plan as a service's.
    fn publish(&self, id: u32, plan: u32) {
        self.maps
            .services
            .publish(id, offset_of!(abi::Service, plan), plan);
    }
}
