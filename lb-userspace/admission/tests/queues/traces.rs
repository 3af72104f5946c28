//! Kubernetes' queues, step by step: every decision, and every number of their state.

use std::collections::BTreeMap;

use lb_admission::{
    level::{ConnectionLimits, LevelKind, LimitResponse, Limited, Queuing},
    queueset::{Arrival, Dispatch, Grant, Handle, Policy, QueueSet, Rejection, Shape, Verdict},
    seat_seconds::SeatSeconds,
};
use serde::Deserialize;

use crate::{support, vectors};

#[derive(Deserialize)]
struct Trace {
    name: String,
    config: Config,
    steps: Vec<Step>,
    r#final: Final,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    queues: i64,
    #[serde(default)]
    hand_size: u32,
    #[serde(default)]
    queue_length_limit: u32,
    concurrency_limit: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Step {
    op: Op,
    dispatched_before_op: Vec<String>,
    dispatched_by_op: Vec<String>,
    verdict: Option<String>,
    queue: Option<u32>,
    removed: Option<bool>,
    after: Option<State>,
}

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Op {
    #[serde(rename_all = "camelCase")]
    Start {
        #[serde(rename = "t_ns")]
        t_ns: u64,
        req: String,
        hash: u64,
        #[serde(default = "one")]
        initial_seats: u32,
        #[serde(default)]
        final_seats: u32,
        #[serde(default, rename = "additionalLatency_ns")]
        additional_latency: u64,
    },
    Finish {
        t_ns: u64,
        req: String,
    },
    Cancel {
        t_ns: u64,
        req: String,
    },
    Reconfig {
        t_ns: u64,
        #[serde(flatten)]
        config: Config,
    },
    Tick {
        t_ns: u64,
    },
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct State {
    #[serde(rename = "R")]
    r: u64,
    robin_index: u32,
    seats_in_use: u64,
    seats_waiting: u64,
    waiting: u32,
    executing: u32,
    enqueues: u64,
    queues: Vec<Queue>,
    is_idle: bool,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Queue {
    index: usize,
    #[serde(rename = "nextDispatchR")]
    next_dispatch_r: u64,
    waiting: Vec<String>,
    executing: Vec<String>,
    seats_in_use: u64,
    total_work_waiting: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Final {
    rejected: BTreeMap<String, u64>,
    no_accommodation: u64,
}

fn one() -> u32 {
    1
}

/// A level under test, and its connections by name.
struct Bench {
    set: QueueSet,
    waiting: Vec<(String, Handle)>,
    executing: Vec<(String, Grant)>,
}

impl Bench {
    fn new(config: &Config) -> Self {
        let mut set = support::queue_set(&config.kind(), Policy::Exact);
        set.set_limit(config.concurrency_limit, 0);
        Self {
            set,
            waiting: Vec::new(),
            executing: Vec::new(),
        }
    }

    fn name(&self, handle: Handle) -> String {
        let found = self.waiting.iter().find(|(_, known)| *known == handle);
        found.unwrap_or_else(|| panic!("no {handle:?}")).0.clone()
    }

    fn dispatch(&mut self, now: u64) -> Vec<String> {
        let mut dispatched = Vec::new();
        while let Some(Dispatch { connection, grant }) = self.set.dispatch(now) {
            let is_it = |(_, handle): &(String, Handle)| *handle == connection;
            let place = self.waiting.iter().position(is_it);
            let (name, _) = self.waiting.remove(place.unwrap());
            dispatched.push(name.clone());
            self.executing.push((name, grant));
        }
        dispatched
    }

    fn run_timers(&mut self, now: u64) -> Vec<String> {
        let mut dispatched = Vec::new();
        while let Some((at, _)) = self.set.fire(now) {
            dispatched.extend(self.dispatch(at));
        }
        dispatched
    }

    /// Does what a step says, and checks everything that the step expects.
    fn step(&mut self, step: &Step) {
        assert_eq!(self.run_timers(step.op.time()), step.dispatched_before_op);
        let now = step.op.time();
        let mut dispatched = Vec::new();
        match &step.op {
            Op::Start {
                req,
                hash,
                initial_seats,
                final_seats,
                additional_latency,
                ..
            } => {
                let arrival = Arrival {
                    hash: *hash,
                    schema: 0,
                    most_of_flow: u32::MAX,
                    initial_seats: *initial_seats,
                    final_seats: *final_seats,
                    additional_latency: *additional_latency,
                    deadline: None,
                };
                let mut queue = None;
                let refused = match self.set.arrive(arrival, now) {
                    Verdict::Admitted(grant) => {
                        dispatched.push(req.clone());
                        self.executing.push((req.clone(), grant));
                        None
                    }
                    Verdict::Queued(handle) => {
                        queue = self.set.queue_of(handle);
                        self.waiting.push((req.clone(), handle));
                        None
                    }
                    Verdict::Rejected(rejection) => Some(rejection.as_str()),
                };
                dispatched.extend(self.dispatch(now));
                let expected = match refused {
                    Some(reason) => reason,
                    None if dispatched.contains(req) => "executing",
                    None => "waiting",
                };
                assert_eq!(step.verdict.as_deref(), Some(expected));
                assert_eq!(queue, step.queue);
            }
            Op::Finish { req, .. } => {
                let place = self.executing.iter().position(|(name, _)| name == req);
                let (_, grant) = self.executing.remove(place.unwrap());
                self.set.finish(grant, now);
            }
            Op::Cancel { req, .. } => {
                let place = self.waiting.iter().position(|(name, _)| name == req);
                let removed = place.is_some_and(|place| {
                    let (_, handle) = self.waiting.remove(place);
                    self.set.cancel(handle, now)
                });
                assert_eq!(Some(removed), step.removed);
            }
            Op::Reconfig { config, .. } => {
                let shape = Shape::new(&config.kind()).unwrap();
                self.set.configure(shape, now);
                self.set.set_limit(config.concurrency_limit, now);
            }
            Op::Tick { .. } => self.set.synchronise(now),
        }
        dispatched.extend(self.dispatch(now));
        assert_eq!(dispatched, step.dispatched_by_op);
        if let Some(expected) = &step.after {
            assert_eq!(&self.state(), expected);
        }
    }

    fn state(&self) -> State {
        let executing = |index: usize| {
            let of_queue = self
                .executing
                .iter()
                .filter(|(_, grant)| self.set.queue_of_grant(grant) == Some(index as u32));
            let mut names: Vec<_> = of_queue.map(|(name, _)| name.clone()).collect();
            names.sort_unstable();
            names
        };
        let queues = self.set.queues().into_iter().enumerate();
        let queues = queues.map(|(index, queue)| Queue {
            index,
            next_dispatch_r: queue.next_dispatch_r.units(),
            waiting: queue
                .waiting
                .iter()
                .map(|&handle| self.name(handle))
                .collect(),
            executing: executing(index),
            seats_in_use: queue.holds.seats,
            total_work_waiting: queue.waiting_work.units(),
        });
        State {
            r: SeatSeconds::units(self.set.progress()),
            robin_index: self.set.last_served(),
            seats_in_use: self.set.seats_in_use(),
            seats_waiting: self.set.seats_waiting(),
            waiting: self.set.waiting(),
            executing: self.set.executing(),
            enqueues: self.set.enqueues(),
            queues: queues.collect(),
            is_idle: self.set.is_idle(),
        }
    }
}

impl Config {
    fn kind(&self) -> LevelKind {
        let response = match u32::try_from(self.queues) {
            Err(_) => return LevelKind::Exempt,
            Ok(0) => LimitResponse::Reject,
            Ok(queues) => LimitResponse::Queue(Queuing {
                queues,
                hand_size: self.hand_size,
                queue_length_limit: self.queue_length_limit,
            }),
        };
        LevelKind::Limited(Limited {
            borrowing_limit_percent: None,
            response,
            connections: ConnectionLimits::default(),
            audited: false,
        })
    }
}

impl Op {
    fn time(&self) -> u64 {
        match self {
            Self::Start { t_ns, .. }
            | Self::Finish { t_ns, .. }
            | Self::Cancel { t_ns, .. }
            | Self::Reconfig { t_ns, .. }
            | Self::Tick { t_ns } => *t_ns,
        }
    }
}

#[test]
fn decisions_and_state_are_upstreams() {
    let traces: Vec<Trace> = vectors::at("/e_queueset/traces");
    assert!(!traces.is_empty());
    for trace in traces {
        let mut bench = Bench::new(&trace.config);
        for (number, step) in trace.steps.iter().enumerate() {
            println!("{} step {number}", trace.name);
            bench.step(step);
        }
        let counters = bench.set.counters();
        let rejections = counters.rejections;
        for (reason, count) in [
            (Rejection::QueueFull, rejections.queue_full),
            (Rejection::ConcurrencyLimit, rejections.concurrency_limit),
            (Rejection::TimeOut, rejections.time_out),
        ] {
            assert_eq!(
                trace.r#final.rejected[reason.as_str()],
                count,
                "{}",
                trace.name
            );
        }
        assert_eq!(
            trace.r#final.no_accommodation, counters.no_accommodation,
            "{}",
            trace.name
        );
    }
}
