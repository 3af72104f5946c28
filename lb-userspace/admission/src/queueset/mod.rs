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
//! Connections that hold seats are numbers: per queue, per flow, and in sum. Whoever lets
//! connections in beside this queue set tells it those numbers ([`QueueSet::observe`]); it may also
//! choose queues ([`QueueSet::arrive_in`]) and take over who was admitted ([`QueueSet::hand_over`]).
//!
//! Once the highest number of connections has been reached, decisions allocate no memory. Arrivals
//! and ends cost the logarithm of the number of timers, and dispatches that of the number of
//! queues.

mod arrival;
mod connection;
mod counters;
mod dispatch;
mod ends;
mod enqueue;
mod flows;
mod gate;
mod grant;
mod holds;
mod inspect;
mod observe;
mod order;
mod policy;
mod queue;
mod timers;
mod tournament;
mod verdict;
mod virtual_time;

#[cfg(test)]
mod tests;

use self::{
    connection::Slab, counters::Counts, flows::Flows, holds::MeanHold, order::Tick, policy::Caps,
    queue::Queues, timers::Timers, tournament::Tournament,
};
use super::{
    demand::{DemandIntegrator, DemandStatistics},
    level::{ConnectionLimits, LevelKind, LimitResponse, MAX_QUEUES},
    seat_seconds::SeatSeconds,
    shuffle::{Dealer, DealerError},
};

pub use self::{
    arrival::{Arrival, Rejection},
    connection::Handle,
    counters::{Counters, Rejections, SchemaCounters},
    gate::Wait,
    grant::Grant,
    holds::{Holds, RECLAIM_TARGET},
    inspect::QueueState,
    policy::Policy,
    verdict::{Dispatch, Expiry, Verdict},
};

/// How long a request is assumed to execute, in nanoseconds: APF's estimate for all requests.
const ESTIMATED_DURATION: u64 = 3_000_000;
/// The longest expected hold of connections, in nanoseconds.
const MAX_TYPICAL_HOLD: u64 = 60_000_000_000;

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
    flows: Flows,
    connections: Slab,
    timers: Timers,

    r: SeatSeconds,
    synchronised_at: u64,
    /// Index of the queue that was served last.
    robin: u32,
    order: Tournament,
    tick: Tick,
    /// Whether connections may wait in other queues than those of their present hands.
    mixed_hands: bool,
    /// Whether a flow schema has limited what its flows may have.
    some_flows_limited: bool,
    /// Arrivals for which a queue was chosen here.
    enqueues: u64,

    waiting: u32,
    seats_waiting: u64,
    /// Seats that are held or waited for in queues.
    requested_seats: u64,
    /// What all connections hold, and how long they lasted lately.
    holds: Holds,
    mean_hold: MeanHold,
    /// What somebody else counted last of connections that are in no queue.
    observed_without_queue: Holds,
    /// Seats that have come back from borrowers.
    borrowed_released: u64,
    demand: DemandIntegrator,
    /// Seats for which connections were refused in this period of demand.
    refused_seats: u64,
    counts: Counts,
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

/// The shape of a level, known to be possible.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    kind: Kind,
    connection_limits: Option<ConnectionLimits>,
}

impl Shape {
    /// The shape that a level asks for.
    ///
    /// # Errors
    /// If hands of the size it asks for cannot be dealt, or it asks for too many queues.
    pub fn new(kind: &LevelKind) -> Result<Self, DealerError> {
        Ok(Self {
            kind: Kind::new(kind)?,
            connection_limits: match kind {
                LevelKind::Exempt => None,
                LevelKind::Limited(limited) => Some(limited.connections),
            },
        })
    }
}

impl QueueSet {
    /// A level without connections. It has no seats until they are set.
    pub fn new(shape: Shape, policy: Policy, now: u64) -> Self {
        let limits = ConnectionLimits::default();
        let mean_hold = MeanHold::new(ESTIMATED_DURATION, MAX_TYPICAL_HOLD);
        let conditions = match policy {
            Policy::Exact => 0,
            Policy::Connections => gate::ALL,
        };
        let mut set = Self {
            policy,
            kind: Kind::Exempt,
            connection_limits: limits,
            limit: 0,
            nominal: u32::MAX,
            caps: policy.caps(&limits, 0, 0),
            queues: Queues::default(),
            flows: Flows::new(),
            connections: Slab::new(),
            timers: Timers::default(),
            r: SeatSeconds::ZERO,
            synchronised_at: now,
            robin: 0,
            order: Tournament::new(conditions),
            tick: Tick::default(),
            mixed_hands: false,
            some_flows_limited: false,
            enqueues: 0,
            waiting: 0,
            seats_waiting: 0,
            requested_seats: 0,
            holds: Holds::default(),
            mean_hold,
            observed_without_queue: Holds::default(),
            borrowed_released: 0,
            demand: DemandIntegrator::new(now),
            refused_seats: 0,
            counts: Counts::default(),
            ready: false,
        };
        set.configure(shape, now);
        set
    }

    /// Changes the shape of the level. Its connections stay: none is cut off or thrown out, and
    /// surplus queues are removed one by one as they become empty.
    pub fn configure(&mut self, shape: Shape, now: u64) {
        self.synchronise(now);
        if let Some(limits) = shape.connection_limits {
            self.connection_limits = limits;
        }
        self.mixed_hands |= self.waiting > 0;
        self.kind = shape.kind;
        let mean_hold = MeanHold::new(ESTIMATED_DURATION, MAX_TYPICAL_HOLD);
        let continuous = self.policy.charges_continuously();
        self.queues.grow(self.kind.queues(), continuous, mean_hold);
        self.set_limit(self.limit, now);
    }

    /// Sets how many seats are the level's own. Seats above that are borrowed. Until then all are
    /// its own.
    pub fn set_nominal(&mut self, nominal: u32) {
        self.ready |= nominal > self.nominal;
        self.nominal = nominal;
    }

    /// Changes how many seats there are. The limit may be below the number of held seats: none is
    /// given out then until enough have come back.
    pub fn set_limit(&mut self, limit: u32, now: u64) {
        self.synchronise(now);
        self.limit = limit;
        let queues = self.kind.queues();
        self.caps = self.policy.caps(&self.connection_limits, limit, queues);
        self.flows.remember(self.caps.first_seat_reserve);
        self.tick.is_stale = true;
        self.ready = true;
    }

    /// How many seats the level wanted since the last period of demand ended.
    pub fn demand(&mut self, now: u64) -> DemandStatistics {
        self.demand.statistics(now)
    }

    /// Ends a period of demand and starts the next.
    pub fn end_demand_period(&mut self, now: u64) -> DemandStatistics {
        self.refused_seats = 0;
        self.demand.reset(now)
    }

    /// Notes that connections were refused, which would have taken so many seats together. The level
    /// wanted these for a moment. So it gets back what it has lent, although it cannot hold more than
    /// is left; it does not borrow more because of them, since there may be any number. (In APF, a
    /// level that refuses at once never shows that it wants more.)
    pub fn note_refused(&mut self, seats: u64, now: u64) {
        if !self.policy.charges_continuously() || seats == 0 {
            return;
        }
        self.synchronise(now);
        self.refused_seats = self.refused_seats.saturating_add(seats);
        let wanted = self.holds.seats + self.seats_waiting;
        let wanted = wanted.saturating_add(self.refused_seats);
        self.demand.set(wanted as f64, now);
        self.note_demand(now);
    }

    fn note_demand(&mut self, now: u64) {
        let seats = self.holds.seats + self.seats_waiting;
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
                    let dealer = Dealer::new(size(queuing.queues), size(queuing.hand_size))?;
                    if queuing.queues > MAX_QUEUES {
                        let deck_size = size(queuing.queues);
                        return Err(DealerError::DeckTooLarge { deck_size });
                    }
                    Self::Queue {
                        dealer,
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

    /// Deals hands of queues, if there are any.
    fn dealer(&self) -> Option<Dealer> {
        match self {
            Self::Exempt | Self::Reject => None,
            Self::Queue { dealer, .. } => Some(*dealer),
        }
    }
}
