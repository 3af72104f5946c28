//! Which flows are stale.
//!
//! Those of UDP to an endpoint that does not serve any more, as kube-proxy's conntrack clean-up has
//! it: a client that never stops sending keeps its flow alive for ever. TCP's end by themselves,
//! unless their Service asks for [`RemovedEndpoints::Reset`](lb_objects::RemovedEndpoints). Those
//! of a Service that is gone are left alone.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use crate::plan::{Plan, ServicePlan};

/// Service ports whose stale flows are to be ended, each with the endpoints whose flows go on.
#[derive(Clone, Debug, Default)]
pub struct Stale {
    remaining: HashMap<u32, HashSet<SocketAddr>>,
}

impl Stale {
    /// Adds a service port by its id; what was said of it before is forgotten. An empty set means
    /// that all of its flows are stale.
    pub fn add(&mut self, service: u32, remaining: impl IntoIterator<Item = SocketAddr>) {
        let remaining = remaining.into_iter().collect();
        self.remaining.insert(service, remaining);
    }

    /// Adds all that another request says, which is the later one.
    pub fn merge(&mut self, later: Self) {
        self.remaining.extend(later.remaining);
    }

    pub fn is_empty(&self) -> bool {
        self.remaining.is_empty()
    }

    /// Whether a service port was added.
    pub fn concerns(&self, service: u32) -> bool {
        self.remaining.contains_key(&service)
    }

    /// Whether a flow of `service` to `endpoint` is stale. Nothing is known of the flows of
    /// services that were not added, so they are not.
    pub fn contains(&self, service: u32, endpoint: SocketAddr) -> bool {
        let remaining = self.remaining.get(&service);
        remaining.is_some_and(|remaining| !remaining.contains(&endpoint))
    }
}

/// Says what is stale, at the moment when it is ended.
pub trait Staleness {
    /// As long as this lives, what was confirmed stays true.
    type Hold;

    /// Whether flows of a service port may be stale.
    fn concerns(&self, service: u32) -> bool;

    /// Whether a flow of `service` to `endpoint` is stale.
    fn confirm(&self, service: u32, endpoint: SocketAddr) -> Option<Self::Hold>;
}

impl Staleness for Stale {
    type Hold = ();

    fn concerns(&self, service: u32) -> bool {
        self.concerns(service)
    }

    fn confirm(&self, service: u32, endpoint: SocketAddr) -> Option<()> {
        self.contains(service, endpoint).then_some(())
    }
}

/// The ports of a Service that may have stale flows once it has become `after`, each with the
/// endpoints whose flows go on: those where these are not what they were. After a start, when there
/// is no `before`, all.
pub fn changed<'a>(
    before: Option<&'a ServicePlan>,
    after: &'a ServicePlan,
) -> impl Iterator<Item = (&'a Plan, &'a [SocketAddr])> {
    let ports = before.map_or(&[][..], |before| &before.ports);
    let ports = ports.iter().map(|old| ((&old.name, old.family), old));
    let before: HashMap<_, _> = ports.collect();
    after.ports.iter().filter_map(move |plan| {
        let remaining = plan.remaining.as_deref()?;
        let old = before.get(&(&plan.name, plan.family));
        let changed = old.is_none_or(|old| old.remaining != plan.remaining);
        changed.then_some((plan, remaining))
    })
}
