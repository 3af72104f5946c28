//! What a simulation knows of each waiting or executing connection.

use super::Request;
use crate::{controller::LevelId, queueset::Handle};

/// Where a connection is stored: its level, and the index of its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub level: LevelId,
    index: u32,
}

/// A connection that waits or executes.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub handle: Handle,
    pub request: Request,
    /// When it arrived; after its admission, when it was admitted.
    pub since: u64,
}

/// All connections, by level and index of the handle.
#[derive(Debug, Default)]
pub struct Connections(Vec<Vec<Option<Known>>>);

impl Place {
    pub fn new(level: LevelId, handle: Handle) -> Self {
        Self {
            level,
            // Handles' indices have 32 bits.
            index: handle.index() as u32,
        }
    }
}

impl Connections {
    /// Adds a connection that arrived at `now`.
    pub fn insert(&mut self, handle: Handle, request: Request, now: u64) {
        let level = request.level.index();
        if self.0.len() <= level {
            self.0.resize(level + 1, Vec::new());
        }
        let connections = &mut self.0[level];
        if connections.len() <= handle.index() {
            connections.resize(handle.index() + 1, None);
        }
        connections[handle.index()] = Some(Known {
            handle,
            request,
            since: now,
        });
    }

    pub fn get_mut(&mut self, place: Place) -> Option<&mut Known> {
        let level = self.0.get_mut(place.level.index())?;
        level.get_mut(place.index as usize)?.as_mut()
    }

    pub fn remove(&mut self, place: Place) -> Option<Known> {
        let level = self.0.get_mut(place.level.index())?;
        level.get_mut(place.index as usize)?.take()
    }
}
