//! Slow start: the share of an endpoint that becomes ready beside others grows in steps, over the time
//! that its Service says.
//!
//! Who becomes ready is what the new plan of a service port has among its ready endpoints, and the plan
//! before had not. Since when each is ready is all that is kept, and only until its share is whole; the
//! planner knows nothing of it, and a finished plan has the weights of its endpoints scaled.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    time::{Duration, Instant},
};

use lb_objects::ObjectName;

use super::Agent;
use crate::{
    map_writer::Key,
    plan::{Plan, ServicePlan},
};

/// A whole share. An endpoint begins with one part.
const PARTS: u16 = 10;

/// The endpoints of all Services that do not have their whole share yet.
#[derive(Debug, Default)]
pub struct SlowStarts(BTreeMap<ObjectName, BTreeMap<Key, Starting>>);

/// The same of a service port: at least one.
#[derive(Debug)]
struct Starting {
    /// How long it takes.
    time: Duration,
    /// The moment whose shares are in the plan.
    at: Instant,
    /// Since when each is ready.
    since: BTreeMap<SocketAddr, Instant>,
}

impl Agent {
    /// Gives endpoints the shares that they are due by now. To be called every second.
    pub(super) async fn go_on_with_slow_starts(&mut self) {
        let now = Instant::now();
        let due = self.syncer.due(now);
        if !due.is_empty() {
            self.sync(due, now).await;
        }
    }
}

impl SlowStarts {
    /// Takes in which endpoints of a Service are ready as of `now`, and gives the plan the shares that
    /// they are due. `before` is the plan that this one replaces.
    pub fn follow(
        &mut self,
        before: Option<&ServicePlan>,
        planned: &mut ServicePlan,
        now: Instant,
    ) {
        let known = self.0.remove(&planned.service).unwrap_or_default();
        if planned.ports.iter().all(|plan| plan.slow_start.is_none()) {
            return;
        }
        let before = before.into_iter().flat_map(|before| &before.ports);
        let before: HashMap<Key, &Plan> = before.map(|plan| (Key::of(plan), plan)).collect();
        let starting = planned.ports.iter().filter_map(|plan| {
            let key = Key::of(plan);
            let starting = Starting::of(known.get(&key), before.get(&key)?, plan, now)?;
            Some((key, starting))
        });
        let starting: BTreeMap<_, _> = starting.collect();
        if !starting.is_empty() {
            self.0.insert(planned.service.clone(), starting);
            self.apply(planned);
        }
    }

    /// Gives a plan of the Service the shares that were due when [`Self::follow`] was last called.
    pub fn apply(&self, planned: &mut ServicePlan) {
        let Some(ports) = self.0.get(&planned.service) else {
            return;
        };
        for plan in &mut planned.ports {
            if let Some(starting) = ports.get(&Key::of(plan)) {
                plan.endpoints
                    .scale(|endpoint| starting.parts(endpoint, starting.at));
            }
        }
    }

    /// The Service is gone.
    pub fn forget(&mut self, service: &ObjectName) {
        self.0.remove(service);
    }

    /// The Services of which an endpoint is due a greater share than the plan gives it.
    pub fn due(&self, now: Instant) -> BTreeSet<ObjectName> {
        let is_due = |ports: &BTreeMap<_, Starting>| ports.values().any(|port| port.is_due(now));
        let due = self.0.iter().filter(|(_, ports)| is_due(ports));
        due.map(|(service, _)| service.clone()).collect()
    }

    /// How many endpoints there are, each once per service port and family.
    pub fn endpoints(&self) -> usize {
        let ports = self.0.values().flat_map(BTreeMap::values);
        ports.map(|port| port.since.len()).sum()
    }
}

impl Starting {
    /// Those of a port, if there are any, after the plan `before` and those `known` then.
    fn of(known: Option<&Self>, before: &Plan, plan: &Plan, now: Instant) -> Option<Self> {
        let time = plan.slow_start?;
        let were_ready: HashSet<_> = before.endpoints.ready().iter().collect();
        if were_ready.is_empty() {
            return None; // all are new: there is nobody to take over from
        }
        let since = |endpoint: &SocketAddr| match were_ready.contains(endpoint) {
            true => known?.since.get(endpoint).copied(),
            false => Some(now),
        };
        let ready = plan.endpoints.ready();
        let starting = ready.iter().filter_map(|endpoint| {
            let since = since(endpoint)?;
            let is_whole = now.saturating_duration_since(since) >= time;
            (!is_whole).then_some((*endpoint, since))
        });
        let since: BTreeMap<_, _> = starting.collect();
        // Those that have all begun at the same moment are equals, with their whole shares as well.
        let mut moments = ready.iter().map(|endpoint| since.get(endpoint));
        let first = moments.next()?;
        let differ = moments.any(|moment| moment != first);
        differ.then_some(Self {
            time,
            at: now,
            since,
        })
    }

    /// An endpoint has as many parts of its share as parts of the time have passed, and at least one.
    fn parts(&self, endpoint: &SocketAddr, now: Instant) -> u16 {
        self.since.get(endpoint).map_or(PARTS, |since| {
            let passed = now.saturating_duration_since(*since).min(self.time);
            let parts = u128::from(PARTS) * passed.as_nanos() / self.time.as_nanos();
            (parts as u16).max(1)
        })
    }

    fn is_due(&self, now: Instant) -> bool {
        let mut endpoints = self.since.keys();
        endpoints.any(|endpoint| self.parts(endpoint, now) != self.parts(endpoint, self.at))
    }
}

#[cfg(test)]
mod tests;
