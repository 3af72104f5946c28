//! The load, and what it shows.

use std::{
    fmt, process, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lb_tests::{Load, LoadReport, Request, traffic::RunningLoad};

use super::ground::Ground;
use crate::{
    cluster::usage::cgroup_cpu_time,
    machine::{Ticks, cpu_time},
    options::Options,
};

/// The most noisy clients.
pub const MOST_NOISY: u8 = 4;
/// How long the endpoint holds each connection of a noisy client until it answers.
pub const HOLD: Duration = Duration::from_millis(200);
/// The quiet client's pause between two connections.
pub const PAUSE: Duration = Duration::from_millis(5);
/// How long clients wait after a failure before they connect again.
pub const BACK_OFF: Duration = Duration::from_millis(100);
/// When clients give up.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// By then noisy clients have all that they can get.
const FILL: Duration = Duration::from_secs(1);

/// What noisy clients want.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Demand {
    /// Clients with an address each.
    pub clients: u8,
    /// Connections that each of them always has, or tries to have.
    pub connections: u16,
}

impl Demand {
    /// A little more than the endpoint takes, much more, and the same from several addresses.
    pub const ALL: [Self; 3] = [
        Self::new(1, 140),
        Self::new(1, 400),
        Self::new(MOST_NOISY, 100),
    ];

    const fn new(clients: u8, connections: u16) -> Self {
        Self {
            clients,
            connections,
        }
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            clients,
            connections,
        } = self;
        write!(f, "{clients} noisy × {connections}")
    }
}

/// The size of a sample.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// How long the quiet client connects, at least.
    pub time: Duration,
    /// How many of its connections get a result, at least.
    pub connections: u64,
}

impl Extent {
    /// As the command line says.
    pub fn of(options: &Options) -> Self {
        let (seconds, connections) = if options.quick { (2, 10) } else { (10, 100) };
        Self {
            time: Duration::from_secs(seconds),
            connections,
        }
    }
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Sample {
    pub quiet: LoadReport,
    pub noisy: Rates,
    /// CPU time for each connection with an answer.
    pub cpu: CpuTime,
    /// Whether the endpoint sees the client's own address.
    pub keeps_address: bool,
}

/// CPU time, in programs and in the kernel.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    /// Of the whole machine, so with everything else that runs there.
    pub machine: Duration,
    /// Of the clients, the endpoint and the balancer's processes. Where the kernel counts interrupts
    /// by themselves (`CONFIG_IRQ_TIME_ACCOUNTING`), its work for packets is not in it.
    pub lab: Duration,
    /// Of the balancer's processes alone.
    pub balancer: Duration,
}

impl CpuTime {
    /// Until now.
    fn now(ground: &Ground) -> Result<Self> {
        let balancer = cgroup_cpu_time(ground.node().cgroup())?;
        Ok(Self {
            machine: Ticks::now()?.busy,
            // Clients and endpoint are threads of this process.
            lab: cpu_time(process::id())? + balancer,
            balancer,
        })
    }

    /// The time since `before`, divided among connections.
    fn since(self, before: Self, connections: u32) -> Self {
        Self {
            machine: (self.machine - before.machine) / connections,
            lab: (self.lab - before.lab) / connections,
            balancer: (self.balancer - before.balancer) / connections,
        }
    }
}

/// Noisy connections per second.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub answered: f64,
    pub failed: f64,
}

/// Loads a set-up.
///
/// # Errors
///
/// If the endpoint does not answer before, or nobody during the load.
pub fn measure(ground: &Ground, demand: Demand, extent: Extent) -> Result<Sample> {
    let request = Request::tcp(ground.target()).deadline(DEADLINE);
    let reply = request.send(ground.quiet());
    let reply = reply.context("the endpoint does not answer its first client")?;

    let (since, before) = (Instant::now(), CpuTime::now(ground)?);
    let hosts = ground.noisy().iter().take(demand.clients.into());
    let noisy = Load::new(request.held_for(HOLD)).pause_after_failure(BACK_OFF);
    let noisy = noisy.workers(demand.connections.into());
    let noisy = hosts.map(|host| noisy.start(host));
    let noisy = noisy.collect::<Result<Vec<_>>>()?;
    thread::sleep(FILL);
    let quiet = Load::new(request).workers(1).pause(PAUSE);
    let quiet = quiet
        .pause_after_failure(BACK_OFF)
        .at_least(extent.connections);
    let quiet = quiet.run_for(extent.time, ground.quiet())?;
    let noisy = stop(noisy)?;
    let elapsed = since.elapsed().as_secs_f64();

    let answered: u64 = noisy.iter().map(|load| load.ok).sum();
    let failed: u64 = noisy.iter().map(|load| load.failed).sum();
    let connections = u32::try_from(answered + quiet.ok)?;
    ensure!(connections > 0, "nobody got an answer: {quiet}");
    Ok(Sample {
        cpu: CpuTime::now(ground)?.since(before, connections),
        noisy: Rates {
            answered: answered as f64 / elapsed,
            failed: failed as f64 / elapsed,
        },
        keeps_address: reply.peer.ip() == reply.source.ip(),
        quiet,
    })
}

/// Ends all loads at the same time.
///
/// # Errors
///
/// If one has ended before.
pub fn stop(loads: Vec<RunningLoad>) -> Result<Vec<LoadReport>> {
    thread::scope(|scope| {
        let stop = |load: RunningLoad| scope.spawn(|| load.stop());
        let stopping: Vec<_> = loads.into_iter().map(stop).collect();
        let stopped = stopping.into_iter();
        let stopped = stopped.map(|load| load.join().expect("stopping does not panic"));
        stopped.collect()
    })
}
