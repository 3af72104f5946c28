//! The samples from the lab, and the report about them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{Cpus, idle::Begun};
use crate::{
    cluster::{Cluster, Proxy, agent},
    plot::{Line, Lines, Plot},
    report::Findings,
    statistics::Figures,
    table::Table,
};

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    Connections,
    P50,
    P99,
    Datagrams,
    Lost,
    Stream,
}

impl Metric {
    const ALL: [Self; 6] = [
        Self::Connections,
        Self::P50,
        Self::P99,
        Self::Datagrams,
        Self::Lost,
        Self::Stream,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connect+close per second",
            Self::P50 => "connect p50, µs",
            Self::P99 => "connect p99, µs",
            Self::Datagrams => "UDP packets, 1,000 per second",
            Self::Lost => "UDP packets lost, %",
            Self::Stream => "TCP, Gbit/s",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Connections => "connections_per_second",
            Self::P50 => "connect_p50_us",
            Self::P99 => "connect_p99_us",
            Self::Datagrams => "udp_kpps",
            Self::Lost => "udp_lost_percent",
            Self::Stream => "tcp_gbit_per_second",
        }
    }

    fn decimals(self) -> usize {
        match self {
            Self::Connections | Self::Datagrams => 0,
            Self::P50 | Self::P99 | Self::Lost => 1,
            Self::Stream => 2,
        }
    }
}

/// A proxy and its number of services. The number does not matter for plain routing, where it is 0.
type Subject = (Proxy, u32);

const ROUTING: Subject = (Proxy::Routing, 0);

/// Values that were measured together.
pub type Sample = Vec<(Metric, f64)>;

/// All samples of a run.
pub struct LabReport {
    cpus: Cpus,
    /// How XDP is attached for node-lb.
    xdp_mode: &'static str,
    subjects: Vec<Subject>,
    samples: BTreeMap<(Metric, Subject), Vec<f64>>,
    /// Ratios to plain routing, measured right before.
    ratios: BTreeMap<(Metric, Subject), Vec<f64>>,
    /// Whether the machine was idle before the samples.
    pub begun: Begun,
}

impl LabReport {
    /// A report without samples.
    ///
    /// # Errors
    ///
    /// If an agent does not report how it is attached.
    pub fn new(clusters: &[Cluster], cpus: Cpus) -> Result<Self> {
        let balanced = clusters.iter().find_map(Cluster::balanced);
        let subjects = clusters.iter().map(|of| (of.proxy, of.services));
        let mut subjects: Vec<_> = subjects.chain([ROUTING]).collect();
        subjects.sort_unstable();
        Ok(Self {
            cpus,
            xdp_mode: agent::xdp_mode(balanced.context("no lab has node-lb")?)?,
            subjects,
            samples: BTreeMap::new(),
            ratios: BTreeMap::new(),
            begun: Begun::default(),
        })
    }

    /// Adds a sample, and that of plain routing before it.
    pub fn add(&mut self, cluster: &Cluster, sample: &Sample, routed: &Sample) {
        let subject = (cluster.proxy, cluster.services);
        for ((metric, value), (_, routed)) in sample.iter().zip(routed) {
            self.samples
                .entry((*metric, subject))
                .or_default()
                .push(*value);
            self.samples
                .entry((*metric, ROUTING))
                .or_default()
                .push(*routed);
            if *metric != Metric::Lost {
                self.ratios
                    .entry((*metric, subject))
                    .or_default()
                    .push(value / routed);
            }
        }
    }

    /// The results, for tables and plots.
    pub fn findings(&self) -> Findings {
        let Cpus { client, server } = self.cpus;
        Findings {
            key: "lab",
            tables: vec![self.table()],
            json: json!({
                "cpus": { "client": client, "server": server },
                "xdp_mode": self.xdp_mode,
                "busy_samples": self.begun.busy,
                "figures": self.json(),
            }),
            plots: vec![self.latencies()],
        }
    }

    fn table(&self) -> Table {
        let columns = [
            "figure",
            "through",
            "services",
            "median",
            "[min..max]",
            "x plain routing",
            "[min..max]",
        ];
        let mut table = Table::new("Between network namespaces", 2, &columns);
        table.notes = vec![
            format!(
                "client and forwarding on CPU {}, server on CPU {}; node-lb attached by XDP in mode {}",
                self.cpus.client, self.cpus.server, self.xdp_mode
            ),
            self.begun.note(),
        ];
        for metric in Metric::ALL {
            for subject in &self.subjects {
                table.add(self.row(metric, *subject));
            }
        }
        table
    }

    fn row(&self, metric: Metric, subject @ (proxy, services): Subject) -> Vec<String> {
        let decimals = metric.decimals();
        let services = match proxy {
            Proxy::Routing => String::new(),
            _ => services.to_string(),
        };
        let mut row = vec![metric.name().to_owned(), proxy.name().to_owned(), services];
        for (figures, decimals) in [
            (self.figures(metric, subject), decimals),
            (self.ratio(metric, subject), 2),
        ] {
            row.extend(match figures {
                Some(figures) => [
                    format!("{:.decimals$}", figures.median),
                    figures.range(decimals),
                ],
                None => [const { String::new() }; 2],
            });
        }
        row
    }

    fn json(&self) -> Vec<Value> {
        let metrics = Metric::ALL.into_iter();
        let all = metrics.flat_map(|metric| self.subjects.iter().map(move |s| (metric, *s)));
        let figure = |(metric, subject): (Metric, Subject)| {
            json!({
                "figure": metric.key(),
                "through": subject.0.name(),
                "services": subject.1,
                "value": self.figures(metric, subject),
                "ratio_to_routing": self.ratio(metric, subject),
            })
        };
        all.map(figure).collect()
    }

    /// A plot of latency by number of services.
    fn latencies(&self) -> Plot {
        let median = |metric, subject| Some(self.figures(metric, subject)?.median);
        let line = |(metric, proxy): (Metric, Proxy)| {
            let subjects = self.subjects.iter().filter(|(of, _)| *of == proxy);
            let points = subjects
                .filter_map(|subject| Some((f64::from(subject.1), median(metric, *subject)?)));
            Line {
                name: format!("{}, {}", proxy.name(), metric.name()),
                points: points.collect(),
            }
        };
        let lines = [
            (Metric::P50, Proxy::NodeLb),
            (Metric::P50, Proxy::Nftables),
            (Metric::P99, Proxy::NodeLb),
            (Metric::P99, Proxy::Nftables),
        ];
        let levels = [Metric::P50, Metric::P99].into_iter().filter_map(|metric| {
            let name = format!("plain routing, {}", metric.name());
            Some((name, median(metric, ROUTING)?))
        });
        Plot::Lines(Lines {
            file: "latency-services.svg",
            title: "setting up a connection",
            axes: ["services", "µs"],
            lines: lines.map(line).into(),
            levels: levels.collect(),
        })
    }

    fn figures(&self, metric: Metric, subject: Subject) -> Option<Figures> {
        Figures::of(self.samples.get(&(metric, subject))?)
    }

    fn ratio(&self, metric: Metric, subject: Subject) -> Option<Figures> {
        Figures::of(self.ratios.get(&(metric, subject))?)
    }
}
