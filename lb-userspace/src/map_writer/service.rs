//! Writes one service port's plan and endpoints to free elements, then publishes them.

use std::{
    collections::{HashMap, HashSet},
    mem::offset_of,
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::Arc,
};

use lb_common::{
    abi::{
        self, EndpointLatency, EndpointLoad, EndpointMemory, EndpointState, Latencies,
        ServiceFlows, ServiceStats, Shortages, endpoint_flag, plan_flag,
    },
    addr::Ip6,
};
use lb_objects::{Algorithm, TrafficPolicy};

use super::{
    Key, MapWriter, NodeFacts, NotProgrammed, Scope,
    frontends::{Claimant, claims},
    parts::Parts,
    reserve,
    tables::NO_TABLE,
};
use crate::{
    config::Resource,
    plan::{EndpointClass, Frontend, FrontendKind, Plan, Rank, TopologyMode},
};

/// In what order a service port's addresses get room: what it cannot be without goes first.
const KINDS: [FrontendKind; 4] = [
    FrontendKind::ClusterIp,
    FrontendKind::NodePort,
    FrontendKind::LoadBalancerIp,
    FrontendKind::ExternalIp,
];

/// The part of the maps that belongs to a service port.
#[derive(Debug)]
pub struct Programmed {
    pub id: u32,
    /// [`Key::hash`] of the service port.
    pub name_hash: u32,
    /// Index of the published plan, 0 for none; then the plan's contents.
    pub plan: u32,
    pub content: abi::Plan,
    pub endpoints: Arc<[abi::Endpoint]>,
    /// The weights of the endpoints; empty if all are the same.
    pub weights: Box<[u16]>,
    /// Which of [`EndpointState::slots`] the published plan's positions are in. The other one is
    /// what changes next, so that a reader of either plan finds its position all the time.
    pub lane: u8,
    /// As whom it claims [`Self::frontends`].
    pub claimant: Option<Arc<Claimant>>,
    /// The Service's own port, whatever the frontends' are; 0 if it is not known.
    pub port: u16,
    pub frontends: Arc<[Frontend]>,
}

impl Programmed {
    /// A service port that has only a number so far.
    fn new(id: u32, name_hash: u32) -> Self {
        Self {
            id,
            name_hash,
            plan: 0,
            content: abi::Plan::default(),
            endpoints: Arc::default(),
            weights: Box::default(),
            lane: 0,
            claimant: None,
            port: 0,
            frontends: Arc::default(),
        }
    }

    /// Maglev tables of the published plan.
    fn tables(&self) -> u32 {
        let content = &self.content;
        let tables = [content.maglev_cluster, content.maglev_local];
        match content.maglev_rows {
            0 => 0,
            _ => tables.into_iter().filter(|row| *row != NO_TABLE).count() as u32,
        }
    }

    /// All that it occupies.
    pub fn into_parts(self) -> Parts {
        Parts {
            ids: vec![self.id],
            endpoint_ids: self.endpoints.iter().map(|endpoint| endpoint.id).collect(),
            ..self.plan_parts()
        }
    }

    /// What it occupies for the published plan alone, all of which the next plan has anew.
    pub(super) fn plan_parts(&self) -> Parts {
        if self.plan == 0 {
            return Parts::default();
        }
        let content = &self.content;
        Parts {
            plans: vec![self.plan],
            slots: vec![self.slots()],
            lookup_tables: match content.maglev_rows {
                0 => Vec::new(),
                _ => vec![content.maglev_cluster, content.maglev_local],
            },
            source_sets: match content.source_set {
                0 => Vec::new(),
                set => vec![set],
            },
            ..Parts::default()
        }
    }

    pub(super) fn slots(&self) -> Range<u32> {
        self.content.first..self.content.first + self.endpoints.len() as u32
    }
}

/// An endpoint's place in the network, as a key.
pub(super) type Place = ([u8; 16], u16);

/// A plan that has all its numbers and is not in the maps yet.
pub(super) struct Next {
    pub index: u32,
    pub content: abi::Plan,
    pub endpoints: Vec<abi::Endpoint>,
    pub weights: Box<[u16]>,
}

impl MapWriter {
    /// Writes a service port's plan and claims its addresses.
    pub(super) fn write(&mut self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        if !self.programmed.contains_key(key) {
            let who = (key, plan.rank);
            self.budget.allows(who, Resource::ServicePorts, 0, 1)?;
            let programmed = match self.adopt(key, &plan.frontends) {
                Some(adopted) => adopted,
                None => self.create(key, plan.rank)?,
            };
            self.budget.change(key, Resource::ServicePorts, 0, 1);
            let (endpoints, tables) = (programmed.endpoints.len() as u32, programmed.tables());
            self.budget.change(key, Resource::Endpoints, 0, endpoints);
            self.budget.change(key, Resource::MaglevTables, 0, tables);
            let set = programmed.content.source_set;
            self.source_sets.change(&key.name.service.namespace, 0, set);
            self.programmed.insert(key.clone(), programmed);
        }
        let written = self.write_plan(key, plan);
        let programmed = &self.programmed[key];
        // To nothing no address may lead.
        if programmed.plan == 0 {
            return written;
        }
        self.roster.enter(key, programmed);
        let claimed = self.claim(key, plan);
        self.cluster_ips.claim(key, plan);
        written.and(claimed)
    }

    /// Gives up a service port's addresses. Its plan is removed once no address leads to it.
    pub(super) fn withdraw(&mut self, key: &Key) {
        let Some(mut programmed) = self.programmed.remove(key) else {
            return;
        };
        self.roster.strike(key);
        self.seats.give_up(key, &self.maps, &mut self.budget);
        self.give_up(key, &programmed);
        for (resource, amount) in [
            (Resource::ServicePorts, 1),
            (Resource::Addresses, programmed.frontends.len() as u32),
            (Resource::Endpoints, programmed.endpoints.len() as u32),
            (Resource::MaglevTables, programmed.tables()),
        ] {
            self.budget.change(key, resource, amount, 0);
        }
        let set = programmed.content.source_set;
        self.source_sets.change(&key.name.service.namespace, set, 0);
        programmed.frontends = Arc::default();
        self.departing.push(programmed);
    }

    /// Removes a service from the maps to which no address leads any more.
    pub(super) fn let_go(&mut self, programmed: Programmed) {
        self.publish(programmed.id, 0);
        self.garbage.append(programmed.into_parts());
    }

    fn create(&mut self, key: &Key, rank: Rank) -> Result<Programmed, NotProgrammed> {
        let spare = self.reserve(rank, self.maps.services.len());
        let id = self.take(|s| s.ids.take_leaving(spare));
        let id = id.ok_or(NotProgrammed::Services(self.maps.services.len()))?;
        let service = abi::Service {
            plan: 0,
            name_hash: key.hash(),
        };
        self.maps.services.write(id, &service);
        self.maps.service_stats.write(id, &ServiceStats::default());
        let none = Shortages::default();
        self.maps.service_shortages.write(id, &none);
        self.maps.service_flows.write(id, &ServiceFlows::default());
        let none = Latencies::default();
        self.maps.service_latencies.write(id, &none);
        Ok(Programmed::new(id, service.name_hash))
    }

    /// Of a map of so many entries, those that a Service of this rank has to leave free.
    fn reserve(&self, rank: Rank, entries: u32) -> u32 {
        match rank.is_essential() {
            true => 0,
            false => reserve(entries),
        }
    }

    /// Makes the addresses that lead to a service port those claimed, once they are flushed: of
    /// each kind all of them, or those that it has already if the rest is over a limit.
    fn claim(&mut self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        let (rank, wanted) = (plan.rank, &plan.frontends);
        let Some(current) = self.programmed.get(key) else {
            return Ok(());
        };
        let same_claimant = current.claimant.as_ref().is_some_and(|c| c.rank == rank);
        // As long as only endpoints change, the addresses are not even looked at: they are the
        // same.
        if same_claimant && current.frontends == *wanted {
            return Ok(());
        }
        let previous = current.frontends.clone();
        let before: HashSet<&Frontend> = previous.iter().collect();
        let had = before.len() as u32;
        let (frontends, outcome) = self.within_limits(key, rank, &before, wanted);
        let has = frontends.len() as u32;
        self.budget.change(key, Resource::Addresses, had, has);
        // Others of its Service or namespace may wait for what it gives up.
        self.freed |= has < had;

        let Some(current) = self.programmed.get_mut(key) else {
            return outcome;
        };
        let claimant = match (&current.claimant, same_claimant) {
            (Some(claimant), true) => claimant.clone(),
            _ => Arc::new(Claimant {
                rank,
                key: key.clone(),
            }),
        };
        let earlier = current.claimant.replace(claimant.clone());
        let id = current.id;
        let port = plan.port();
        let same_port = std::mem::replace(&mut current.port, port) == port;
        current.frontends = frontends.clone();
        let after: HashSet<&Frontend> = frontends.iter().collect();
        if let Some(earlier) = earlier {
            let gone = previous.iter();
            let gone = gone.filter(|claimed| !same_claimant || !after.contains(claimed));
            for claim in claims(key, gone) {
                self.frontends.give_up(&claim, &earlier);
            }
        }
        let new = frontends.iter();
        // Their classes may depend on the Service's port.
        let is_known = |claimed: &Frontend| same_claimant && same_port && before.contains(claimed);
        let new = new.filter(|claimed| !is_known(claimed));
        for claim in claims(key, new) {
            let address = claim.address.0.ip();
            let class = self.schemas.class(&key.name, port, address, &self.maps);
            let class = class.unwrap_or_else(|| self.frontends.class_at(&claim.address, id));
            self.frontends.stake(&claim, &claimant, id, class);
        }
        outcome
    }

    /// Gives all addresses the classes that they have by the flow schemas in force.
    pub(super) fn classify(&mut self) {
        let asks_for_address = self.schemas.asks_for_address();
        let mut all: Vec<_> = self.programmed.iter().collect();
        // The same classes get the same numbers every time.
        all.sort_unstable_by_key(|(key, _)| *key);
        for (key, programmed) in all {
            let Some(claimant) = &programmed.claimant else {
                continue;
            };
            let mut class = None;
            for claim in claims(key, &*programmed.frontends) {
                if class.is_none() || asks_for_address {
                    let (address, port) = (claim.address.0.ip(), programmed.port);
                    class = self.schemas.class(&key.name, port, address, &self.maps);
                }
                if let Some(class) = class {
                    self.frontends.stake(&claim, claimant, programmed.id, class);
                }
            }
        }
    }

    /// The addresses that are within the limits, in the order wanted.
    fn within_limits(
        &self,
        key: &Key,
        rank: Rank,
        before: &HashSet<&Frontend>,
        wanted: &Arc<[Frontend]>,
    ) -> (Arc<[Frontend]>, Result<(), NotProgrammed>) {
        let had = before.len() as u32;
        let is_kept = |claimed: &Frontend| before.contains(claimed);
        let mut count = 0;
        let mut refused = Vec::new();
        let mut outcome = Ok(());
        for kind in KINDS {
            let of_kind = || wanted.iter().filter(|claimed| claimed.kind == kind);
            let more = of_kind().count() as u32;
            let who = (key, rank);
            match (self.budget).allows(who, Resource::Addresses, had, count + more) {
                Ok(()) => count += more,
                Err(error) => {
                    count += of_kind().filter(|claimed| is_kept(claimed)).count() as u32;
                    refused.push(kind);
                    outcome = outcome.and(Err(error));
                }
            }
        }
        if refused.is_empty() {
            return (wanted.clone(), outcome);
        }
        let within = wanted.iter();
        let within = within.filter(|claimed| !refused.contains(&claimed.kind) || is_kept(claimed));
        (within.copied().collect(), outcome)
    }

    fn give_up(&mut self, key: &Key, programmed: &Programmed) {
        if let Some(claimant) = &programmed.claimant {
            for claim in claims(key, &*programmed.frontends) {
                self.frontends.give_up(&claim, claimant);
            }
        }
    }

    /// Writes plan and endpoints and publishes them, if they differ from what is published. What
    /// finds no room as a whole replaces what is there in its place, as far as that goes.
    fn write_plan(&mut self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        let mut wanted = Wanted::of(plan, self.programmed[key].id, &self.facts);
        let mut outcome = Ok(());
        match self.seats.assign(key, plan, &self.maps, &mut self.budget) {
            Ok(index) => wanted.content.seats = index,
            Err(error) => outcome = Err(error),
        }
        loop {
            if self.is_published(&self.programmed[key], plan, &wanted) {
                return outcome;
            }
            let error = match self.try_publish(key, plan, &wanted) {
                Ok(()) => return outcome,
                Err(error) => error,
            };
            if wanted.content.maglev_rows == 0 || !error.is_about_maglev() {
                return self
                    .replace_in_place(key, plan, &wanted, error)
                    .and(outcome);
            }
            wanted.content.maglev_rows = 0;
            outcome = Err(error);
        }
    }

    /// Writes plan and endpoints to a fresh place and publishes them.
    pub(super) fn try_publish(
        &mut self,
        key: &Key,
        plan: &Plan,
        wanted: &Wanted,
    ) -> Result<(), NotProgrammed> {
        let (from, to) = (&self.programmed[key], wanted.endpoints.len());
        self.budget.allows(
            (key, plan.rank),
            Resource::Endpoints,
            from.endpoints.len() as u32,
            to as u32,
        )?;
        let mut taken = Parts::default();
        let known = places(&self.programmed[key].endpoints);
        match self.number(key, plan, wanted, &known, &mut taken) {
            Ok(next) => {
                self.publish_next(key, next, &HashSet::new());
                Ok(())
            }
            Err(error) => {
                // No program has seen any of it.
                self.release(taken);
                Err(error)
            }
        }
    }

    pub(super) fn is_published(&self, current: &Programmed, plan: &Plan, wanted: &Wanted) -> bool {
        let content = abi::Plan {
            first: 0,
            source_set: 0,
            maglev_cluster: 0,
            maglev_local: 0,
            ..current.content
        };
        current.plan != 0
            && content == wanted.content
            && self.source_sets.number(&plan.source_ranges) == Some(current.content.source_set)
            && current.weights == wanted.weights
            && current.endpoints.len() == wanted.endpoints.len()
            && current
                .endpoints
                .iter()
                .zip(&wanted.endpoints)
                .all(|(have, want)| abi::Endpoint { id: 0, ..*have } == *want)
    }

    /// Finds numbers for everything in a plan, those `known` for the endpoints; what is taken for
    /// it is noted in `taken`.
    fn number(
        &mut self,
        key: &Key,
        plan: &Plan,
        wanted: &Wanted,
        known: &HashMap<Place, u32>,
        taken: &mut Parts,
    ) -> Result<Next, NotProgrammed> {
        let mut content = wanted.content;
        let endpoints = self.number_endpoints(plan.rank, &wanted.endpoints, known, taken)?;
        content.first = self.slots_for(key, plan.rank, &endpoints, taken)?;
        if content.maglev_rows != 0 {
            let [cluster, local] = self.lookup_tables(key, plan, content.maglev_rows, taken)?;
            content.maglev_cluster = cluster;
            content.maglev_local = local;
        }
        content.source_set = self.source_set(key, plan)?;
        taken
            .source_sets
            .extend((content.source_set != 0).then_some(content.source_set));
        Ok(Next {
            index: self.plan_number(key, plan.rank, taken)?,
            content,
            endpoints,
            weights: wanted.weights.clone(),
        })
    }

    /// The first of the slots for endpoints: those that they are in, or fresh ones.
    fn slots_for(
        &mut self,
        key: &Key,
        rank: Rank,
        endpoints: &[abi::Endpoint],
        taken: &mut Parts,
    ) -> Result<u32, NotProgrammed> {
        let current = &self.programmed[key];
        if current.plan != 0 && *current.endpoints == *endpoints {
            return Ok(current.content.first);
        }
        let count = endpoints.len() as u32;
        let size = self.maps.endpoints.len();
        // Who does not grow gives back as much as it takes.
        let spare = match count > current.endpoints.len() as u32 {
            true => self.reserve(rank, size),
            false => 0,
        };
        let first = self.take(|s| s.slots.take_leaving(count, spare));
        let first = first.ok_or_else(|| NotProgrammed::Endpoints {
            wanted: count,
            free: self.slots.free(),
            size,
        })?;
        taken.slots.push(first..first + count);
        Ok(first)
    }

    /// A number for the next plan. A service port that has no plan yet leaves one number free, for
    /// those that have to change theirs.
    pub(super) fn plan_number(
        &mut self,
        key: &Key,
        rank: Rank,
        taken: &mut Parts,
    ) -> Result<u32, NotProgrammed> {
        let size = self.maps.plans.len();
        let spare = match self.programmed[key].plan {
            0 => self.reserve(rank, size).max(1),
            _ => 0,
        };
        let index = self.take(|s| s.plans.take_leaving(spare));
        let index = index.ok_or(NotProgrammed::Plans(size))?;
        taken.plans.push(index);
        Ok(index)
    }

    /// Numbers for endpoints: those they have, new ones for new endpoints.
    pub(super) fn number_endpoints(
        &mut self,
        rank: Rank,
        wanted: &[abi::Endpoint],
        known: &HashMap<Place, u32>,
        taken: &mut Parts,
    ) -> Result<Vec<abi::Endpoint>, NotProgrammed> {
        let size = self.maps.endpoint_states.len();
        let spare = match wanted.len() > known.len() {
            true => self.reserve(rank, size),
            false => 0,
        };
        let mut endpoints = wanted.to_vec();
        for endpoint in &mut endpoints {
            endpoint.id = match known.get(&place(endpoint)) {
                Some(id) => *id,
                None => {
                    let id = self.take(|s| s.endpoint_ids.take_leaving(spare));
                    let id = id.ok_or(NotProgrammed::EndpointStates(size))?;
                    taken.endpoint_ids.push(id);
                    id
                }
            };
        }
        for id in &taken.endpoint_ids {
            let unplaced = EndpointState {
                slots: [u32::MAX; 2],
                connections: 0,
            };
            self.maps.endpoint_states.write(*id, &unplaced);
            self.maps
                .endpoint_memory
                .write(*id, &EndpointMemory::default());
            self.maps
                .endpoint_latencies
                .write(*id, &EndpointLatency::default());
            self.write_weight(*id, 0);
        }
        Ok(endpoints)
    }

    /// Lookup tables for the Cluster and the Local set.
    fn lookup_tables(
        &mut self,
        key: &Key,
        plan: &Plan,
        rows: u32,
        taken: &mut Parts,
    ) -> Result<[u32; 2], NotProgrammed> {
        let slots = plan.endpoints.slots();
        if slots.len() > usize::from(u16::MAX) {
            return Err(NotProgrammed::TooManyForMaglev(slots.len()));
        }
        let weights = plan.endpoints.weights();
        let sets = [plan.endpoints.cluster(), plan.endpoints.local()];
        let wanted = sets.iter().filter(|set| !set.is_empty()).count();
        let has = self.programmed[key].tables();
        let who = (key, plan.rank);
        self.budget
            .allows(who, Resource::MaglevTables, has, wanted as u32)?;
        let spare = self.reserve(plan.rank, self.maps.maglev.len());
        let mut tables = [0; 2];
        for (table, set) in tables.iter_mut().zip(sets) {
            // Sets are parts of the slots; the kernel counts from the first slot.
            let offset = slots.iter().position(|slot| set.first() == Some(slot));
            let offset = offset.unwrap_or(0);
            let weights = weights.get(offset..offset + set.len()).unwrap_or_default();
            let (set, offset) = ((set, weights), offset as u16);
            let row = self.take(|s| s.lookup_tables.acquire(set, offset, rows, spare, &s.maps));
            *table = row.ok_or(NotProgrammed::Maglev { rows })?;
            taken.lookup_tables.push(*table);
        }
        Ok(tables)
    }

    /// The set of source ranges, which gets a reference; 0 for none.
    pub(super) fn source_set(&mut self, key: &Key, plan: &Plan) -> Result<u32, NotProgrammed> {
        let ranges = &plan.source_ranges;
        self.allows_ranges(key, plan)?;
        let acquired = match self.source_sets.acquire(ranges, &self.maps) {
            Err(_) if self.make_room() => self.source_sets.acquire(ranges, &self.maps),
            acquired => acquired,
        };
        Ok(acquired?)
    }

    /// Whether a service port may have its source ranges. All ports of a Service have the same
    /// ones, and what it has now goes once they all have them.
    fn allows_ranges(&self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        let ranges = &plan.source_ranges;
        let present = self.programmed[key].content.source_set;
        let has_them = self.source_sets.number(ranges) == Some(present);
        if plan.rank.is_essential() || ranges.is_empty() || has_them {
            return Ok(());
        }
        let (namespace, wanted) = (&key.name.service.namespace, ranges.len() as u32);
        let besides = self.source_sets.of_namespace(namespace, present, ranges);
        for (scope, besides) in [(Scope::Service, 0), (Scope::Namespace, besides)] {
            let resource = Resource::SourceRanges;
            self.budget.within(scope, resource, besides, wanted)?;
        }
        Ok(())
    }

    /// Writes a plan where nobody reads yet, publishes it and lets go of what it replaces, but for
    /// the endpoints' numbers in `kept`.
    pub(super) fn publish_next(&mut self, key: &Key, next: Next, kept: &HashSet<u32>) {
        let Next {
            index,
            content,
            endpoints,
            weights,
        } = next;
        let current = &self.programmed[key];
        let slots = content.first..content.first + endpoints.len() as u32;
        let before = current.slots();
        for (slot, endpoint) in slots.clone().zip(&endpoints) {
            let position = slot.checked_sub(before.start);
            let there = position.and_then(|position| current.endpoints.get(position as usize));
            // What is there already may be read.
            if there != Some(endpoint) {
                self.maps.endpoints.write(slot, endpoint);
            }
        }
        // None of them decides whether an endpoint may be picked: so they need not change with the plan.
        if !weights.is_empty() || !current.weights.is_empty() {
            for (endpoint, weight) in endpoints.iter().zip(all_weights(&weights)) {
                self.write_weight(endpoint.id, weight);
            }
        }
        let lane = 1 - current.lane;
        self.place(key, content.first, &endpoints, lane);
        self.maps.plans.write(index, &content);
        self.publish(content.service, index);

        let Some(current) = self.programmed.get_mut(key) else {
            return;
        };
        let mut replaced = current.plan_parts();
        replaced.slots = without(before, &slots);
        let used: HashSet<u32> = endpoints.iter().map(|e| e.id).collect();
        let gone = current.endpoints.iter().map(|endpoint| endpoint.id);
        replaced
            .endpoint_ids
            .extend(gone.filter(|id| !used.contains(id) && !kept.contains(id)));
        let (had, tables) = (current.endpoints.len(), current.tables());
        let (namespace, set) = (&key.name.service.namespace, current.content.source_set);
        self.source_sets.change(namespace, set, content.source_set);
        current.plan = index;
        current.content = content;
        current.endpoints = endpoints.into();
        current.weights = weights;
        current.lane = lane;
        for (resource, from, to) in [
            (
                Resource::Endpoints,
                had as u32,
                current.endpoints.len() as u32,
            ),
            (Resource::MaglevTables, tables, current.tables()),
        ] {
            self.budget.change(key, resource, from, to);
        }
        self.garbage.append(replaced);
    }

    /// Writes the endpoints' next positions into their states, beside the present ones.
    fn place(&self, key: &Key, first: u32, endpoints: &[abi::Endpoint], lane: u8) {
        let current = &self.programmed[key];
        let before: HashMap<u32, u32> = current
            .slots()
            .zip(current.endpoints.iter())
            .map(|(slot, endpoint)| (endpoint.id, slot))
            .collect();
        for (slot, endpoint) in (first..).zip(endpoints) {
            let mut slots = [0; 2];
            slots[usize::from(lane)] = slot;
            slots[usize::from(1 - lane)] = before.get(&endpoint.id).copied().unwrap_or(slot);
            self.write_position(endpoint.id, slots);
        }
    }

    /// Writes an endpoint's weight beside the connections that programs count.
    pub(super) fn write_weight(&self, endpoint: u32, weight: u32) {
        let loads = &self.maps.endpoint_loads;
        if loads.read(endpoint).weight != weight {
            loads.publish(endpoint, offset_of!(EndpointLoad, weight), weight);
        }
    }

    /// Writes both positions of an endpoint at once.
    pub(super) fn write_position(&self, endpoint: u32, slots: [u32; 2]) {
        let word = u64::from(slots[0]) | u64::from(slots[1]) << 32;
        let offset = offset_of!(EndpointState, slots);
        self.maps.endpoint_states.write_word(endpoint, offset, word);
    }
}

/// What a plan wants to be in the maps, but for numbers that are still to be found: those are zero.
#[derive(Clone)]
pub(super) struct Wanted {
    /// In the order of the classes.
    pub endpoints: Vec<abi::Endpoint>,
    /// Their weights; empty if all are the same.
    pub weights: Box<[u16]>,
    pub content: abi::Plan,
}

impl Wanted {
    fn of(plan: &Plan, id: u32, facts: &NodeFacts) -> Self {
        let mut flags = 0;
        if plan.endpoints.topology() != TopologyMode::None {
            flags |= plan_flag::HINTED;
        }
        if plan.internal_policy == TrafficPolicy::Local {
            flags |= plan_flag::INTERNAL_LOCAL;
        }
        if plan.external_policy == TrafficPolicy::Local && plan.externally_accessible {
            flags |= plan_flag::EXTERNAL_LOCAL;
        }
        if plan.long_running {
            flags |= plan_flag::LONG_RUNNING;
        }
        if plan.rank.is_essential() {
            flags |= plan_flag::EXEMPT;
        }
        match plan.algorithm {
            Algorithm::LeastConnections => flags |= plan_flag::LEAST_CONNECTIONS,
            Algorithm::LeastLatency => {
                flags |= plan_flag::LEAST_CONNECTIONS | plan_flag::LEAST_LATENCY;
            }
            Algorithm::Random | Algorithm::Maglev => {}
        }
        flags |= u32::from(plan.hash_balance_factor) << plan_flag::BALANCE_SHIFT;
        let is_maglev = plan.algorithm == Algorithm::Maglev;
        let weights = plan.endpoints.weights();
        let has_tables = !weights.is_empty() || is_maglev && !plan.endpoints.is_empty();
        if !is_maglev && !weights.is_empty() {
            flags |= plan_flag::DRAWN;
        }
        let affinity = plan
            .session_affinity
            .map_or(0, |timeout| timeout.as_secs().max(1));
        let endpoints = EndpointClass::ALL.iter().flat_map(|class| {
            let local = class.is_local();
            let addresses = plan.endpoints.class(*class).iter();
            addresses.map(move |address| endpoint(address, local, facts))
        });
        Self {
            endpoints: endpoints.collect(),
            weights: weights.into(),
            content: abi::Plan {
                service: id,
                counts: plan.endpoints.counts(),
                flags,
                affinity_seconds: u32::try_from(affinity).unwrap_or(u32::MAX),
                maglev_rows: if has_tables { facts.maglev_rows } else { 0 },
                most: plan.max_connections_per_endpoint,
                ..abi::Plan::default()
            },
        }
    }
}

impl Wanted {
    /// The weights of some of its endpoints, wherever they are among them.
    pub(super) fn weights_of(&self, some: &[abi::Endpoint]) -> Box<[u16]> {
        if self.weights.is_empty() {
            return Box::default();
        }
        let all = self.endpoints.iter().zip(&self.weights);
        let weights: HashMap<_, _> = all.map(|(e, weight)| (place(e), *weight)).collect();
        let some = some.iter().map(place);
        some.map(|place| weights.get(&place).copied().unwrap_or_default())
            .collect()
    }

    /// The first `count` endpoints alone, picked at random.
    pub(super) fn first(&self, count: usize) -> Self {
        let mut first = self.clone();
        first.endpoints.truncate(count);
        let weights = first.weights.iter().copied();
        first.weights = weights.take(count).collect();
        let mut left = count as u32;
        for count in &mut first.content.counts {
            *count = left.min(*count);
            left -= *count;
        }
        first.content.maglev_rows = 0;
        first
    }
}

/// An endpoint without number.
fn endpoint(address: &SocketAddr, local: bool, facts: &NodeFacts) -> abi::Endpoint {
    let ip: IpAddr = address.ip();
    let mut flags = 0;
    if local {
        flags |= endpoint_flag::LOCAL;
        if facts.local_addresses.contains(&ip) {
            flags |= endpoint_flag::HOST;
        }
    }
    let mut networks = facts.cluster_networks.iter();
    if networks.any(|network| network.contains(&ip)) {
        flags |= endpoint_flag::IN_CLUSTER;
    }
    abi::Endpoint {
        address: Ip6::from(ip),
        port: address.port(),
        flags,
        id: 0,
    }
}

/// The endpoints' numbers, by where they are.
pub(super) fn places(endpoints: &[abi::Endpoint]) -> HashMap<Place, u32> {
    let numbers = endpoints.iter();
    numbers
        .map(|endpoint| (place(endpoint), endpoint.id))
        .collect()
}

/// The weights of endpoints as they are in their loads, 0 for those without one.
pub(super) fn all_weights(weights: &[u16]) -> impl Iterator<Item = u32> {
    let own = weights.iter().map(|weight| u32::from(*weight));
    own.chain(std::iter::repeat(0))
}

/// What of a range another one has not.
fn without(range: Range<u32>, other: &Range<u32>) -> Vec<Range<u32>> {
    let before = range.start..range.end.min(other.start).max(range.start);
    let after = range.start.max(other.end).min(range.end)..range.end;
    if other.is_empty() || before.end > after.start {
        return vec![range];
    }
    [before, after]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect()
}

/// Where an endpoint is.
pub(super) fn place(endpoint: &abi::Endpoint) -> Place {
    (endpoint.address.octets, endpoint.port)
}
