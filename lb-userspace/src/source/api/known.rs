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
    deleted: HashMap<ObjectName, Version>,
    /// Endpoint changes from before this time do not count as news.
    since: SystemTime,
    /// Number of the current list, or of the last one.
    list: u32,
}

#[derive(Debug)]
struct Entry {
    version: Version,
    /// The list that last contained it. If a watch brought it, the last list at that time.
    list: u32,
    /// Whether the store has it, possibly in an older version.
    in_store: bool,
    /// The problems last reported about it, if there are any.
    problems: Option<Box<[Problem]>>,
}

impl Entry {
    fn problems(&self) -> &[Problem] {
        self.problems.as_deref().unwrap_or_default()
    }
}

/// The version of an object. Numbers are kept as such, because there are very many objects.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Number(u64),
    Text(Box<str>),
}

impl From<&str> for Version {
    fn from(text: &str) -> Self {
        match text.parse::<u64>() {
            // Only if the text is the one way to write the number: others are other versions.
            Ok(number) if !text.starts_with('+') && (text == "0" || !text.starts_with('0')) => {
                Self::Number(number)
            }
            _ => Self::Text(text.into()),
        }
    }
}

impl Version {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Text(text) if text.is_empty())
    }

    /// As [`is_older`].
    fn is_older(&self, than: &Self) -> bool {
        let number = |version: &Self| match version {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        };
        match (number(self), number(than)) {
            (Some(version), Some(than)) => version < than,
            _ => false,
        }
    }
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
        let version = Version::from(&*object.resource_version);
        if known.is_none_or(|known| !version.is_older(known)) {
            self.apply(object, events);
        }
    }

    /// An object that was deleted, by a watch.
    pub fn removed(&mut self, name: ObjectName, version: &str, events: &mut Vec<Event>) {
        let version = Version::from(version);
        let known = self.objects.get(&name);
        if known.is_some_and(|entry| version.is_older(&entry.version)) {
            return; // it has been made anew since
        }
        if let Some(entry) = self.objects.remove(&name) {
            self.gone(name.clone(), &entry, events);
        }
        self.deleted.insert(name, version);
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
        let version = Version::from(&*object.resource_version);
        if let Some(entry) = self.objects.get_mut(&reference.name) {
            entry.list = list;
            if !entry.version.is_empty() && entry.version == version {
                return;
            }
        }
        let known = self.objects.remove(&reference.name);
        let (was_in_store, reported) = known
            .map(|entry| (entry.in_store, entry.problems))
            .unwrap_or_default();
        let reported = reported.unwrap_or_default();
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
            version,
            list,
            in_store,
            problems: (!problems.is_empty()).then(|| problems.into()),
        };
        self.objects.insert(reference.name, entry);
    }

    fn gone(&self, name: ObjectName, entry: &Entry, events: &mut Vec<Event>) {
        let reference = ObjectRef {
            kind: self.kind,
            name,
        };
        if !entry.problems().is_empty() {
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
