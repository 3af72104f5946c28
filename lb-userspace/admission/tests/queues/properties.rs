//! Properties of a level that hold whatever happens to it.

use lb_admission::{
    level::{ConnectionLimits, LevelKind},
    queueset::{Arrival, Dispatch, Grant, Handle, Policy, QueueSet, Shape, Verdict, Wait},
};
use proptest::{collection::vec, prelude::*};

use crate::support::{kind, queue_set};

#[derive(Clone, Debug)]
enum Op {
    Arrive {
        hash: u64,
        width: u32,
        linger: u64,
        patience: u64,
    },
    Establish(usize),
    Finish(usize),
    Abort(usize),
    Cancel(usize),
    Limit(u32),
    Configure {
        queues: u32,
        hand_size: u32,
    },
}

fn op(max_width: u32) -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => (0..6_u64, 1..=max_width, 0..3_u64, 1..40_u64).prop_map(
            |(hash, width, linger, patience)| Op::Arrive { hash, width, linger, patience }
        ),
        4 => any::<usize>().prop_map(Op::Establish),
        6 => any::<usize>().prop_map(Op::Finish),
        1 => any::<usize>().prop_map(Op::Abort),
        2 => any::<usize>().prop_map(Op::Cancel),
        1 => (0..12_u32).prop_map(Op::Limit),
        1 => prop::sample::select(vec![(0, 0), (1, 1), (8, 3), (64, 6), (128, 2)])
            .prop_map(|(queues, hand_size)| Op::Configure { queues, hand_size }),
    ]
}

/// A level and what a caller knows of its connections.
struct Model {
    set: QueueSet,
    waiting: Vec<(Handle, u32)>,
    executing: Vec<Grant>,
}

impl Model {
    fn new(policy: Policy) -> Self {
        let mut set = queue_set(&kind(8, 3, 5), policy);
        set.set_limit(8, 0);
        Self {
            set,
            waiting: Vec::new(),
            executing: Vec::new(),
        }
    }

    fn apply(&mut self, op: &Op, now: u64) {
        while let Some((at, _)) = self.set.fire(now) {
            let set = &self.set;
            self.waiting
                .retain(|(handle, _)| set.queue_of(*handle).is_some());
            self.drain(at);
        }
        match *op {
            Op::Arrive {
                hash,
                width,
                linger,
                patience,
            } => {
                let arrival = Arrival::connection(hash, width, linger, Some(now + patience));
                match self.set.arrive(arrival, now) {
                    Verdict::Queued(handle) => self.waiting.push((handle, width)),
                    Verdict::Admitted(grant) => {
                        self.check_room(width);
                        self.executing.push(grant);
                    }
                    Verdict::Rejected(_) => {}
                }
            }
            Op::Establish(which) => {
                let which = which.checked_rem(self.executing.len());
                if let Some(grant) = which.and_then(|which| self.executing.get_mut(which)) {
                    self.set.establish(grant, now);
                    assert!(!self.set.establish(grant, now), "only once");
                }
            }
            Op::Finish(which) => {
                if let Some(which) = which.checked_rem(self.executing.len()) {
                    let grant = self.executing.remove(which);
                    self.set.finish(grant, now);
                }
            }
            Op::Abort(which) => {
                if let Some(which) = which.checked_rem(self.executing.len()) {
                    let grant = self.executing.remove(which);
                    self.set.abort(grant, now);
                }
            }
            Op::Cancel(which) => {
                if let Some(&found) = pick(&self.waiting, which) {
                    self.waiting.retain(|one| *one != found);
                    assert!(self.set.cancel(found.0, now));
                    assert!(!self.set.cancel(found.0, now), "only once");
                }
            }
            Op::Limit(limit) => {
                self.set.set_limit(limit, now);
            }
            Op::Configure { queues, hand_size } => {
                let shape = Shape::new(&kind(queues, hand_size, 5)).unwrap();
                self.set.configure(shape, now);
            }
        }
        self.drain(now);
        self.check();
    }

    fn drain(&mut self, now: u64) {
        while let Some(Dispatch { connection, grant }) = self.set.dispatch(now) {
            let place = self
                .waiting
                .iter()
                .position(|(handle, _)| *handle == connection);
            self.waiting.remove(place.unwrap());
            self.check_room(grant.width());
            self.executing.push(grant);
        }
    }

    /// After an admission: the limit holds, unless a single connection is wider than it.
    fn check_room(&self, width: u32) {
        let too_wide = width > self.set.limit() && self.set.executing() == 1;
        let within = self.set.seats_in_use() <= u64::from(self.set.limit());
        assert!(
            within || too_wide,
            "{} of {}",
            self.set.seats_in_use(),
            self.set.limit()
        );
    }

    fn check(&self) {
        let queues = self.set.queues();
        assert_eq!(self.set.waiting() as usize, self.waiting.len());
        assert_eq!(self.set.executing() as usize, self.executing.len());
        let waiting: usize = queues.iter().map(|queue| queue.waiting.len()).sum();
        assert_eq!(waiting, self.waiting.len());
        let width = |grant: &Grant| u64::from(grant.width());
        let half_open = self.executing.iter().filter(|grant| grant.is_half_open());
        assert_eq!(
            self.set.half_open_seats(),
            half_open.map(width).sum::<u64>()
        );
        assert!(self.set.seats_in_use() >= self.executing.iter().map(width).sum());
        let schema = self.set.schemas().first().copied().unwrap_or_default();
        assert_eq!(u64::from(schema.waiting), u64::from(self.set.waiting()));
        assert_eq!(schema.executing, self.set.executing());
        assert_eq!(schema.executing_seats, self.set.seats_in_use());
    }

    /// Ends everything. Nothing may be left.
    fn finish(mut self, mut now: u64) {
        self.set.set_limit(8, now);
        self.drain(now);
        while !self.waiting.is_empty() || !self.executing.is_empty() {
            let before = self.waiting.len() + self.executing.len();
            // Longer than any seat lingers, even if a width of 5 was squeezed into one seat.
            now += 20;
            self.apply(&Op::Finish(0), now);
            let after = self.waiting.len() + self.executing.len();
            assert!(
                after < before,
                "somebody waits for nothing: {:?}",
                self.waiting
            );
        }
        while self.set.fire(u64::MAX).is_some() {}
        assert!(self.set.is_idle() && self.set.is_empty());
        let totals = (
            self.set.seats_in_use(),
            self.set.seats_waiting(),
            self.set.half_open_seats(),
        );
        assert_eq!(totals, (0, 0, 0));
    }
}

fn pick<T>(all: &[T], which: usize) -> Option<&T> {
    all.get(which.checked_rem(all.len())?)
}

fn limits(kind: &LevelKind) -> ConnectionLimits {
    match kind {
        LevelKind::Limited(limited) => limited.connections,
        LevelKind::Exempt => ConnectionLimits::default(),
    }
}

/// The time between ticks in nanoseconds: how often the order of connections is made anew.
const TICK: u64 = 10_000_000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn seats_are_never_more_than_the_limit_and_all_come_back(
        steps in vec((op(5), 0..4_u64), 1..150),
    ) {
        let mut model = Model::new(Policy::Connections);
        let mut now = 0;
        for (op, elapsed) in &steps {
            now += elapsed;
            model.apply(op, now);
        }
        model.finish(now);
    }

    #[test]
    fn the_exact_mode_keeps_its_limit_too(steps in vec((op(5), 0..4_u64), 1..150)) {
        let mut model = Model::new(Policy::Exact);
        let mut now = 0;
        for (op, elapsed) in &steps {
            now += elapsed;
            model.apply(op, now);
        }
    }

    #[test]
    fn nobody_waits_while_a_seat_is_free_for_him(
        steps in vec((op(1), 0..4_u64), 1..150),
        exact in any::<bool>(),
    ) {
        let policy = if exact { Policy::Exact } else { Policy::Connections };
        let mut model = Model::new(policy);
        let mut now = 0;
        for (op, elapsed) in &steps {
            now += elapsed;
            model.apply(op, now);
            // In exact mode, what a leaving waiter held up is not dispatched. A waiter of width 1
            // holds nothing up.
            let limit = model.set.limit();
            let in_use = model.set.seats_in_use();
            if in_use >= u64::from(limit) {
                for queue in model.set.queues() {
                    prop_assert!(queue.waits_for.is_none_or(|reason| reason == Wait::Seat));
                }
                continue;
            }
            for (index, queue) in model.set.queues().iter().enumerate() {
                let Some(reason) = queue.waits_for else {
                    prop_assert!(queue.waiting.is_empty());
                    continue;
                };
                let seats = queue.holds.seats;
                let limits = limits(&kind(8, 3, 5));
                match reason {
                    Wait::FirstSeats => {
                        let reserve = limits.first_seat_reserve(limit);
                        prop_assert!(in_use + u64::from(reserve) >= u64::from(limit));
                    }
                    Wait::HalfOpen => {
                        let most = limits.half_open_seats(limit, 8);
                        prop_assert!(model.set.half_open_seats() >= u64::from(most) && seats > 0);
                    }
                    _ => prop_assert!(false, "{reason:?}: {index} {queue:?}, {in_use} of {limit}"),
                }
            }
        }
    }

    /// One flow floods. Every connection of another flow is admitted before the flood has had the
    /// whole level twice. For connections that counts from the next tick on: the order of queues that
    /// are so close together is that of the latest one.
    #[test]
    fn no_flow_with_demand_starves(
        limit in 2..40_u32,
        hold in 1..1_000_000_000_u64,
        start in 1..50_u64,
        flood in 0..1000_u64,
        victim in 0..1000_u64,
        exact in any::<bool>(),
    ) {
        let policy = if exact { Policy::Exact } else { Policy::Connections };
        let mut set = queue_set(&kind(64, 1, 50), policy);
        set.set_limit(limit, 0);
        prop_assume!(flood % 64 != victim % 64);
        let mut now = 0;
        let mut executing = std::collections::VecDeque::new();
        let arrive = |set: &mut QueueSet, hash, now| {
            set.arrive(Arrival::connection(hash, 1, 0, None), now)
        };
        let (mut victim_handle, mut from) = (None, 0);
        let mut dispatched_since = 0;
        for round in 0..100 * u64::from(limit) {
            if round == start * u64::from(limit) {
                match arrive(&mut set, victim, now) {
                    Verdict::Queued(handle) => {
                        victim_handle = Some(handle);
                        from = if exact { now } else { now + TICK };
                    }
                    verdict => prop_assert!(false, "{verdict:?}"),
                }
            }
            let _ = arrive(&mut set, flood, now);
            while let Some(Dispatch { connection, mut grant }) = set.dispatch(now) {
                set.establish(&mut grant, now);
                executing.push_back(grant);
                if victim_handle == Some(connection) {
                    return Ok(());
                }
                dispatched_since += u32::from(victim_handle.is_some() && now >= from);
            }
            prop_assert!(dispatched_since <= 2 * limit, "{dispatched_since} overtook");
            now += hold / u64::from(limit) + 1;
            if round >= u64::from(limit) && let Some(oldest) = executing.pop_front() {
                set.finish(oldest, now);
            }
        }
        prop_assert!(victim_handle.is_none(), "never admitted");
    }
}
