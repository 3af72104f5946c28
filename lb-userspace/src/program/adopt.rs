//! What the maps hold from before a restart: the kernel's state is taken over, not rebuilt.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
};

use lb_common::abi;

use super::{
    Programmer,
    maps::WriteError,
    service::{Claim, Frontends, Programmed},
    sources::SourceSets,
};

/// Services in the maps that no plan has claimed yet.
#[derive(Debug, Default)]
pub struct Inherited {
    by_id: HashMap<u32, Programmed>,
    claimable: HashMap<super::service::Address, u32>,
}

impl Inherited {
    /// The service that one of the claimed addresses leads to.
    pub fn claim(&mut self, claims: &[Claim]) -> Option<Programmed> {
        let mut ids = claims
            .iter()
            .filter_map(|claim| self.claimable.get(&claim.address));
        ids.find_map(|id| self.by_id.remove(id))
    }
}

impl Programmer {
    /// Reads the maps.
    pub(super) fn inherit(&mut self) -> Result<(), WriteError> {
        self.frontends = Frontends::read(&self.maps)?;
        self.source_sets = SourceSets::read(&self.maps)?;
        let mut inherited = Inherited {
            claimable: self.frontends.services(),
            ..Inherited::default()
        };
        for id in 1..self.maps.services.len() {
            let plan = self.maps.services.read(id).plan;
            if plan == 0 {
                continue;
            }
            match self.take_over(id, plan) {
                Some(programmed) => {
                    inherited.by_id.insert(id, programmed);
                }
                None => {
                    tracing::warn!(
                        "service {id} in the pinned maps makes no sense: it is written anew as soon \
                         as its Service is known"
                    );
                    self.publish(id, 0);
                }
            }
        }
        self.source_sets.remove_unused(&self.maps);
        self.inherited = Some(inherited);
        Ok(())
    }

    /// Removes services that nobody has claimed.
    pub(super) fn discard(&mut self, inherited: Inherited) {
        if let Err(error) = self.frontends.remove_unclaimed(&self.maps) {
            tracing::warn!("cannot remove addresses that no Service has any more: {error}");
        }
        for programmed in inherited.by_id.into_values() {
            self.let_go(programmed);
        }
    }

    /// Marks what a published service uses as in use; `None` if that cannot be.
    fn take_over(&mut self, id: u32, plan: u32) -> Option<Programmed> {
        if plan >= self.maps.plans.len() || !self.plans.reserve(plan) || !self.ids.reserve(id) {
            return None;
        }
        let content = self.maps.plans.read(plan);
        let count = content
            .counts
            .iter()
            .try_fold(0_u32, |sum, count| sum.checked_add(*count))?;
        let slots = content.first..content.first.checked_add(count)?;
        if content.service != id || !self.slots.reserve(slots.clone()) {
            return None;
        }
        let endpoints: Vec<abi::Endpoint> = slots
            .clone()
            .map(|slot| self.maps.endpoints.read(slot))
            .collect();
        let mut endpoint_ids = BTreeMap::new();
        for endpoint in &endpoints {
            if endpoint.id >= self.maps.endpoint_states.len()
                || !self.endpoint_ids.reserve(endpoint.id)
            {
                return None;
            }
            endpoint_ids.insert(
                SocketAddr::new(endpoint.address.into(), endpoint.port),
                endpoint.id,
            );
        }
        let in_first_lane = slots
            .zip(&endpoints)
            .all(|(slot, e)| self.maps.endpoint_states.read(e.id).slots[0] == slot);
        let whole = self.source_sets.adopt(content.source_set)
            && (content.maglev_rows == 0
                || self.lookup_tables.adopt(
                    content.maglev_cluster,
                    content.maglev_rows,
                    &self.maps,
                ) && self.lookup_tables.adopt(
                    content.maglev_local,
                    content.maglev_rows,
                    &self.maps,
                ));
        whole.then_some(Programmed {
            id,
            plan,
            content,
            endpoints,
            endpoint_ids,
            lane: usize::from(!in_first_lane),
            frontends: Vec::new(),
        })
    }
}
