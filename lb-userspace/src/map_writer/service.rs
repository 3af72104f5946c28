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
        self, EndpointMemory, EndpointState, ServiceFlows, ServiceStats, Shortages, endpoint_flag,
        plan_flag,
    },
    addr::Ip6,
};
use lb_objects::{Algorithm, TrafficPolicy};

use super::{Key, MapWriter, NodeFacts, NotProgrammed, frontends::claims, parts::Parts};
use crate::plan::{EndpointClass, Frontend, Plan, TopologyMode};

/// The part of the maps that belongs to a service port.
#[derive(Debug)]
pub struct Programmed {
    pub id: u32,
    /// Index of the published plan, 0 for none; then the plan's contents.
    pub plan: u32,
    pub content: abi::Plan,
    pub endpoints: Arc<[abi::Endpoint]>,
    /// Which of [`EndpointState::slots`] the published plan's positions are in. The other one is
    /// what changes next, so that a reader of either plan finds its position all the time.
    pub lane: usize,
    /// The addresses claimed.
    pub frontends: Arc<[Frontend]>,
}

impl Programmed {
    /// A service port that has only a number so far.
    fn new(id: u32) -> Self {
        Self {
            id,
            plan: 0,
            content: abi::Plan::default(),
            endpoints: Arc::default(),
            lane: 0,
            frontends: Arc::default(),
        }
    }

    /// Everything that it occupies.
    pub fn into_parts(self) -> Parts {
        Parts {
            ids: vec![self.id],
            endpoint_ids: self.endpoints.iter().map(|endpoint| endpoint.id).collect(),
            ..self.plan_parts()
        }
    }

    /// What it occupies only for the published plan. The next plan gets all of this anew.
    fn plan_parts(&self) -> Parts {
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

    fn slots(&self) -> Range<u32> {
        self.content.first..self.content.first + self.endpoints.len() as u32
    }
}

/// An endpoint's place in the network, as a key.
type Place = ([u8; 16], u16);

/// A plan that has all its numbers, but is not in the maps yet.
struct Next {
    index: u32,
    content: abi::Plan,
    endpoints: Vec<abi::Endpoint>,
}

impl MapWriter {
    /// Writes a service port's plan and claims its addresses.
    pub(super) fn write(&mut self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        if !self.programmed.contains_key(key) {
            let programmed = match self.adopt(key, &plan.frontends) {
                Some(adopted) => adopted,
                None => self.create(key)?,
            };
            self.programmed.insert(key.clone(), programmed);
        }
        let written = self.write_plan(key, plan);
        let programmed = &self.programmed[key];
        if programmed.plan != 0 {
            self.roster.enter(key, programmed.id, &programmed.endpoints);
        }
        written?;
        self.claim(key, plan.frontends.clone());
        Ok(())
    }

    /// Gives up a service port's addresses. Its plan is removed once no address leads to it.
    pub(super) fn withdraw(&mut self, key: &Key) {
        self.claim(key, Arc::default());
        self.roster.strike(key);
        self.departing.extend(self.programmed.remove(key));
    }

    /// Removes a service from the maps to which no address leads any more.
    pub(super) fn let_go(&mut self, programmed: Programmed) {
        self.publish(programmed.id, 0);
        self.garbage.append(programmed.into_parts());
    }

    fn create(&mut self, key: &Key) -> Result<Programmed, NotProgrammed> {
        let id = self.take(|s| s.ids.take());
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
        Ok(Programmed::new(id))
    }

    /// Makes the addresses that lead to a service port those claimed, once they are flushed.
    fn claim(&mut self, key: &Key, frontends: Arc<[Frontend]>) {
        let Some(programmed) = self.programmed.get_mut(key) else {
            return;
        };
        // As long as only endpoints change, they are not even looked at: they are the same.
        if programmed.frontends == frontends {
            return;
        }
        let before = std::mem::replace(&mut programmed.frontends, frontends);
        let (had, has): (HashSet<_>, HashSet<_>) = (
            before.iter().collect(),
            programmed.frontends.iter().collect(),
        );
        for claim in claims(key, before.iter().filter(|claim| !has.contains(claim))) {
            self.frontends.give_up(&claim, key);
        }
        let gained = programmed.frontends.iter();
        for claim in claims(key, gained.filter(|claim| !had.contains(claim))) {
            self.frontends.stake(&claim, key, programmed.id);
        }
    }

    /// Writes plan and endpoints and publishes them, if they differ from the published ones.
    fn write_plan(&mut self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        let wanted = Wanted::of(plan, self.programmed[key].id, &self.facts);
        if self.is_published(&self.programmed[key], plan, &wanted) {
            return Ok(());
        }
        let mut taken = Parts::default();
        match self.number(key, plan, &wanted, &mut taken) {
            Ok(next) => {
                self.publish_next(key, next);
                Ok(())
            }
            Err(error) => {
                // No program has seen any of it.
                self.release(taken);
                Err(error)
            }
        }
    }

    fn is_published(&self, current: &Programmed, plan: &Plan, wanted: &Wanted) -> bool {
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
            && current.endpoints.len() == wanted.endpoints.len()
            && current
                .endpoints
                .iter()
                .zip(&wanted.endpoints)
                .all(|(have, want)| abi::Endpoint { id: 0, ..*have } == *want)
    }

    /// Finds numbers for everything in a plan, and adds to `taken` what was taken for it.
    fn number(
        &mut self,
        key: &Key,
        plan: &Plan,
        wanted: &Wanted,
        taken: &mut Parts,
    ) -> Result<Next, NotProgrammed> {
        let mut content = wanted.content;
        let endpoints = self.number_endpoints(key, &wanted.endpoints, taken)?;

        let count = endpoints.len() as u32;
        let Some(first) = self.take(|s| s.slots.take(count)) else {
            return Err(NotProgrammed::Endpoints {
                wanted: count,
                free: self.slots.free(),
                size: self.maps.endpoints.len(),
            });
        };
        taken.slots.push(first..first + count);
        content.first = first;

        if content.maglev_rows != 0 {
            let [cluster, local] = self.lookup_tables(plan, content.maglev_rows, taken)?;
            content.maglev_cluster = cluster;
            content.maglev_local = local;
        }
        content.source_set = self.source_set(plan)?;
        taken
            .source_sets
            .extend((content.source_set != 0).then_some(content.source_set));

        let index = self.take(|s| s.plans.take());
        let index = index.ok_or(NotProgrammed::Plans(self.maps.plans.len()))?;
        taken.plans.push(index);
        Ok(Next {
            index,
            content,
            endpoints,
        })
    }

    /// Numbers of endpoints: the present ones, and new ones for new endpoints.
    fn number_endpoints(
        &mut self,
        key: &Key,
        wanted: &[abi::Endpoint],
        taken: &mut Parts,
    ) -> Result<Vec<abi::Endpoint>, NotProgrammed> {
        let known: HashMap<Place, u32> = self.programmed[key]
            .endpoints
            .iter()
            .map(|endpoint| (place(endpoint), endpoint.id))
            .collect();
        let mut endpoints = wanted.to_vec();
        for endpoint in &mut endpoints {
            endpoint.id = match known.get(&place(endpoint)) {
                Some(id) => *id,
                None => {
                    let size = self.maps.endpoint_states.len();
                    let id = self.take(|s| s.endpoint_ids.take());
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
        }
        Ok(endpoints)
    }

    /// Lookup tables for the Cluster and the Local set.
    fn lookup_tables(
        &mut self,
        plan: &Plan,
        rows: u32,
        taken: &mut Parts,
    ) -> Result<[u32; 2], NotProgrammed> {
        let slots = plan.endpoints.slots();
        if slots.len() > usize::from(u16::MAX) {
            return Err(NotProgrammed::TooManyForMaglev(slots.len()));
        }
        let mut tables = [0; 2];
        for (table, set) in tables
            .iter_mut()
            .zip([plan.endpoints.cluster(), plan.endpoints.local()])
        {
            // Sets are parts of the slots; programs count from the first slot.
            let offset = slots.iter().position(|slot| set.first() == Some(slot));
            let offset = offset.unwrap_or(0) as u16;
            let row = self.take(|s| s.lookup_tables.acquire(set, offset, rows, &s.maps));
            *table = row.ok_or(NotProgrammed::Maglev { rows })?;
            taken.lookup_tables.push(*table);
        }
        Ok(tables)
    }

    /// Number of the plan's set of source ranges, with one more reference; 0 for none.
    fn source_set(&mut self, plan: &Plan) -> Result<u32, NotProgrammed> {
        let ranges = &plan.source_ranges;
        let acquired = match self.source_sets.acquire(ranges, &self.maps) {
            Err(_) if self.make_room() => self.source_sets.acquire(ranges, &self.maps),
            acquired => acquired,
        };
        Ok(acquired?)
    }

    /// Writes a plan where no program reads yet, publishes it, and frees what it replaces.
    fn publish_next(&mut self, key: &Key, next: Next) {
        let Next {
            index,
            content,
            endpoints,
        } = next;
        for (slot, endpoint) in (content.first..).zip(&endpoints) {
            self.maps.endpoints.write(slot, endpoint);
        }
        let lane = 1 - self.programmed[key].lane;
        self.place(key, content.first, &endpoints, lane);
        self.maps.plans.write(index, &content);
        self.publish(content.service, index);

        let Some(current) = self.programmed.get_mut(key) else {
            return;
        };
        let mut replaced = current.plan_parts();
        let kept: HashSet<u32> = endpoints.iter().map(|e| e.id).collect();
        let gone = current.endpoints.iter().map(|endpoint| endpoint.id);
        replaced
            .endpoint_ids
            .extend(gone.filter(|id| !kept.contains(id)));
        current.plan = index;
        current.content = content;
        current.endpoints = endpoints.into();
        current.lane = lane;
        self.garbage.append(replaced);
    }

    /// Writes the endpoints' next positions into their states, beside the present ones.
    fn place(&self, key: &Key, first: u32, endpoints: &[abi::Endpoint], lane: usize) {
        let current = &self.programmed[key];
        let before: HashMap<u32, u32> = current
            .slots()
            .zip(current.endpoints.iter())
            .map(|(slot, endpoint)| (endpoint.id, slot))
            .collect();
        for (slot, endpoint) in (first..).zip(endpoints) {
            let mut slots = [0; 2];
            slots[lane] = slot;
            slots[1 - lane] = before.get(&endpoint.id).copied().unwrap_or(slot);
            self.write_position(endpoint.id, slots);
        }
    }

    /// Writes both positions of an endpoint at once.
    pub(super) fn write_position(&self, endpoint: u32, slots: [u32; 2]) {
        let word = u64::from(slots[0]) | u64::from(slots[1]) << 32;
        let offset = offset_of!(EndpointState, slots);
        self.maps.endpoint_states.write_word(endpoint, offset, word);
    }
}

/// What a plan needs in the maps. Numbers that are still to be found are zero.
struct Wanted {
    /// In the order of classes.
    endpoints: Vec<abi::Endpoint>,
    content: abi::Plan,
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
            content: abi::Plan {
                service: id,
                counts: plan.endpoints.counts().map(|count| count as u32),
                flags,
                affinity_seconds: u32::try_from(affinity).unwrap_or(u32::MAX),
                maglev_rows: match plan.algorithm {
                    Algorithm::Maglev if !plan.endpoints.is_empty() => facts.maglev_rows,
                    _ => 0,
                },
                ..abi::Plan::default()
            },
        }
    }
}

/// An endpoint without a number.
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

fn place(endpoint: &abi::Endpoint) -> Place {
    (endpoint.address.octets, endpoint.port)
}
