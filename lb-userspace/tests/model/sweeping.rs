//! The agent's sweeper on the records of the world.

use std::{
    mem::offset_of,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use lb_common::{
    addr::Ip4,
    flow::{Flow, tag},
};
use node_lb::flows::{
    Parties, Records, Stale,
    stats::{Counted, Removed, ServiceCounts},
    sweep::TableSweeper,
};

use crate::{
    mutations::Mutation,
    world::{RECORDS, SECRET, SERVICE, Shared, TIMEOUTS, World},
};

/// The records as the agent sees them. Other threads may run before each access.
pub struct View {
    world: Arc<World>,
    /// The tag that the sweeper sees for a record that it is not to touch: see [`Mutation`].
    decoy: AtomicU32,
}

impl View {
    /// Whether a record is the endpoint's direction of a flow, after its client's direction was
    /// ended and before it is ended too.
    fn hides(&self, index: u32, seen: u32) -> bool {
        let peer = self.world.flow(index).peer;
        tag::in_use(seen) && self.world.is_reply(index) && !tag::in_use(self.world.tag(peer))
    }
}

impl Records<Ip4> for View {
    fn len(&self) -> u32 {
        RECORDS
    }

    fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        let word = self.world.word(index, offset);
        if offset != offset_of!(Flow<Ip4>, tag) {
            self.world.touch_fields(index);
            return word;
        }
        self.world.touch_tag(index);
        let seen = word.load(Ordering::SeqCst);
        let decoy = match self.world.mutation {
            Some(Mutation::OneDirectionSwept) if self.hides(index, seen) => seen,
            Some(Mutation::PassedTombsCleaned) if tag::in_use(seen) => tag::CLEAN,
            _ => return word,
        };
        self.decoy.store(decoy, Ordering::SeqCst);
        &self.decoy
    }

    fn read(&self, index: u32) -> Flow<Ip4> {
        self.world.touch_fields(index);
        self.world.touch_tag(index);
        self.world.flow(index)
    }
}

/// A sweeper and what it has removed.
pub struct Sweeping {
    world: Arc<World>,
    sweeper: TableSweeper<Ip4, View>,
    pub removed: Removed,
}

impl Sweeping {
    pub fn new(world: &Arc<World>) -> Self {
        let view = View {
            world: world.clone(),
            decoy: AtomicU32::new(0),
        };
        let counted = world.clone();
        let count = Box::new(move |_, more: Counted| {
            counted.flows.fetch_add(more.flows, Ordering::SeqCst);
            if more.half_open != 0 {
                counted.touch(Shared::HalfOpen);
                counted
                    .half_open
                    .fetch_add(more.half_open, Ordering::SeqCst);
            }
        });
        let given_back = world.clone();
        let give_back = Box::new(move |place, _| given_back.seats_given_back(place));
        let parties = Arc::new(Parties::in_memory());
        let sweeper = TableSweeper::new(view, RECORDS - 1, SECRET, count, give_back, parties);
        Self {
            world: world.clone(),
            sweeper: sweeper.unwrap(),
            removed: Removed::default(),
        }
    }

    /// Ends the flows to all endpoints, as if none of them served any more.
    pub fn end_stale(&self) {
        let mut stale = Stale::default();
        stale.add(SERVICE, []);
        self.sweeper.end_stale(&stale, &mut Removed::default());
    }

    /// A whole pass.
    pub fn pass(&mut self) {
        let now = self.world.now();
        self.pass_at(now);
    }

    /// A whole pass of an agent that read the clock at tick `now`.
    pub fn pass_at(&mut self, now: u32) {
        let mut services = ServiceCounts::default();
        self.sweeper
            .scan(now, &TIMEOUTS, &mut services, &mut self.removed);
        self.sweeper
            .unseat_handshakes(|limit| self.world.counted(limit as usize).pressed != 0);
        if self.sweeper.needs_grace() && !self.world.mutated(Mutation::NoGraceForSweeper) {
            self.world.grace();
        }
        self.sweeper.release();
    }
}
