//! How far a sync has come, for those who ask while it runs.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The sync that runs, if one does.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<Sync>>);

#[derive(Clone, Copy, Debug)]
struct Sync {
    since: Instant,
    services: usize,
    done: usize,
}

/// What there is to say of a sync that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncing {
    /// For how long it has been running.
    pub age: Duration,
    /// Services that it is about.
    pub services: usize,
    /// Those that are planned and written already, but for their addresses.
    pub done: usize,
}

impl Progress {
    /// A sync of so many Services begins.
    pub fn begin(&self, services: usize) {
        *self.lock() = Some(Sync {
            since: Instant::now(),
            services,
            done: 0,
        });
    }

    /// It has done one more.
    pub fn advance(&self) {
        if let Some(sync) = &mut *self.lock() {
            sync.done += 1;
        }
    }

    /// It is over.
    pub fn end(&self) {
        *self.lock() = None;
    }

    /// The sync that runs.
    pub fn syncing(&self) -> Option<Syncing> {
        let sync = (*self.lock())?;
        Some(Syncing {
            age: sync.since.elapsed(),
            services: sync.services,
            done: sync.done,
        })
    }

    // Whole after each change.
    fn lock(&self) -> MutexGuard<'_, Option<Sync>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
