//! The levels of the node: who lends how many seats to whom, and who of those that wait is next.
//!
//! The kernel lets connections in and counts them, per level and per queue. Every half second the
//! limits are set anew. If the agent is away, they stay as they are.
//!
//! Where all seats are taken, or others wait, the kernel chooses a queue and leaves the connection to
//! the agent, which
//! 1. says what its flow holds ([`Levels::observe_flow`]) and has it wait ([`Levels::park`]),
//! 2. every few milliseconds takes over what the kernel has counted ([`Levels::observe`]), and turns
//!    away those that have waited for too long ([`Levels::advance`]),
//! 3. then asks who is [`Levels::next`], until nobody is. The kernel lets that one in and counts it
//!    ([`Levels::let_in`]), or does not ([`Levels::not_let_in`]). Between question and answer nothing
//!    may be observed or configured.

mod seen;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use lb_admission::{
    configuration::InForce,
    controller::{Controller, Event, LevelError, LevelId},
    queueset::{Arrival, Dispatch, Expiry, Grant, Handle, Holds, Policy, Rejection, Verdict},
};

use self::seen::Observed;
pub use self::seen::{Count, Counted};

/// How often limits are to be set, in nanoseconds.
pub const PERIOD: u64 = 500_000_000;

/// The levels of the node.
pub struct Levels {
    controller: Controller,
    observed: BTreeMap<String, Observed>,
}

/// Why a connection does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotParked {
    /// There is no such level, or it has no queues: the kernel is to be asked again.
    NoQueue,
    Rejected(Rejection),
}

impl Levels {
    /// The levels of a configuration on a node with so many seats. Times are in nanoseconds.
    ///
    /// # Errors
    /// If the levels are impossible together, which a valid configuration's never are.
    pub fn new(in_force: &InForce, server_limit: u32, now: u64) -> Result<Self, LevelError> {
        Ok(Self {
            controller: Controller::new(&in_force.levels, server_limit, Policy::Connections, now)?,
            observed: BTreeMap::new(),
        })
    }

    /// Goes over to another configuration. The kernel counts the queues of a level from zero if their
    /// number has changed. Who waits goes on waiting; see [`Self::evict_leaving`].
    ///
    /// # Errors
    /// As [`Self::new`]; nothing has changed then.
    pub fn configure(
        &mut self,
        in_force: &InForce,
        server_limit: u32,
        now: u64,
    ) -> Result<(), LevelError> {
        self.forget_absent();
        let controller = &mut self.controller;
        controller.configure(&in_force.levels, server_limit, now)?;
        for (name, observed) in &mut self.observed {
            let Some(level) = controller.find_present(name) else {
                continue;
            };
            let queues = controller.level(level).deck_size();
            if observed.queues.len() != queues as usize {
                observed.renew(queues);
                controller.observe_anew(level, now);
            }
        }
        Ok(())
    }

    /// Forgets levels that are gone: one of the same name is another level.
    fn forget_absent(&mut self) {
        self.observed
            .retain(|name, _| self.controller.find_present(name).is_some());
    }

    /// Takes over what the kernel has counted of all levels. Of those that are not among them nobody
    /// is left.
    pub fn observe_all(&mut self, counted: &BTreeMap<&str, Counted>, now: u64) {
        self.forget_absent();
        for (name, counted) in counted {
            self.observe(name, counted, now);
        }
        let left = self.observed.iter();
        let left: Vec<_> = left
            .filter(|(name, _)| !counted.contains_key(name.as_str()))
            .map(|(name, observed)| (name.clone(), observed.nobody()))
            .collect();
        for (name, nobody) in left {
            self.observe(&name, &nobody, now);
        }
    }

    /// Takes over what the kernel has counted of a level, which may be one that is no longer
    /// configured but still has connections. Others are ignored. Queues that have not changed cost a
    /// comparison each.
    pub fn observe(&mut self, name: &str, counted: &Counted, now: u64) {
        let controller = &mut self.controller;
        let Some(level) = controller.find_present(name) else {
            return;
        };
        let set = controller.level(level);
        let (queues, all_queues) = (set.deck_size(), set.queue_count());
        let observed = self.observed.entry(name.to_owned());
        let observed = observed.or_insert_with(|| Observed::new(queues, counted, now));
        let since = std::mem::replace(&mut observed.at, now);

        // Queues that are kept for their waiters alone are unknown to the kernel. They go when they
        // are empty; those after them move up then, and are to be observed again.
        for queue in (queues..all_queues).rev() {
            controller.observe(level, queue, Holds::default(), now);
        }
        let mut outside = Count::of(counted.level.word);
        for (queue, seen) in (0..queues).zip(&mut observed.queues).rev() {
            let word = counted.queues.get(queue as usize).copied().unwrap_or(0);
            let count = Count::of(word);
            outside = outside.without(count);
            if seen.told != Some(word) {
                seen.follow(count, since, now);
                seen.told = (queues == all_queues).then_some(word);
                controller.observe(level, queue, seen.holds, now);
            }
        }
        observed.outside.follow(outside, since, now);
        controller.observe_without_queue(level, observed.outside.holds, now);

        let refused = counted.level.refused;
        let before = std::mem::replace(&mut observed.refused, refused);
        controller.note_refused(level, refused.saturating_sub(before), now);
    }

    /// Takes over how many connections of a flow the kernel has let in, each with so many seats. To be called
    /// before one of it is parked, and now and then while it waits.
    pub fn observe_flow(&mut self, level: &str, flow: u64, connections: u32, width: u32, now: u64) {
        if let Some(level) = self.controller.find_present(level) {
            let seats = u64::from(connections) * u64::from(width);
            self.controller
                .observe_flow(level, flow, connections, seats, now);
        }
    }

    /// Has a connection wait, until its deadline at the latest, in a queue that the kernel has chosen
    /// for its flow.
    ///
    /// # Errors
    /// If it may not wait.
    pub fn park(
        &mut self,
        level: &str,
        queue: u32,
        arrival: Arrival,
        now: u64,
    ) -> Result<(LevelId, Handle), NotParked> {
        let level = self.controller.find(level).ok_or(NotParked::NoQueue)?;
        match self.controller.arrive_in(level, queue, arrival, now) {
            Verdict::Queued(connection) => Ok((level, connection)),
            Verdict::Admitted(grant) => {
                self.controller.abort(level, grant, now);
                Err(NotParked::NoQueue)
            }
            Verdict::Rejected(rejection) => Err(NotParked::Rejected(rejection)),
        }
    }

    /// Who is next, if there is a seat. It waits no longer: the kernel is to be asked to let it in.
    pub fn next(&mut self, now: u64) -> Option<(LevelId, Handle, Grant)> {
        let (level, dispatch) = self.controller.dispatch(now)?;
        let Dispatch {
            connection,
            mut grant,
        } = dispatch;
        // The kernel watches handshakes.
        self.controller.establish(level, &mut grant, now);
        let queue = self.controller.level(level).queue_of_grant(&grant);
        let observed = self.observed.get_mut(self.controller.name(level));
        if let (Some(queue), Some(observed)) = (queue, observed) {
            observed.touch(queue);
        }
        Some((level, connection, grant))
    }

    /// The kernel has let it in, and counts it.
    pub fn let_in(&mut self, level: LevelId, grant: Grant, now: u64) {
        self.controller.hand_over(level, grant, now);
    }

    /// The kernel has not let it in.
    pub fn not_let_in(&mut self, level: LevelId, grant: Grant, now: u64) {
        self.controller.abort(level, grant, now);
    }

    /// The client of a waiting connection is gone. False if it does not wait.
    pub fn cancel(&mut self, level: LevelId, connection: Handle, now: u64) -> bool {
        self.controller.cancel(level, connection, now)
    }

    /// Takes those out of their queues that wait at levels which are no longer configured. The kernel
    /// lets nobody in there: it is to be asked again, by the schemas that are in force now.
    pub fn evict_leaving(&mut self, now: u64) -> Vec<(LevelId, Handle)> {
        self.controller.evict_leaving(now)
    }

    /// Lets everything happen that is due. Returns whose deadline has passed; they wait no longer.
    pub fn advance(&mut self, now: u64) -> Vec<(LevelId, Handle)> {
        let mut timed_out = Vec::new();
        while let Some((_, event)) = self.controller.fire(now) {
            if let Event::Expiry(level, Expiry::TimedOut(connection)) = event {
                timed_out.push((level, connection));
            }
        }
        timed_out
    }

    /// Free seats that a level keeps for flows without any.
    pub fn kept_back(&self, level: &str) -> u32 {
        let controller = &self.controller;
        let level = controller.find(level).map(|level| controller.level(level));
        level.map_or(0, |level| level.kept_back())
    }

    /// The indexes of a level's queues in which somebody waits, in no order, with the time at which the
    /// first one in each began to.
    pub fn waiting_since(&self, level: &str) -> impl Iterator<Item = (u32, u64)> {
        let level = self.controller.find(level).into_iter();
        level.flat_map(|level| self.controller.level(level).waiting_since())
    }

    /// The limit of each level now.
    pub fn limits(&self) -> impl Iterator<Item = (&str, u32)> {
        let levels = self.controller.levels();
        levels.map(|(name, level)| (name, level.limit()))
    }
}
