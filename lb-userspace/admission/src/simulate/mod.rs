//! Admission in virtual time: feeds the queues and limits with a trace or a workload, as fast as
//! the machine allows.

pub mod recording;
pub mod report;
pub mod trace;
pub mod workload;

mod connections;
mod notification;
mod record;
mod recorder;
mod run;
mod source;

use std::{collections::HashMap, io::BufRead, time::Duration};

use lb_objects::quoted;
use thiserror::Error;

pub use self::{notification::Notification, record::jain_index, report::Report};
use self::{
    recording::Recorded,
    run::{Simulation, Thread},
    source::Sources,
    trace::{NamedArrival, Trace, TraceArrival, TraceError},
    workload::{Client, Workload},
};
use super::{
    classify::{Distinguisher, Identities, MAX_DISTINGUISHER},
    configuration::InForce,
    controller::{Controller, LevelId},
    flow_hash::FlowHasher,
    limits::Limits,
    queueset::{Arrival, Policy},
};

/// The salt of a simulation. It is fixed, so that runs can be compared.
const SALT: [u8; 16] = *b"node-lb simulate";
/// Longest time of any kind: ten years, in nanoseconds.
const MAX_TIME: u64 = 10 * 365 * 24 * 3600 * 1_000_000_000;
/// Most seats of one connection.
const MAX_WIDTH: u32 = 1_000_000;
/// No client or source.
const NO_GROUP: u32 = u32::MAX;

/// Settings that hold for all connections of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy of the controller.
    pub policy: Policy,
    /// How long a connection waits before it gives up, in nanoseconds; `None` means for ever.
    pub queue_wait: Option<u64>,
}

/// Why a simulation has no result.
#[derive(Debug, Error)]
pub enum SimulateError {
    #[error("there is no priority level {}", quoted(.0))]
    UnknownLevel(String),
    #[error("line {line}: there is no priority level {}", quoted(.level))]
    UnknownLevelInTrace { line: u64, level: String },
    #[error("line {0}: it names no priority level")]
    NoLevel(u64),
    #[error("line {0}: there are no flow schemas to classify a recorded connection by")]
    Unclassified(u64),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Workload(#[from] workload::WorkloadError),
}

/// What the lines of a trace leave open.
#[derive(Clone, Debug, Default)]
pub struct Replay<'a> {
    /// The level of arrivals that name none.
    pub level: Option<LevelId>,
    /// How recorded connections are classified.
    pub classes: Option<Classes<'a>>,
}

/// The flow schemas that recorded connections are classified by.
#[derive(Clone, Debug)]
pub struct Classes<'a> {
    in_force: &'a InForce,
    /// By level.
    limits: Vec<Limits>,
    identities: &'a Identities,
    own_waits: bool,
}

impl<'a> Classes<'a> {
    /// Those in force on a node with `server_limit` seats. With `own_waits`, connections wait for as
    /// long as their schemas say, and not as [`Settings::queue_wait`] does.
    pub fn new(
        in_force: &'a InForce,
        server_limit: u32,
        identities: &'a Identities,
        own_waits: bool,
    ) -> Self {
        Self {
            in_force,
            limits: in_force.limits(server_limit),
            identities,
            own_waits,
        }
    }
}

/// A connection that will ask for seats.
#[derive(Clone, Copy, Debug)]
struct Request {
    level: LevelId,
    arrival: Arrival,
    hold: u64,
    handshake: u64,
    /// How long it waits, in nanoseconds, if not as long as [`Settings::queue_wait`] says.
    wait: Option<u64>,
    /// Numbers of its flow and group in the recorder.
    flow: u32,
    group: u32,
    /// The thread that makes the connection, if a client's thread does.
    thread: Option<u32>,
}

impl Request {
    /// Seats it takes.
    fn width(&self) -> u32 {
        self.arrival.initial_seats.max(self.arrival.final_seats)
    }
}

/// Runs a workload to the end of its last connection.
///
/// # Errors
/// If a value of the workload is absurd, or its level does not exist.
pub fn run_workload(
    mut controller: Controller,
    settings: Settings,
    workload: &Workload,
) -> Result<Report, SimulateError> {
    workload.validate()?;
    if let Some(limit) = workload.current_limit {
        let level = find(&controller, &workload.level)?;
        controller.pin_limit(level, limit, 0);
    }
    let mut simulation = Simulation::new(controller, settings, workload.phases());
    for (index, client) in (0..).zip(&workload.clients) {
        let name = client.level.as_ref().unwrap_or(&workload.level);
        let level = find(&simulation.controller, name)?;
        let group = simulation.recorder.add_group(None);
        let name = format!("client {index}");
        let flow = simulation.recorder.add_flow(level, name);
        let request = client_request(client, level, flow, group);
        for thread in 0..client.threads {
            let mut calls = client.calls;
            let mut start = 90 * u64::from(thread) + 20 * index;
            if client.split && thread >= client.threads / 2 {
                start += workload.duration_ns / 2;
                calls /= 2;
            }
            let interval = client.exec_ns.saturating_add_signed(client.think_ns);
            simulation.add_thread(
                Thread {
                    request,
                    calls,
                    interval,
                },
                start,
            );
        }
    }

    let hasher = hasher(settings.policy);
    let mut requests = Vec::new();
    for source in &workload.sources {
        let level_name = source.level.as_ref().unwrap_or(&workload.level);
        let level = find(&simulation.controller, level_name)?;
        let group = simulation.recorder.add_group(Some(source.name.clone()));
        let flows = (0..source.flows).map(|number| {
            let name = format!("{} {number}", source.name);
            let hash = hasher.hash(level_name, name.as_bytes());
            Request {
                level,
                arrival: Arrival::connection(hash, source.width, 0, None),
                hold: 0,
                handshake: source.handshake_ns,
                wait: None,
                flow: simulation.recorder.add_flow(level, name),
                group,
                thread: None,
            }
        });
        requests.push(flows.collect::<Vec<_>>());
    }
    let mut arrivals = Sources::new(&workload.sources, workload.duration_ns);
    while let Some(at) = arrivals.peek() {
        simulation.run_until(at);
        if let Some(arrival) = arrivals.next() {
            let request = Request {
                hold: arrival.hold,
                ..requests[arrival.source][arrival.flow as usize]
            };
            simulation.arrive(request, at);
        }
    }
    Ok(simulation.finish())
}

/// Replays a trace to the end of its last connection.
///
/// # Errors
/// If a line of the trace is invalid, or needs what `replay` does not have.
pub fn run_trace(
    controller: Controller,
    settings: Settings,
    replay: &Replay<'_>,
    reader: impl BufRead,
) -> Result<Report, SimulateError> {
    let mut flows = Flows {
        replay,
        hasher: hasher(settings.policy),
        known: HashMap::new(),
    };
    let mut simulation = Simulation::new(controller, settings, Vec::new());
    let mut trace = Trace::new(reader);
    while let Some(arrival) = trace.next() {
        let (at, request) = match arrival? {
            TraceArrival::Named(arrival) => {
                let request = flows.named(&arrival, &mut simulation, trace.line())?;
                (arrival.t_ns, request)
            }
            TraceArrival::Recorded(recorded) => {
                let request = flows.recorded(&recorded, &mut simulation, trace.line())?;
                (recorded.t_ns, request)
            }
        };
        simulation.run_until(at);
        simulation.arrive(request, at);
    }
    Ok(simulation.finish())
}

/// The flows of a trace.
struct Flows<'a> {
    replay: &'a Replay<'a>,
    hasher: FlowHasher,
    /// Number of each flow, by level and name.
    known: HashMap<LevelId, HashMap<String, u32>>,
}

impl Flows<'_> {
    /// What an arrival of a flow asks for that the trace names.
    fn named(
        &mut self,
        arrival: &NamedArrival,
        simulation: &mut Simulation,
        line: u64,
    ) -> Result<Request, SimulateError> {
        let level = match &arrival.level {
            None => self.replay.level.ok_or(SimulateError::NoLevel(line))?,
            Some(name) => level_of(simulation, name, line)?,
        };
        let name = &arrival.flow;
        let schema = simulation.controller.name(level);
        let hash = self.hasher.hash(schema, name.as_bytes());
        let flow = self.flow(level, name.clone(), simulation);
        Ok(Request {
            level,
            arrival: Arrival::connection(hash, arrival.width, 0, None),
            hold: arrival.hold_ns,
            handshake: 0,
            wait: None,
            flow,
            group: NO_GROUP,
            thread: None,
        })
    }

    /// What a recorded connection asks for, by the schema that takes it.
    fn recorded(
        &mut self,
        recorded: &Recorded,
        simulation: &mut Simulation,
        line: u64,
    ) -> Result<Request, SimulateError> {
        let Some(classes) = &self.replay.classes else {
            return Err(SimulateError::Unclassified(line));
        };
        let connection = recorded.connection(classes.identities);
        let number = classes.in_force.classify(&connection);
        let active = &classes.in_force.schemas[number];
        let (schema, level) = (&active.schema, &classes.in_force.levels[active.level]);
        let distinguisher = Distinguisher::new(schema, level, &connection);
        let hash = self.hasher.hash(
            &schema.name,
            distinguisher.text(&mut [0; MAX_DISTINGUISHER]),
        );
        let name = match distinguisher {
            Distinguisher::None => schema.name.clone(),
            _ => format!("{} {distinguisher}", schema.name),
        };
        let level = level_of(simulation, &level.name, line)?;
        let flow = self.flow(level, name, simulation);
        let nanoseconds =
            |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let wait = nanoseconds(schema.deadlines.queue_wait());
        let seats = schema.seats(&classes.limits[active.level]);
        Ok(Request {
            level,
            arrival: Arrival {
                schema: number as u32,
                most_of_flow: schema.max_connections_per_flow.unwrap_or(u32::MAX),
                ..Arrival::connection(hash, seats, nanoseconds(schema.linger), None)
            },
            hold: recorded.hold_ns,
            handshake: 0,
            wait: classes.own_waits.then_some(wait),
            flow,
            group: NO_GROUP,
            thread: None,
        })
    }

    /// The number of a flow.
    fn flow(&mut self, level: LevelId, name: String, simulation: &mut Simulation) -> u32 {
        let known = self.known.entry(level).or_default();
        match known.get(&name) {
            Some(flow) => *flow,
            None => {
                let number = simulation.recorder.add_flow(level, name.clone());
                *known.entry(name).or_insert(number)
            }
        }
    }
}

/// The level of this name, for a line of a trace.
fn level_of(simulation: &Simulation, name: &str, line: u64) -> Result<LevelId, SimulateError> {
    let found = simulation.controller.find(name);
    found.ok_or_else(|| SimulateError::UnknownLevelInTrace {
        line,
        level: name.to_owned(),
    })
}

fn find(controller: &Controller, level: &str) -> Result<LevelId, SimulateError> {
    let found = controller.find(level);
    found.ok_or_else(|| SimulateError::UnknownLevel(level.to_owned()))
}

fn client_request(client: &Client, level: LevelId, flow: u32, group: u32) -> Request {
    let ending = client.ending();
    Request {
        level,
        arrival: Arrival {
            hash: client.hash,
            schema: 0,
            most_of_flow: u32::MAX,
            initial_seats: client.initial_seats,
            final_seats: ending.seats,
            additional_latency: ending.time,
            deadline: None,
        },
        hold: client.exec_ns,
        handshake: 0,
        wait: None,
        flow,
        group,
        thread: None,
    }
}

fn hasher(policy: Policy) -> FlowHasher {
    match policy {
        Policy::Exact => FlowHasher::Exact,
        Policy::Connections => FlowHasher::Salted(SALT),
    }
}
