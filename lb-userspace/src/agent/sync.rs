//! Turns changed objects into changed maps, health answers and metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use lb_objects::{IpFamily, ObjectName, TrafficPolicy};

use super::{catalog::Catalog, status};
use crate::{
    flows::{Change, Limit, Limits, Met, Stale, stale},
    health::service::ServiceHealth,
    map_writer::{Key, MapWriter, NotProgrammed},
    metrics::{Metrics, ServiceTraffic, set_to_now},
    plan::{self, LocalNode, Plan, ServicePlan, ServicePortName},
    store::Store,
};

/// How often service ports are checked for limits.
const LOOK: Duration = Duration::from_secs(5);

/// Keeps the maps equal to the store. The cost of a sync is proportional to the change.
pub struct Syncer {
    writer: MapWriter,
    /// The plans made so far.
    catalog: Arc<Catalog>,
    /// The healthCheckNodePorts that are to be served, and whether they changed.
    health: BTreeMap<(ObjectName, IpFamily), ServiceHealth>,
    health_changed: bool,
    lacking: [Lacking; 2],
    on_terminating: [OnTerminating; 2],
    not_programmed: BTreeMap<Key, NotProgrammed>,
    limits: Limits<Key>,
    /// When limits were last checked.
    last_look: Option<Instant>,
    /// News that the agent has not taken yet.
    news: Vec<News>,
    last_sync: Option<Instant>,
}

/// A change of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It, or a part of it, is not in the maps, for this reason.
    Waiting(Key, NotProgrammed),
    /// It is in the maps now, after it had to wait.
    Programmed(Key),
    /// Its flows have reached this limit.
    AtLimit(Key, Limit),
}

/// Service ports of a family that drop connections because their traffic policy is Local.
#[derive(Clone, Copy, Debug, Default)]
struct Lacking {
    internal: i64,
    external: i64,
}

/// What terminating endpoints of a family serve because there are no ready ones.
#[derive(Clone, Copy, Debug, Default)]
struct OnTerminating {
    services: i64,
    endpoints: i64,
}

impl Syncer {
    pub fn new(writer: MapWriter, catalog: Arc<Catalog>) -> Self {
        Self {
            writer,
            catalog,
            health: BTreeMap::new(),
            health_changed: false,
            lacking: [Lacking::default(); 2],
            on_terminating: [OnTerminating::default(); 2],
            not_programmed: BTreeMap::new(),
            limits: Limits::default(),
            last_look: None,
            news: Vec::new(),
            last_sync: None,
        }
    }

    /// The map writer.
    pub fn writer(&mut self) -> &mut MapWriter {
        &mut self.writer
    }

    /// Plans and writes the named Services, and returns which flows are to be checked. When this
    /// returns, the maps have the Services.
    pub fn sync(
        &mut self,
        store: &Store,
        node: &LocalNode,
        services: impl IntoIterator<Item = ObjectName>,
    ) -> Stale {
        let mut stale = Stale::default();
        for name in services {
            let planned = store.service(&name).map(|service| {
                let slices: Vec<_> = store.slices(&name).collect();
                plan::plan(service, &slices, node)
            });
            self.sync_service(name, planned, &mut stale);
        }
        self.writer.settle();
        self.report();
        self.last_sync = Some(Instant::now());
        stale
    }

    /// Uses a quiet moment for clean-up. To be called now and then.
    pub fn idle(&mut self, quiet: Duration) {
        if self.last_sync.is_some_and(|last| last.elapsed() >= quiet) {
            self.writer.tidy();
            self.report();
        }
    }

    /// Notices which service ports have reached a limit, once the first state is written. To be
    /// called now and then.
    pub fn watch_limits(&mut self, now: Instant) {
        let is_due = self.last_look.is_none_or(|last| now >= last + LOOK);
        if self.last_sync.is_none() || !is_due {
            return;
        }
        self.last_look = Some(now);
        let ids = self.writer.ids();
        let met = ids.map(|(key, id)| (key, met(&self.writer, id)));
        for (key, limit, change) in self.limits.look(now, met) {
            match change {
                Change::Begun => {
                    tracing::warn!("{key} is at its limit: no more {}", limit.name());
                    self.news.push(News::AtLimit(key, limit));
                }
                Change::Over => tracing::info!("{key} is below its limit again: {}", limit.name()),
            }
        }
    }

    /// Service ports that have been at a limit lately.
    pub fn at_limit(&self) -> impl Iterator<Item = status::AtLimit> {
        self.limits
            .at_limit()
            .map(|(key, limits)| status::AtLimit::new(key, &limits))
    }

    /// The healthCheckNodePort servers that should exist; `None` if they are as at the last call.
    pub fn changed_health(&mut self) -> Option<Vec<ServiceHealth>> {
        std::mem::take(&mut self.health_changed).then(|| self.health.values().cloned().collect())
    }

    /// Number of Services in the store, whether they are programmed or not.
    pub fn services(&self) -> usize {
        self.catalog.services()
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

    /// Changes of service ports since the last call.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// When the last sync was done; before the first one, now.
    pub fn synced_at(&self) -> Instant {
        self.last_sync.unwrap_or_else(Instant::now)
    }

    /// When the last sync was done.
    pub fn last_sync(&self) -> Option<SystemTime> {
        Some(SystemTime::now() - self.last_sync?.elapsed())
    }

    /// The traffic of every service port, both families together.
    pub fn traffic(&self) -> Vec<ServiceTraffic> {
        let mut traffic: BTreeMap<&ServicePortName, ServiceTraffic> = BTreeMap::new();
        for (key, id) in self.writer.ids() {
            let stats = self.writer.stats(id);
            let shortages = self.writer.shortages(id);
            let sum = traffic.entry(&key.name).or_insert_with(|| ServiceTraffic {
                service: key.name.service.clone(),
                port: key.name.port.clone(),
                protocol: key.name.protocol,
                connections: 0,
                half_open: 0,
                gave_way: 0,
                flow_table_full: 0,
                snat_ports_exhausted: 0,
                failing: Vec::new(),
            });
            sum.connections += stats.connections;
            sum.half_open += u64::try_from(stats.half_open).unwrap_or(0);
            sum.gave_way += u64::from(stats.gave_way);
            sum.flow_table_full += shortages.flow_table_full;
            sum.snat_ports_exhausted += shortages.snat_ports_exhausted;
            sum.failing.extend(self.writer.failing_endpoints(key));
        }
        traffic.into_values().collect()
    }

    /// Updates the metrics that count over all Services.
    pub fn measure(&self, metrics: &Metrics, since: Instant) {
        for family in [IpFamily::V4, IpFamily::V6] {
            let lacking = self.lacking[family as usize];
            let on_terminating = self.on_terminating[family as usize];
            let family = metrics.family(family);
            family.services_on_terminating.set(on_terminating.services);
            family
                .terminating_endpoints_serving
                .set(on_terminating.endpoints);
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
            .set((self.catalog.services() - waiting.len()) as i64);
        metrics.endpoint_changes_pending.set(0);
        metrics.service_changes_pending.set(0);
    }

    /// Brings one Service up to date; without a plan, it is removed.
    fn sync_service(&mut self, name: ObjectName, planned: Option<ServicePlan>, stale: &mut Stale) {
        let before = self.catalog.get(&name);
        let mut gone: BTreeSet<Key> = before
            .iter()
            .flat_map(|plan| &plan.ports)
            .map(Key::of)
            .collect();
        for port in planned.iter().flat_map(|plan| &plan.ports) {
            let key = Key::of(port);
            gone.remove(&key);
            // What finds no room is reported at the end of the round.
            let _ = self.writer.apply(key, Some(port));
        }
        for key in gone {
            // Removing needs no room.
            let _ = self.writer.apply(key, None);
        }
        let before = before.as_deref();
        self.count(before, -1);
        self.count(planned.as_ref(), 1);
        self.note_health(&name, before, planned.as_ref());
        for (port, remaining) in planned
            .iter()
            .flat_map(|planned| stale::changed(before, planned))
        {
            if let Some(id) = self.writer.id(&Key::of(port)) {
                stale.add(id, remaining.iter().copied());
            }
        }
        self.catalog.set(&name, planned.map(Arc::new));
    }

    /// Adds a Service's ports to the counts, or subtracts them.
    fn count(&mut self, planned: Option<&ServicePlan>, by: i64) {
        for plan in planned.into_iter().flat_map(|planned| &planned.ports) {
            let lacking = &mut self.lacking[plan.family as usize];
            let internal =
                plan.internal_policy == TrafficPolicy::Local && plan.internal_lacks_local();
            lacking.internal += by * i64::from(internal);
            lacking.external += by * i64::from(plan.external_lacks_local());
        }
        for family in [IpFamily::V4, IpFamily::V6] {
            let ports = planned.into_iter().flat_map(|planned| &planned.ports);
            let of_family = ports.filter(|plan| plan.family == family);
            let endpoints: usize = of_family.map(Plan::terminating_in_use).sum();
            let on_terminating = &mut self.on_terminating[family as usize];
            on_terminating.services += by * i64::from(endpoints != 0);
            on_terminating.endpoints += by * endpoints as i64;
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

    /// Logs which service ports have stopped or started to be programmed.
    fn report(&mut self) {
        let waiting = self.writer.waiting();
        let now: BTreeMap<Key, NotProgrammed> =
            waiting.map(|(key, error)| (key.clone(), error)).collect();
        for (key, error) in &now {
            if self.not_programmed.get(key) != Some(error) {
                tracing::warn!("{key} is not programmed: {error}");
                self.news.push(News::Waiting(key.clone(), error.clone()));
            }
        }
        for key in self.not_programmed.keys() {
            if !now.contains_key(key) {
                tracing::info!("{key} no longer waits for room in the maps");
                // If it has no id, its Service is gone.
                if self.writer.id(key).is_some() {
                    self.news.push(News::Programmed(key.clone()));
                }
            }
        }
        self.not_programmed = now;
    }
}

/// How often a service port has reached each limit.
fn met(writer: &MapWriter, id: u32) -> Met {
    let shortages = writer.shortages(id);
    Limit::ALL.map(|limit| match limit {
        Limit::HalfOpen => writer.stats(id).gave_way.into(),
        Limit::SnatPorts => shortages.snat_ports_exhausted,
        Limit::FlowTable => shortages.flow_table_full,
    })
}
