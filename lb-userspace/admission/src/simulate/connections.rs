//! What a simulation knows of each waiting or executing connection.

use super::Request;
use crate::{
    controller::LevelId,
    queueset::{Grant, Handle},
};

/// A connection that executes.
#[derive(Debug)]
pub struct Executing {
    pub request: Request,
    pub grant: Grant,
    /// When it was admitted.
    pub since: u64,
}

/// All connections: those that wait by level and index of the handle, those that execute by a
/// number that is used again.
#[derive(Debug, Default)]
pub struct Connections {
    /// With the time of arrival.
    waiting: Vec<Vec<Option<(Request, u64)>>>,
    executing: Vec<Option<Executing>>,
    free: Vec<u32>,
}

impl Connections {
    /// Adds a connection that arrived at `now` and waits.
    pub fn wait(&mut self, handle: Handle, request: Request, now: u64) {
        let level = request.level.index();
        if self.waiting.len() <= level {
            self.waiting.resize(level + 1, Vec::new());
        }
        let connections = &mut self.waiting[level];
        if connections.len() <= handle.index() {
            connections.resize(handle.index() + 1, None);
        }
        connections[handle.index()] = Some((request, now));
    }

    /// A connection no longer waits. Returns it, with the time of its arrival.
    pub fn wait_no_more(&mut self, level: LevelId, handle: Handle) -> Option<(Request, u64)> {
        let level = self.waiting.get_mut(level.index())?;
        level.get_mut(handle.index())?.take()
    }

    /// Adds a connection that executes. Returns its number.
    pub fn execute(&mut self, connection: Executing) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.executing[number as usize] = Some(connection);
                number
            }
            None => {
                self.executing.push(Some(connection));
                // A simulation has at most a thousand million connections.
                self.executing.len() as u32 - 1
            }
        }
    }

    pub fn executing(&mut self, number: u32) -> Option<&mut Executing> {
        self.executing.get_mut(number as usize)?.as_mut()
    }

    /// A connection is over.
    pub fn end(&mut self, number: u32) -> Option<Executing> {
        let connection = self.executing.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(connection)
    }
}
