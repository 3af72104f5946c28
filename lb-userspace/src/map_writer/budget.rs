//! What one Service and one namespace may take of the maps: who wants more is refused alone.

use std::collections::HashMap;

use lb_objects::ObjectName;

use super::{Key, NotProgrammed};
use crate::plan::Rank;

/// Something that there is only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Service ports, in each family.
    ServicePorts,
    /// Addresses times ports: entries of `FRONTENDS4` and `FRONTENDS6`.
    Addresses,
    /// Endpoints times ports: elements of `ENDPOINTS`.
    Endpoints,
    /// Maglev lookup tables.
    MaglevTables,
    /// Entries of `SOURCE_RANGES`, in each family. Service ports with the same ranges share them.
    SourceRanges,
}

const RESOURCES: usize = 5;

impl Resource {
    pub const ALL: [Self; RESOURCES] = [
        Self::ServicePorts,
        Self::Addresses,
        Self::Endpoints,
        Self::MaglevTables,
        Self::SourceRanges,
    ];

    /// As people call it, and settings with hyphens.
    pub fn name(self) -> &'static str {
        match self {
            Self::ServicePorts => "service ports",
            Self::Addresses => "addresses",
            Self::Endpoints => "endpoints",
            Self::MaglevTables => "Maglev tables",
            Self::SourceRanges => "source ranges",
        }
    }
}

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

/// How much of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cap {
    #[default]
    None,
    /// One in so many of what the map holds.
    Part(u32),
    Count(u32),
}

/// How much of each [`Resource`], in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps([Cap; RESOURCES]);

impl Caps {
    /// The same part of each.
    pub const fn part(of: u32) -> Self {
        Self([Cap::Part(of); RESOURCES])
    }

    pub fn set(&mut self, resource: Resource, cap: Cap) {
        self.0[resource as usize] = cap;
    }

    /// How much of a resource.
    pub fn get(&self, resource: Resource) -> Cap {
        self.0[resource as usize]
    }

    /// What they come to, of so much of each.
    fn resolve(self, of: Amounts) -> Amounts {
        std::array::from_fn(|resource| match self.0[resource] {
            Cap::None => u32::MAX,
            Cap::Part(part) => of[resource] / part.max(1),
            Cap::Count(count) => count,
        })
    }
}

/// What a Service and a namespace may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub service: Caps,
    pub namespace: Caps,
}

/// So much of each resource.
type Amounts = [u32; RESOURCES];

/// Who has how much.
#[derive(Debug)]
pub struct Budget {
    limits: [Amounts; 2],
    services: HashMap<ObjectName, Amounts>,
    namespaces: HashMap<String, Amounts>,
}

impl Budget {
    /// Nobody has anything yet; `sizes` are what the maps have of each resource.
    pub fn new(limits: Limits, sizes: Amounts) -> Self {
        Self {
            limits: [
                limits.service.resolve(sizes),
                limits.namespace.resolve(sizes),
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
