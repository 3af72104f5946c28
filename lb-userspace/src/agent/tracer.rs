//! Traces of live packets, one at a time: programs that log take the place of the others on all
//! devices and sockets, as programs of another flow-table size do, and give it back at the end.

use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use lb_common::trace::{FILTER_SERVICES, Filter};
use lb_datapath::{
    Tracing,
    trace::{Lines, TraceError, now},
};
use tokio::{
    sync::mpsc::Sender,
    task::{JoinError, JoinHandle},
    time::{Instant, interval, sleep_until},
};

use super::{
    Agent,
    local_api::trace::{Refusal, TraceRequest},
};
use crate::trace::{Ask, Assembler, Ended, Event, Names, ServiceRef};

/// How often lines are read. The ring has room for all of a trace.
const LOOK: Duration = Duration::from_millis(20);
/// How long lines of the last packet may be on their way.
const LATE: Duration = Duration::from_millis(500);

/// The trace under way, if there is one.
#[derive(Default)]
pub struct Tracer(State);

#[derive(Default)]
enum State {
    #[default]
    Idle,
    Loading(Box<TraceRequest>, Loading),
    Running(Box<Running>),
}

type Loading = JoinHandle<Result<(Tracing, Lines), TraceError>>;

struct Running {
    ask: Ask,
    tracing: Arc<Tracing>,
    events: Sender<Event>,
    reader: JoinHandle<Reader>,
}

/// What has happened to a trace.
pub enum Step {
    Loaded(Result<Result<(Tracing, Lines), TraceError>, JoinError>),
    /// It is to end.
    Over(Result<Reader, JoinError>),
}

/// Makes packets of what programs log, and tells them.
pub struct Reader {
    lines: Lines,
    assembler: Assembler,
    events: Sender<Event>,
    tracing: Arc<Tracing>,
    limit: u32,
    read: u64,
    told: u64,
    /// Why the trace is over.
    reason: &'static str,
}

impl Tracer {
    /// What is traced, for people.
    pub fn running(&self) -> Option<String> {
        match &self.0 {
            State::Idle => None,
            State::Loading(request, _) => Some(format!("begins: {}", request.ask.to_query())),
            State::Running(running) => Some(format!("runs: {}", running.ask.to_query())),
        }
    }

    /// The next step, which is to be given to [`Agent::trace_step`]. Never, without a trace.
    pub async fn next(&mut self) -> Step {
        match &mut self.0 {
            State::Idle => std::future::pending().await,
            State::Loading(_, loading) => Step::Loaded(loading.await),
            State::Running(running) => Step::Over((&mut running.reader).await),
        }
    }
}

impl Agent {
    /// Begins a trace, unless there is one.
    pub(super) fn trace_asked(&mut self, request: TraceRequest) {
        if !matches!(self.tracer.0, State::Idle) {
            // Who does not wait any more needs no answer; so it is below.
            let _ = request.started.send(Err(Refusal::Busy));
            return;
        }
        // The programs that trace find the maps by their pins, and would make others.
        self.look_after_pins();
        if let Some(problem) = &self.unpinned {
            let _ = request.started.send(Err(Refusal::Failed(problem.clone())));
            return;
        }
        self.metrics.trace_running.set(1);
        tracing::info!(asked = request.ask.to_query(), "traces packets");
        self.tracer.0 = State::Loading(Box::new(request), self.kernel.load_tracing());
    }

    /// Goes on with a trace.
    pub(super) fn trace_step(&mut self, step: Step) {
        match step {
            Step::Loaded(loaded) => {
                let State::Loading(request, _) = mem::take(&mut self.tracer.0) else {
                    return;
                };
                self.start_trace(*request, loaded);
            }
            Step::Over(reader) => {
                let State::Running(running) = mem::take(&mut self.tracer.0) else {
                    return;
                };
                self.finish_trace(&running);
                match reader {
                    Ok(mut reader) => reader.finish(),
                    Err(error) => tracing::error!("the reader of a trace has ended: {error}"),
                }
            }
        }
        if matches!(self.tracer.0, State::Idle) {
            self.metrics.trace_running.set(0);
        }
    }

    /// Ends the trace that there is, at once.
    pub(super) fn end_trace(&mut self, why: &str) {
        if let State::Running(running) = mem::take(&mut self.tracer.0) {
            running.reader.abort();
            self.finish_trace(&running);
            let so_far = running.tracing.so_far();
            // The client may be gone.
            let _ = running.events.try_send(Event::Ended(Ended {
                reason: why.to_owned(),
                seen: so_far.seen,
                packets: so_far.taken.into(),
                lost_lines: 0,
            }));
        }
    }

    fn start_trace(
        &mut self,
        request: TraceRequest,
        loaded: Result<Result<(Tracing, Lines), TraceError>, JoinError>,
    ) {
        let TraceRequest {
            ask,
            events,
            started,
        } = request;
        let failed = |error: String| {
            tracing::warn!("packets cannot be traced: {error}");
            Err(Refusal::Failed(format!(
                "packets cannot be traced: {error}"
            )))
        };
        let (tracing, lines) = match loaded {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(error)) => return drop(started.send(failed(error.to_string()))),
            Err(error) => return drop(started.send(failed(error.to_string()))),
        };
        let filter = match self.filter(&ask) {
            Ok(filter) => filter,
            Err(error) => return drop(started.send(Err(Refusal::Bad(error)))),
        };
        let tracing = Arc::new(tracing);
        self.kernel.set_tracing(Some(tracing.clone()));
        let untraced = self.exchange_programs();
        let assembler = Assembler::new(self.names(), now());
        tracing.begin(filter, ask.limit, ask.duration);
        let _ = started.send(Ok(()));
        let _ = events.try_send(Event::Started { untraced });
        let reader = Reader {
            lines,
            assembler,
            events: events.clone(),
            tracing: tracing.clone(),
            limit: ask.limit,
            read: 0,
            told: 0,
            reason: "",
        };
        let until = Instant::now() + ask.duration;
        self.tracer.0 = State::Running(Box::new(Running {
            ask,
            tracing,
            events,
            reader: tokio::spawn(reader.run(until)),
        }));
    }

    /// Puts the ordinary programs back.
    fn finish_trace(&mut self, running: &Running) {
        running.tracing.end();
        self.kernel.set_tracing(None);
        match self.exchange_programs() {
            None => tracing::info!("the trace is over; all devices have their programs again"),
            Some(device) => tracing::warn!(
                device,
                "the trace is over, and programs that cost packets time are still attached; \
                 restart the agent to try again"
            ),
        }
    }

    /// Attaches the programs that are due now. Returns what has kept others.
    fn exchange_programs(&mut self) -> Option<String> {
        let devices = self.watcher.devices();
        let exchanged = self.attachments.renew(&mut self.kernel, devices);
        if let Err(error) = exchanged.and_then(|()| self.attach_to_sockets()) {
            return Some(format!("{error:#}"));
        }
        self.attachments.failed()
    }

    /// The filter for what is asked.
    fn filter(&mut self, ask: &Ask) -> Result<Filter, String> {
        let mut filter = ask.filter();
        let Some(service) = &ask.service else {
            return Ok(filter);
        };
        let ids = self.service_ids(service);
        if ids.is_empty() {
            return Err(format!("service: this node has no Service port {service}"));
        }
        if ids.len() > FILTER_SERVICES {
            return Err(format!(
                "service: {service} has {} ports, of both families, which is more than \
                 {FILTER_SERVICES}; name one, as {}:http",
                ids.len(),
                service.service
            ));
        }
        filter.services[..ids.len()].copy_from_slice(&ids);
        Ok(filter)
    }

    fn service_ids(&mut self, service: &ServiceRef) -> Vec<u32> {
        let ids = self.syncer.writer().ids();
        let named = ids.filter(|(key, _)| {
            let port = service.port.as_ref();
            key.name.service == service.service && port.is_none_or(|port| **port == *key.name.port)
        });
        named.map(|(_, id)| id).collect()
    }

    fn names(&mut self) -> Names {
        let devices = self.watcher.devices().iter();
        let schemas = self.syncer.writer().numbered().known();
        let schemas = schemas.schemas.iter();
        let schemas = schemas.flat_map(|known| {
            let names = (known.name.clone(), known.level.clone());
            known.numbers().map(move |number| (number, names.clone()))
        });
        let schemas = schemas.collect();
        let services = self.syncer.writer().ids();
        Names {
            schemas,
            devices: devices
                .map(|device| (device.index, device.name.clone()))
                .collect(),
            services: services
                .map(|(key, id)| (id, key.name.to_string()))
                .collect::<HashMap<_, _>>(),
        }
    }
}

impl Reader {
    /// Reads until the trace is over.
    async fn run(mut self, until: Instant) -> Self {
        let mut look = interval(LOOK);
        let mut told_at = Instant::now();
        let mut full_since = None;
        loop {
            let events = self.events.clone();
            tokio::select! {
                () = events.closed() => {
                    self.reason = "the client is gone";
                    return self;
                }
                () = sleep_until(until) => {
                    self.reason = "the time is over";
                    return self;
                }
                _ = look.tick() => {}
            }
            if self.read() {
                told_at = Instant::now();
            }
            let so_far = self.tracing.so_far();
            if so_far.taken >= self.limit {
                let since = *full_since.get_or_insert_with(Instant::now);
                if self.told >= self.limit.into() || since.elapsed() >= LATE {
                    self.reason = "as many packets as asked for";
                    return self;
                }
            }
            if told_at.elapsed() >= Duration::from_secs(1) {
                told_at = Instant::now();
                // That the client is gone is noticed above.
                let _ = self.events.try_send(Event::Idle);
            }
        }
    }

    /// Tells the packets whose lines are there; whether there were some.
    fn read(&mut self) -> bool {
        let lines = self.lines.read();
        self.read += lines.len() as u64;
        let before = self.told;
        for line in lines {
            if let Some(packet) = self.assembler.take(&line) {
                self.told += 1;
                let _ = self.events.try_send(Event::Packet(Box::new(packet)));
            }
        }
        self.told != before
    }

    /// Tells what is left, and what it has come to: once no program logs any more.
    fn finish(&mut self) {
        self.read();
        for packet in self.assembler.rest() {
            self.told += 1;
            let _ = self.events.try_send(Event::Packet(Box::new(packet)));
        }
        let so_far = self.tracing.so_far();
        let _ = self.events.try_send(Event::Ended(Ended {
            reason: self.reason.to_owned(),
            seen: so_far.seen,
            packets: self.told,
            lost_lines: so_far.lines.saturating_sub(self.read),
        }));
    }
}
