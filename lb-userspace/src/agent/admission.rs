//! Connection admission in the agent: reads objects, has them written to the maps, and sets the
//! limits of levels.

use std::{
    collections::HashSet,
    mem::take,
    sync::Arc,
    time::{Duration, Instant},
};

use lb_admission::{
    configuration::{ActiveSchema, InForce},
    limits::Limits,
    objects::Kind,
};
use lb_objects::{AsWritten, Pod};

use super::Agent;
use crate::{
    admission::{
        conditions::{Conditions, StatusWrite},
        files::Followed,
        levels::{Counted, Levels, PERIOD},
        objects::Objects,
        pods::identities,
    },
    config::{AdmissionConfig, AdmissionMode, Config},
    flows::{Queues, SeatTable},
    map_writer::{MapWriter, Numbered},
    waiting::{Line, WaitKeeper},
};

/// What the agent does about connection admission, if anything.
pub struct Admission {
    config: AdmissionConfig,
    /// Seats of the node.
    seats: u32,
    /// `None` without any files.
    followed: Option<Followed>,
    /// What has come from the API server, and what of it is read.
    received: Option<Vec<Arc<AsWritten>>>,
    read: Objects,
    /// The API server's objects as they were last, and what their status is to say.
    latest: Vec<Arc<AsWritten>>,
    has_latest: bool,
    conditions: Conditions,
    in_force: Option<Arc<InForce>>,
    /// The levels, and who waits for their seats.
    line: Arc<Line>,
    /// Why the latest configuration is not in force, if so, and when to try again.
    problem: Option<(String, Instant)>,
    /// Whether the API server's objects have not come yet, and are worth waiting for.
    is_waiting: bool,
    /// Whether its Namespaces have not come yet.
    awaits_namespaces: bool,
    /// When the first of its objects came.
    first_received: Option<Instant>,
    /// What is wrong with objects, as the log says.
    told: HashSet<String>,
    pods: Pods,
    /// How many [tenants](crate::map_writer::Tenant) have found no number.
    undivided: usize,
}

/// What is known of this node's pods, which rules may depend on.
#[derive(Debug, Default)]
struct Pods {
    /// Whether the source has delivered them all once.
    are_complete: bool,
    /// Since when a configuration asks for them.
    wanted: Option<Instant>,
    /// Whether some are the first of their kind, so that the configuration has to be compiled anew.
    are_new: bool,
    /// When that may be next, so that pods that come all the time cost little.
    next: Option<Instant>,
}

impl Pods {
    /// Whether the configuration has to be compiled anew at this moment.
    fn are_due(&self) -> bool {
        self.are_new && self.next.is_none_or(|next| next <= Instant::now())
    }
}

/// For how many times as long as a change of configuration took there is no other for new pods alone, but
/// for [`LONGEST_PAUSE`] at most.
const PAUSE: u32 = 100;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long an API server that says that it does not know these kinds may be wrong: one that has just
/// started may.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the first objects wait for the limits of Namespaces, so that an agent's start does not
/// lift them.
const NAMESPACES_PATIENCE: Duration = Duration::from_secs(5);

/// When a configuration is tried again that found no room: connections end, and levels that nobody
/// wants any more with them.
const RETRY: Duration = Duration::from_secs(10);

/// How often [`Admission::set_limits`] is to be called.
pub const LIMITS: Duration = Duration::from_nanos(PERIOD);

impl Admission {
    /// `None` if connection admission is off. `seats` are those of the node; `of_api` says whether
    /// objects come from the API server, which [`Self::set_objects`] delivers.
    pub fn new(config: &AdmissionConfig, seats: u32, of_api: bool, queues: Queues) -> Option<Self> {
        (config.mode != AdmissionMode::Off).then(|| Self {
            config: config.clone(),
            seats,
            followed: config.objects.clone().map(Followed::new),
            received: None,
            read: Objects::default(),
            latest: Vec::new(),
            has_latest: false,
            conditions: Conditions::default(),
            in_force: None,
            line: Arc::new(Line::new(queues)),
            problem: None,
            is_waiting: of_api,
            awaits_namespaces: of_api,
            first_received: None,
            told: HashSet::new(),
            pods: Pods::default(),
            undivided: 0,
        })
    }

    /// Takes over all objects that the API server has, all Namespaces with limits among them if
    /// `has_namespaces`.
    pub fn set_objects(&mut self, objects: Vec<Arc<AsWritten>>, has_namespaces: bool) {
        self.received = Some(objects);
        self.is_waiting = false;
        self.awaits_namespaces &= !has_namespaces;
        self.first_received.get_or_insert_with(Instant::now);
    }

    /// Takes over this node's pods, which have all come if `are_complete`.
    pub fn set_pods(&mut self, pods: &[Arc<Pod>], are_complete: bool, writer: &mut MapWriter) {
        self.pods.are_complete |= are_complete;
        let set = writer.set_identities(identities(pods.iter().map(AsRef::as_ref)));
        if let Err(error) = &set {
            // What is compiled anew may have room again.
            tracing::error!("connection admission: no room for the addresses of pods: {error}");
        }
        self.pods.are_new |= set != Ok(true);
    }

    /// Notes how long the latest change of configuration took.
    fn rest_after(&mut self, took: Duration) {
        self.pods.next = Some(Instant::now() + (took * PAUSE).min(LONGEST_PAUSE));
    }

    /// Whether a configuration asks for this node's pods.
    pub fn wants_pods(&self) -> bool {
        self.pods.wanted.is_some()
    }

    /// Whether a configuration has to wait for this node's pods: the first one, so that an agent's start
    /// does not change what their connections belong to.
    fn awaits_pods(&mut self, in_force: &InForce) -> bool {
        if !in_force.asks_for_identity() {
            return false;
        }
        let since = *self.pods.wanted.get_or_insert_with(Instant::now);
        self.in_force.is_none() && !self.pods.are_complete && since.elapsed() < PATIENCE
    }

    /// Whether the API server may have objects that have not come yet. Until they have, what an agent
    /// before has left in the maps stays in force. `is_absent` says that the server does not know their
    /// kinds.
    fn awaits_objects(&mut self, is_absent: bool) -> bool {
        if self.is_waiting && is_absent && self.line.origin.elapsed() >= PATIENCE {
            self.is_waiting = false;
            tracing::warn!(
                "connection admission: the API server does not know PriorityLevels and FlowSchemas; \
                 the mandatory ones are in force (install deploy/crds)"
            );
        }
        // The agent may lack the right to read Namespaces.
        let is_patient = |since: Instant| since.elapsed() < NAMESPACES_PATIENCE;
        let awaits_namespaces = self.awaits_namespaces
            && self.in_force.is_none()
            && self.first_received.is_some_and(is_patient);
        self.is_waiting || awaits_namespaces
    }

    /// Reads the objects if they have changed, and puts them in force. Whether frontends may belong
    /// to another class now, which [`MapWriter::settle`] has to write. At the first call, and after
    /// `again`, everything is written. `is_absent` says that the API server does not know the kinds.
    pub fn follow(
        &mut self,
        writer: &mut MapWriter,
        seats: &SeatTable,
        again: bool,
        is_absent: bool,
    ) -> bool {
        if self.awaits_objects(is_absent) {
            return false;
        }
        let mut changed = self.followed.as_mut().is_some_and(Followed::look);
        if let Some(objects) = self.received.take() {
            self.read.read_from_api(&objects);
            self.latest = objects;
            self.has_latest = true;
            changed = true;
        }
        let tries_again = |(_, at): &(String, Instant)| Instant::now() >= *at;
        let tries_again = again || self.problem.as_ref().is_some_and(tries_again);
        let has_new_pods = self.pods.are_due() && self.problem.is_none();
        if !changed && !tries_again && !has_new_pods && self.in_force.is_some() {
            return false;
        }
        if changed {
            let problems: HashSet<_> = self.objects_problems().into_iter().collect();
            for problem in problems.difference(&self.told) {
                tracing::warn!("connection admission: {problem}");
            }
            self.told = problems;
        }
        let in_force = self.objects().configuration.in_force();
        if self.awaits_pods(&in_force) {
            return false;
        }
        self.pods.are_new &= in_force.asks_for_identity();
        let is_same = self.in_force.as_deref() == Some(&in_force);
        if is_same && !again && !self.pods.are_due() {
            self.problem = None;
            return false;
        }
        match self.put_in_force(in_force, writer, seats) {
            Ok(()) => {
                self.problem = None;
                self.pods.are_new = false;
                true
            }
            Err(error) => {
                let told = self.problem.take().map(|(told, _)| told);
                if told.as_ref() != Some(&error) {
                    tracing::error!("connection admission stays as it was: {error}");
                }
                self.problem = Some((error, Instant::now() + RETRY));
                false
            }
        }
    }

    fn put_in_force(
        &mut self,
        in_force: InForce,
        writer: &mut MapWriter,
        seats: &SeatTable,
    ) -> Result<(), String> {
        let limits = in_force.limits(self.seats);
        writer
            .set_schemas(&in_force, self.config.mode, &limits)
            .map_err(|error| error.to_string())?;
        let mut levels = self.line.levels();
        // Not before: others use the levels, and times must not go back.
        let now = self.line.now();
        // Levels that are valid are possible, so this does not fail.
        match levels.as_mut() {
            Some(levels) => levels.configure(&in_force, self.seats, now),
            None => Levels::new(&in_force, self.seats, now).map(|new| *levels = Some(new)),
        }
        .map_err(|error| error.to_string())?;
        drop(levels);
        let known = writer.numbered().known();
        self.line.set_schemas(&known.schemas);
        for known in &known.levels {
            let limited = known.level.limited();
            let most = limited.and_then(|limited| limited.connections.max_half_open_seats);
            seats.set_patience(known.number, most);
        }
        let (levels, schemas) = (in_force.levels.len(), in_force.schemas.len());
        let tenants: usize = known
            .schemas
            .iter()
            .map(|schema| schema.tenants.len())
            .sum();
        self.undivided = known.undivided;
        self.in_force = Some(Arc::new(in_force));
        self.set_limits(&writer.numbered(), seats);
        tracing::info!(
            levels,
            schemas,
            tenants,
            mode = self.config.mode.name(),
            "connection admission has another configuration"
        );
        Ok(())
    }

    /// What this node is to write into the status of the API server's objects at this moment.
    pub fn statuses_due(&mut self, now: Instant) -> Vec<StatusWrite> {
        let is_due = |at: Instant| at <= now;
        if !take(&mut self.has_latest) && !self.conditions.next().is_some_and(is_due) {
            return Vec::new();
        }
        let (read, latest) = (&self.read.configuration, &self.latest);
        self.conditions.due(read, latest, now)
    }

    /// The levels, and who waits for their seats.
    pub fn line(&self) -> Arc<Line> {
        self.line.clone()
    }

    /// Whether connections wait at a level.
    pub fn has_queues(&self) -> bool {
        let in_force = self.in_force.iter();
        let mut levels = in_force.flat_map(|in_force| &in_force.levels);
        levels.any(|level| level.queuing().is_some())
    }

    /// The configuration in the maps, if there is one.
    pub fn in_force(&self) -> Option<Arc<InForce>> {
        self.in_force.clone()
    }

    /// Sets the limits of levels by what they hold and want.
    pub fn set_limits(&mut self, numbered: &Arc<Numbered>, seats: &SeatTable) {
        seats.collect();
        let mut levels = self.line.levels();
        let now = self.line.now();
        let Some(levels) = levels.as_mut() else {
            return;
        };
        let known = numbered.known();
        let configured = known.levels.iter();
        let configured = configured.map(|known| (&*known.level.name, known.number));
        let leaving = known
            .leaving
            .iter()
            .map(|(name, number)| (&**name, *number));
        let counted = configured.chain(leaving).map(|(name, number)| {
            let mut counted = Counted::default();
            self.line.read(number, seats, &mut counted);
            (name, counted)
        });
        levels.observe_all(&counted.collect(), now);
        self.line.add_late(levels.advance(now));
        for (name, limit) in levels.limits() {
            let known = known.levels.iter().find(|known| known.level.name == name);
            // One that is no longer configured takes nobody, whatever its limit is.
            if let Some(known) = known
                && known.level.limited().is_some()
            {
                seats.limit_level(known.number, limit);
            }
        }
    }

    /// What is wrong with objects, and what they ask for in vain.
    pub fn problems(&self) -> Vec<String> {
        let in_force = self.in_force.as_deref().into_iter();
        let unmet = in_force.flat_map(|in_force| unmet(in_force, &in_force.limits(self.seats)));
        self.objects_problems()
            .into_iter()
            .chain(self.problem.iter().map(|(problem, _)| problem.clone()))
            .chain(self.undivided_problem())
            .chain(unmet)
            .collect()
    }

    fn undivided_problem(&self) -> Option<String> {
        let undivided = self.undivided;
        (undivided > 0).then(|| {
            format!(
                "FLOW_SCHEMAS has no more room for flows: {undivided} flows of known pods are told apart by address \
                 instead (use fewer FlowSchemas that tell them apart by namespace or service account)"
            )
        })
    }

    /// What is read, from files or from the API server.
    fn objects(&self) -> &Objects {
        match &self.followed {
            Some(followed) => followed.objects(),
            None => &self.read,
        }
    }

    fn objects_problems(&self) -> Vec<String> {
        match &self.followed {
            Some(followed) => followed.problems().collect(),
            None => self.read.errors.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The limit of the node itself; 0 means none. Where there are priority levels, they share the node's seats instead.
pub fn node_limit(config: &Config, admission: Option<&Admission>) -> u32 {
    match admission {
        Some(_) => 0,
        None => config.max_connections,
    }
}

/// What a configuration, of whose levels these are the limits, asks for in vain.
fn unmet(in_force: &InForce, limits: &[Limits]) -> Vec<String> {
    let mut unmet = Vec::new();
    let mut add = |kind: Kind, name: &str, what: &str| unmet.push(format!("{kind}/{name}: {what}"));
    for schema in &in_force.dangling {
        let what = format!("there is no PriorityLevel {:?}", schema.level);
        add(Kind::FlowSchema, &schema.name, &what);
    }
    for ActiveSchema { schema, level } in &in_force.schemas {
        let seats = schema.seats(&limits[*level]);
        if seats < schema.width {
            let what = format!(
                "a connection takes {seats} of the {} seats asked for, because PriorityLevel {:?} has too few for \
                 more (give it more shares)",
                schema.width, schema.level
            );
            add(Kind::FlowSchema, &schema.name, &what);
        }
    }
    unmet
}

impl Agent {
    /// Takes over changed objects of connection admission, if there are any; `again` writes all.
    pub(super) async fn follow_admission(&mut self, again: bool) -> anyhow::Result<()> {
        let Some(admission) = &mut self.admission else {
            return Ok(());
        };
        let health = self.feed.admission.as_ref();
        let is_absent = health.is_some_and(|health| health.some_absent());
        let began = Instant::now();
        let changed = admission.follow(self.syncer.writer(), &self.seats, again, is_absent);
        // Without what is done once: loading the program that ends waits takes far longer.
        let mut took = began.elapsed();
        if let Some(statuses) = &self.feed.statuses {
            let due = admission.statuses_due(Instant::now());
            due.into_iter().for_each(|write| statuses.write(write));
        }
        if admission.wants_pods()
            && let Some(pods) = &self.feed.pods
        {
            pods.want();
        }
        if changed {
            let in_force = admission.in_force();
            self.explainer.change(|known| known.in_force = in_force);
        }
        self.look_after_waiters();
        if changed && self.in_sync_since.is_some() {
            let began = Instant::now();
            self.syncer.writer().settle();
            took += began.elapsed();
            self.kernel.begin_admission();
            self.publish_state().await;
        }
        if changed && let Some(admission) = &mut self.admission {
            admission.rest_after(took);
        }
        Ok(())
    }

    /// Starts to look after connections that wait, once there are queues for them. Without that nobody
    /// waits: who finds no seat is refused at once.
    fn look_after_waiters(&mut self) {
        let (Some(admission), Some(sweeper)) = (&self.admission, &self.sweeper) else {
            return;
        };
        let is_due = self.next_wait_keeper <= Instant::now();
        if self.wait_keeper.is_some() || !admission.has_queues() || !is_due {
            return;
        }
        let line = admission.line();
        let numbered = self.syncer.writer().numbered();
        let start = |kernel| Ok(WaitKeeper::start(kernel, line, numbered)?);
        let kernel = self
            .kernel
            .wait_kernel(self.seats.clone(), Box::new(sweeper.alarm()));
        match kernel.and_then(start) {
            Ok(keeper) => self.wait_keeper = Some(keeper),
            Err(error) => {
                tracing::error!(
                    "connections cannot wait for seats, and are refused at once: {error:#}"
                );
                self.next_wait_keeper = Instant::now() + RETRY;
            }
        }
    }

    /// Sets the limits of levels anew.
    pub(super) fn set_level_limits(&mut self) {
        if let Some(admission) = &mut self.admission {
            admission.set_limits(&self.syncer.writer().numbered(), &self.seats);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use lb_admission::level::MAX_LEVELS;
    use lb_common::{
        abi::Config,
        flow::{Seats, limit::LEVELS},
    };
    use lb_datapath::memory::MemoryTables;

    use super::*;
    use crate::map_writer::NodeFacts;

    /// As many levels as there may be besides the mandatory ones.
    fn levels(prefix: char) -> String {
        let level = |number| {
            format!(
                "---\napiVersion: node-lb.io/v1alpha1\nkind: PriorityLevel\n\
                 metadata: {{name: {prefix}-{number}}}\n\
                 spec: {{type: Limited, limited: {{limitResponse: {{type: Reject}}}}}}\n"
            )
        };
        (2..MAX_LEVELS).map(level).collect()
    }

    #[test]
    fn objects_without_room_are_tried_again_until_they_have_it_or_are_gone() {
        let directory = tempfile::tempdir().unwrap();
        let config = AdmissionConfig {
            mode: AdmissionMode::Enforce,
            objects: Some(directory.path().to_owned()),
        };
        let tables = MemoryTables::new(Config::default(), HashSet::new(), 2);
        let seats = SeatTable::in_memory();
        let mut writer = MapWriter::empty(tables.maps(), NodeFacts::default());
        let mut admission = Admission::new(&config, 10_000, false, Queues::in_memory()).unwrap();
        let follow = |prefix, admission: &mut Admission, writer: &mut MapWriter| {
            fs::write(directory.path().join("a.yaml"), levels(prefix)).unwrap();
            let changed = admission.follow(writer, &seats, false, false);
            let problems = admission.problems();
            (
                changed,
                problems.iter().any(|p| p.contains("no number is free")),
            )
        };
        assert_eq!(follow('a', &mut admission, &mut writer), (true, false));
        let first = writer.numbered().known();
        let use_first = |seats_of_each| {
            for level in &first.levels {
                let index = LEVELS + level.number;
                let word = seats_of_each;
                tables.set_seats(
                    index,
                    &Seats {
                        word,
                        ..tables.seats(index)
                    },
                );
            }
        };
        use_first(1);
        assert_eq!(follow('b', &mut admission, &mut writer), (true, false));
        assert_eq!(follow('c', &mut admission, &mut writer), (false, true));
        let in_force = writer.numbered().known();
        assert!(
            in_force
                .levels
                .iter()
                .any(|known| known.level.name == "b-2")
        );

        // What is in force is what is wanted again.
        assert_eq!(follow('b', &mut admission, &mut writer), (false, false));

        assert_eq!(follow('c', &mut admission, &mut writer), (false, true));
        use_first(0);
        // The limits have forgotten the levels of before as well.
        let line = Arc::get_mut(&mut admission.line).unwrap();
        line.origin -= Duration::from_secs(60);
        admission.set_limits(&writer.numbered(), &seats);
        // Nothing has changed, and the time has come.
        admission.problem.as_mut().unwrap().1 = Instant::now();
        let changed = admission.follow(&mut writer, &seats, false, false);
        assert!(changed, "{:?}", admission.problems());
        assert_eq!(admission.problems(), Vec::<String>::new());
    }

    #[test]
    fn the_first_objects_wait_for_namespaces_but_not_for_long() {
        let config = AdmissionConfig {
            mode: AdmissionMode::Enforce,
            objects: None,
        };
        let tables = MemoryTables::new(Config::default(), HashSet::new(), 2);
        let seats = SeatTable::in_memory();
        let mut writer = MapWriter::empty(tables.maps(), NodeFacts::default());
        let start = || Admission::new(&config, 10_000, true, Queues::in_memory()).unwrap();
        let mut follow = |admission: &mut Admission, is_absent| {
            admission.follow(&mut writer, &seats, false, is_absent)
        };

        let mut admission = start();
        assert!(!follow(&mut admission, false));
        admission.set_objects(Vec::new(), false);
        assert!(!follow(&mut admission, false));
        admission.set_objects(Vec::new(), true);
        assert!(follow(&mut admission, false));

        // They may not come at all.
        let mut admission = start();
        admission.set_objects(Vec::new(), false);
        admission.first_received = Instant::now().checked_sub(NAMESPACES_PATIENCE);
        assert!(follow(&mut admission, false));

        // Nor the other objects.
        let mut admission = start();
        let line = Arc::get_mut(&mut admission.line).unwrap();
        line.origin -= PATIENCE;
        assert!(follow(&mut admission, true));
    }

    #[test]
    fn what_is_asked_for_in_vain_is_told() {
        let text = "
apiVersion: node-lb.io/v1alpha1
kind: PriorityLevel
metadata: {name: shop}
spec:
  type: Limited
  limited: {limitResponse: {type: Queue, queuing: {}}, connections: {maxConnectionsPerFlow: 3}}
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: shop}
spec:
  priorityLevelConfiguration: {name: shop}
  seats: 2
  linger: 1s
  deadlines: {clientIdle: 5m}
  rules: [{subjects: [{kind: Namespace, namespace: {name: shop}}], destinations: [{namespaces: ['*']}]}]
---
apiVersion: node-lb.io/v1alpha1
kind: FlowSchema
metadata: {name: lost}
spec: {priorityLevelConfiguration: {name: nowhere}}
";
        let mut objects = Objects::default();
        objects.read([("a.yaml".into(), Ok(text.as_bytes().to_vec()))]);
        assert_eq!(objects.errors, []);
        let expected = [
            "FlowSchema/lost: there is no PriorityLevel \"nowhere\"",
            "FlowSchema/shop: a connection takes 1 of the 2 seats",
        ];
        // With so many seats, the level has enough for two.
        for (seats, told) in [(1000, 1), (10, 2)] {
            let unmet = unmet_of(&objects, seats);
            assert_eq!(unmet.len(), told, "{unmet:#?}");
            for (found, expected) in unmet.iter().zip(expected) {
                assert!(found.starts_with(expected), "{found}");
            }
        }
        // The mandatory objects ask for nothing else.
        assert_eq!(unmet_of(&Objects::default(), 1), Vec::<String>::new());
    }

    fn unmet_of(objects: &Objects, seats: u32) -> Vec<String> {
        let in_force = objects.configuration.in_force();
        unmet(&in_force, &in_force.limits(seats))
    }
}
