//! From changed objects to changed maps, health answers and metrics.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::{Duration, Instant, SystemTime},
};

use super::status;
use crate::{
    flows::{StaleUdp, stale},
    health::service::ServiceHealth,
    metrics::{Metrics, ServiceConnections, set_to_now},
    model::{IpFamily, ObjectName, TrafficPolicy},
    plan::{self, LocalNode, ServicePlan, ServicePortName},
    program::{Key, NotProgrammed, Programmer},
    store::Store,
};

/// Keeps the maps equal to the store. A sync costs what changed, not what is there.
pub struct Syncer {
    programmer: Programmer,
    plans: HashMap<ObjectName, ServicePlan>,
    /// The healthCheckNodePorts that are to be served, and whether they changed.
    health: BTreeMap<(ObjectName, IpFamily), ServiceHealth>,
    health_changed: bool,
    lacking: [Lacking; 2],
    not_programmed: BTreeMap<Key, NotProgrammed>,
    last_sync: Option<Instant>,
}

/// Service ports of a family that drop connections because their policy is Local.
#[derive(Clone, Copy, Debug, Default)]
struct Lacking {
    internal: i64,
    external: i64,
}

impl Syncer {
    pub fn new(programmer: Programmer) -> Self {
        Self {
            programmer,
            plans: HashMap::new(),
            health: BTreeMap::new(),
            health_changed: false,
            lacking: [Lacking::default(); 2],
            not_programmed: BTreeMap::new(),
            last_sync: None,
        }
    }

    /// The maps' side.
    pub fn programmer(&mut self) -> &mut Programmer {
        &mut self.programmer
    }

    /// Plans and writes the Services named, and says which UDP flows to look at. When this returns,
    /// the maps have them.
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
            self.sync_service(name, planned, &mut stale);
        }
        self.programmer.settle();
        self.report();
        self.last_sync = Some(Instant::now());
        stale
    }

    /// Makes use of a quiet moment: to be called every now and then.
    pub fn idle(&mut self, quiet: Duration) {
        if self.last_sync.is_some_and(|last| last.elapsed() >= quiet) {
            self.programmer.tidy();
            self.report();
        }
    }

    /// The healthCheckNodePort servers that should be, if they are not those of the last call.
    pub fn changed_health(&mut self) -> Option<Vec<ServiceHealth>> {
        std::mem::take(&mut self.health_changed).then(|| self.health.values().cloned().collect())
    }

    /// Number of Services in the store, whether they are programmed or not.
    pub fn services(&self) -> usize {
        self.plans.len()
    }

    /// Service ports that are not, or not completely, in the maps, and why.
    pub fn not_programmed(&self) -> impl Iterator<Item = status::NotProgrammed> {
        let waiting = self.not_programmed.iter();
        waiting.map(|(key, error)| status::NotProgrammed {
            service_port: key.name.to_string(),
            protocol: key.name.protocol.to_string(),
            family: key.family.to_string(),
            reason: error.to_string(),
        })
    }

    /// When the last sync was done.
    pub fn last_sync(&self) -> Option<SystemTime> {
        Some(SystemTime::now() - self.last_sync?.elapsed())
    }

    /// Connections to every service port, both families together.
    pub fn connections(&self) -> Vec<ServiceConnections> {
        let mut connections: BTreeMap<&ServicePortName, u64> = BTreeMap::new();
        for (key, id) in self.programmer.ids() {
            let stats = self.programmer.stats(id);
            *connections.entry(&key.name).or_default() += stats.connections;
        }
        connections
            .into_iter()
            .map(|(name, connections)| ServiceConnections {
                service: name.service.clone(),
                port: name.port.clone(),
                protocol: name.protocol,
                connections,
            })
            .collect()
    }

    /// Updates what is counted over all Services.
    pub fn measure(&self, metrics: &Metrics, since: Instant) {
        for family in [IpFamily::V4, IpFamily::V6] {
            let lacking = self.lacking[family as usize];
            let family = metrics.family(family);
            family.no_local_endpoints_internal.set(lacking.internal);
            family.no_local_endpoints_external.set(lacking.external);
            family.sync_duration.observe(since.elapsed().as_secs_f64());
            set_to_now(&family.last_sync);
        }
        let waiting: BTreeSet<_> = self
            .not_programmed
            .keys()
            .map(|key| &key.name.service)
            .collect();
        metrics.services_not_programmed.set(waiting.len() as i64);
        metrics
            .services_programmed
            .set((self.plans.len() - waiting.len()) as i64);
        metrics.endpoint_changes_pending.set(0);
        metrics.service_changes_pending.set(0);
    }

    /// Brings one Service into line; without a plan, it goes.
    fn sync_service(
        &mut self,
        name: ObjectName,
        planned: Option<ServicePlan>,
        stale: &mut StaleUdp,
    ) {
        let before = self.plans.remove(&name);
        let mut gone: BTreeSet<Key> = before
            .iter()
            .flat_map(|plan| &plan.ports)
            .map(Key::of)
            .collect();
        for port in planned.iter().flat_map(|plan| &plan.ports) {
            let key = Key::of(port);
            gone.remove(&key);
            // What has no room is reported when the round is over.
            let _ = self.programmer.apply(key, Some(port));
        }
        for key in gone {
            // Removing needs no room.
            let _ = self.programmer.apply(key, None);
        }
        self.count(before.as_ref(), -1);
        self.count(planned.as_ref(), 1);
        self.note_health(&name, before.as_ref(), planned.as_ref());
        if let Some(planned) = planned {
            for port in stale::changed(before.as_ref(), &planned) {
                if let Some(id) = self.programmer.id(&Key::of(port)) {
                    stale.add(id, port.udp_serving.iter().copied());
                }
            }
            self.plans.insert(name, planned);
        }
    }

    /// Counts a Service's ports in, or out.
    fn count(&mut self, planned: Option<&ServicePlan>, by: i64) {
        for plan in planned.into_iter().flat_map(|planned| &planned.ports) {
            let lacking = &mut self.lacking[plan.family as usize];
            let internal =
                plan.internal_policy == TrafficPolicy::Local && plan.internal_lacks_local();
            lacking.internal += by * i64::from(internal);
            lacking.external += by * i64::from(plan.external_lacks_local());
        }
    }

    fn note_health(
        &mut self,
        name: &ObjectName,
        before: Option<&ServicePlan>,
        planned: Option<&ServicePlan>,
    ) {
        let before = before.map_or(&[][..], |plan| &plan.health_checks);
        let planned = planned.map_or(&[][..], |plan| &plan.health_checks);
        if before == planned {
            return;
        }
        self.health_changed = true;
        for check in before {
            self.health.remove(&(name.clone(), check.family));
        }
        for check in planned {
            let health = ServiceHealth {
                service: name.clone(),
                family: check.family,
                port: check.port,
                local_endpoints: check.local_ready,
            };
            self.health.insert((name.clone(), check.family), health);
        }
    }

    /// Says what is not programmed since now, and what is at last.
    fn report(&mut self) {
        let waiting = self.programmer.waiting();
        let now: BTreeMap<Key, NotProgrammed> =
            waiting.map(|(key, error)| (key.clone(), error)).collect();
        for (key, error) in &now {
            if self.not_programmed.get(key) != Some(error) {
                tracing::warn!("{} ({}) is not programmed: {error}", key.name, key.family);
            }
        }
        for key in self.not_programmed.keys() {
            if !now.contains_key(key) {
                tracing::info!("{} ({}) waits no more", key.name, key.family);
            }
        }
        self.not_programmed = now;
    }
}
