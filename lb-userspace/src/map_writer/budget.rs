//! What one Service and one namespace may take of the maps: who wants more is refused alone.

use std::collections::HashMap;

use lb_objects::{ObjectName, SharedName};

use super::{Key, NotProgrammed};
use crate::{
    config::{Cap, Caps, MapLimits, Resource},
    plan::Rank,
};

/// Who has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Service,
    Namespace,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::Namespace => "namespace",
        }
    }
}

/// So much of each resource.
type Amounts = [u32; Resource::ALL.len()];

/// What limits come to, where there is so much of each resource.
fn resolve(caps: Caps, of: Amounts) -> Amounts {
    Resource::ALL.map(|resource| {
        let of = of[resource as usize];
        match caps.get(resource) {
            Cap::None => u32::MAX,
            Cap::Part(part) => of / part.max(1),
            Cap::Count(count) => count,
        }
    })
}

/// Who has how much.
#[derive(Debug)]
pub struct Budget {
    limits: [Amounts; 2],
    services: HashMap<ObjectName, Amounts>,
    namespaces: HashMap<SharedName, Amounts>,
}

impl Budget {
    /// Nobody has anything yet; `sizes` are what the maps have of each resource.
    pub fn new(limits: MapLimits, sizes: Amounts) -> Self {
        Self {
            limits: [
                resolve(limits.service, sizes),
                resolve(limits.namespace, sizes),
            ],
            services: HashMap::new(),
            namespaces: HashMap::new(),
        }
    }

    /// Whether a service port that has `from` of something may have `to`.
    ///
    /// # Errors
    ///
    /// Says which limit that would exceed.
    pub fn allows(
        &self,
        (key, rank): (&Key, Rank),
        resource: Resource,
        from: u32,
        to: u32,
    ) -> Result<(), NotProgrammed> {
        if rank.is_essential() || to <= from {
            return Ok(());
        }
        let name = &key.name.service;
        let service = self.services.get(name);
        let namespace = self.namespaces.get(&name.namespace);
        for (scope, amounts) in [(Scope::Service, service), (Scope::Namespace, namespace)] {
            let has = amounts.map_or(0, |amounts| amounts[resource as usize]);
            let has = has.saturating_sub(from);
            self.within(scope, resource, has, to)?;
        }
        Ok(())
    }

    /// Whether one of a scope that has so much of something besides may have `wanted`.
    ///
    /// # Errors
    ///
    /// Says which limit that would exceed.
    pub fn within(
        &self,
        scope: Scope,
        resource: Resource,
        besides: u32,
        wanted: u32,
    ) -> Result<(), NotProgrammed> {
        let limit = self.limits[scope as usize][resource as usize];
        match besides.saturating_add(wanted) > limit {
            true => Err(NotProgrammed::Limit {
                scope,
                resource,
                wanted,
                limit,
            }),
            false => Ok(()),
        }
    }

    /// A service port has `to` of something from now on, after `from`.
    pub fn change(&mut self, key: &Key, resource: Resource, from: u32, to: u32) {
        if from == to {
            return;
        }
        let name = &key.name.service;
        change(&mut self.services, name, resource, from, to);
        change(&mut self.namespaces, &name.namespace, resource, from, to);
    }
}

/// Changes what one has; who has nothing is forgotten.
fn change<K: Clone + Eq + std::hash::Hash>(
    all: &mut HashMap<K, Amounts>,
    who: &K,
    resource: Resource,
    from: u32,
    to: u32,
) {
    if !all.contains_key(who) {
        all.insert(who.clone(), Amounts::default());
    }
    let Some(amounts) = all.get_mut(who) else {
        return;
    };
    let amount = &mut amounts[resource as usize];
    *amount = amount.saturating_sub(from).saturating_add(to);
    if *amounts == Amounts::default() {
        all.remove(who);
    }
}
