//! The resources that a source follows, and whether they have arrived, for readiness checks and
//! `status`.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// The state of each resource of a source. It is cheap to read, and shared by all readers.
#[derive(Debug, Default)]
pub struct SourceHealth {
    states: Mutex<Vec<ResourceHealth>>,
}

/// The state of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceHealth {
    /// The resource's name in URLs, such as `services`.
    pub name: &'static str,
    /// Whether it has been complete once. It never becomes false again: while a source has trouble,
    /// what it delivered stays in force.
    pub synced: bool,
    /// When the source was last known to be up to date.
    pub last_sync: Option<SystemTime>,
    /// Why it cannot be kept up to date at the moment.
    pub error: Option<String>,
    /// Whether that is because the source does not know such a resource.
    pub absent: bool,
}

impl SourceHealth {
    /// Starts with these resources, none of which has arrived.
    pub fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        let state = |name| ResourceHealth {
            name,
            synced: false,
            last_sync: None,
            error: None,
            absent: false,
        };
        Self {
            states: Mutex::new(names.into_iter().map(state).collect()),
        }
    }

    /// The state of each resource.
    pub fn states(&self) -> Vec<ResourceHealth> {
        self.lock().clone()
    }

    /// Whether all resources have been complete once.
    pub fn all_synced(&self) -> bool {
        self.lock().iter().all(|state| state.synced)
    }

    /// The resources that have not been complete yet.
    pub fn unsynced(&self) -> Vec<&'static str> {
        let states = self.lock();
        let missing = states.iter().filter(|state| !state.synced);
        missing.map(|state| state.name).collect()
    }

    /// Whether a resource has been complete once.
    pub fn is_synced(&self, name: &str) -> bool {
        self.lock()
            .iter()
            .any(|state| state.name == name && state.synced)
    }

    /// Notes that every resource is complete, for a source that reads all of them from one place.
    pub fn all_complete(&self) {
        for state in self.lock().iter_mut().filter(|state| !state.synced) {
            state.note_complete();
        }
    }

    /// Notes that a resource is complete. Returns true once: when it was the last one missing.
    pub fn synced(&self, name: &str) -> bool {
        let mut states = self.lock();
        let mut first = false;
        for state in states.iter_mut().filter(|state| state.name == name) {
            first = !state.synced;
            state.note_complete();
        }
        first && states.iter().all(|state| state.synced)
    }

    /// Notes that a resource is up to date. Returns true if there was an error before.
    pub(crate) fn current(&self, name: &str) -> bool {
        let mut states = self.lock();
        let state = states.iter_mut().find(|state| state.name == name);
        state.is_some_and(|state| {
            if state.synced {
                state.last_sync = Some(SystemTime::now());
            }
            state.absent = false;
            state.error.take().is_some()
        })
    }

    /// Notes why a resource cannot be kept up to date; `absent` says that the source does not know
    /// it. Returns true if that is new.
    pub(crate) fn failed(&self, name: &str, error: String, absent: bool) -> bool {
        let mut states = self.lock();
        let state = states.iter_mut().find(|state| state.name == name);
        state.is_some_and(|state| {
            state.absent = absent;
            state.error.replace(error.clone()) != Some(error)
        })
    }

    /// Whether the source knows some of the resources not at all, and all others have been complete
    /// once.
    pub fn some_absent(&self) -> bool {
        let states = self.lock();
        let absent = |state: &ResourceHealth| !state.synced && state.absent;
        states.iter().any(absent) && states.iter().all(|state| state.synced || state.absent)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ResourceHealth>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResourceHealth {
    fn note_complete(&mut self) {
        self.synced = true;
        self.last_sync = Some(SystemTime::now());
        self.error = None;
        self.absent = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_resource_to_arrive_completes_the_set_once() {
        let health = SourceHealth::new(["services", "nodes"]);
        assert!(!health.all_synced());
        assert!(!health.synced("nodes"));
        assert!(!health.synced("nodes"), "known already");
        assert!(health.synced("services"));
        assert!(health.all_synced());
        assert!(!health.synced("services"), "a second list is no news");
    }

    #[test]
    fn a_source_may_deliver_all_at_once() {
        let health = SourceHealth::new(["services", "nodes"]);
        assert!(!health.is_synced("services"));
        health.synced("services");
        assert!(health.is_synced("services") && !health.is_synced("nodes"));
        health.all_complete();
        assert!(health.is_synced("services") && health.is_synced("nodes"));
        assert!(!health.is_synced("pods"), "nobody's");
    }

    #[test]
    fn what_the_source_does_not_know_is_absent_until_it_does() {
        let health = SourceHealth::new(["a", "b"]);
        assert!(!health.some_absent());
        health.failed("a", "404".to_owned(), true);
        assert!(!health.some_absent(), "nothing is known of the other one");
        health.synced("b");
        assert!(health.some_absent());
        health.failed("a", "unreachable".to_owned(), false);
        assert!(!health.some_absent());
        health.failed("a", "404".to_owned(), true);
        health.synced("a");
        assert!(!health.some_absent() && health.all_synced());
    }

    #[test]
    fn trouble_is_told_once_and_does_not_unsync() {
        let health = SourceHealth::new(["services"]);
        health.synced("services");
        assert!(health.failed("services", "refused".to_owned(), false));
        assert!(!health.failed("services", "refused".to_owned(), false));
        assert!(health.failed("services", "forbidden".to_owned(), false));
        let state = &health.states()[0];
        assert!(state.synced && state.error.as_deref() == Some("forbidden"));
        assert!(health.current("services"));
        assert!(!health.current("services"));
        assert_eq!(health.states()[0].error, None);
    }
}
