//! What memory the agent takes of its own in large clusters.
//!
//! The objects come from an API server in this process, as they do in a cluster: manifests would
//! have the agent remember files too.

mod objects;
mod server;

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{AgentSource, Balanced, Lab, Topology};
use serde_json::json;

use self::server::ApiServer;
use crate::{
    cluster::{
        agent,
        usage::{self, Memory},
    },
    machine::cpu_time,
    options::Options,
    report::Findings,
    statistics::mebibytes,
    table::Table,
};

/// Services, and what each of them has.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub services: u32,
    /// 1 for IPv4 alone, 2 for both.
    pub families: u32,
    pub ports: u16,
    /// In each family.
    pub endpoints: u32,
}

/// Large clusters. The first one is about service ports, the last one about endpoints.
const EXTENTS: [Extent; 3] = [
    Extent {
        services: 50_000,
        families: 2,
        ports: 2,
        endpoints: 1,
    },
    Extent {
        services: 50_000,
        families: 2,
        ports: 2,
        endpoints: 5,
    },
    Extent {
        services: 5_000,
        families: 1,
        ports: 3,
        endpoints: 50,
    },
];
/// By how much a rough check has fewer Services.
const QUICK: u32 = 50;

/// Tables in which each of them has room (docs/configuration.md).
const TABLES: [&str; 3] = [
    "--service-port-table-size=262144",
    "--address-table-size=262144",
    "--endpoint-table-size=1048576",
];

/// By then everything that the agent does after a start or a change is over.
const AFTERMATH: Duration = Duration::from_secs(4);
/// How often to look at the agent's memory while it starts.
const POLL: Duration = Duration::from_millis(5);
/// How long all changes may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a start, and a change of all endpoints, took.
#[derive(Clone, Copy, Debug)]
struct Sample {
    extent: Extent,
    /// Until everything was programmed.
    wall: Duration,
    cpu: Duration,
    /// The most memory of its own in this time.
    peak: u64,
    rest: Memory,
    /// The most, and at rest, from the moment when every EndpointSlice changed.
    changed_peak: u64,
    changed: Memory,
}

/// Starts an agent in each cluster.
///
/// # Errors
///
/// Without root, or if a lab cannot be built or not everything is programmed.
pub fn run(options: &Options) -> Result<Findings> {
    let extents = EXTENTS.map(|extent| match options.quick {
        true => Extent {
            services: extent.services / QUICK,
            ..extent
        },
        false => extent,
    });
    let mut samples = Vec::new();
    for extent in extents {
        samples.push(measure(extent)?);
        eprintln!("memory: {} services done", extent.services);
    }
    let json = samples.iter().map(Sample::json);
    Ok(Findings {
        key: "memory",
        json: json.collect(),
        tables: vec![table(&samples)],
        plots: Vec::new(),
    })
}

fn measure(extent: Extent) -> Result<Sample> {
    let lab = Lab::up(Topology {
        nodes: 1,
        pods_per_node: 1,
        ..Topology::default()
    })?;
    let node = lab.node(1);
    let server = ApiServer::start(node, extent)?;
    let kubeconfig = node.dir.join("bench.kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig())
        .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
    let source = AgentSource::ApiServer { kubeconfig };
    let mut balanced = Balanced::without_agents(lab, source, &TABLES);

    let since = Instant::now();
    balanced.launch_agents()?;
    let pid = agent::of(&balanced)?.pid();
    let (started, peak) = watched(pid, || balanced.wait_until_ready())?;
    started?;
    let (wall, cpu) = (since.elapsed(), cpu_time(pid)?);
    thread::sleep(AFTERMATH);
    let rest = usage::memory(pid)?;
    let programmed = agent::metric(&balanced, "node_lb_services{state=\"programmed\"}")?;
    ensure!(
        programmed == f64::from(extent.services),
        "node-lb has {programmed} of {} services",
        extent.services
    );

    let (changed, changed_peak) = watched(pid, || change_all(&balanced, &server, extent))?;
    changed?;
    let changed = usage::memory(pid)?;
    let Balanced { agents, lab, .. } = balanced;
    drop(agents);
    lab.down()?;
    Ok(Sample {
        extent,
        wall,
        cpu,
        peak,
        rest,
        changed_peak,
        changed,
    })
}

/// Changes every EndpointSlice, and waits until the agent is at rest again.
fn change_all(balanced: &Balanced, server: &ApiServer, extent: Extent) -> Result<()> {
    let changes = || {
        agent::metric(
            balanced,
            "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        )
    };
    let wanted = changes()? + f64::from(extent.services * extent.families);
    let since = Instant::now();
    server.change();
    while changes()? < wanted {
        ensure!(
            since.elapsed() < PATIENCE,
            "the agent has not seen all changes after {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(AFTERMATH);
    Ok(())
}

/// Does something while it looks at the own memory of a process; the most there was.
fn watched<T>(pid: u32, work: impl FnOnce() -> T) -> Result<(T, u64)> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                // It may have ended: who waits for it says so.
                most = most.max(usage::memory(pid).map_or(0, |memory| memory.own));
                thread::sleep(POLL);
            }
            most
        });
        let outcome = work();
        done.store(true, Ordering::Relaxed);
        let most = watch.join().ok().context("the watch panicked")?;
        Ok((outcome, most))
    })
}

impl Extent {
    /// Service ports in the maps.
    fn service_ports(self) -> u32 {
        self.services * self.families * u32::from(self.ports)
    }

    /// Entries for endpoints in the maps.
    fn all_endpoints(self) -> u32 {
        self.service_ports() * self.endpoints
    }
}

impl Sample {
    fn json(&self) -> serde_json::Value {
        let extent = self.extent;
        json!({
            "services": extent.services,
            "families": extent.families,
            "ports": extent.ports,
            "endpoints": extent.endpoints,
            "wall_s": self.wall.as_secs_f64(),
            "cpu_s": self.cpu.as_secs_f64(),
            "own_peak_mib": mebibytes(self.peak),
            "own_mib": mebibytes(self.rest.own),
            "resident_mib": mebibytes(self.rest.resident),
            "changed_own_peak_mib": mebibytes(self.changed_peak),
            "changed_own_mib": mebibytes(self.changed.own),
        })
    }
}

fn table(samples: &[Sample]) -> Table {
    let columns = [
        "services",
        "families",
        "ports",
        "endpoints",
        "service ports",
        "entries of endpoints",
        "wall s",
        "CPU s",
        "own MiB, most",
        "own MiB",
        "resident MiB",
        "own MiB, most, all slices changed",
        "own MiB after that",
    ];
    let mut table = Table::new("The agent's memory in large clusters", 0, &columns);
    for sample in samples {
        let extent = sample.extent;
        let bytes = |bytes| format!("{:.1}", mebibytes(bytes));
        table.add(vec![
            extent.services.to_string(),
            extent.families.to_string(),
            extent.ports.to_string(),
            extent.endpoints.to_string(),
            extent.service_ports().to_string(),
            extent.all_endpoints().to_string(),
            format!("{:.2}", sample.wall.as_secs_f64()),
            format!("{:.2}", sample.cpu.as_secs_f64()),
            bytes(sample.peak),
            bytes(sample.rest.own),
            bytes(sample.rest.resident),
            bytes(sample.changed_peak),
            bytes(sample.changed.own),
        ]);
    }
    table
}
