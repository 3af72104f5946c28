//! Flow schemas and priority levels in the maps: their numbers, and which schema takes the
//! connections to each frontend.
//!
//! A configuration is written beside the one before. Then each frontend goes over to it by one
//! write. So a connection is classified by the rules of the one or the other, never by a mix. Only
//! where a schema goes to another level, it does so for all frontends at once.

mod classes;
mod compiled;
mod deadlines;
mod known;
mod parties;
mod queues;
mod sources;
mod written;

use std::{
    collections::{BTreeMap, HashSet},
    mem::{offset_of, take},
    net::IpAddr,
    sync::Arc,
};

use lb_admission::{
    classify::{Identities, ServiceFrontend},
    configuration::{ActiveSchema, InForce},
    level::{CATCH_ALL, Level},
    limits::Limits,
    schema::{RejectAnswer, RejectAnswers, Schema},
};
use lb_common::{
    abi::{self, Decision},
    flow::{
        Seats,
        limit::{FIRST_LEVEL, limit_flag},
        place::LevelSeats,
    },
};
use lb_datapath::{
    TickRate,
    maps::{Elements, Maps, WriteError},
};
use thiserror::Error;

pub use self::known::{Known, Numbered, NumberedLevel, NumberedSchema, Tenant};
use self::{
    classes::{Classes, UNKNOWN},
    compiled::Compiled,
    sources::Sets,
    written::Written,
};
use super::{
    MapFill,
    owners::{Found, Owners, owner},
    verify::Findings,
};
use crate::{config::AdmissionMode, plan::ServicePortName};

/// How many tenants without pods are remembered, at most.
const MOST_GONE: usize = 1024;

/// Why a configuration is not in the maps. The one before stays in force.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotInForce {
    #[error(
        "no number is free for PriorityLevel {0:?}: other levels that are not configured any more \
         still have connections"
    )]
    Level(String),
    #[error("no number is free for FlowSchema {0:?}: FLOW_SCHEMAS is full")]
    Schema(String),
    #[error("no room for the networks of the FlowSchemas' rules: {0}")]
    Networks(WriteError),
}

/// Writes flow schemas and priority levels.
pub(super) struct SchemaBook {
    levels: Names,
    schemas: Names,
    classes: Classes,
    sets: Sets,
    /// Whose addresses are.
    identities: Identities,
    compiled: Option<Compiled>,
    numbered: Arc<Numbered>,
    /// What of the configuration in force is to be compared with the maps.
    written: Written,
    /// Whether there may be classes that no frontend has any more.
    has_garbage: bool,
}

/// The numbers of those who have a name.
#[derive(Debug)]
struct Names {
    held: BTreeMap<String, u32>,
    owners: Owners,
}

impl Names {
    fn new(numbers: std::ops::Range<u32>) -> Self {
        Self {
            held: BTreeMap::new(),
            owners: Owners::new(numbers),
        }
    }

    /// The number of a name, and whether its element has to be written.
    fn number(
        &mut self,
        name: &str,
        grace: impl FnOnce(),
        is_used: impl Fn(u32) -> bool,
    ) -> Option<Found> {
        if let Some(index) = self.held.get(name) {
            return Some(Found {
                index: *index,
                is_new: false,
            });
        }
        let found = self.owners.find(owner(name), grace, is_used)?;
        self.held.insert(name.to_owned(), found.index);
        Some(found)
    }

    /// Whether a name has a number, or had one that is still its own.
    fn has(&self, name: &str) -> bool {
        self.held.contains_key(name) || self.owners.has(owner(name))
    }

    /// Keeps only the numbers of these names.
    fn retain(&mut self, names: &HashSet<String>) {
        let (kept, gone) = take(&mut self.held)
            .into_iter()
            .partition(|(name, _)| names.contains(name));
        self.held = kept;
        for (name, number) in BTreeMap::into_iter(gone) {
            self.owners.retire(owner(&name), number);
        }
    }
}

impl SchemaBook {
    /// Of maps that hold nothing.
    pub fn new(maps: &Maps) -> Self {
        Self {
            levels: Names::new(FIRST_LEVEL..maps.levels.len()),
            schemas: Names::new(1..maps.flow_schemas.len().min(u32::from(u16::MAX) + 1)),
            classes: Classes::new(maps),
            sets: Sets::default(),
            identities: Identities::default(),
            compiled: None,
            numbered: Arc::default(),
            written: Written::default(),
            has_garbage: false,
        }
    }

    /// Goes on with what an earlier book knows, and tells those who read it.
    pub fn go_on_from(&mut self, before: Self) {
        self.numbered = before.numbered;
        self.identities = before.identities;
    }

    /// What is in the maps, for others to read.
    pub fn numbered(&self) -> Arc<Numbered> {
        self.numbered.clone()
    }

    /// Takes over what the maps hold; `classes` are those that frontends have.
    ///
    /// # Errors
    ///
    /// If the maps cannot be read.
    pub fn inherit(
        &mut self,
        classes: impl IntoIterator<Item = u16>,
        maps: &Maps,
    ) -> Result<(), WriteError> {
        let levels = &maps.levels;
        self.levels.owners.inherit(|index| levels.read(index).owner);
        let schemas = &maps.flow_schemas;
        let owner = |index| schemas.read(index).owner;
        self.schemas.owners.inherit(owner);
        self.classes.inherit(classes, maps);
        self.sets = Sets::read(maps)?;
        self.has_garbage = true;
        Ok(())
    }

    /// To be called when all frontends have the classes of this configuration.
    pub fn finish_adoption(&mut self) {
        // Levels that are nobody's any more take no connections, whatever their limits are.
        let _ = self.levels.owners.finish_adoption();
        let _ = self.schemas.owners.finish_adoption();
    }

    /// Writes a configuration: frontends that get their class from now on belong to it.
    /// `limits` are those of [`InForce::levels`].
    ///
    /// # Errors
    ///
    /// If there is no room for it. The one before stays in force.
    pub fn set(
        &mut self,
        in_force: &InForce,
        mode: AdmissionMode,
        limits: &[Limits],
        maps: &Maps,
    ) -> Result<(), NotInForce> {
        let written = self.try_set(in_force, mode, limits, maps);
        // Names that are not in force need no number, be they of the one before or, after an error,
        // of this one.
        let known = self.numbered.known();
        let levels = known.levels.iter().map(|known| known.level.name.clone());
        self.levels.retain(&levels.collect());
        let schemas = known.schemas.iter().flat_map(owners_of).collect();
        self.schemas.retain(&schemas);
        written
    }

    fn try_set(
        &mut self,
        in_force: &InForce,
        mode: AdmissionMode,
        limits: &[Limits],
        maps: &Maps,
    ) -> Result<(), NotInForce> {
        let mut levels = Vec::new();
        for (level, limits) in in_force.levels.iter().zip(limits) {
            let is_used = |index| maps.levels.read(index).used() != 0;
            let found = self.levels.number(&level.name, &maps.grace, is_used);
            let found = found.ok_or_else(|| NotInForce::Level(level.name.clone()))?;
            if found.is_new {
                let element = Seats {
                    // It begins with its own.
                    limit: level.limited().map_or(0, |_| limits.nominal),
                    owner: owner(&level.name),
                    ..Seats::default()
                };
                maps.levels.write(found.index, &element);
            }
            levels.push(NumberedLevel {
                level: level.clone(),
                limits: *limits,
                number: found.index,
            });
        }
        let mut schemas = Vec::new();
        for ActiveSchema { schema, level } in &in_force.schemas {
            let number = self.number(schema.name.clone(), maps);
            schemas.push(NumberedSchema {
                name: schema.name.clone(),
                level: schema.level.clone(),
                number: number.ok_or_else(|| NotInForce::Schema(schema.name.clone()))?,
                tenants: Vec::new(),
                most_per_flow: schema.most_per_flow(&in_force.levels[*level]),
                longest_wait: schema.deadlines.queue_wait(),
                seats: schema.seats(&limits[*level]),
            });
        }
        let mut compiled = Compiled::new(in_force, &self.identities);
        if compiled.asks_for_source() {
            let set = self.sets.add(compiled.networks(), maps);
            compiled.set = set.map_err(NotInForce::Networks)?;
        }
        compiled.schemas = schemas.iter().map(|schema| schema.number as u16).collect();
        let undivided = self.number_tenants(&mut compiled, &mut schemas, maps);

        // Nothing can fail any more.
        let mut written = Written::default();
        for known in &levels {
            publish(&*maps.levels, known.number, level_flags(&known.level, mode));
        }
        for (active, numbered) in in_force.schemas.iter().zip(&schemas) {
            let (schema, level) = (&active.schema, &in_force.levels[active.level]);
            let rule = parties::rule(schema, level);
            let is_audited = level_flags(level, mode) & limit_flag::AUDIT != 0;
            let element = abi::FlowSchema {
                rule,
                is_audited: is_audited.into(),
                seats: LevelSeats::new(levels[active.level].number, numbered.seats)
                    .lingering(TickRate::of_kernel().moments(schema.linger)),
                ..element(schema)
            };
            for (number, name) in numbered.numbers().zip(owners_of(numbered)) {
                let element = abi::FlowSchema {
                    owner: owner(&name),
                    rule: match number == numbered.number {
                        true => rule,
                        false => parties::of_tenant(rule),
                    },
                    ..element
                };
                written.add_schema(number, name, element, maps);
            }
            if active.schema.name == CATCH_ALL {
                let all = Decision::new([numbered.number as u16; 3]);
                self.classes.set_unknown(all, maps);
            }
        }
        let with_queues = levels
            .iter()
            .filter_map(|known| Some((known.number, known.level.queuing()?)));
        queues::write(&with_queues.collect::<Vec<_>>(), maps);
        for known in &levels {
            let flags = level_flags(&known.level, mode);
            written.add_level(known.number, known.level.name.clone(), flags, maps);
        }
        self.written = written;
        self.compiled = Some(compiled);
        self.has_garbage = true;
        self.numbered
            .change(|known| *known = Known::after(known, levels, schemas, undivided));
        Ok(())
    }

    /// The number of a flow schema or of a tenant, whose element is written if it was another's.
    fn number(&mut self, name: String, maps: &Maps) -> Option<u32> {
        let found = self.schemas.number(&name, &maps.grace, |_| false)?;
        if found.is_new {
            let element = abi::FlowSchema {
                owner: owner(&name),
                ..abi::FlowSchema::default()
            };
            maps.flow_schemas.write(found.index, &element);
        }
        Some(found.index)
    }

    /// Gives numbers to the tenants of schemas. Returns how many have found none.
    fn number_tenants(
        &mut self,
        compiled: &mut Compiled,
        schemas: &mut [NumberedSchema],
        maps: &Maps,
    ) -> usize {
        // The other half is for flow schemas.
        let mut room = maps.flow_schemas.len() as usize / 2 - 1;
        let mut by_name = BTreeMap::new();
        let mut flows: Vec<_> = compiled.flows().collect();
        // Newcomers take nobody's number.
        flows.sort_by_cached_key(|(schema, _, tenant)| {
            !self
                .schemas
                .has(&tenant_owner(&schemas[*schema].name, tenant))
        });
        for (schema, class, tenant) in flows {
            let known = by_name.entry((schema, tenant));
            let number = known.or_insert_with_key(|(schema, tenant)| {
                room = room.checked_sub(1)?;
                self.number(tenant_owner(&schemas[*schema].name, tenant), maps)
            });
            if let Some(number) = number {
                compiled.tenants.insert((schema, class), *number as u16);
            }
        }
        let undivided = by_name.values().filter(|number| number.is_none()).count();
        for ((schema, name), number) in by_name {
            let tenant = number.map(|number| Tenant { name, number });
            schemas[schema].tenants.extend(tenant);
        }
        self.keep_tenants(schemas, room.min(MOST_GONE));
        undivided
    }

    /// Remembers tenants whose last pods have gone, so that what was counted of them is not lost to their
    /// schemas, if there are no more than there is room for.
    fn keep_tenants(&mut self, schemas: &mut [NumberedSchema], mut room: usize) {
        let before = self.numbered.known();
        for schema in schemas {
            let Some((before, _)) = before.schema(schema.number) else {
                continue;
            };
            let now: HashSet<_> = schema.numbers().collect();
            let gone = before.tenants.iter();
            let gone = gone.filter(|tenant| !now.contains(&tenant.number));
            let gone: Vec<_> = gone.take(room).cloned().collect();
            room -= gone.len();
            schema.tenants.extend(gone);
        }
    }

    /// Takes over whose addresses are. Returns whether that is in force: if not, because pods are the first
    /// of their kind, [`Self::set`] has to compile the configuration anew.
    ///
    /// # Errors
    ///
    /// If the networks of pods find no room. The others are in force.
    pub fn set_identities(
        &mut self,
        identities: Identities,
        maps: &Maps,
    ) -> Result<bool, WriteError> {
        let before = std::mem::replace(&mut self.identities, identities);
        let Some(compiled) = &mut self.compiled else {
            return Ok(false);
        };
        let Some(pods) = compiled.classes_of(&self.identities, &before) else {
            return Ok(false);
        };
        if compiled.set == 0 {
            // All sources are alike, and still are.
            return Ok(true);
        }
        let before = std::mem::replace(&mut compiled.pods, pods);
        let changes = compiled.changes_since(&before);
        self.sets.change(compiled.set, &changes, maps)?;
        Ok(true)
    }

    /// The class of an address of a service port; `port` is the Service's own port. `None` if there
    /// is no configuration: the address keeps the class that it has.
    pub fn class(
        &mut self,
        name: &ServicePortName,
        port: u16,
        address: IpAddr,
        maps: &Maps,
    ) -> Option<u16> {
        let compiled = self.compiled.as_mut()?;
        let destination = compiled.classifier.destination_class(&ServiceFrontend {
            namespace: &name.service.namespace,
            service: &name.service.name,
            port,
            protocol: name.protocol,
            address: Some(address),
        });
        if let Some(class) = compiled.by_destination.get(&destination) {
            return Some(*class);
        }
        let content = compiled.content(destination);
        let class = self.classes.number(content, maps);
        match class {
            Some(class) => drop(compiled.by_destination.insert(destination, class)),
            None => self.numbered.change(|known| known.unclassified += 1),
        }
        Some(class.unwrap_or(UNKNOWN))
    }

    /// Compares the classes of destinations with what was written, and mends them.
    pub fn verify_classes(&self, maps: &Maps, findings: &mut Findings) {
        self.classes.verify(maps, findings);
    }

    /// What else of the configuration in force was written.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// The classes of sources.
    pub fn sets(&self) -> &Sets {
        &self.sets
    }

    /// Whether an address's class depends on the address.
    pub fn asks_for_address(&self) -> bool {
        let compiled = self.compiled.as_ref();
        compiled.is_some_and(|compiled| compiled.classifier.asks_for_address())
    }

    /// Whether [`Self::retain`] may find something.
    pub fn has_garbage(&self) -> bool {
        self.has_garbage
    }

    /// Makes the room of classes free that are none of these. No program uses them any more.
    pub fn retain(&mut self, used: &HashSet<u16>, maps: &Maps) {
        self.has_garbage = false;
        self.classes.retain(used);
        let mut sets = self.classes.sets();
        if let Some(compiled) = &mut self.compiled {
            compiled
                .by_destination
                .retain(|_, class| used.contains(class));
            sets.insert(compiled.set);
        }
        self.sets.retain(&sets, maps);
    }

    /// How full the maps are.
    pub fn fill(&self, maps: &Maps) -> [MapFill; 5] {
        let fill = |map, entries, capacity| MapFill {
            map,
            entries,
            capacity,
        };
        let [classes, decisions] = self.classes.used();
        let (levels, schemas) = (&self.levels.held, &self.schemas.held);
        [
            fill(
                "LEVELS",
                levels.len() as u32,
                maps.levels.len() - FIRST_LEVEL,
            ),
            fill(
                "FLOW_SCHEMAS",
                schemas.len() as u32,
                maps.flow_schemas.len() - 1,
            ),
            fill(
                "DESTINATION_CLASSES",
                classes,
                maps.destination_classes.len() - 1,
            ),
            fill(
                "SOURCE_CLASSES",
                self.sets.entries(),
                maps.source_classes.capacity(),
            ),
            fill("DECISIONS", decisions, maps.decisions.len()),
        ]
    }
}

/// The flags of a level's limit.
fn level_flags(level: &Level, mode: AdmissionMode) -> u32 {
    let limited = level.limited();
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    let is_audited = limited.is_some_and(|limited| limited.audited);
    flag(limit_flag::STRICT, limited.is_some())
        | flag(limit_flag::QUEUES, level.queuing().is_some())
        | flag(
            limit_flag::AUDIT,
            is_audited || mode == AdmissionMode::Audit,
        )
}

/// What a schema alone says in its elements of `FLOW_SCHEMAS`.
fn element(schema: &Schema) -> abi::FlowSchema {
    abi::FlowSchema {
        answers: answers(&schema.answers),
        deadlines: deadlines::in_ticks(&schema.deadlines, TickRate::of_kernel()),
        ..abi::FlowSchema::default()
    }
}

/// Whose the elements of a flow schema are, by name.
fn owners_of(schema: &NumberedSchema) -> impl Iterator<Item = String> {
    let tenants = schema.tenants.iter();
    let tenants = tenants.map(|tenant| tenant_owner(&schema.name, &tenant.name));
    [schema.name.clone()].into_iter().chain(tenants)
}

/// A name that no flow schema has.
fn tenant_owner(schema: &str, tenant: &str) -> String {
    format!("{schema} {tenant}")
}

fn publish(levels: &dyn Elements<Seats>, number: u32, flags: u32) {
    levels.publish(number, offset_of!(Seats, flags), flags);
}

/// What clients are told for each reason.
fn answers(answers: &RejectAnswers) -> u32 {
    abi::RejectAnswer::join(
        answer(answers.concurrency_limit),
        answer(answers.queue_full),
        answer(answers.time_out),
    )
}

fn answer(answer: RejectAnswer) -> abi::RejectAnswer {
    match answer {
        RejectAnswer::Reset => abi::RejectAnswer::Reset,
        RejectAnswer::Icmp => abi::RejectAnswer::Icmp,
        RejectAnswer::Drop => abi::RejectAnswer::Drop,
    }
}
