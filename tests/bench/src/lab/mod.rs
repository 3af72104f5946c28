//! Connections and throughput between network namespaces: through node-lb, through nftables rules
//! like kube-proxy's, and only routed, side by side.

mod connections;
mod conntrack;
mod datagrams;
pub mod idle;
mod report;
mod stream;

use std::{thread, time::Duration};

use anyhow::{Context, Result};
use node_lb::config::XdpMode;

use self::report::{LabReport, Metric, Sample};
use crate::{
    cluster::{Cluster, Proxy},
    options::{Options, Part},
    report::Findings,
    statistics::Random,
};

/// The CPUs of a sample.
#[derive(Clone, Copy, Debug)]
struct Cpus {
    /// CPU of the client. It also does the work for all hops up to the pod, because a hop's work is
    /// done on the CPU from which the packet came.
    client: usize,
    /// CPU of the process in the pod.
    server: usize,
}

/// The size of a sample.
#[derive(Clone, Copy, Debug)]
struct Extent {
    connections: u16,
    duration: Duration,
    /// How long to wait for an idle machine.
    patience: Duration,
}

const FULL: Extent = Extent {
    connections: 10_000,
    duration: Duration::from_secs(1),
    patience: Duration::from_secs(2),
};
const QUICK: Extent = Extent {
    connections: 2_000,
    duration: Duration::from_millis(200),
    patience: Duration::from_millis(100),
};

/// Builds a lab for each kind of proxy and number of services, and measures them in rotation.
///
/// # Errors
///
/// Without root, or if a lab cannot be built or a sample is wrong.
pub fn run(options: &Options) -> Result<Findings> {
    let extent = if options.quick { QUICK } else { FULL };
    let cpus = Cpus {
        client: options.cpu(),
        server: neighbour(options.cpu()),
    };
    let (mut routing, mut clusters) = build(&options.services(Part::Lab), options.xdp_mode)?;
    let mut report = LabReport::new(&clusters, cpus)?;
    let mut random = Random::new(1);
    let rounds = options.rounds(Part::Lab);
    for round in 1..=rounds {
        // So each of them has each place in the order.
        clusters.rotate_left(1);
        for kind in Kind::ALL {
            for cluster in &mut clusters {
                let mut take = |cluster: &mut Cluster| {
                    report.begun.count(idle::wait(extent.patience)?);
                    kind.sample(cluster, extent, cpus, &mut random)
                        .with_context(|| describe(cluster))
                };
                // The speed of a machine changes within seconds, so what is compared is measured
                // right after.
                let routed = take(&mut routing)?;
                let sample = take(cluster)?;
                report.add(cluster, &sample, &routed);
                if cluster.proxy == Proxy::Nftables {
                    conntrack::flush(cluster.node().netns())?;
                }
            }
        }
        eprintln!("lab: round {round} of {rounds} done");
    }
    clusters
        .into_iter()
        .chain([routing])
        .try_for_each(Cluster::down)?;
    Ok(report.findings())
}

/// A cluster that only routes, and the clusters to compare with it.
fn build(services: &[u32], xdp_mode: XdpMode) -> Result<(Cluster, Vec<Cluster>)> {
    let build = |(proxy, services): (Proxy, u32)| {
        eprintln!("lab: {} for {services} services", proxy.name());
        Ok(Cluster::build(proxy, services, xdp_mode, &[])?.0)
    };
    let most = services.last().copied().unwrap_or(1);
    let routing = build((Proxy::Routing, most))?;
    let balanced = services
        .iter()
        .flat_map(|services| [Proxy::Nftables, Proxy::NodeLb].map(|proxy| (proxy, *services)));
    Ok((routing, balanced.map(build).collect::<Result<_>>()?))
}

/// What is measured together.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Connections,
    Datagrams,
    Stream,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Connections, Self::Datagrams, Self::Stream];

    fn sample(
        self,
        cluster: &mut Cluster,
        extent: Extent,
        cpus: Cpus,
        random: &mut Random,
    ) -> Result<Sample> {
        Ok(match self {
            Self::Connections => {
                let count = extent.connections;
                let sample = connections::sample(cluster, count, cpus, random)?;
                vec![
                    (Metric::Connections, sample.rate),
                    (Metric::P50, sample.p50),
                    (Metric::P99, sample.p99),
                ]
            }
            Self::Datagrams => {
                let sample = datagrams::sample(cluster, extent.duration, cpus)?;
                vec![
                    (Metric::Datagrams, sample.rate / 1e3),
                    (Metric::Lost, sample.lost * 100.0),
                ]
            }
            Self::Stream => {
                let rate = stream::sample(cluster, extent.duration, cpus)?;
                vec![(Metric::Stream, rate / 1e9)]
            }
        })
    }
}

fn describe(cluster: &Cluster) -> String {
    format!(
        "{} with {} services",
        cluster.proxy.name(),
        cluster.services
    )
}

/// Another CPU, if there is one.
fn neighbour(cpu: usize) -> usize {
    let cpus = thread::available_parallelism().map_or(1, |count| count.get());
    (cpu + 1) % cpus
}
