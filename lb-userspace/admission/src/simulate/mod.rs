//! Admission in virtual time: feeds the queues and limits with a trace or a workload, as fast as
//! the machine allows.

pub mod report;
pub mod trace;
pub mod workload;

mod connections;
mod notification;
mod record;
mod recorder;
mod run;
mod source;

use std::{collections::HashMap, io::BufRead};

use lb_objects::quoted;
use thiserror::Error;

pub use self::{notification::Notification, report::Report};
use self::{
    run::{Simulation, Thread},
    source::Sources,
    trace::{Trace, TraceArrival, TraceError},
    workload::{Client, Workload},
};
use super::{
    controller::{Controller, LevelId},
    flow_hash::FlowHasher,
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
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Workload(#[from] workload::WorkloadError),
}

/// A connection that will ask for seats.
#[derive(Clone, Copy, Debug)]
struct Request {
    level: LevelId,
    arrival: Arrival,
    hold: u64,
    handshake: u64,
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

/// Replays a trace to the end of its last connection. Arrivals that name no level go to
/// `default_level`.
///
/// # Errors
/// If a line of the trace is invalid or names a level that does not exist.
pub fn run_trace(
    controller: Controller,
    settings: Settings,
    default_level: LevelId,
    reader: impl BufRead,
) -> Result<Report, SimulateError> {
    let hasher = hasher(settings.policy);
    let mut flows = HashMap::<LevelId, HashMap<String, Request>>::new();
    let mut simulation = Simulation::new(controller, settings, Vec::new());
    let mut trace = Trace::new(reader);
    while let Some(line) = trace.next() {
        let TraceArrival {
            t_ns,
            flow,
            hold_ns,
            width,
            level,
        } = line?;
        let level = match level {
            None => default_level,
            Some(name) => match simulation.controller.find(&name) {
                Some(level) => level,
                None => {
                    let line = trace.line();
                    return Err(SimulateError::UnknownLevelInTrace { line, level: name });
                }
            },
        };
        let known = flows.entry(level).or_default();
        let request = match known.get(&flow) {
            Some(request) => *request,
            None => {
                let schema = simulation.controller.name(level);
                let hash = hasher.hash(schema, flow.as_bytes());
                let request = Request {
                    level,
                    arrival: Arrival::connection(hash, width, 0, None),
                    hold: hold_ns,
                    handshake: 0,
                    flow: simulation.recorder.add_flow(level, flow.clone()),
                    group: NO_GROUP,
                    thread: None,
                };
                known.insert(flow, request);
                request
            }
        };
        let request = Request {
            arrival: Arrival::connection(request.arrival.hash, width, 0, None),
            hold: hold_ns,
            ..request
        };
        simulation.run_until(t_ns);
        simulation.arrive(request, t_ns);
    }
    Ok(simulation.finish())
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
            initial_seats: client.initial_seats,
            final_seats: ending.seats,
            additional_latency: ending.time,
            deadline: None,
        },
        hold: client.exec_ns,
        handshake: 0,
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
