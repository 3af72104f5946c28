//! Writes plans to maps: finds numbers and ranges for everything, and writes only the differences.
//!
//! A change is written where no program reads yet, and published by one store of four bytes: the
//! service's plan index. What it replaces is reused only after a grace period, when no packet can
//! still be using it. A grace period takes a while, so it waits until there is time or need for it.
//! After a restart the maps themselves show which numbers are in use.

mod adopt;
mod budget;
mod cluster_ips;
mod frontends;
mod in_place;
pub mod maglev;
mod owners;
mod parts;
mod ranges;
mod refusal;
mod roster;
mod schemas;
mod seats;
mod service;
mod settings;
mod source_ranges;
mod tables;
#[cfg(test)]
mod tests;
mod verify;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::Hasher as _,
    mem::{offset_of, take},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use lb_admission::{classify::Identities, configuration::InForce, limits::Limits};
use lb_common::abi;
use lb_datapath::maps::{Maps, WriteError};
use lb_objects::{IpFamily, Node};
use siphasher::sip::SipHasher13;

use self::{
    adopt::Inherited,
    budget::Budget,
    cluster_ips::ClusterIps,
    frontends::Frontends,
    parts::Parts,
    ranges::{Numbers, Ranges},
    schemas::SchemaBook,
    seats::SeatBook,
    service::Programmed,
    source_ranges::SourceSets,
    tables::LookupTables,
};
pub use self::{
    budget::Scope,
    frontends::{Purpose, Reserved},
    refusal::{NotProgrammed, Reason},
    roster::{Counts, EndpointCounts, Roster},
    schemas::{Known, NotInForce, Numbered, NumberedLevel, NumberedSchema, Tenant},
    seats::{Limit as ConnectionLimit, Limited},
    settings::{Settings, node_addresses},
    verify::{Difference, Findings, Round, Wrong, wrong},
};
use crate::{
    config::{AdmissionMode, Config, MapLimits, Sctp},
    plan::{Plan, ServicePortName},
};

/// Facts about this node that are part of every service's entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses of the node's own devices.
    pub local_addresses: BTreeSet<IpAddr>,
    /// The cluster's pod networks. Addresses are not rewritten between them.
    pub cluster_networks: Vec<IpNet>,
    /// Rows of a Maglev lookup table; a prime. Zero saves the work, for callers that only ask for
    /// sets of endpoints and do not need the tables.
    pub maglev_rows: u32,
    /// What one Service and one namespace may have; counts from when the map writer starts.
    pub limits: MapLimits,
    /// Whether SCTP passes untouched; counts from when the map writer starts.
    pub passes_sctp: bool,
}

impl NodeFacts {
    /// The facts of a configuration, with the addresses of the node's own devices.
    pub fn new(config: &Config, node: &Node, local_addresses: BTreeSet<IpAddr>) -> Self {
        let mut cluster_networks = config.cluster_networks.clone();
        cluster_networks.extend(&node.pod_cidrs);
        Self {
            local_addresses,
            cluster_networks,
            maglev_rows: config.datapath.maglev_table_size,
            limits: config.limits,
            passes_sctp: config.datapath.sctp == Sctp::Off,
        }
    }
}

/// What changed facts about the node mean for plans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedFacts {
    /// Every plan has to be applied again.
    pub all: bool,
    /// Addresses that have become the node's own or are no more: plans with an endpoint of this
    /// node there have to be applied again.
    pub addresses: Vec<IpAddr>,
}

/// A service port of one family: what an entry in the maps is about. It is cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub name: Arc<ServicePortName>,
    pub family: IpFamily,
}

/// `namespace/name:port TCP (IPv4)`.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, family } = self;
        write!(f, "{name} {} ({family})", name.protocol)
    }
}

impl Key {
    /// The key of a plan's entry.
    pub fn of(plan: &Plan) -> Self {
        Self {
            name: plan.name.clone(),
            family: plan.family,
        }
    }

    /// The same in every agent, and never 0.
    fn hash(&self) -> u32 {
        let mut hasher = SipHasher13::new();
        hasher.write(format!("{}/{}/{}", self.name, self.name.protocol, self.family).as_bytes());
        (hasher.finish() as u32).max(1)
    }
}

/// How many of a map's entries are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapFill {
    pub map: &'static str,
    pub entries: u32,
    pub capacity: u32,
}

/// Of a map of so many entries, those that only essential Services get.
fn reserve(entries: u32) -> u32 {
    entries / 64
}

/// How many elements of `ENDPOINTS` and `PLANS` may wait for reuse while the agent is busy.
const GARBAGE_LIMIT: usize = 1 << 16;

/// Service ports without room that a round tries again: each has its turn in a quiet moment, and
/// none holds up what changes.
const RETRIES: usize = 256;

/// Keeps the maps equal to the plans.
pub struct MapWriter {
    maps: Maps,
    facts: NodeFacts,
    ids: Numbers,
    plans: Numbers,
    slots: Ranges,
    endpoint_ids: Numbers,
    lookup_tables: LookupTables,
    source_sets: SourceSets,
    seats: SeatBook,
    schemas: SchemaBook,
    frontends: Frontends,
    cluster_ips: ClusterIps,
    programmed: HashMap<Key, Programmed>,
    /// Those of them that have a plan.
    roster: Arc<Roster>,
    budget: Budget,
    /// Service ports that could not be written, with what they want to be.
    waiting: BTreeMap<Key, (Plan, NotProgrammed)>,
    /// Withdrawn service ports to which addresses may still lead.
    departing: Vec<Programmed>,
    inherited: Option<Inherited>,
    /// Parts that may be reused after a grace period.
    garbage: Parts,
    /// Whether anything has become free since the waiting service ports were last tried.
    freed: bool,
    /// Goes up with each change of who waits, and for what.
    revision: u64,
}

impl MapWriter {
    /// Takes over the contents of the maps.
    ///
    /// # Errors
    ///
    /// If the maps cannot be read.
    pub fn new(maps: Maps, facts: NodeFacts) -> Result<Self, WriteError> {
        let mut writer = Self::empty(maps, facts);
        writer.inherit()?;
        Ok(writer)
    }

    /// Takes over maps that hold nothing.
    pub fn empty(maps: Maps, facts: NodeFacts) -> Self {
        Self {
            ids: Numbers::new(1..maps.services.len()),
            plans: Numbers::new(1..maps.plans.len()),
            slots: Ranges::new(0..maps.endpoints.len()),
            endpoint_ids: Numbers::new(1..maps.endpoint_states.len()),
            lookup_tables: LookupTables::new(maps.maglev.len()),
            source_sets: SourceSets::default(),
            seats: SeatBook::new(&maps),
            schemas: SchemaBook::new(&maps),
            frontends: Frontends::default(),
            cluster_ips: ClusterIps::new(facts.passes_sctp),
            programmed: HashMap::new(),
            roster: Arc::new(Roster::new(&maps)),
            budget: Budget::new(
                facts.limits,
                [
                    maps.services.len(),
                    maps.frontends4.capacity(),
                    maps.endpoint_states.len(),
                    LookupTables::room(maps.maglev.len(), facts.maglev_rows),
                    maps.source_ranges.capacity(),
                    // The node has one for itself.
                    maps.seats.len().saturating_sub(1),
                ],
            ),
            waiting: BTreeMap::new(),
            departing: Vec::new(),
            inherited: None,
            garbage: Parts::default(),
            freed: false,
            revision: 0,
            maps,
            facts,
        }
    }

    /// Goes over to other maps and takes over their contents, as long as no plan has been applied.
    /// Who reads what is counted in the maps goes along.
    ///
    /// # Errors
    ///
    /// If the maps cannot be read.
    pub fn reopen(&mut self, maps: Maps) -> Result<(), WriteError> {
        self.roster.reopen(&maps);
        let empty = Self::empty(maps, self.facts.clone());
        let before = std::mem::replace(self, empty);
        self.roster = before.roster;
        self.seats.share(before.seats.limited());
        self.schemas.go_on_from(before.schemas);
        self.inherit()
    }

    /// Makes the entry of a service port equal to its plan, or removes it. Addresses that it gains
    /// or loses are written by [`MapWriter::settle`], for many service ports at once.
    ///
    /// # Errors
    ///
    /// Names what there is no room for. What was there before stays in force, and the plan is tried
    /// again when there is room.
    pub fn apply(&mut self, key: Key, plan: Option<&Plan>) -> Result<(), NotProgrammed> {
        let waited = self.waiting.remove(&key).map(|(_, error)| error);
        let passes = self.cluster_ips.passes(&key);
        let outcome = match plan.filter(|_| !passes) {
            Some(plan) => self.write(&key, plan),
            None => {
                self.withdraw(&key);
                match plan {
                    Some(plan) => self.cluster_ips.claim(&key, plan),
                    None => self.cluster_ips.give_up(&key),
                }
                Ok(())
            }
        };
        if waited.as_ref() != outcome.as_ref().err() {
            self.revision += 1;
        }
        if let (Err(error), Some(plan)) = (&outcome, plan) {
            self.waiting.insert(key, (plan.clone(), error.clone()));
        }
        outcome
    }

    /// Ends a round of changes: writes addresses, and tries again the service ports that had no
    /// room if some has become free. [`MapWriter::waiting`] lists those that still have none.
    pub fn settle(&mut self) {
        self.flush();
        let mut waiting = self.waiting.values();
        let waiting = waiting.any(|(_, error)| error.is_shortage()) || self.frontends.is_waiting();
        let pending: u32 = self
            .garbage
            .slots
            .iter()
            .map(|slots| slots.len() as u32)
            .sum();
        if waiting || pending as usize + self.garbage.plans.len() > GARBAGE_LIMIT {
            self.make_room();
        }
        if !self.waiting.is_empty() && self.freed {
            self.retry(RETRIES);
        }
        if self.inherited.is_none() {
            self.frontends.make_way(&self.maps);
        }
    }

    /// To be called when there is nothing else to do. Makes what was replaced ready for reuse,
    /// which takes some milliseconds, and tries again the service ports that had no room.
    pub fn tidy(&mut self) {
        self.make_room();
        self.forget_classes();
        match self.freed {
            true => self.retry(usize::MAX),
            false => self.flush(),
        }
    }

    /// Removes what the maps held at the start and no plan has claimed since. To be called when
    /// every Service is known.
    pub fn finish_adoption(&mut self) {
        if let Some(inherited) = self.inherited.take() {
            self.discard(inherited);
            self.seats.finish_adoption(&self.maps);
            self.schemas.finish_adoption();
            self.frontends.make_way(&self.maps);
        }
    }

    /// Takes over facts about the node, and says which plans have to be applied again.
    #[must_use]
    pub fn set_facts(&mut self, facts: NodeFacts) -> ChangedFacts {
        let before = std::mem::replace(&mut self.facts, facts);
        let NodeFacts {
            local_addresses,
            cluster_networks,
            maglev_rows,
            // Those of the start count.
            limits: _,
            passes_sctp: _,
        } = &self.facts;
        ChangedFacts {
            all: (&before.cluster_networks, before.maglev_rows) != (cluster_networks, *maglev_rows),
            addresses: before
                .local_addresses
                .symmetric_difference(local_addresses)
                .copied()
                .collect(),
        }
    }

    /// Says which addresses Services do not get from now on. The maps have that after
    /// [`Self::settle`].
    pub fn set_reserved(&mut self, reserved: Reserved) {
        self.frontends.reserve(reserved);
    }

    /// Says which ServiceCIDRs the cluster has. The maps have that after [`Self::settle`].
    pub fn set_service_cidrs(&mut self, cidrs: &[IpNet]) {
        self.cluster_ips.set_cidrs(cidrs);
    }

    /// Service ports that are not in the maps as they should be. One with several problems may be
    /// named more than once.
    pub fn waiting(&self) -> impl Iterator<Item = (&Key, NotProgrammed)> {
        let waiting = self.waiting.iter();
        waiting
            .map(|(key, (_, error))| (key, error.clone()))
            .chain(self.frontends.lacking())
    }

    /// Another number if [`Self::waiting`] may say something else than before.
    pub fn revision(&self) -> (u64, u64) {
        (self.revision, self.frontends.revision())
    }

    /// How full the maps are.
    pub fn fill(&self) -> Vec<MapFill> {
        let maps = &self.maps;
        let array = |map, len: u32, free: u32| MapFill {
            map,
            entries: len.saturating_sub(free),
            capacity: len,
        };
        // Number 0 of these stands for none.
        let numbers = |map, len: u32, free| array(map, len.saturating_sub(1), free);
        let table = |map, entries, capacity| MapFill {
            map,
            entries,
            capacity,
        };
        let [frontends4, frontends6] = self.frontends.entries();
        let mut fill = vec![
            table("FRONTENDS4", frontends4, maps.frontends4.capacity()),
            table("FRONTENDS6", frontends6, maps.frontends6.capacity()),
            numbers("SERVICES", maps.services.len(), self.ids.free()),
            numbers("PLANS", maps.plans.len(), self.plans.free()),
            array("ENDPOINTS", maps.endpoints.len(), self.slots.free()),
            numbers(
                "ENDPOINT_STATES",
                maps.endpoint_states.len(),
                self.endpoint_ids.free(),
            ),
            array("MAGLEV", maps.maglev.len(), self.lookup_tables.free()),
            table(
                "SOURCE_RANGES",
                self.source_sets.entries(),
                maps.source_ranges.capacity(),
            ),
        ];
        fill.extend(self.schemas.fill(maps));
        fill
    }

    /// Number of service ports in the maps.
    pub fn len(&self) -> usize {
        self.roster.len()
    }

    /// Whether no service port is in the maps.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The service ports in the maps, for others to read what comes to them.
    pub fn roster(&self) -> Arc<Roster> {
        self.roster.clone()
    }

    /// The Services with limits of connections, for others to read what is counted of them.
    pub fn limited(&self) -> Arc<Limited> {
        self.seats.limited()
    }

    /// The flow schemas and priority levels in the maps, for others to read what is counted of them.
    pub fn numbered(&self) -> Arc<Numbered> {
        self.schemas.numbered()
    }

    /// Puts flow schemas and priority levels in force. The maps have them after [`Self::settle`].
    /// `limits` are those of [`InForce::levels`].
    ///
    /// # Errors
    ///
    /// If there is no room for them. Those before stay in force.
    pub fn set_schemas(
        &mut self,
        in_force: &InForce,
        mode: AdmissionMode,
        limits: &[Limits],
    ) -> Result<(), NotInForce> {
        // Their room may be needed.
        self.forget_classes();
        self.schemas.set(in_force, mode, limits, &self.maps)?;
        self.classify();
        Ok(())
    }

    /// Takes over whose addresses are. Returns whether that is in force: if not, [`Self::set_schemas`] is
    /// due.
    ///
    /// # Errors
    ///
    /// If some addresses find no room.
    pub fn set_identities(&mut self, identities: Identities) -> Result<bool, WriteError> {
        self.schemas.set_identities(identities, &self.maps)
    }

    /// Number of a service port, as flows and counters name it.
    pub fn id(&self, key: &Key) -> Option<u32> {
        self.programmed.get(key).map(|programmed| programmed.id)
    }

    /// All service ports in the maps, with their numbers.
    pub fn ids(&self) -> impl Iterator<Item = (&Key, u32)> {
        self.programmed
            .iter()
            .map(|(key, programmed)| (key, programmed.id))
    }

    /// The counts of a service port's connections.
    pub fn stats(&self, id: u32) -> abi::ServiceStats {
        self.maps.service_stats.read(id)
    }

    /// Counts of the service port's connections that found no room.
    pub fn shortages(&self, id: u32) -> abi::Shortages {
        self.maps.service_shortages.read(id)
    }

    /// Connections that were sent to each endpoint of a service port.
    pub fn endpoint_connections(&self, key: &Key) -> Vec<(SocketAddr, u64)> {
        let programmed = self.programmed.get(key).into_iter();
        programmed
            .flat_map(|programmed| programmed.endpoints.iter())
            .map(|endpoint| {
                let state = self.maps.endpoint_states.read(endpoint.id);
                let address = SocketAddr::new(endpoint.address.into(), endpoint.port);
                (address, state.connections)
            })
            .collect()
    }

    /// Writes addresses, then takes plans that no address leads to any more out of the maps.
    fn flush(&mut self) {
        let flushed = self.frontends.flush(&self.maps);
        // An address refuses what is to none of its ports only once they are there.
        self.cluster_ips.flush(&self.maps);
        if !flushed {
            return;
        }
        for programmed in take(&mut self.departing) {
            self.let_go(programmed);
        }
    }

    /// Makes the room of classes free that no address has any more.
    fn forget_classes(&mut self) {
        if self.schemas.has_garbage() && self.inherited.is_none() {
            self.flush();
            let used = self.frontends.classes().collect();
            (self.maps.grace)();
            self.schemas.retain(&used, &self.maps);
        }
    }

    /// Gives so many of the waiting another try, those that go first.
    fn retry(&mut self, most: usize) {
        self.freed = false;
        let waiting = self.waiting.iter();
        let mut order: Vec<_> = waiting
            .map(|(key, (plan, _))| (plan.rank, key.clone()))
            .collect();
        if order.len() > most {
            order.select_nth_unstable(most);
            order.truncate(most);
            // The rest have their turn in a quiet moment.
            self.freed = true;
        }
        order.sort_unstable();
        for (_, key) in order {
            if let Some((plan, _)) = self.waiting.get(&key).cloned() {
                // Whatever is wrong is kept in `waiting` again.
                let _ = self.apply(key, Some(&plan));
            }
        }
        self.flush();
    }

    /// Runs `take`. If there is nothing left, runs it once more after a grace period.
    fn take<T>(&mut self, take: impl Fn(&mut Self) -> Option<T>) -> Option<T> {
        match take(self) {
            None if self.make_room() => take(self),
            taken => taken,
        }
    }

    /// Makes everything that waits ready for reuse. Returns whether there was anything.
    fn make_room(&mut self) -> bool {
        if !self.departing.is_empty() {
            self.flush();
        }
        if self.garbage.is_empty() {
            return false;
        }
        (self.maps.grace)();
        let garbage = take(&mut self.garbage);
        self.release(garbage);
        self.freed = true;
        true
    }

    /// Lets parts be taken again that no program can be using.
    fn release(&mut self, parts: Parts) {
        for id in parts.ids {
            self.ids.release(id);
        }
        for plan in parts.plans {
            self.plans.release(plan);
        }
        for range in parts.slots {
            self.slots.release(range);
        }
        for id in parts.endpoint_ids {
            self.endpoint_ids.release(id);
        }
        for table in parts.lookup_tables {
            self.lookup_tables.release(table);
        }
        for set in parts.source_sets {
            self.source_sets.release(set, &self.maps);
        }
    }

    /// Publishes a plan as that of a service.
    fn publish(&self, id: u32, plan: u32) {
        self.maps
            .services
            .publish(id, offset_of!(abi::Service, plan), plan);
    }
}
