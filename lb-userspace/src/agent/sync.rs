//! Turns changed objects into changed maps, health answers and metrics.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use lb_objects::{IpFamily, ObjectName, Service, TrafficPolicy};
use prometheus::IntCounter;

use super::{catalog::Catalog, hosted::Hosted, progress::Progress, slow_start::SlowStarts, status};
use crate::{
    by_name::ByName,
    flows::{Change, Limit, Limits, Met, Stale, stale},
    health::{readiness::Condition, service::ServiceHealth},
    map_writer::{Key, MapFill, MapWriter, NodeFacts, NotProgrammed, Reason, Reserved, Roster},
    metrics::{Metrics, set_to_now},
    plan::{self, HealthCheck, LocalNode, Plan, ServicePlan},
    store::Store,
};

/// How often service ports are checked for limits.
const LOOK: Duration = Duration::from_secs(5);

/// So many synced Services leave so much unused memory that it is worth giving back.
const MANY: usize = 1000;

/// Service ports that are named in the log at a time, of those that find no room.
const LOGGED: usize = 20;

/// Keeps the maps equal to the store. A sync costs what changed, not what is there.
pub struct Syncer {
    writer: MapWriter,
    /// The plans made so far.
    catalog: Arc<Catalog>,
    /// What each Service was when its addresses were planned, if nothing that decides about these
    /// has changed since.
    planned: ByName<Service>,
    /// Endpoints that do not have their whole share yet.
    slow_starts: SlowStarts,
    /// How often Services have been planned.
    plannings: IntCounter,
    progress: Arc<Progress>,
    node: LocalNode,
    hosted: Hosted,
    /// Service ports that are left to the node, and where.
    left_to_node: BTreeMap<Key, SocketAddr>,
    /// The healthCheckNodePorts that are to be served, and whether they changed.
    health: BTreeMap<(ObjectName, IpFamily), ServiceHealth>,
    health_changed: bool,
    /// Addresses that Services do not get, but for those of healthCheckNodePorts; whether the
    /// writer knows all of them.
    reserved: Reserved,
    reserved_known: bool,
    lacking: [Lacking; 2],
    on_terminating: [OnTerminating; 2],
    not_programmed: BTreeMap<Key, NotProgrammed>,
    /// The Services of these, and the first of their reasons.
    lacking_services: BTreeMap<ObjectName, Reason>,
    /// [`MapWriter::revision`] as of these.
    reported: (u64, u64),
    /// Whether every essential Service has the room that it needs.
    has_room: Condition,
    limits: Limits<Key>,
    /// When limits were last checked.
    last_look: Option<Instant>,
    /// News that the agent has not taken yet.
    news: Vec<News>,
    last_sync: Option<Instant>,
    /// How many Services have been synced since [`Self::has_garbage`] last said yes.
    synced_since: usize,
}

/// What became of a Service, or of a port of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The Service, or part of it, is not in the maps for this reason.
    Waiting(ObjectName, Reason),
    /// It is at last.
    Programmed(ObjectName),
    /// A service port has come to this limit of what its flows may take.
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
    /// Nothing is planned yet. `plannings` counts how often a Service is.
    pub fn new(
        writer: MapWriter,
        node: LocalNode,
        catalog: Arc<Catalog>,
        progress: Arc<Progress>,
        has_room: Condition,
        plannings: IntCounter,
    ) -> Self {
        Self {
            writer,
            catalog,
            planned: ByName::default(),
            slow_starts: SlowStarts::default(),
            plannings,
            progress,
            node,
            hosted: Hosted::default(),
            left_to_node: BTreeMap::new(),
            health: BTreeMap::new(),
            health_changed: false,
            reserved: Reserved::default(),
            reserved_known: true,
            lacking: [Lacking::default(); 2],
            on_terminating: [OnTerminating::default(); 2],
            not_programmed: BTreeMap::new(),
            lacking_services: BTreeMap::new(),
            reported: (0, 0),
            has_room,
            limits: Limits::default(),
            last_look: None,
            news: Vec::new(),
            last_sync: None,
            synced_since: 0,
        }
    }

    /// The map writer.
    pub fn writer(&mut self) -> &mut MapWriter {
        &mut self.writer
    }

    /// What plans are made for.
    pub fn node(&self) -> &LocalNode {
        &self.node
    }

    /// Takes over what this node is by now, and says which Services that concerns: they have to be
    /// synced.
    #[must_use]
    pub fn set_node(
        &mut self,
        node: LocalNode,
        facts: NodeFacts,
        store: &Store,
    ) -> BTreeSet<ObjectName> {
        let concerned = self.node.concerned(&node);
        self.node = node;
        let facts = self.writer.set_facts(facts);
        let mut names: BTreeSet<_> = self.hosted.at(&facts.addresses).cloned().collect();
        if facts.all || !concerned.nobody() {
            for service in store.services() {
                let is_concerned = concerned.concerns(service);
                if is_concerned {
                    self.planned.remove(&service.name);
                }
                if is_concerned || facts.all {
                    names.insert(service.name.clone());
                }
            }
        }
        names
    }

    /// Plans and writes the Services named as of `now`, and says which flows to look at. When this
    /// returns, the maps have them.
    pub fn sync(&mut self, store: &Store, services: BTreeSet<ObjectName>, now: Instant) -> Stale {
        let mut stale = Stale::default();
        self.progress.begin(services.len());
        self.synced_since += services.len();
        self.reserve();
        for name in in_order(services, store, &self.node) {
            let planned = self.plan(store, &name, now);
            self.sync_service(name, planned, &mut stale);
            self.progress.advance();
        }
        self.reserve();
        self.writer.settle();
        self.report();
        self.last_sync = Some(Instant::now());
        self.progress.end();
        stale
    }

    /// Takes over which addresses Services do not get, apart from those of healthCheckNodePorts.
    /// The next sync gives that to the maps.
    pub fn set_reserved(&mut self, reserved: Reserved) {
        self.reserved_known &= self.reserved == reserved;
        self.reserved = reserved;
    }

    /// Whether a Service may get or lose an address by the next sync, because others are reserved.
    pub fn has_other_reserved(&self) -> bool {
        !self.reserved_known
    }

    fn reserve(&mut self) {
        if std::mem::replace(&mut self.reserved_known, true) {
            return;
        }
        let mut reserved = self.reserved.clone();
        reserved.add_health_checks(self.health.values().map(|health| health.port));
        self.writer.set_reserved(reserved);
    }

    /// The plan of a Service, if there is such a Service.
    fn plan(&mut self, store: &Store, name: &ObjectName, now: Instant) -> Option<ServicePlan> {
        let Some(service) = store.service(name) else {
            self.planned.remove(name);
            self.slow_starts.forget(name);
            return None;
        };
        self.plannings.inc();
        let slices: Vec<_> = store.slices(name).collect();
        let before = self.catalog.get(name);
        let before = before.as_deref();
        let is_same = |known: &Arc<Service>| Arc::ptr_eq(known, service);
        let mut planned = if self.planned.get(name).is_some_and(is_same) {
            plan::plan_after(before, service, &slices, &self.node)
        } else {
            self.planned.insert(service.clone());
            plan::plan(service, &slices, &self.node)
        };
        self.slow_starts.follow(before, &mut planned, now);
        Some(planned)
    }

    /// The Services of which an endpoint gets a greater share by the next sync, because time has
    /// passed.
    pub fn due(&self, now: Instant) -> BTreeSet<ObjectName> {
        self.slow_starts.due(now)
    }

    /// The service ports in the maps, for reading what comes to them.
    pub fn roster(&self) -> Arc<Roster> {
        self.writer.roster()
    }

    /// Names of at most `most` Services with plans, those that come after `after`, and of all that
    /// should have one and have not; with these, whether there are more of the former.
    pub fn services(
        &self,
        store: &Store,
        after: Option<&ObjectName>,
        most: usize,
    ) -> (Vec<ObjectName>, bool) {
        let (planned, more) = self.catalog.page(after, most);
        let mut names: Vec<_> = planned.iter().map(|plan| plan.service.clone()).collect();
        if store.services().len() != self.catalog.services() {
            let all = store.services().map(|service| &service.name);
            let lacking = all.filter(|name| self.catalog.get(name).is_none());
            names.extend(lacking.cloned());
        }
        (names, more > 0)
    }

    /// Whether the plan of a Service is still the one that its objects and this node ask for. If
    /// not, the next sync of the Service makes it anew.
    pub fn verify(&mut self, store: &Store, name: &ObjectName) -> bool {
        let fresh = store.service(name).map(|service| {
            let slices: Vec<_> = store.slices(name).collect();
            let mut planned = plan::plan(service, &slices, &self.node);
            self.slow_starts.apply(&mut planned);
            planned
        });
        let is_fresh = self.catalog.get(name).as_deref() == fresh.as_ref();
        if !is_fresh {
            self.planned.remove(name);
        }
        is_fresh
    }

    /// Makes use of a quiet moment: to be called every now and then.
    pub fn idle(&mut self, quiet: Duration) {
        if self.last_sync.is_some_and(|last| last.elapsed() >= quiet) {
            self.writer.tidy();
            self.report();
        }
    }

    /// Whether many Services have been synced, and none for a while: what that took is not needed
    /// now. To be asked every now and then.
    pub fn has_garbage(&mut self, quiet: Duration) -> bool {
        let is_quiet = self.last_sync.is_some_and(|last| last.elapsed() >= quiet);
        let has_garbage = is_quiet && self.synced_since >= MANY;
        if has_garbage {
            self.synced_since = 0;
        }
        has_garbage
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

    /// Where Services have endpoints of this node.
    pub fn hosted(&self) -> &Hosted {
        &self.hosted
    }

    /// The healthCheckNodePort servers that should exist; `None` if they are as at the last call.
    pub fn changed_health(&mut self) -> Option<Vec<ServiceHealth>> {
        std::mem::take(&mut self.health_changed).then(|| self.health.values().cloned().collect())
    }

    /// Service ports that are not, or not completely, in the maps, and why.
    pub fn not_programmed(&self) -> impl Iterator<Item = status::NotProgrammed> {
        let waiting = self.not_programmed.iter();
        waiting.map(|(key, error)| status::NotProgrammed {
            service_port: key.name.to_string(),
            protocol: key.name.protocol.to_string(),
            family: key.family.to_string(),
            reason: error.to_string(),
            remedy: error.reason().remedy().to_owned(),
        })
    }

    /// Service ports that are left to the node, and where.
    pub fn left_to_node(&self) -> impl Iterator<Item = status::LeftToNode> {
        let left = self.left_to_node.iter();
        left.map(|(key, address)| status::LeftToNode {
            service_port: key.name.to_string(),
            protocol: key.name.protocol.to_string(),
            address: *address,
        })
    }

    /// How full the maps are that plans are written to.
    pub fn fill(&self) -> Vec<MapFill> {
        self.writer.fill()
    }

    /// What became of Services that had to wait, since the last call.
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

    /// Updates what is counted over all Services.
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
        let lacking = &self.lacking_services;
        for reason in Reason::ALL {
            let services = lacking.values().filter(|found| **found == reason);
            metrics
                .services_lacking
                .with_label_values(&[reason.name()])
                .set(services.count() as i64);
        }
        metrics.left_to_node.set(self.left_to_node.len() as i64);
        metrics
            .slow_starting
            .set(self.slow_starts.endpoints() as i64);
        metrics.services_not_programmed.set(lacking.len() as i64);
        metrics
            .services_programmed
            .set(self.catalog.services().saturating_sub(lacking.len()) as i64);
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
        self.note_left_to_node(before, planned.as_ref());
        self.count(before, -1);
        self.count(planned.as_ref(), 1);
        self.note_health(&name, before, planned.as_ref());
        self.hosted.replace(&name, before, planned.as_ref());
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

    /// Notes where the node itself answers in a Service's place.
    fn note_left_to_node(&mut self, before: Option<&ServicePlan>, planned: Option<&ServicePlan>) {
        let left = |planned: Option<&ServicePlan>| -> BTreeMap<Key, SocketAddr> {
            let ports = planned.into_iter().flat_map(|planned| &planned.ports);
            let left =
                ports.filter_map(|plan| Some((Key::of(plan), **plan.left_to_node.as_ref()?)));
            left.collect()
        };
        let (before, now) = (left(before), left(planned));
        for (key, address) in before.iter().filter(|(key, _)| !now.contains_key(key)) {
            tracing::info!("{key} is served at {address} again, or is gone");
            self.left_to_node.remove(key);
        }
        for (key, address) in now.iter().filter(|(key, _)| !before.contains_key(key)) {
            tracing::info!(
                "{key} is left to this node at {address}, which is an address of a device of its own"
            );
        }
        self.left_to_node.extend(now);
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
        let ports =
            |checks: &[HealthCheck]| checks.iter().map(|check| check.port).collect::<Vec<_>>();
        self.reserved_known &= ports(before) == ports(planned);
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

    /// Notes which service ports have stopped or started to be programmed.
    fn report(&mut self) {
        let revision = self.writer.revision();
        if std::mem::replace(&mut self.reported, revision) == revision {
            return;
        }
        let mut now: BTreeMap<Key, NotProgrammed> = BTreeMap::new();
        for (key, error) in self.writer.waiting() {
            let known = now.entry(key.clone()).or_insert_with(|| error.clone());
            if error.reason() < known.reason() {
                *known = error;
            }
        }
        let before = &self.not_programmed;
        let news = now.iter().filter(|(key, error)| {
            let known = before.get(key).map(NotProgrammed::reason);
            known != Some(error.reason())
        });
        let mut untold = 0;
        for (index, (key, error)) in news.enumerate() {
            match index < LOGGED {
                true => tracing::warn!("{key} is not programmed: {error}"),
                false => untold += 1,
            }
        }
        if untold > 0 {
            tracing::warn!("{untold} more service ports are not programmed");
        }
        let gone = before.keys().filter(|key| !now.contains_key(key));
        for key in gone.take(LOGGED) {
            tracing::info!("{key} no longer waits for room in the maps");
        }
        self.not_programmed = now;
        self.report_services();
    }

    /// Notes the same for Services as a whole, and whether all those have room that must.
    fn report_services(&mut self) {
        let mut now: BTreeMap<ObjectName, Reason> = BTreeMap::new();
        let mut essential = BTreeSet::new();
        for (key, error) in &self.not_programmed {
            let (service, reason) = (&key.name.service, error.reason());
            let known = now.entry(service.clone()).or_insert(reason);
            *known = reason.min(*known);
            if reason == Reason::MapFull && self.is_essential(service) {
                essential.insert(service.to_string());
            }
        }
        for (service, reason) in &now {
            if self.lacking_services.get(service) != Some(reason) {
                self.news.push(News::Waiting(service.clone(), *reason));
            }
        }
        for service in self.lacking_services.keys() {
            // Or it is gone.
            if !now.contains_key(service) && self.catalog.get(service).is_some() {
                self.news.push(News::Programmed(service.clone()));
            }
        }
        self.lacking_services = now;
        let names: Vec<_> = essential.into_iter().collect();
        let problem = (!names.is_empty()).then(|| {
            let names = names.join(", ");
            format!("the maps have no room for Services that others depend on: {names}")
        });
        self.has_room.set(problem.as_deref());
    }

    fn is_essential(&self, service: &ObjectName) -> bool {
        let planned = self.catalog.get(service);
        let port = planned.as_ref().and_then(|planned| planned.ports.first());
        port.is_some_and(|plan| plan.rank.is_essential())
    }
}

/// Those that are gone first, which gives room, then by who goes first: when all come at once, the
/// maps fill in this order.
fn in_order(services: BTreeSet<ObjectName>, store: &Store, node: &LocalNode) -> Vec<ObjectName> {
    let rank = |name: &ObjectName| store.service(name).map(|service| node.rank(service));
    let mut services: Vec<_> = services.into_iter().collect();
    services.sort_by_cached_key(rank);
    services
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

#[cfg(test)]
mod tests;
