//! Takes over what the maps hold from before a restart, instead of building it again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use lb_common::abi;
use lb_datapath::maps::WriteError;

use super::{
    Key, MapWriter,
    cluster_ips::ClusterIps,
    frontends::{Frontends, claims},
    parts::Parts,
    service::Programmed,
    source_ranges::SourceSets,
};
use crate::plan::Frontend;

/// Services in the maps that no service port has claimed yet.
#[derive(Debug, Default)]
pub struct Inherited {
    services: HashMap<u32, Programmed>,
    /// Hash of the service port's name → service numbers.
    by_name: HashMap<u32, Vec<u32>>,
    /// Services to which addresses led at the start.
    reachable: HashSet<u32>,
}

impl Inherited {
    /// The service of this name that one of the claimed addresses leads to, or none at all does: a
    /// hash alone proves too little to hand over addresses.
    fn claim(
        &mut self,
        key: &Key,
        claimed: &[Frontend],
        frontends: &Frontends,
    ) -> Option<Programmed> {
        let id = self.by_name.get(&key.hash())?.iter().find(|id| {
            self.services.contains_key(id)
                && (!self.reachable.contains(id)
                    || claims(key, claimed)
                        .any(|claim| frontends.service_at(&claim.address) == Some(**id)))
        })?;
        self.services.remove(id)
    }
}

impl MapWriter {
    /// Reads the maps.
    pub(super) fn inherit(&mut self) -> Result<(), WriteError> {
        self.frontends = Frontends::read(&self.maps)?;
        self.cluster_ips = ClusterIps::read(&self.maps, self.facts.passes_sctp)?;
        self.source_sets = SourceSets::read(&self.maps)?;
        self.seats.inherit(&self.maps);
        self.schemas.inherit(self.frontends.classes(), &self.maps)?;
        let mut inherited = Inherited::default();
        let mut broken = Vec::new();
        let mut leftovers = Parts::default();
        for id in 1..self.maps.services.len() {
            let service = self.maps.services.read(id);
            if service.plan == 0 {
                continue;
            }
            let mut taken = Parts::default();
            match self.take_over(id, service, &mut taken) {
                Some(programmed) => {
                    inherited.services.insert(id, programmed);
                    let same_hash = inherited.by_name.entry(service.name_hash).or_default();
                    same_hash.push(id);
                }
                None => {
                    tracing::warn!(
                        "the pinned maps hold invalid data for service {id}: the agent writes it \
                         again as soon as it knows the Service"
                    );
                    broken.push(id);
                    leftovers.append(taken);
                }
            }
        }
        inherited.reachable = self.frontends.services().collect();
        self.frontends
            .reconsider(|service| !inherited.services.contains_key(&service));
        self.frontends.flush(&self.maps);
        for id in broken {
            self.publish(id, 0);
        }
        // Programs may still be reading what an earlier agent unpublished last.
        (self.maps.grace)();
        self.release(leftovers);
        self.source_sets.remove_unused(&self.maps);
        self.inherited = Some(inherited);
        Ok(())
    }

    /// Takes over the service that an earlier agent made for a service port.
    pub(super) fn adopt(&mut self, key: &Key, claimed: &[Frontend]) -> Option<Programmed> {
        let inherited = self.inherited.as_mut()?;
        inherited.claim(key, claimed, &self.frontends)
    }

    /// Removes services and addresses that have no claim.
    pub(super) fn discard(&mut self, inherited: Inherited) {
        self.frontends.reconsider(|_| true);
        self.cluster_ips.reconsider();
        self.departing.extend(inherited.services.into_values());
        self.flush();
    }

    /// Marks everything that a published service uses as in use, and adds it to `taken`; `None` if
    /// it cannot be consistent.
    fn take_over(
        &mut self,
        id: u32,
        service: abi::Service,
        taken: &mut Parts,
    ) -> Option<Programmed> {
        let abi::Service { plan, name_hash } = service;
        reserve(self.ids.reserve(id), id, &mut taken.ids)?;
        reserve(self.plans.reserve(plan), plan, &mut taken.plans)?;
        let content = self.maps.plans.read(plan);
        let count = content
            .counts
            .iter()
            .try_fold(0_u32, |sum, count| sum.checked_add(*count))?;
        let slots = content.first..content.first.checked_add(count)?;
        if content.service != id {
            return None;
        }
        let free = self.slots.reserve(slots.clone());
        reserve(free, slots.clone(), &mut taken.slots)?;

        let endpoints: Vec<abi::Endpoint> = slots
            .clone()
            .map(|slot| self.maps.endpoints.read(slot))
            .collect();
        for endpoint in &endpoints {
            let free = self.endpoint_ids.reserve(endpoint.id);
            reserve(free, endpoint.id, &mut taken.endpoint_ids)?;
        }
        if content.source_set != 0 {
            let known = self.source_sets.adopt(content.source_set);
            reserve(known, content.source_set, &mut taken.source_sets)?;
        }
        if content.maglev_rows != 0 {
            for row in [content.maglev_cluster, content.maglev_local] {
                let rows = content.maglev_rows;
                let sound = self.lookup_tables.adopt(row, rows, 0..count, &self.maps);
                reserve(sound, row, &mut taken.lookup_tables)?;
            }
        }
        let load = |endpoint: &abi::Endpoint| self.maps.endpoint_loads.read(endpoint.id);
        let weights: Box<[_]> = endpoints
            .iter()
            .map(|endpoint| load(endpoint).weight as u16)
            .collect();
        let has_weights = weights.iter().any(|weight| *weight != 0);
        Some(Programmed {
            id,
            name_hash,
            plan,
            content,
            weights: if has_weights { weights } else { Box::default() },
            lane: self.lane(slots, &endpoints),
            endpoints: endpoints.into(),
            claimant: None,
            port: 0,
            frontends: Arc::default(),
        })
    }

    /// Which of the two positions of the endpoints belong to the published plan. If neither do,
    /// both are set to them.
    fn lane(&self, slots: std::ops::Range<u32>, endpoints: &[abi::Endpoint]) -> u8 {
        let is_lane = |lane: u8| {
            slots.clone().zip(endpoints).all(|(slot, e)| {
                self.maps.endpoint_states.read(e.id).slots[usize::from(lane)] == slot
            })
        };
        if let Some(lane) = [0, 1].into_iter().find(|lane| is_lane(*lane)) {
            return lane;
        }
        for (slot, endpoint) in slots.clone().zip(endpoints) {
            self.write_position(endpoint.id, [slot; 2]);
        }
        0
    }
}

/// Adds `what` to `taken` if it was reserved.
fn reserve<T>(reserved: bool, what: T, taken: &mut Vec<T>) -> Option<()> {
    reserved.then(|| taken.push(what))
}
