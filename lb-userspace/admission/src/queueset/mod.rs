//! The queues and seats of one priority level.
//!
//! Fair queuing by virtual time, as in KEP-1040 ("Fair Queuing for Server Requests"): every queue
//! is charged for the seats that its connections hold or have held. Among the queues with waiters,
//! the one with the lowest charge gets the next free seat. A connection goes to the least loaded
//! queue of its flow's hand, so a flow that floods fills only the queues of its own hand.
//!
//! A queue set acts only when called. Each call gives the time in nanoseconds of any monotonic
//! clock; times must not go back. The caller
//! 1. lets timers that are due fire, in order ([`QueueSet::fire`]),
//! 2. reports what happened ([`QueueSet::arrive`], [`QueueSet::finish`], ...),
//! 3. takes what that admits, until there is no more ([`QueueSet::dispatch`]); also after each
//!    timer.
//!
//! Once the highest number of connections has been reached, decisions allocate no memory. Arrivals
//! and ends cost the logarithm of the number of timers; a dispatch looks at every queue with a
//! waiter.

mod arrival;
mod connection;
mod dispatch;
mod ends;
mod enqueue;
mod inspect;
mod policy;
mod queue;
mod timers;
mod virtual_time;

#[cfg(test)]
mod tests;

use self::{
    connection::{Slab, State},
    policy::Caps,
    queue::Queues,
    timers::Timers,
};
use super::{
    demand::{DemandIntegrator, DemandStatistics},
    level::{ConnectionLimits, LevelKind, LimitResponse},
    seat_seconds::SeatSeconds,
    shuffle::{Dealer, DealerError},
};

pub use self::{
    arrival::{Arrival, Counters, Dispatch, Expiry, Rejection, Verdict},
    connection::Handle,
    inspect::QueueState,
    policy::Policy,
};

/// How long a request is assumed to execute, in nanoseconds: APF's estimate for all requests.
const ESTIMATED_DURATION: u64 = 3_000_000;
/// The longest expected hold of connections, in nanoseconds.
const MAX_TYPICAL_HOLD: u64 = 60_000_000_000;
/// After about so many ends the typical hold has followed a change.
const HOLD_SMOOTHING: i64 = 16;

/// The queues and seats of one priority level.
#[derive(Clone, Debug)]
pub struct QueueSet {
    policy: Policy,
    kind: Kind,
    connection_limits: ConnectionLimits,
    limit: u32,
    nominal: u32,
    caps: Caps,
    queues: Queues,
    connections: Slab,
    timers: Timers,

    r: SeatSeconds,
    synchronised_at: u64,
    /// Index of the queue that was served last.
    robin: u32,
    /// Arrivals that chose a queue.
    enqueues: u64,
    /// How long connections lasted lately, in nanoseconds.
    typical_hold: u64,

    waiting: u32,
    executing: u32,
    seats_in_use: u64,
    seats_waiting: u64,
    /// Seats that are held or waited for in queues.
    requested_seats: u64,
    half_open_seats: u64,
    demand: DemandIntegrator,
    counters: Counters,
    /// Whether something has changed since the last dispatch found nothing.
    ready: bool,
}

/// What a level does with connections that find no seat.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Never happens: every connection is admitted.
    Exempt,
    Reject,
    Queue {
        dealer: Dealer,
        length_limit: u32,
    },
}

impl QueueSet {
    /// A level without connections. It has no seats until they are set.
    ///
    /// # Errors
    /// If hands of the size it asks for cannot be dealt.
    pub fn new(kind: &LevelKind, policy: Policy, now: u64) -> Result<Self, DealerError> {
        let limits = ConnectionLimits::default();
        let mut set = Self {
            policy,
            kind: Kind::Exempt,
            connection_limits: limits,
            limit: 0,
            nominal: 0,
            caps: policy.caps(&limits, 0),
            queues: Queues::default(),
            connections: Slab::new(),
            timers: Timers::default(),
            r: SeatSeconds::ZERO,
            synchronised_at: now,
            robin: 0,
            enqueues: 0,
            typical_hold: ESTIMATED_DURATION,
            waiting: 0,
            executing: 0,
            seats_in_use: 0,
            seats_waiting: 0,
            requested_seats: 0,
            half_open_seats: 0,
            demand: DemandIntegrator::new(now),
            counters: Counters::default(),
            ready: false,
        };
        set.configure(kind, now)?;
        Ok(set)
    }

    /// Changes the shape of the level. Its connections stay: none is cut off or thrown out, and
    /// surplus queues are removed one by one as they become empty.
    ///
    /// # Errors
    /// If hands of the size it asks for cannot be dealt. Nothing changes then.
    pub fn configure(&mut self, kind: &LevelKind, now: u64) -> Result<(), DealerError> {
        let configured = Kind::new(kind)?;
        self.synchronise(now);
        if let LevelKind::Limited(limited) = kind {
            self.connection_limits = limited.connections;
        }
        self.kind = configured;
        self.queues.grow(self.kind.queues());
        self.set_limit(self.limit, now);
        Ok(())
    }

    /// Sets how many seats are the level's own. Seats above that are borrowed.
    pub fn set_nominal(&mut self, nominal: u32) {
        self.nominal = nominal;
    }

    /// Changes how many seats there are. The limit may be below the number of held seats: none is
    /// given out then until enough have come back.
    pub fn set_limit(&mut self, limit: u32, now: u64) {
        self.synchronise(now);
        self.limit = limit;
        self.caps = self.policy.caps(&self.connection_limits, limit);
        self.ready = true;
    }

    /// Ends a period of demand and starts the next.
    pub fn end_demand_period(&mut self, now: u64) -> DemandStatistics {
        self.demand.reset(now)
    }

    fn find(&self, handle: Handle, state: State) -> Option<u32> {
        let index = self.connections.find(handle)?;
        (self.connections.at(index).state == state).then_some(index)
    }

    fn note_demand(&mut self, now: u64) {
        let seats = self.seats_in_use + self.seats_waiting;
        self.demand.set(seats as f64, now);
    }
}

impl Kind {
    fn new(kind: &LevelKind) -> Result<Self, DealerError> {
        Ok(match kind {
            LevelKind::Exempt => Self::Exempt,
            LevelKind::Limited(limited) => match limited.response {
                LimitResponse::Reject => Self::Reject,
                LimitResponse::Queue(queuing) => {
                    // Sizes beyond i32 exceed every bound of the dealer.
                    let size = |size| i32::try_from(size).unwrap_or(i32::MAX);
                    Self::Queue {
                        dealer: Dealer::new(size(queuing.queues), size(queuing.hand_size))?,
                        length_limit: queuing.queue_length_limit,
                    }
                }
            },
        })
    }

    /// How many queues a level wants.
    fn queues(&self) -> u32 {
        match self {
            Self::Exempt | Self::Reject => 0,
            Self::Queue { dealer, .. } => dealer.deck_size(),
        }
    }
}
