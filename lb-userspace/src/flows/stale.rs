//! Which UDP flows are stale, as kube-proxy's conntrack clean-up has it: those to an endpoint that
//! does not serve any more.
//!
//! A UDP client that never stops sending keeps its flow alive for ever, so it has to be told. TCP
//! flows end by themselves; those of a Service that is gone are left alone.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
};

use crate::{
    model::Protocol,
    plan::{Plan, ServicePlan},
};

/// Service ports of UDP whose stale flows are to be ended, each with the endpoints that serve.
#[derive(Clone, Debug, Default)]
pub struct StaleUdp {
    serving: HashMap<u32, HashSet<SocketAddr>>,
}

impl StaleUdp {
    /// Adds a service port by its id; what was said of it before is forgotten. An empty set means
    /// that all of its flows are stale.
    pub fn add(&mut self, service: u32, serving: impl IntoIterator<Item = SocketAddr>) {
        self.serving.insert(service, serving.into_iter().collect());
    }

    /// Adds all that another request says, which is the later one.
    pub fn merge(&mut self, later: Self) {
        self.serving.extend(later.serving);
    }

    pub fn is_empty(&self) -> bool {
        self.serving.is_empty()
    }

    /// Whether a service port was added.
    pub fn concerns(&self, service: u32) -> bool {
        self.serving.contains_key(&service)
    }

    /// Whether a flow of `service` to `endpoint` is stale. Nothing is known of the flows of services
    /// that were not added, so they are not.
    pub fn contains(&self, service: u32, endpoint: SocketAddr) -> bool {
        let serving = self.serving.get(&service);
        serving.is_some_and(|serving| !serving.contains(&endpoint))
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

impl Staleness for StaleUdp {
    type Hold = ();

    fn concerns(&self, service: u32) -> bool {
        self.concerns(service)
    }

    fn confirm(&self, service: u32, endpoint: SocketAddr) -> Option<()> {
        self.contains(service, endpoint).then_some(())
    }
}

/// The UDP ports of a Service that may have stale flows once it has become `after`: those whose
/// serving endpoints are not what they were. After a start, when there is no `before`, all.
pub fn changed<'a>(
    before: Option<&'a ServicePlan>,
    after: &'a ServicePlan,
) -> impl Iterator<Item = &'a Plan> {
    let udp = after
        .ports
        .iter()
        .filter(|plan| plan.name.protocol == Protocol::Udp);
    udp.filter(move |plan| {
        let ports = before.map_or(&[][..], |before| &before.ports);
        let same = |old: &&Plan| old.name == plan.name && old.family == plan.family;
        let old = ports.iter().find(same);
        old.is_none_or(|old| old.udp_serving != plan.udp_serving)
    })
}
