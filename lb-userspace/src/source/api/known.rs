//! What the store has of one resource, and what each object from the API server changes in that.

use std::{collections::HashMap, time::SystemTime};

use lb_objects::{
    Kind, ObjectName, ObjectRef, Problem,
    kubernetes::{Outcome, Versioned},
};

use super::super::Event;

/// The objects of one resource, by name and version only.
#[derive(Debug)]
pub struct Known {
    kind: Kind,
    objects: HashMap<ObjectName, Entry>,
    /// Objects deleted lately, against older news about them that come late.
    deleted: HashMap<ObjectName, Box<str>>,
    /// Changes of endpoints from before this time are history.
    since: SystemTime,
    /// The number of the list being taken in, or of the last one.
    list: u32,
}

#[derive(Debug)]
struct Entry {
    version: Box<str>,
    /// The list that last had it, or that was the last one when a watch had it.
    list: u32,
    /// Whether the store has it, perhaps in an older version.
    in_store: bool,
    /// What was last reported to be wrong with it.
    problems: Box<[Problem]>,
}

impl Known {
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            objects: HashMap::new(),
            deleted: HashMap::new(),
            since: SystemTime::now(),
            list: 0,
        }
    }

    /// Begins a list from its start: what it will not have had when it is complete, is gone.
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.deleted.clear();
    }

    /// Ends a list that is complete.
    pub fn complete_list(&mut self, events: &mut Vec<Event>) {
        let list = self.list;
        let missing = self.objects.extract_if(|_, entry| entry.list != list);
        for (name, entry) in missing.collect::<Vec<_>>() {
            self.gone(name, &entry, events);
        }
    }

    /// An object of a list: the truth, whatever was known.
    pub fn listed(&mut self, object: Versioned, events: &mut Vec<Event>) {
        self.apply(object, events);
    }

    /// An object that a watch says was added or changed.
    pub fn changed(&mut self, object: Versioned, events: &mut Vec<Event>) {
        let name = &object.translated.reference.name;
        let known = self.objects.get(name).map(|entry| &entry.version);
        let known = known.or_else(|| self.deleted.get(name));
        if known.is_none_or(|known| !is_older(&object.resource_version, known)) {
            self.apply(object, events);
        }
    }

    /// An object that a watch says is gone.
    pub fn removed(&mut self, name: ObjectName, version: &str, events: &mut Vec<Event>) {
        let known = self.objects.get(&name);
        if known.is_some_and(|entry| is_older(version, &entry.version)) {
            return; // it has been made anew since
        }
        if let Some(entry) = self.objects.remove(&name) {
            self.gone(name.clone(), &entry, events);
        }
        self.deleted.insert(name, version.into());
    }

    /// Nothing older than what has been seen comes any more.
    pub fn settled(&mut self) {
        self.deleted.clear();
    }

    /// Number of objects, those included that the store has no use for.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    fn apply(&mut self, object: Versioned, events: &mut Vec<Event>) {
        let changed = object.endpoints_changed;
        let translated = object.translated;
        let reference = translated.reference;
        let list = self.list;
        if let Some(entry) = self.objects.get_mut(&reference.name) {
            entry.list = list;
            if !entry.version.is_empty() && *entry.version == *object.resource_version {
                return;
            }
        }
        let known = self.objects.remove(&reference.name);
        let (was_in_store, reported) = known
            .map(|entry| (entry.in_store, entry.problems))
            .unwrap_or_default();
        let in_store = match translated.outcome {
            Outcome::Use(object) => {
                events.push(Event::Apply(object));
                if let Some(at) = changed.filter(|at| *at > self.since) {
                    let slice = reference.name.clone();
                    events.push(Event::EndpointsChanged { slice, at });
                }
                true
            }
            Outcome::Skip => {
                if was_in_store {
                    events.push(Event::Delete(reference.clone()));
                }
                false
            }
            Outcome::Refuse => was_in_store,
        };
        let problems = translated.problems;
        if *problems != *reported {
            for problem in problems.iter().filter(|new| !reported.contains(new)) {
                tracing::warn!("{problem}");
            }
            events.push(Event::Problems {
                origin: reference.to_string(),
                problems: problems.clone(),
            });
        }
        let entry = Entry {
            version: object.resource_version.into(),
            list,
            in_store,
            problems: problems.into(),
        };
        self.objects.insert(reference.name, entry);
    }

    fn gone(&self, name: ObjectName, entry: &Entry, events: &mut Vec<Event>) {
        let reference = ObjectRef {
            kind: self.kind,
            name,
        };
        if !entry.problems.is_empty() {
            events.push(Event::Problems {
                origin: reference.to_string(),
                problems: Vec::new(),
            });
        }
        if entry.in_store {
            events.push(Event::Delete(reference));
        }
    }
}

/// Whether one version of an object is older than another: they are growing numbers (KEP-5504).
/// What is not a number is taken to come in order.
pub fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}
