//! Flow schemas and priority levels in the maps: their numbers, and which schema takes the
//! connections to each frontend.
//!
//! A configuration is written beside the one before. Then each frontend goes over to it by one
//! write. So a connection is classified by the rules of the one or the other, never by a mix. Only
//! where a schema goes to another level, it does so for all frontends at once.

mod classes;
mod deadlines;
mod parties;
mod queues;
mod sources;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem::{offset_of, take},
    net::IpAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use lb_admission::{
    classify::{Classifier, DestinationClass, ServiceFrontend},
    configuration::InForce,
    level::{CATCH_ALL, Level},
    limits::Limits,
    schema::{Ingress, RejectAnswer, RejectAnswers},
};
use lb_common::{
    abi::{self, Decision},
    flow::{
        Seats,
        limit::{FIRST_LEVEL, limit_flag},
    },
};
use lb_datapath::{
    TickRate,
    maps::{Elements, Maps, WriteError},
};
use thiserror::Error;

use self::{
    classes::{Classes, Content, UNKNOWN},
    sources::Sets,
};
use super::{
    MapFill,
    owners::{Found, Owners, owner},
};
use crate::{config::AdmissionMode, plan::ServicePortName};

/// What is in the maps, for those who read what is counted there.
#[derive(Debug, Default)]
pub struct Numbered(RwLock<Arc<Known>>);

/// Priority levels and flow schemas with their numbers.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// In the order of names.
    pub levels: Vec<NumberedLevel>,
    /// Names and numbers of levels that are not configured any more. They take no connections, but
    /// may have some.
    pub leaving: BTreeMap<String, u32>,
    /// In the order in which they are asked.
    pub schemas: Vec<NumberedSchema>,
    /// Addresses that no class could be made for: their connections belong to the level
    /// `catch-all`.
    pub unclassified: usize,
}

/// A priority level.
#[derive(Clone, Debug)]
pub struct NumberedLevel {
    pub level: Level,
    /// What it may have.
    pub limits: Limits,
    /// Index into `LEVELS`.
    pub number: u32,
}

/// A flow schema.
#[derive(Clone, Debug)]
pub struct NumberedSchema {
    pub name: String,
    /// Name of its level.
    pub level: String,
    /// Index into `FLOW_SCHEMAS`.
    pub number: u32,
    /// How long its connections wait for a seat, at most.
    pub longest_wait: Duration,
}

impl Numbered {
    /// What is in the maps now.
    pub fn known(&self) -> Arc<Known> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    /// Changes it as a whole, so a thread that panicked leaves nothing half done.
    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut known));
    }
}

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
    compiled: Option<Compiled>,
    numbered: Arc<Numbered>,
    /// Whether there may be classes that no frontend has any more.
    has_garbage: bool,
}

/// The numbers of those who have a name.
#[derive(Debug)]
struct Names {
    held: BTreeMap<String, u32>,
    owners: Owners,
}

/// The configuration that frontends get their classes by.
struct Compiled {
    classifier: Classifier,
    /// Its set of networks; 0 if it has none, because no schema depends on the source.
    set: u32,
    /// The classes of sources that some network has.
    sources: BTreeSet<u32>,
    /// Numbers of schemas, in the order in which they are asked.
    schemas: Vec<u16>,
    by_destination: HashMap<DestinationClass, u16>,
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

    /// Keeps only the numbers of these names.
    fn retain(&mut self, names: &HashSet<&str>) {
        let (kept, gone) = take(&mut self.held)
            .into_iter()
            .partition(|(name, _)| names.contains(name.as_str()));
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
            compiled: None,
            numbered: Arc::default(),
            has_garbage: false,
        }
    }

    /// Tells those who read what an earlier book has written.
    pub fn share(&mut self, numbered: Arc<Numbered>) {
        self.numbered = numbered;
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
        let levels = known.levels.iter().map(|known| known.level.name.as_str());
        self.levels.retain(&levels.collect());
        let schemas = known.schemas.iter().map(|known| known.name.as_str());
        self.schemas.retain(&schemas.collect());
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
            publish(&*maps.levels, found.index, level_flags(level, mode));
            levels.push(NumberedLevel {
                level: level.clone(),
                limits: *limits,
                number: found.index,
            });
        }
        let mut schemas = Vec::new();
        for active in &in_force.schemas {
            let schema = &active.schema;
            let found = self.schemas.number(&schema.name, &maps.grace, |_| false);
            let found = found.ok_or_else(|| NotInForce::Schema(schema.name.clone()))?;
            if found.is_new {
                let element = abi::FlowSchema {
                    owner: owner(&schema.name),
                    ..abi::FlowSchema::default()
                };
                maps.flow_schemas.write(found.index, &element);
            }
            schemas.push(NumberedSchema {
                name: schema.name.clone(),
                level: schema.level.clone(),
                number: found.index,
                longest_wait: schema.deadlines.queue_wait(),
            });
        }
        let classifier = Classifier::new(&in_force.schemas);
        let sources: BTreeSet<_> = classifier.networks().map(|(_, class)| class).collect();
        let set = match sources.len() {
            0 | 1 => 0,
            _ => self
                .sets
                .add(classifier.networks(), maps)
                .map_err(NotInForce::Networks)?,
        };

        // Nothing can fail any more.
        for (active, numbered) in in_force.schemas.iter().zip(&schemas) {
            let index = numbered.number;
            let level = levels[active.level].number;
            let answers = answers(&active.schema.answers);
            let elements = &maps.flow_schemas;
            elements.publish(index, offset_of!(abi::FlowSchema, answers), answers);
            elements.publish(index, offset_of!(abi::FlowSchema, level), level);
            let rule = parties::rule(&active.schema, &in_force.levels[active.level]);
            elements.publish(index, offset_of!(abi::FlowSchema, rule.by), rule.by);
            elements.publish(index, offset_of!(abi::FlowSchema, rule.most), rule.most);
            let is_audited = level_flags(&in_force.levels[active.level], mode) & limit_flag::AUDIT;
            let is_audited = u32::from(is_audited != 0);
            elements.publish(index, offset_of!(abi::FlowSchema, is_audited), is_audited);
            let ticks = deadlines::in_ticks(&active.schema.deadlines, TickRate::of_kernel());
            for (ticks, place) in ticks.into_iter().zip(0..) {
                let offset = offset_of!(abi::FlowSchema, deadlines) + 4 * place;
                elements.publish(index, offset, ticks);
            }
            if active.schema.name == CATCH_ALL {
                let all = Decision::new([index as u16; 3]);
                self.classes.set_unknown(all, maps);
            }
        }
        let with_queues = levels
            .iter()
            .filter_map(|known| Some((known.number, known.level.queuing()?)));
        queues::write(&with_queues.collect::<Vec<_>>(), maps);
        self.compiled = Some(Compiled {
            classifier,
            set,
            sources,
            schemas: schemas.iter().map(|schema| schema.number as u16).collect(),
            by_destination: HashMap::new(),
        });
        self.has_garbage = true;
        self.numbered.change(|known| {
            let mut leaving = take(&mut known.leaving);
            let before = take(&mut known.levels).into_iter();
            leaving.extend(before.map(|known| (known.level.name, known.number)));
            // A number that another level has now was nobody's any more.
            leaving.retain(|name, number| {
                let is_it =
                    |known: &NumberedLevel| known.level.name == *name || known.number == *number;
                !levels.iter().any(is_it)
            });
            *known = Known {
                levels,
                leaving,
                schemas,
                unclassified: 0,
            };
        });
        Ok(())
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

impl Compiled {
    /// What the class of a destination says.
    fn content(&self, destination: DestinationClass) -> Content {
        let decision = |source| {
            let number = |ingress| {
                let schema = self.classifier.decide(ingress, source, destination);
                self.schemas[schema]
            };
            // In the order of `lb_common::service::Origin`.
            Decision::new([Ingress::Pod, Ingress::Node, Ingress::External].map(number))
        };
        let decisions: Arc<[_]> = (0..self.classifier.source_classes())
            .map(decision)
            .collect();
        let mut met = self.sources.iter().map(|class| decisions[*class as usize]);
        match met.next() {
            Some(first) if met.all(|other| other == first) => Content::Any(first),
            _ => Content::BySource {
                set: self.set,
                decisions,
            },
        }
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
