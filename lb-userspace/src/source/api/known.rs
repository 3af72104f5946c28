//! The objects of one resource that the store has, and what each object from the API server
//! changes.

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
    /// Objects that were deleted lately, so that older events about them can be recognised.
    deleted: HashMap<ObjectName, Box<str>>,
    /// Endpoint changes from before this time do not count as news.
    since: SystemTime,
    /// Number of the current list, or of the last one.
    list: u32,
}

#[derive(Debug)]
struct Entry {
    version: Box<str>,
    /// The list that last contained it. If a watch brought it, the last list at that time.
    list: u32,
    /// Whether the store has it, possibly in an older version.
    in_store: bool,
    /// The problems last reported about it.
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

    /// Starts a list from its beginning: objects that it does not contain when it is complete are
    /// gone.
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.deleted.clear();
    }

    /// Ends a complete list.
    pub fn complete_list(&mut self, events: &mut Vec<Event>) {
        let list = self.list;
        let missing = self.objects.extract_if(|_, entry| entry.list != list);
        for (name, entry) in missing.collect::<Vec<_>>() {
            self.gone(name, &entry, events);
        }
    }

    /// An object of a list. It is the truth, whatever was known before.
    pub fn listed(&mut self, object: Versioned, events: &mut Vec<Event>) {
        self.apply(object, events);
    }

    /// An object that was added or changed, by a watch.
    pub fn changed(&mut self, object: Versioned, events: &mut Vec<Event>) {
        let name = &object.translated.reference.name;
        let known = self.objects.get(name).map(|entry| &entry.version);
        let known = known.or_else(|| self.deleted.get(name));
        if known.is_none_or(|known| !is_older(&object.resource_version, known)) {
            self.apply(object, events);
        }
    }

    /// An object that was deleted, by a watch.
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

    /// From now on nothing comes that is older than what has been seen.
    pub fn settled(&mut self) {
        self.deleted.clear();
    }

    /// Number of objects, including those that the store has no use for.
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

/// Whether one version of an object is older than another. Versions are growing numbers (KEP-5504);
/// those that are not numbers are assumed to come in order.
pub fn is_older(version: &str, than: &str) -> bool {
    match (version.parse::<u64>(), than.parse::<u64>()) {
        (Ok(version), Ok(than)) => version < than,
        _ => false,
    }
}
