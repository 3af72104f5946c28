//! A quiet client beside a noisy one: alone, beside a control, and beside the load, again and again.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use lb_tests::{
    Host, Load, LoadReport, Request,
    attack::{Flood, FloodKind, RunningFlood},
    traffic::RunningLoad,
};

use super::{
    ground::{Ground, Response, Tenant},
    sheet::{Column, Sample},
};
use crate::{options::Options, statistics::micros};

/// First packets of connections in a second.
pub const FLOOD: u32 = 50_000;
/// Connections that a noisy client in the quiet one's level always has, or wants.
pub const WANTED: usize = 400;
/// For how long it has each.
pub const HOLD: Duration = Duration::from_millis(200);
/// The quiet client's pause between two connections.
pub const PAUSE: Duration = Duration::from_millis(1);
/// Seats of each level.
pub const SEATS: u32 = 100;

/// The tenants, by their numbers.
const QUIET: usize = 0;
const NOISY: usize = 1;
/// A port of the node that belongs to no Service.
const NOBODYS: u16 = 30_099;
/// When clients give up.
const DEADLINE: Duration = Duration::from_secs(10);
/// By then a load has all that it can get; and so long after it nobody waits any more.
const SETTLE: Duration = Duration::from_millis(1200);

/// What loads the node, and with which tenant the quiet client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// SYNs from one address to a full level that refuses.
    Refused,
    /// SYNs from addresses without number to the same.
    RefusedMany,
    /// SYNs from one address to a full level with queues.
    Queued,
    /// A client in the quiet one's own level, with queues, that wants four times its seats.
    SameLevel,
}

impl Case {
    /// All, in the order of the table.
    pub const ALL: [Self; 4] = [
        Self::Refused,
        Self::RefusedMany,
        Self::Queued,
        Self::SameLevel,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "SYNs from one address to another level, which refuses",
            Self::RefusedMany => "SYNs from many addresses to another level, which refuses",
            Self::Queued => "SYNs from one address to another level, which queues",
            Self::SameLevel => "a busy client in the same level",
        }
    }

    /// Both tenants. The noisy one's level is full, or shared with the quiet client.
    pub fn tenants(self) -> [Tenant; 2] {
        let queue = Response::Queue {
            queues: 64,
            length: 100,
            patience: 4,
            keeps_seats: true,
        };
        let response = match self {
            Self::Refused | Self::RefusedMany => Response::Reject,
            Self::Queued | Self::SameLevel => queue,
        };
        [("quiet", queue), ("noisy", response)].map(|(name, response)| Tenant {
            name,
            seats: SEATS,
            response,
        })
    }

    /// With which tenant the quiet client connects beside the load.
    fn with(self) -> usize {
        match self {
            Self::SameLevel => NOISY,
            _ => QUIET,
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// How often idle, control and load follow each other.
    pub cycles: u32,
    /// How long each is measured.
    pub window: Duration,
}

impl Extent {
    /// As the command line says.
    pub fn of(options: &Options) -> Self {
        let (cycles, seconds) = if options.quick { (2, 1) } else { (6, 2) };
        Self {
            cycles,
            window: Duration::from_secs(seconds),
        }
    }
}

/// The columns of the table.
pub const COLUMNS: &[Column] = &[
    Column::median("idle: connect p50, µs", "idle_p50_us", 0),
    Column::median("p99", "idle_p99_us", 0),
    Column::median("control: p50", "control_p50_us", 0),
    Column::median("p99", "control_p99_us", 0),
    Column::median("load: p50", "load_p50_us", 0),
    Column::median("p99", "load_p99_us", 0),
    Column::median("p99: load / idle", "p99_load_to_idle", 2),
    Column::median("load / control", "p99_load_to_control", 2),
    Column::sum("connections beside the load", "load_connections"),
    Column::sum("failed", "load_failed"),
    Column::sum("SYNs repeated", "load_repeated_syns"),
    Column::sum("the same beside the control", "control_repeated_syns"),
    Column::median("noisy: connections/s", "noisy_per_second", 0),
    Column::median("control's", "control_per_second", 0),
];

/// What the quiet client sees in one cycle.
struct Cycle {
    idle: LoadReport,
    control: LoadReport,
    load: LoadReport,
    /// The noisy one's connections in a second, as node-lb counts them.
    noisy: f64,
    /// The control's: as many were sent.
    control_rate: f64,
}

impl Cycle {
    fn sample(&self) -> Sample {
        let Self {
            idle,
            control,
            load,
            noisy,
            control_rate,
        } = self;
        let p99 = |report: &LoadReport| micros(report.connects.p99);
        let both = |report: &LoadReport| [micros(report.connects.p50), p99(report)];
        let latencies = [both(idle), both(control), both(load)].concat();
        let rest = [
            p99(load) / p99(idle),
            p99(load) / p99(control),
            (load.ok + load.failed) as f64,
            load.failed as f64,
            load.repeated_syns.len() as f64,
            control.repeated_syns.len() as f64,
            *noisy,
            *control_rate,
        ];
        latencies.into_iter().chain(rest).map(Some).collect()
    }
}

/// Measures a case in a lab of its own.
///
/// # Errors
///
/// If the lab cannot be built, if the quiet client fails where nothing loads the node, or the noisy one is
/// not refused.
pub fn measure(case: Case, extent: Extent, xdp: &str) -> Result<Vec<Sample>> {
    let ground = Ground::build(&case.tenants(), 2, &[xdp])?;
    for tenant in [QUIET, NOISY] {
        let request = Request::tcp(ground.target(tenant)).deadline(DEADLINE);
        let reply = request.send(ground.quiet());
        reply.context("an endpoint does not answer its first client")?;
    }
    let node = ground.balanced.lab.node(1);
    node.feed("nft -f -", &drop_nobodys())?;
    let seats = match case {
        Case::SameLevel => Vec::new(),
        // The flood is the first host's.
        _ => ground.take_seats(1, NOISY)?,
    };
    let mut samples = Vec::new();
    for _ in 0..extent.cycles {
        let cycle = cycle(&ground, case, extent.window)?;
        let idle = &cycle.idle;
        ensure!(idle.failed == 0, "connections fail without a load: {idle}");
        samples.push(cycle.sample());
    }
    drop(seats);
    ground.down()?;
    Ok(samples)
}

fn cycle(ground: &Ground, case: Case, window: Duration) -> Result<Cycle> {
    let with = case.with();
    let idle = connect(ground, with, window)?;

    let noise = Noise::start(ground, case, true)?;
    // The busy client is no less busy beside the control: the quiet one is in another level then.
    let control = connect(ground, QUIET, window)?;
    let control_rate = noise.stop()?;
    thread::sleep(SETTLE);

    let (since, before) = (Instant::now(), came(ground)?);
    let noise = Noise::start(ground, case, false)?;
    let load = connect(ground, with, window)?;
    let (elapsed, after) = (since.elapsed().as_secs_f64(), came(ground)?);
    noise.stop()?;
    thread::sleep(SETTLE);
    let of_quiet = if with == NOISY { load.ok } else { 0 };
    Ok(Cycle {
        noisy: (after - before - of_quiet) as f64 / elapsed,
        idle,
        control,
        load,
        control_rate,
    })
}

/// The quiet client.
fn connect(ground: &Ground, tenant: usize, window: Duration) -> Result<LoadReport> {
    let request = Request::tcp(ground.target(tenant)).deadline(DEADLINE);
    let load = Load::new(request).workers(1).pause(PAUSE);
    load.run_for(window, ground.quiet())
}

/// Connections that have come to the noisy one's level so far.
fn came(ground: &Ground) -> Result<u64> {
    let (level, schema) = ground.counts(NOISY)?;
    Ok(schema.admitted + level.refused + level.queue_full + schema.timed_out)
}

/// What loads the node.
enum Noise {
    Flood(RunningFlood),
    Client(RunningLoad),
}

impl Noise {
    fn start(ground: &Ground, case: Case, is_control: bool) -> Result<Self> {
        let host = &ground.noisy()[0];
        let to = match is_control {
            true => ground.at(NOBODYS),
            false => ground.target(NOISY),
        };
        let source = match case {
            Case::SameLevel => return busy(ground.target(NOISY), host).map(Self::Client),
            Case::RefusedMany => None,
            Case::Refused | Case::Queued => Some(host.addresses().v4.into()),
        };
        flood(to, source, host).map(Self::Flood)
    }

    /// Ends it. Returns its connections in a second.
    fn stop(self) -> Result<f64> {
        Ok(match self {
            Self::Flood(flood) => flood.stop()?.rate(),
            Self::Client(load) => load.stop()?.rate(),
        })
    }
}

fn flood(to: SocketAddr, source: Option<IpAddr>, host: &Host) -> Result<RunningFlood> {
    let mut flood = Flood::new(FloodKind::Syn, [to]).rate(FLOOD);
    if let Some(source) = source {
        flood = flood.source(source);
    }
    flood.start(host)
}

/// A client that wants more than its level has. Returns once it has all that it can get.
fn busy(target: SocketAddr, host: &Host) -> Result<RunningLoad> {
    let request = Request::tcp(target).deadline(DEADLINE).held_for(HOLD);
    let load = Load::new(request).workers(WANTED);
    let load = load.pause_after_failure(super::BACK_OFF).start(host)?;
    thread::sleep(SETTLE);
    Ok(load)
}

/// Rules of nftables with which a node drops what goes to a port of its own, after node-lb has let it pass.
fn drop_nobodys() -> String {
    format!(
        "table ip nobodys {{
            chain nobodys {{
                type filter hook prerouting priority raw
                tcp dport {NOBODYS} drop
            }}
        }}"
    )
}
