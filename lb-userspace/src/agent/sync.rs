//! From changed objects to changed maps, health answers and metrics.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

use crate::{
    flows::{StaleUdp, stale},
    health::service::ServiceHealth,
    metrics::{Metrics, set_to_now},
    model::{IpFamily, ObjectName, TrafficPolicy},
    plan::{self, LocalNode, ServicePlan},
    program::{Key, Programmer},
    store::Store,
};

/// Keeps the maps equal to the store.
pub struct Syncer {
    programmer: Programmer,
    plans: HashMap<ObjectName, ServicePlan>,
}

impl Syncer {
    pub fn new(programmer: Programmer) -> Self {
        Self {
            programmer,
            plans: HashMap::new(),
        }
    }

    /// The maps' side.
    pub fn programmer(&mut self) -> &mut Programmer {
        &mut self.programmer
    }

    /// Plans and writes the Services named, and says which UDP flows to look at.
    pub fn sync(
        &mut self,
        store: &Store,
        node: &LocalNode,
        services: impl IntoIterator<Item = ObjectName>,
    ) -> StaleUdp {
        let mut stale = StaleUdp::default();
        for name in services {
            let planned = store.service(&name).map(|service| {
                let slices: Vec<_> = store.slices(&name).collect();
                plan::plan(service, &slices, node)
            });
            let before = self.plans.remove(&name);
            let mut keys: BTreeSet<Key> = before
                .iter()
                .flat_map(|plan| &plan.ports)
                .map(Key::of)
                .collect();
            for port in planned.iter().flat_map(|plan| &plan.ports) {
                let key = Key::of(port);
                keys.remove(&key);
                if let Err(error) = self.programmer.apply(key.clone(), Some(port)) {
                    tracing::warn!("{} is not programmed: {error}", port.name);
                }
            }
            for key in keys {
                // Removing needs no room.
                let _ = self.programmer.apply(key, None);
            }
            if let Some(planned) = planned {
                for port in stale::changed(before.as_ref(), &planned) {
                    if let Some(id) = self.programmer.id(&Key::of(port)) {
                        stale.add(id, port.udp_serving.iter().copied());
                    }
                }
                self.plans.insert(name, planned);
            }
        }
        stale
    }

    /// The healthCheckNodePort servers that should be.
    pub fn health(&self) -> impl Iterator<Item = ServiceHealth> + '_ {
        self.plans.values().flat_map(|planned| {
            planned.health_checks.iter().map(|check| ServiceHealth {
                service: planned.service.clone(),
                family: check.family,
                port: check.port,
                local_endpoints: check.local_ready,
            })
        })
    }

    /// Updates what is counted over all Services.
    pub fn measure(&self, metrics: &Metrics, since: Instant) {
        let mut lacking: BTreeMap<IpFamily, [i64; 2]> = BTreeMap::new();
        for plan in self.plans.values().flat_map(|planned| &planned.ports) {
            let [internal, external] = lacking.entry(plan.family).or_default();
            *internal += i64::from(
                plan.internal_policy == TrafficPolicy::Local && plan.internal_lacks_local(),
            );
            *external += i64::from(plan.external_lacks_local());
        }
        for family in [IpFamily::V4, IpFamily::V6] {
            let [internal, external] = lacking.remove(&family).unwrap_or_default();
            let family = metrics.family(family);
            family.no_local_endpoints_internal.set(internal);
            family.no_local_endpoints_external.set(external);
            family.sync_duration.observe(since.elapsed().as_secs_f64());
            set_to_now(&family.last_sync);
        }
        let waiting: BTreeSet<_> = self
            .programmer
            .waiting()
            .map(|(key, _)| &key.name.service)
            .collect();
        metrics.services_not_programmed.set(waiting.len() as i64);
        metrics
            .services_programmed
            .set((self.plans.len() - waiting.len()) as i64);
        metrics.endpoint_changes_pending.set(0);
        metrics.service_changes_pending.set(0);
    }
}
