//! A load generator: requests from many workers, with every failure counted.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};

use super::connection::Connection;
use super::failure::{Failure, FailureKind};
use super::job::{Job, Running};
use super::request::Request;
use crate::lab::Host;

/// A load that is being prepared.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[must_use = "call `start` or `run_for`"]
pub struct Load {
    request: Request,
    workers: usize,
    persistent: bool,
    pause: Duration,
    pause_after_failure: Duration,
    at_least: u64,
    keeps_connects: bool,
}

impl Load {
    /// Four workers that repeat `request`, each time on a new connection.
    pub fn new(request: Request) -> Self {
        Self {
            request,
            workers: 4,
            persistent: false,
            pause: Duration::ZERO,
            pause_after_failure: Duration::ZERO,
            at_least: 0,
            keeps_connects: false,
        }
    }

    /// Sets how many requests are under way at a time.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Uses each connection until the server ends it. If a request finds a used connection ended,
    /// it is repeated on a new one, as every HTTP client does, and counted in
    /// [`LoadReport::reconnects`].
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Makes each worker wait this long between requests.
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Makes each worker wait this much longer after a request that failed, as clients do that back
    /// off.
    pub fn pause_after_failure(mut self, pause: Duration) -> Self {
        self.pause_after_failure = pause;
        self
    }

    /// Goes on until so many requests have results, even if it is told to stop before, so that
    /// statements about a number of requests do not depend on their speed.
    pub fn at_least(mut self, requests: u64) -> Self {
        self.at_least = requests;
        self
    }

    /// Keeps the time of each connection that opens, in [`LoadReport::each_connect`].
    pub fn keep_connects(mut self) -> Self {
        self.keeps_connects = true;
        self
    }

    /// Replaces the deadline of each request.
    pub(super) fn deadline(mut self, deadline: Duration) -> Self {
        self.request = self.request.deadline(deadline);
        self
    }

    /// Starts the load on `host`. When this returns, the first request has a result.
    pub fn start(self, host: impl AsRef<Host>) -> Result<RunningLoad> {
        Ok(RunningLoad(Running::start(host.as_ref(), self)?))
    }

    /// Runs the load on `host` for a time.
    pub fn run_for(self, time: Duration, host: impl AsRef<Host>) -> Result<LoadReport> {
        let load = self.start(host)?;
        thread::sleep(time);
        load.stop()
    }
}

/// A running load.
#[derive(Debug)]
pub struct RunningLoad(Running<Load>);

impl RunningLoad {
    /// Lets current requests finish, and those required by [`Load::at_least`], and returns the
    /// report.
    pub fn stop(self) -> Result<LoadReport> {
        self.0.stop(())
    }
}

/// The results of a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadReport {
    /// Requests with a proper answer.
    pub ok: u64,
    /// Requests without one.
    pub failed: u64,
    /// Connections the server ended between two requests.
    pub reconnects: u64,
    /// When connections opened with a repeated SYN, as time since the Unix epoch: the SYN or its
    /// answer was lost, or a second late. The client notices only the wait.
    pub repeated_syns: Vec<Duration>,
    /// Segments that clients sent again, over all connections of [`Request::tcp`] that opened.
    pub retransmissions: u64,
    /// The first failures, with the time since the start.
    pub failures: Vec<(Duration, Failure)>,
    /// How many answers each server gave.
    pub servers: BTreeMap<String, u64>,
    /// Time that opening connections took, whether or not they were answered.
    pub connects: Latencies,
    /// The same one by one, as they opened, after [`Load::keep_connects`].
    pub each_connect: Vec<Connect>,
    /// Latencies of answered requests, including connecting where that was needed.
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
    /// From the start to the end of the last request.
    pub elapsed: Duration,
}

/// A connection that opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connect {
    /// When it was begun, as time since the Unix epoch.
    pub at: Duration,
    /// How long it took.
    pub took: Duration,
}

/// Median, 99th percentile and maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

impl Latencies {
    /// Of some times in microseconds; zero without any.
    fn of(mut micros: Vec<u32>) -> Self {
        micros.sort_unstable();
        let at = |percent: usize| {
            let index = (micros.len() * percent / 100).min(micros.len().saturating_sub(1));
            Duration::from_micros(micros.get(index).copied().unwrap_or(0).into())
        };
        Self {
            p50: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

impl LoadReport {
    /// Answered requests per second.
    pub fn rate(&self) -> f64 {
        self.ok as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ok,
            failed,
            reconnects,
            repeated_syns,
            retransmissions,
            servers,
            p50,
            p99,
            max,
            ..
        } = self;
        write!(
            f,
            "{ok} ok, {failed} failed, {reconnects} reconnects, {} SYNs repeated, \
             {retransmissions} retransmissions, {:.0}/s",
            repeated_syns.len(),
            self.rate()
        )?;
        write!(
            f,
            ", latency p50 {p50:?} p99 {p99:?} max {max:?}, servers {servers:?}"
        )?;
        for (at, failure) in &self.failures {
            write!(f, "\n  after {at:?}: {failure}")?;
        }
        Ok(())
    }
}

impl Job for Load {
    const NAME: &str = "load";
    type Stop = ();
    type Report = LoadReport;

    async fn run(
        self,
        ready: oneshot::Sender<()>,
        stop: oneshot::Receiver<()>,
    ) -> Result<LoadReport> {
        let tally = Rc::new(Tally::new());
        let (end, ending) = watch::channel(false);
        let workers = LocalSet::new();
        for _ in 0..self.workers {
            workers.spawn_local(work(self, Rc::clone(&tally), ending.clone()));
        }
        workers
            .run_until(async {
                tally.first.notified().await;
                let _ = ready.send(());
                let _ = stop.await;
                end.send_replace(true);
            })
            .await;
        workers.await;
        Ok(tally.report())
    }
}

/// The state that workers share. They take turns on one thread.
struct Tally {
    start: Instant,
    first: Notify,
    report: RefCell<LoadReport>,
    /// In microseconds.
    latencies: RefCell<Vec<u32>>,
    connects: RefCell<Vec<u32>>,
}

impl Tally {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            first: Notify::new(),
            report: RefCell::default(),
            latencies: RefCell::default(),
            connects: RefCell::default(),
        }
    }

    fn results(&self) -> u64 {
        let report = self.report.borrow();
        report.ok + report.failed
    }

    fn count(&self, result: Result<String, Failure>, latency: Duration) {
        let mut report = self.report.borrow_mut();
        match result {
            Ok(server) => {
                report.ok += 1;
                *report.servers.entry(server).or_default() += 1;
                self.latencies.borrow_mut().push(micros(latency));
            }
            Err(failure) => {
                report.failed += 1;
                if report.failures.len() < KEPT_FAILURES {
                    report.failures.push((self.start.elapsed(), failure));
                }
            }
        }
        self.first.notify_one();
    }

    /// Ends a connection, if there is one. Returns whether there was.
    fn end(&self, connection: &mut Option<Connection>) -> bool {
        let Some(ended) = connection.take() else {
            return false;
        };
        self.report.borrow_mut().retransmissions += ended.retransmissions();
        true
    }

    fn report(&self) -> LoadReport {
        let Latencies { p50, p99, max } = Latencies::of(self.latencies.take());
        LoadReport {
            p50,
            p99,
            max,
            connects: Latencies::of(self.connects.take()),
            elapsed: self.start.elapsed(),
            ..self.report.take()
        }
    }
}

const KEPT_FAILURES: usize = 10;

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

async fn work(load: Load, tally: Rc<Tally>, mut ending: watch::Receiver<bool>) {
    let mut connection = None;
    while !*ending.borrow() || tally.results() < load.at_least {
        let start = Instant::now();
        let exchange = ask(&load, &mut connection, &tally);
        let result = match timeout(load.request.deadline, exchange).await {
            Ok(result) => result,
            Err(_) => Err(load.request.too_late()),
        };
        if result.is_err() || !load.persistent {
            tally.end(&mut connection);
        }
        let pause = match result {
            Ok(_) => load.pause,
            Err(_) => load.pause + load.pause_after_failure,
        };
        tally.count(result, start.elapsed());
        if !pause.is_zero() {
            tokio::select! {
                () = sleep(pause) => {}
                _ = ending.wait_for(|ending| *ending) => {}
            }
        }
    }
    tally.end(&mut connection);
}

/// Makes one request, on the present connection or on a new one.
async fn ask(
    load: &Load,
    connection: &mut Option<Connection>,
    tally: &Tally,
) -> Result<String, Failure> {
    if let Some(used) = connection.as_mut().filter(|used| !used.is_closed()) {
        match used.ask(load.request.ask()).await {
            Err(e) if matches!(e.kind, FailureKind::Closed | FailureKind::Reset) => {}
            result => return result.map(|answer| answer.server),
        }
    }
    if tally.end(connection) {
        tally.report.borrow_mut().reconnects += 1;
    }
    let start = Instant::now();
    let fresh = connection.insert(Connection::open(&load.request).await?);
    let took = start.elapsed();
    tally.connects.borrow_mut().push(micros(took));
    let now = UNIX_EPOCH.elapsed().unwrap_or_default();
    if load.keeps_connects {
        let at = now.saturating_sub(took);
        tally
            .report
            .borrow_mut()
            .each_connect
            .push(Connect { at, took });
    }
    if fresh.repeated_syns() > 0 {
        tally.report.borrow_mut().repeated_syns.push(now);
    }
    Ok(fresh.ask(load.request.ask()).await?.server)
}
