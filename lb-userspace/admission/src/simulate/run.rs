//! Runs a simulation, event by event, until nothing more can happen.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    Request, Settings,
    connections::{Connections, Executing},
    recorder::Recorder,
    report::Report,
};
use crate::{
    controller::{Controller, Event},
    queueset::{Arrival, Expiry, Grant, Rejection, Verdict},
};

/// How long waiting connections may go on waiting when nothing else happens, in nanoseconds:
/// borrowing may still find seats for them.
const PATIENCE: u64 = 60_000_000_000;
/// After so many adjustments of limits with no event between them, further ones are skipped until
/// the next event. So a connection that lasts for years takes no longer to simulate.
const QUIET_ADJUSTMENTS: u32 = 120;

/// A client's thread: one connection after another.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    pub request: Request,
    /// Connections still to be made.
    pub calls: u32,
    /// From the admission of one to the arrival of the next, in nanoseconds.
    pub interval: u64,
}

/// A node's admission and everything that will happen to it.
#[derive(Debug)]
pub struct Simulation {
    pub controller: Controller,
    pub recorder: Recorder,
    settings: Settings,
    threads: Vec<Thread>,
    events: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    connections: Connections,
    now: u64,
    /// Adjustments since the last other event, or since a connection last waited.
    quiet_adjustments: u32,
}

/// Events of the same time happen in the order in which they were scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    at: u64,
    order: u64,
    action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// A thread makes its next connection.
    Call(u32),
    /// By the number of the connection.
    Establish(u32),
    Finish(u32),
}

impl Simulation {
    pub fn new(controller: Controller, settings: Settings, phases: Vec<u64>) -> Self {
        Self {
            controller,
            recorder: Recorder::new(phases),
            settings,
            threads: Vec::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            connections: Connections::default(),
            now: 0,
            quiet_adjustments: 0,
        }
    }

    /// Adds a thread that starts at `start`.
    pub fn add_thread(&mut self, thread: Thread, start: u64) {
        let number = self.threads.len() as u32;
        let request = Request {
            thread: Some(number),
            ..thread.request
        };
        self.threads.push(Thread { request, ..thread });
        self.schedule(start, Action::Call(number));
    }

    /// Lets everything happen that is due by `end`.
    pub fn run_until(&mut self, end: u64) {
        loop {
            let scheduled = self
                .events
                .peek()
                .map_or(u64::MAX, |Reverse(event)| event.at);
            if scheduled.min(self.controller.next_event()) > end {
                return;
            }
            self.step(end);
        }
    }

    /// Lets everything happen until nothing is left, and returns the report.
    pub fn finish(mut self) -> Report {
        let mut last = self.now;
        loop {
            let quiet = self.events.is_empty() && !self.controller.has_timers();
            if quiet && (!self.anybody_waits() || self.now > last.saturating_add(PATIENCE)) {
                break;
            }
            let executions = self.recorder.executions();
            self.step(u64::MAX);
            if !quiet || self.recorder.executions() > executions {
                last = self.now;
            }
        }
        self.recorder.report(&self.controller, last)
    }

    /// A connection asks for seats.
    pub fn arrive(&mut self, request: Request, now: u64) {
        self.advance(now);
        self.quiet_adjustments = 0;
        self.recorder.arrive(&request, now);
        let wait = request.wait.or(self.settings.queue_wait);
        let arrival = Arrival {
            deadline: wait.map(|wait| now.saturating_add(wait)),
            ..request.arrival
        };
        match self.controller.arrive(request.level, arrival, now) {
            Verdict::Rejected(rejection) => self.reject(&request, rejection, now),
            Verdict::Queued(handle) => self.connections.wait(handle, request, now),
            Verdict::Admitted(grant) => self.admit(request, grant, now, now),
        }
        self.dispatch(now);
    }

    fn anybody_waits(&self) -> bool {
        let mut levels = self.controller.levels();
        levels.any(|(_, level)| level.waiting() > 0)
    }

    /// Lets the next event happen; timers come before other events of the same time. No connection
    /// arrives before `end`.
    fn step(&mut self, end: u64) {
        let scheduled = self
            .events
            .peek()
            .map_or(u64::MAX, |Reverse(event)| event.at);
        let due = self.controller.next_event();
        if due <= scheduled {
            self.advance(due);
            if let Some((at, event)) = self.controller.fire(due) {
                self.note(event, at);
                self.dispatch(at);
                self.skip_quiet_time(event, scheduled.min(end));
            }
        } else if let Some(Reverse(event)) = self.events.pop() {
            self.advance(event.at);
            self.quiet_adjustments = 0;
            self.act(event.action, event.at);
            self.dispatch(event.at);
        }
    }

    fn skip_quiet_time(&mut self, event: Event, until: u64) {
        self.quiet_adjustments = match event {
            Event::Adjusted if !self.anybody_waits() => self.quiet_adjustments + 1,
            Event::Adjusted | Event::Expiry(..) => 0,
        };
        if self.quiet_adjustments >= QUIET_ADJUSTMENTS {
            self.controller.skip_adjustments(until);
        }
    }

    fn advance(&mut self, now: u64) {
        if now > self.now {
            self.recorder.advance(&self.controller, now);
            self.now = now;
        }
    }

    fn note(&mut self, event: Event, now: u64) {
        if let Event::Expiry(level, Expiry::TimedOut(handle)) = event
            && let Some((request, _)) = self.connections.wait_no_more(level, handle)
        {
            self.reject(&request, Rejection::TimeOut, now);
        }
    }

    fn act(&mut self, action: Action, now: u64) {
        match action {
            Action::Call(number) => {
                let thread = &mut self.threads[number as usize];
                if thread.calls > 0 {
                    thread.calls -= 1;
                    let request = thread.request;
                    self.arrive(request, now);
                }
            }
            Action::Establish(number) => {
                if let Some(known) = self.connections.executing(number) {
                    let level = known.request.level;
                    self.controller.establish(level, &mut known.grant, now);
                }
            }
            Action::Finish(number) => {
                if let Some(known) = self.connections.end(number) {
                    self.controller
                        .finish(known.request.level, known.grant, now);
                    self.recorder.finish(&known.request, known.since, now);
                }
            }
        }
    }

    /// Admits all connections that can be admitted.
    fn dispatch(&mut self, now: u64) {
        while let Some((level, dispatch)) = self.controller.dispatch(now) {
            let known = self.connections.wait_no_more(level, dispatch.connection);
            match known {
                Some((request, since)) => self.admit(request, dispatch.grant, since, now),
                // Never happens: whoever waits has been noted.
                None => self.controller.abort(level, dispatch.grant, now),
            }
        }
        self.recorder.note_seats(&self.controller);
    }

    fn admit(&mut self, request: Request, mut grant: Grant, arrived_at: u64, now: u64) {
        self.recorder.admit(&request, now - arrived_at, now);
        if let Some(number) = request.thread {
            let Thread {
                calls, interval, ..
            } = self.threads[number as usize];
            if calls > 0 {
                self.schedule(now.saturating_add(interval), Action::Call(number));
            }
        }
        if request.handshake == 0 {
            self.controller.establish(request.level, &mut grant, now);
        }
        let number = self.connections.execute(Executing {
            request,
            grant,
            since: now,
        });
        if (1..request.hold).contains(&request.handshake) {
            let at = now.saturating_add(request.handshake);
            self.schedule(at, Action::Establish(number));
        }
        self.schedule(now.saturating_add(request.hold), Action::Finish(number));
    }

    fn reject(&mut self, request: &Request, rejection: Rejection, now: u64) {
        self.recorder.reject(request, rejection, now);
        if let Some(number) = request.thread {
            self.threads[number as usize].calls = 0;
        }
    }

    fn schedule(&mut self, at: u64, action: Action) {
        self.scheduled += 1;
        self.events.push(Reverse(Scheduled {
            at,
            order: self.scheduled,
            action,
        }));
    }
}
