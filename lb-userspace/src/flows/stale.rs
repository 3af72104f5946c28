//! Decides which flows are stale.
//!
//! UDP flows to an endpoint that no longer serves are stale, as in kube-proxy's conntrack clean-up:
//! a client that never stops sending would keep its flow alive for ever. TCP flows end by
//! themselves, unless their Service asks for
//! [`RemovedEndpoints::Reset`](lb_objects::RemovedEndpoints). Flows of a deleted Service are left
//! alone.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use crate::plan::{Plan, ServicePlan};

/// The service ports with stale flows that are to be ended, each with the endpoints to which flows
/// go on.
#[derive(Clone, Debug, Default)]
pub struct Stale {
    remaining: HashMap<u32, HashSet<SocketAddr>>,
}

impl Stale {
    /// Adds a service port by its id, and replaces what was said about it before. If `remaining` is
    /// empty, all of its flows are stale.
    pub fn add(&mut self, service: u32, remaining: impl IntoIterator<Item = SocketAddr>) {
        let remaining = remaining.into_iter().collect();
        self.remaining.insert(service, remaining);
    }

    /// Adds everything of another request, which is the later one.
    pub fn merge(&mut self, later: Self) {
        self.remaining.extend(later.remaining);
    }

    /// Whether no service port was added.
    pub fn is_empty(&self) -> bool {
        self.remaining.is_empty()
    }

    /// Whether a service port was added.
    pub fn concerns(&self, service: u32) -> bool {
        self.remaining.contains_key(&service)
    }

    /// Whether a flow of `service` to `endpoint` is stale. Flows of services that were not added
    /// are not.
    pub fn contains(&self, service: u32, endpoint: SocketAddr) -> bool {
        let remaining = self.remaining.get(&service);
        remaining.is_some_and(|remaining| !remaining.contains(&endpoint))
    }
}

/// Says what is stale at the moment when it is ended.
pub trait Staleness {
    /// While this lives, the confirmation stays true.
    type Hold;

    /// Whether flows of a service port can be stale.
    fn concerns(&self, service: u32) -> bool;

    /// Confirms that a flow of `service` to `endpoint` is stale; `None` if it is not.
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

/// The ports of a Service that may have stale flows after its change to `after`, each with the
/// endpoints to which flows go on: the ports where these endpoints have changed. After a start
/// there is no `before`, and all ports are returned.
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
