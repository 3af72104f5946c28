//! One service port's entry: its plan, endpoints and frontends.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem::offset_of,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    ops::Range,
};

use lb_common::{
    abi::{self, EndpointState, FrontendKey, ServiceStats, endpoint_flag, plan_flag},
    addr::Ip6,
    parse,
};

use super::{
    Key, NotProgrammed, Programmer,
    maps::{Maps, WriteError},
};
use crate::{
    model::{Algorithm, Protocol, TrafficPolicy},
    plan::{EndpointClass, FrontendKind, Plan, TopologyMode},
};

/// What is in the maps for a service port.
#[derive(Debug)]
pub struct Programmed {
    pub id: u32,
    /// Index of the published plan and what it says.
    pub plan: u32,
    pub content: abi::Plan,
    pub endpoints: Vec<abi::Endpoint>,
    pub endpoint_ids: BTreeMap<SocketAddr, u32>,
    /// Which of [`EndpointState::slots`] the published plan's positions are in.
    pub lane: usize,
    pub frontends: Vec<Claim>,
}

impl Programmed {
    pub fn slots(&self) -> Range<u32> {
        self.content.first..self.content.first + self.endpoints.len() as u32
    }
}

impl Programmer {
    /// Writes a service port's entry.
    pub(super) fn write(&mut self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        let claims = claims(plan);
        if !self.programmed.contains_key(key) {
            self.adopt_or_create(key, &claims)?;
        }
        self.write_plan(key, plan)?;
        self.write_frontends(key, claims)
    }

    /// Removes a service port's entry: its addresses first, so that nobody arrives at a half-removed
    /// one.
    pub(super) fn withdraw(&mut self, key: &Key) {
        if self.programmed.contains_key(key) {
            // Entries cannot fail to go; if the kernel says so all the same, the plan goes anyway.
            let _ = self.write_frontends(key, Vec::new());
        }
        if let Some(programmed) = self.programmed.remove(key) {
            self.let_go(programmed);
        }
    }

    /// Takes a service out of the maps that no address leads to any more.
    pub(super) fn let_go(&mut self, programmed: Programmed) {
        self.publish(programmed.id, 0);
        self.garbage.slots.push(programmed.slots());
        self.garbage.ids.push(programmed.id);
        self.garbage
            .plans
            .extend((programmed.plan != 0).then_some(programmed.plan));
        self.garbage
            .endpoint_ids
            .extend(programmed.endpoint_ids.values());
        self.discard_references(&programmed.content);
    }

    /// A service port's number: the one its addresses have in the maps already, else a new one.
    fn adopt_or_create(&mut self, key: &Key, claims: &[Claim]) -> Result<(), NotProgrammed> {
        let inherited = self
            .inherited
            .as_mut()
            .and_then(|inherited| inherited.claim(claims));
        let programmed = match inherited {
            Some(programmed) => programmed,
            None => {
                let size = self.maps.services.len();
                let id = self
                    .take(|s| s.ids.take())
                    .ok_or(NotProgrammed::Services(size))?;
                self.publish(id, 0);
                self.maps.service_stats.write(id, &ServiceStats::default());
                Programmed {
                    id,
                    plan: 0,
                    content: abi::Plan::default(),
                    endpoints: Vec::new(),
                    endpoint_ids: BTreeMap::new(),
                    lane: 0,
                    frontends: Vec::new(),
                }
            }
        };
        self.programmed.insert(key.clone(), programmed);
        Ok(())
    }

    /// Writes plan and endpoints to a fresh place and publishes them, if they differ from what is
    /// published.
    fn write_plan(&mut self, key: &Key, plan: &Plan) -> Result<(), NotProgrammed> {
        let source_set = self.source_sets.acquire(&plan.source_ranges, &self.maps)?;
        let outcome = self.write_plan_with(key, plan, source_set);
        // The published plan holds its own reference now; without one, the set goes again.
        if !matches!(outcome, Ok(true)) && source_set != 0 {
            self.garbage.source_sets.push(source_set);
        }
        outcome.map(drop)
    }

    /// Whether a new plan was published.
    fn write_plan_with(
        &mut self,
        key: &Key,
        plan: &Plan,
        source_set: u32,
    ) -> Result<bool, NotProgrammed> {
        let current = &self.programmed[key];
        let wanted = Wanted::of(plan, current, source_set);
        let same_endpoints = current.endpoints.len() == wanted.addresses.len()
            && current
                .endpoints
                .iter()
                .zip(&wanted.addresses)
                .all(|(have, (want, flags))| {
                    have.address == Ip6::from(want.ip())
                        && have.port == want.port()
                        && have.flags == self.flags(want, *flags)
                });
        let same_rows = match plan.algorithm {
            Algorithm::Maglev => current.content.maglev_rows == self.facts.maglev_rows,
            Algorithm::Random => current.content.maglev_rows == 0,
        };
        if current.plan != 0 && same_endpoints && same_rows && wanted.is_in(&current.content) {
            return Ok(false);
        }

        let ids = self.endpoint_ids_for(key, &wanted)?;
        let undo = |programmer: &mut Self, ids: &BTreeMap<SocketAddr, u32>| {
            let known = &programmer.programmed[key].endpoint_ids;
            let fresh: Vec<_> = ids
                .values()
                .filter(|id| !known.values().any(|k| k == *id))
                .copied()
                .collect();
            programmer.garbage.endpoint_ids.extend(fresh);
        };
        let count = wanted.addresses.len() as u32;
        let Some(first) = self.take(|s| s.slots.take(count)) else {
            undo(self, &ids);
            let (free, size) = (self.slots.free(), self.maps.endpoints.len());
            return Err(NotProgrammed::Endpoints {
                wanted: count,
                free,
                size,
            });
        };
        let mut content = wanted.content;
        content.first = first;
        if let Err(error) = self.add_lookup_tables(plan, &mut content) {
            undo(self, &ids);
            self.garbage.slots.push(first..first + count);
            return Err(error);
        }
        let Some(index) = self.take(|s| s.plans.take()) else {
            undo(self, &ids);
            self.garbage.slots.push(first..first + count);
            let unused = abi::Plan {
                source_set: 0,
                ..content
            };
            self.discard_references(&unused);
            return Err(NotProgrammed::Plans(self.maps.plans.len()));
        };

        let endpoints: Vec<_> = wanted
            .addresses
            .iter()
            .map(|(address, flags)| abi::Endpoint {
                address: address.ip().into(),
                port: address.port(),
                flags: self.flags(address, *flags),
                id: ids[address],
            })
            .collect();
        for (slot, endpoint) in (first..).zip(&endpoints) {
            self.maps.endpoints.write(slot, endpoint);
        }
        let lane = 1 - self.programmed[key].lane;
        self.place(key, first, &endpoints, lane);
        self.maps.plans.write(index, &content);
        self.publish(content.service, index);
        self.replace(key, index, content, endpoints, ids, lane);
        Ok(true)
    }

    /// Keeps what was just published, and lets go of what it replaced.
    fn replace(
        &mut self,
        key: &Key,
        plan: u32,
        content: abi::Plan,
        endpoints: Vec<abi::Endpoint>,
        endpoint_ids: BTreeMap<SocketAddr, u32>,
        lane: usize,
    ) {
        let Some(current) = self.programmed.get_mut(key) else {
            return;
        };
        let old_slots = current.slots();
        let (old_plan, old_content) = (current.plan, current.content);
        let gone: Vec<_> = current
            .endpoint_ids
            .iter()
            .filter(|(address, _)| !endpoint_ids.contains_key(address))
            .map(|(_, id)| *id)
            .collect();
        current.plan = plan;
        current.content = content;
        current.endpoints = endpoints;
        current.endpoint_ids = endpoint_ids;
        current.lane = lane;
        self.garbage.slots.push(old_slots);
        self.garbage
            .plans
            .extend((old_plan != 0).then_some(old_plan));
        self.garbage.endpoint_ids.extend(gone);
        self.discard_references(&old_content);
    }

    /// Lets go of the source ranges and lookup tables that a plan refers to.
    pub(super) fn discard_references(&mut self, content: &abi::Plan) {
        if content.source_set != 0 {
            self.garbage.source_sets.push(content.source_set);
        }
        if content.maglev_rows != 0 {
            self.garbage.lookup_tables.push(content.maglev_cluster);
            self.garbage.lookup_tables.push(content.maglev_local);
        }
    }

    /// Numbers for the endpoints: those they have, new ones for new endpoints.
    fn endpoint_ids_for(
        &mut self,
        key: &Key,
        wanted: &Wanted,
    ) -> Result<BTreeMap<SocketAddr, u32>, NotProgrammed> {
        let mut ids = BTreeMap::new();
        let mut fresh = Vec::new();
        for (address, _) in &wanted.addresses {
            let known = self.programmed[key].endpoint_ids.get(address).copied();
            let Some(id) = known.or_else(|| {
                let id = self.take(|s| s.endpoint_ids.take());
                fresh.extend(id);
                id
            }) else {
                self.garbage.endpoint_ids.extend(fresh);
                return Err(NotProgrammed::EndpointStates(
                    self.maps.endpoint_states.len(),
                ));
            };
            ids.insert(*address, id);
        }
        let unplaced = EndpointState {
            slots: [u32::MAX; 2],
            connections: 0,
        };
        for id in fresh {
            self.maps.endpoint_states.write(id, &unplaced);
        }
        Ok(ids)
    }

    /// Says in the endpoints' states where they are going to be, beside where they are.
    fn place(&self, key: &Key, first: u32, endpoints: &[abi::Endpoint], lane: usize) {
        let current = &self.programmed[key];
        let before: HashMap<u32, u32> = current
            .slots()
            .zip(&current.endpoints)
            .map(|(slot, e)| (e.id, slot))
            .collect();
        for (slot, endpoint) in (first..).zip(endpoints) {
            let mut slots = [u32::MAX; 2];
            slots[1 - lane] = before.get(&endpoint.id).copied().unwrap_or(slot);
            slots[lane] = slot;
            let word = u64::from(slots[0]) | u64::from(slots[1]) << 32;
            let offset = offset_of!(EndpointState, slots);
            self.maps
                .endpoint_states
                .write_word(endpoint.id, offset, word);
        }
    }

    fn add_lookup_tables(
        &mut self,
        plan: &Plan,
        content: &mut abi::Plan,
    ) -> Result<(), NotProgrammed> {
        if plan.algorithm != Algorithm::Maglev || plan.endpoints.is_empty() {
            return Ok(());
        }
        let slots = plan.endpoints.slots();
        if slots.len() >= usize::from(u16::MAX) {
            return Err(NotProgrammed::TooManyForMaglev(slots.len()));
        }
        let rows = self.facts.maglev_rows;
        let mut tables = [0; 2];
        for (table, set) in tables
            .iter_mut()
            .zip([plan.endpoints.cluster(), plan.endpoints.local()])
        {
            // Sets are parts of the slots; the kernel counts from the first slot.
            let offset = slots
                .iter()
                .position(|slot| set.first() == Some(slot))
                .unwrap_or(0);
            let taken = self.take(|s| s.lookup_tables.acquire(set, offset as u16, rows, &s.maps));
            *table = taken.ok_or(NotProgrammed::Maglev { rows })?;
        }
        [content.maglev_cluster, content.maglev_local] = tables;
        content.maglev_rows = rows;
        Ok(())
    }

    /// Flags of an endpoint, from its class and where its address lies.
    fn flags(&self, endpoint: &SocketAddr, local: bool) -> u16 {
        let ip = endpoint.ip();
        let mut flags = 0;
        if local {
            flags |= endpoint_flag::LOCAL;
            if self.facts.local_addresses.contains(&ip) {
                flags |= endpoint_flag::HOST;
            }
        }
        if self
            .facts
            .cluster_networks
            .iter()
            .any(|network| network.contains(&ip))
        {
            flags |= endpoint_flag::IN_CLUSTER;
        }
        flags
    }

    /// Makes the addresses that lead to a service port those claimed.
    fn write_frontends(&mut self, key: &Key, claims: Vec<Claim>) -> Result<(), NotProgrammed> {
        let Some(programmed) = self.programmed.get_mut(key) else {
            return Ok(());
        };
        let id = programmed.id;
        let before = std::mem::replace(&mut programmed.frontends, claims.clone());
        let mut touched: BTreeSet<Address> = BTreeSet::new();
        for claim in before.iter().filter(|claim| !claims.contains(claim)) {
            self.frontends.give_up(claim, key);
            touched.insert(claim.address);
        }
        for claim in claims.iter().filter(|claim| !before.contains(claim)) {
            self.frontends.stake(claim, key, id);
            touched.insert(claim.address);
        }
        let written = self.frontends.write(&touched, &self.maps);
        if written.is_err() {
            // What did not fit is claimed again by the next try.
            if let Some(programmed) = self.programmed.get_mut(key) {
                programmed.frontends.retain(|claim| before.contains(claim));
            }
        }
        Ok(written?)
    }
}

/// What a plan wants to be in the maps, but for numbers that are still to be found.
struct Wanted {
    /// In the order of the classes, with whether it is on this node.
    addresses: Vec<(SocketAddr, bool)>,
    content: abi::Plan,
}

impl Wanted {
    fn of(plan: &Plan, current: &Programmed, source_set: u32) -> Self {
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
        let addresses = EndpointClass::ALL
            .iter()
            .flat_map(|class| {
                let local = matches!(
                    class,
                    EndpointClass::LocalReady
                        | EndpointClass::LocalReadyHinted
                        | EndpointClass::LocalTerminating
                );
                plan.endpoints
                    .class(*class)
                    .iter()
                    .map(move |address| (*address, local))
            })
            .collect();
        Self {
            addresses,
            content: abi::Plan {
                service: current.id,
                counts: plan.endpoints.counts().map(|count| count as u32),
                flags,
                affinity_seconds: u32::try_from(affinity).unwrap_or(u32::MAX),
                source_set,
                ..abi::Plan::default()
            },
        }
    }

    /// Whether a published plan says the same, wherever its endpoints are.
    fn is_in(&self, published: &abi::Plan) -> bool {
        let here = abi::Plan {
            first: 0,
            maglev_cluster: 0,
            maglev_local: 0,
            maglev_rows: 0,
            ..*published
        };
        self.content == here
    }
}

/// An address, port and protocol (by number), as `FRONTENDS` are keyed.
pub type Address = (SocketAddr, u8);

/// A service port's claim to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub address: Address,
    pub kind: FrontendKind,
}

fn claims(plan: &Plan) -> Vec<Claim> {
    let protocol = match plan.name.protocol {
        Protocol::Tcp => parse::TCP,
        Protocol::Udp => parse::UDP,
        Protocol::Sctp => parse::SCTP,
    };
    plan.frontends
        .iter()
        .map(|frontend| Claim {
            address: (frontend.address, protocol),
            kind: frontend.kind,
        })
        .collect()
}

/// Who claims which address. Where several do, the lesser kind wins, then the lesser name: the rest
/// take over when the winner goes.
#[derive(Debug, Default)]
pub struct Frontends {
    claims: BTreeMap<Address, BTreeMap<(FrontendKind, Key), u32>>,
    /// What the maps hold.
    present: HashMap<Address, abi::Frontend>,
}

impl Frontends {
    /// Takes over the entries in the maps, which nobody claims yet.
    pub fn read(maps: &Maps) -> Result<Self, WriteError> {
        let v4 = maps.frontends4.all()?.into_iter().map(|(key, value)| {
            (
                ((IpAddr::from(key.address), key.port).into(), key.protocol),
                value,
            )
        });
        let v6 = maps.frontends6.all()?.into_iter().map(|(key, value)| {
            // Not `IpAddr::from`, which takes mapped addresses for IPv4.
            let address = Ipv6Addr::from(key.address.octets);
            (((address, key.port).into(), key.protocol), value)
        });
        Ok(Self {
            claims: BTreeMap::new(),
            present: v4.chain(v6).collect(),
        })
    }

    /// The services that addresses lead to, as the maps say.
    pub fn services(&self) -> HashMap<Address, u32> {
        self.present
            .iter()
            .map(|(address, entry)| (*address, entry.service))
            .collect()
    }

    /// Removes the entries that nobody claims.
    pub fn remove_unclaimed(&mut self, maps: &Maps) -> Result<(), WriteError> {
        let unclaimed = self
            .present
            .keys()
            .filter(|address| !self.claims.contains_key(address));
        let unclaimed: BTreeSet<_> = unclaimed.copied().collect();
        self.write(&unclaimed, maps)
    }

    fn stake(&mut self, claim: &Claim, key: &Key, id: u32) {
        self.claims
            .entry(claim.address)
            .or_default()
            .insert((claim.kind, key.clone()), id);
    }

    fn give_up(&mut self, claim: &Claim, key: &Key) {
        if let Some(claims) = self.claims.get_mut(&claim.address) {
            claims.remove(&(claim.kind, key.clone()));
            if claims.is_empty() {
                self.claims.remove(&claim.address);
            }
        }
    }

    /// Brings the maps into line at some addresses: those taken over or new, then those given up.
    fn write(&mut self, addresses: &BTreeSet<Address>, maps: &Maps) -> Result<(), WriteError> {
        let mut gone = Vec::new();
        let mut held = Vec::new();
        for address in addresses {
            let holder = self.claims.get(address).and_then(BTreeMap::first_key_value);
            let wanted = holder.map(|((kind, _), id)| entry(*id, *kind));
            match wanted {
                Some(wanted) if self.present.get(address) != Some(&wanted) => {
                    held.push((*address, wanted));
                }
                None if self.present.contains_key(address) => gone.push(*address),
                _ => {}
            }
        }
        insert(&held, maps)?;
        self.present.extend(held);
        remove(&gone, maps)?;
        for address in gone {
            self.present.remove(&address);
        }
        Ok(())
    }
}

/// The value of an address's entry.
fn entry(service: u32, kind: FrontendKind) -> abi::Frontend {
    let kind = match kind {
        FrontendKind::ClusterIp => abi::FrontendKind::ClusterIp,
        FrontendKind::NodePort => abi::FrontendKind::NodePort,
        FrontendKind::LoadBalancerIp => abi::FrontendKind::LoadBalancerIp,
        FrontendKind::ExternalIp => abi::FrontendKind::ExternalIp,
    };
    abi::Frontend {
        service,
        kind: kind as u8,
        pad: [0; 3],
    }
}

fn insert(entries: &[(Address, abi::Frontend)], maps: &Maps) -> Result<(), WriteError> {
    let (mut keys4, mut values4, mut keys6, mut values6) = (vec![], vec![], vec![], vec![]);
    for ((address, protocol), value) in entries {
        match address {
            SocketAddr::V4(v4) => {
                keys4.push(frontend_key((*v4.ip()).into(), v4.port(), *protocol));
                values4.push(*value);
            }
            SocketAddr::V6(v6) => {
                keys6.push(frontend_key((*v6.ip()).into(), v6.port(), *protocol));
                values6.push(*value);
            }
        }
    }
    maps.frontends4.insert(&keys4, &values4)?;
    maps.frontends6.insert(&keys6, &values6)
}

fn remove(addresses: &[Address], maps: &Maps) -> Result<(), WriteError> {
    let (mut keys4, mut keys6) = (vec![], vec![]);
    for (address, protocol) in addresses {
        match address {
            SocketAddr::V4(v4) => {
                keys4.push(frontend_key((*v4.ip()).into(), v4.port(), *protocol));
            }
            SocketAddr::V6(v6) => {
                keys6.push(frontend_key((*v6.ip()).into(), v6.port(), *protocol));
            }
        }
    }
    maps.frontends4.remove(&keys4)?;
    maps.frontends6.remove(&keys6)
}

fn frontend_key<A>(address: A, port: u16, protocol: u8) -> FrontendKey<A> {
    FrontendKey {
        address,
        port,
        protocol,
        pad: 0,
    }
}
