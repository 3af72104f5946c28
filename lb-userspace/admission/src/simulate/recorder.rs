//! Records a simulation and makes its report.

use std::cmp::Reverse;

use super::{
    Request,
    record::{Evenness, Flow, Outcomes, Samples, jain_index},
    report::{Fairness, FlowReport, GroupReport, LevelReport, Report, Waits},
};
use crate::{
    controller::{Controller, LevelId},
    queueset::Rejection,
};

/// The most flows of a level that the report names.
const TOP_FLOWS: usize = 10;

/// Account of everything so far.
#[derive(Debug)]
pub struct Recorder {
    /// Ends of the phases over which averages are taken, in nanoseconds.
    phases: Vec<u64>,
    connections: u64,
    waiting: u64,
    flows: Vec<NamedFlow>,
    groups: Vec<Group>,
    levels: Vec<LevelRecord>,
}

#[derive(Debug)]
struct NamedFlow {
    level: usize,
    /// The name within its group, or on its own.
    name: String,
    flow: Flow,
}

/// A client or a source.
#[derive(Debug)]
struct Group {
    /// `None` for clients.
    name: Option<String>,
    outcomes: Outcomes,
    /// Seat-nanoseconds of each phase.
    seat_time: Vec<u128>,
}

#[derive(Debug)]
struct LevelRecord {
    id: LevelId,
    outcomes: Outcomes,
    evenness: Evenness,
    samples: Samples,
    max_seats: u64,
}

impl Recorder {
    pub fn new(phases: Vec<u64>) -> Self {
        Self {
            phases,
            connections: 0,
            waiting: 0,
            flows: Vec::new(),
            groups: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Adds a client, or a source by its name. Returns its number.
    pub fn add_group(&mut self, name: Option<String>) -> u32 {
        self.groups.push(Group {
            name,
            outcomes: Outcomes::new(),
            seat_time: vec![0; self.phases.len()],
        });
        self.groups.len() as u32 - 1
    }

    /// Adds a flow. Returns its number.
    pub fn add_flow(&mut self, level: LevelId, name: String) -> u32 {
        let known = self.levels.iter().position(|record| record.id == level);
        let level = known.unwrap_or_else(|| {
            self.levels.push(LevelRecord {
                id: level,
                outcomes: Outcomes::new(),
                evenness: Evenness::default(),
                samples: Samples::new(),
                max_seats: 0,
            });
            self.levels.len() - 1
        });
        self.flows.push(NamedFlow {
            level,
            name,
            flow: Flow::default(),
        });
        self.flows.len() as u32 - 1
    }

    /// Connections that got seats.
    pub fn executions(&self) -> u64 {
        let executions = self.levels.iter().map(|level| level.outcomes.executions);
        executions.sum()
    }

    /// To be called before anything changes at a moment.
    pub fn advance(&mut self, controller: &Controller, now: u64) {
        for level in &mut self.levels {
            level.samples.advance(controller.level(level.id), now);
        }
    }

    /// To be called after everything has changed at a moment.
    pub fn note_seats(&mut self, controller: &Controller) {
        for level in &mut self.levels {
            let in_use = controller.level(level.id).seats_in_use();
            level.max_seats = level.max_seats.max(in_use);
        }
    }

    /// A connection asks for seats.
    pub fn arrive(&mut self, request: &Request, now: u64) {
        self.connections += 1;
        self.waiting += 1;
        self.change(request, 0, i64::from(request.width()), now);
    }

    /// It gets its seats.
    pub fn admit(&mut self, request: &Request, wait: u64, now: u64) {
        self.waiting -= 1;
        let width = i64::from(request.width());
        self.change(request, width, -width, now);
        let NamedFlow { level, flow, .. } = &mut self.flows[request.flow as usize];
        flow.executions += 1;
        flow.max_wait = flow.max_wait.max(wait);
        self.levels[*level].outcomes.admit(wait);
        if let Some(group) = self.groups.get_mut(request.group as usize) {
            group.outcomes.admit(wait);
        }
    }

    /// It gets no seats, and no longer waits.
    pub fn reject(&mut self, request: &Request, rejection: Rejection, now: u64) {
        self.waiting -= 1;
        self.change(request, 0, -i64::from(request.width()), now);
        let NamedFlow { level, flow, .. } = &mut self.flows[request.flow as usize];
        flow.rejections += 1;
        self.levels[*level].outcomes.rejections.add(rejection);
        if let Some(group) = self.groups.get_mut(request.group as usize) {
            group.outcomes.rejections.add(rejection);
        }
    }

    /// A connection that was admitted at `start` is over.
    pub fn finish(&mut self, request: &Request, start: u64, now: u64) {
        self.change(request, -i64::from(request.width()), 0, now);
        let seats = u128::from(request.arrival.initial_seats);
        let flow = &mut self.flows[request.flow as usize].flow;
        flow.seat_time += seats * u128::from(now - start);
        let Some(group) = self.groups.get_mut(request.group as usize) else {
            return;
        };
        let mut from = 0;
        for (seat_time, &to) in group.seat_time.iter_mut().zip(&self.phases) {
            let within = now.min(to).saturating_sub(start.max(from));
            *seat_time += seats * u128::from(within);
            from = to;
        }
    }

    fn change(&mut self, request: &Request, seats: i64, waiting: i64, now: u64) {
        let NamedFlow { level, flow, .. } = &mut self.flows[request.flow as usize];
        let evenness = &mut self.levels[*level].evenness;
        evenness.change(flow, seats, waiting, now);
    }

    /// The report of everything so far.
    pub fn report(self, controller: &Controller, end_ns: u64) -> Report {
        let levels = (0..self.levels.len()).map(|level| self.level_report(level, controller));
        let mut report = Report {
            end_ns,
            connections: self.connections,
            still_waiting: self.waiting,
            clients: Vec::new(),
            sources: Vec::new(),
            levels: levels.collect(),
        };
        for group in self.groups {
            let mut from = 0;
            let averages = self
                .phases
                .iter()
                .zip(&group.seat_time)
                .map(|(&to, &seat_time)| {
                    let average = seat_time as f64 / (to - from) as f64;
                    from = to;
                    average
                });
            let of_kind = match group.name {
                None => &mut report.clients,
                Some(_) => &mut report.sources,
            };
            of_kind.push(GroupReport {
                executions: group.outcomes.executions,
                rejections: group.outcomes.rejections.all(),
                average_seats: averages.collect(),
                wait_ns: Waits::from(&group.outcomes.waits),
                name: group.name,
            });
        }
        report
    }

    fn level_report(&self, index: usize, controller: &Controller) -> LevelReport {
        let level = &self.levels[index];
        let name = controller.name(level.id).to_owned();
        let mut flows: Vec<&NamedFlow> = self
            .flows
            .iter()
            .filter(|flow| flow.level == index)
            .collect();
        let shares = flows.iter().map(|named| named.flow.seat_time as f64);
        let fairness = Fairness {
            flows: flows.len() as u64,
            jain_seat_seconds: jain_index(shares),
            jain_seats: level.evenness.jain_index(),
        };
        flows.sort_by_key(|named| Reverse(named.flow.seat_time));
        flows.truncate(TOP_FLOWS);
        let flow_report = |named: &&NamedFlow| FlowReport {
            name: named.name.clone(),
            executions: named.flow.executions,
            rejections: named.flow.rejections,
            seat_seconds: named.flow.seat_time as f64 / 1e9,
            max_wait_ns: named.flow.max_wait,
        };
        LevelReport {
            name,
            executions: level.outcomes.executions,
            rejections: level.outcomes.rejections,
            wait_ns: Waits::from(&level.outcomes.waits),
            max_seats_in_use: level.max_seats,
            fairness,
            seats: level.samples.samples.iter().map(Into::into).collect(),
            top_flows: flows.iter().map(flow_report).collect(),
        }
    }
}
