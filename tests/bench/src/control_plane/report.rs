//! The measurements of both proxies, and the report about them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{measure::Sample, proxy::Proxy};
use crate::{
    plot::{Bars, Group, Panel, Plot},
    report::Findings,
    statistics::{Figures, mebibytes, millis, quantile},
    table::Table,
};

/// A figure of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Programmed,
    ChangeP50,
    ChangeMax,
    CpuAtRest,
    CpuUnderChurn,
    ChurnRate,
    MemoryAtRest,
    MemoryUnderChurn,
    MostMemory,
    OwnMemory,
}

impl Metric {
    const ALL: [Self; 10] = [
        Self::Programmed,
        Self::ChangeP50,
        Self::ChangeMax,
        Self::CpuAtRest,
        Self::CpuUnderChurn,
        Self::ChurnRate,
        Self::MemoryAtRest,
        Self::MemoryUnderChurn,
        Self::MostMemory,
        Self::OwnMemory,
    ];
    /// The metrics with a panel in the plot.
    const PLOTTED: [Self; 6] = [
        Self::Programmed,
        Self::ChangeP50,
        Self::ChangeMax,
        Self::CpuAtRest,
        Self::CpuUnderChurn,
        Self::MemoryUnderChurn,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Programmed => "all programmed, s",
            Self::ChangeP50 => "one change p50, ms",
            Self::ChangeMax => "one change max, ms",
            Self::CpuAtRest => "CPU at rest, %",
            Self::CpuUnderChurn => "CPU under churn, %",
            Self::ChurnRate => "changes/s",
            Self::MemoryAtRest => "MiB at rest",
            Self::MemoryUnderChurn => "MiB under churn",
            Self::MostMemory => "MiB at most",
            Self::OwnMemory => "own MiB",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Self::Programmed => "programmed_s",
            Self::ChangeP50 => "change_p50_ms",
            Self::ChangeMax => "change_max_ms",
            Self::CpuAtRest => "rest_cpu_percent",
            Self::CpuUnderChurn => "churn_cpu_percent",
            Self::ChurnRate => "churn_changes_per_second",
            Self::MemoryAtRest => "rest_mib",
            Self::MemoryUnderChurn => "churn_mib",
            Self::MostMemory => "most_mib",
            Self::OwnMemory => "churn_own_mib",
        }
    }

    fn decimals(self) -> usize {
        match self {
            Self::Programmed => 2,
            Self::ChangeP50 | Self::ChangeMax | Self::CpuAtRest | Self::CpuUnderChurn => 1,
            Self::ChurnRate
            | Self::MemoryAtRest
            | Self::MemoryUnderChurn
            | Self::MostMemory
            | Self::OwnMemory => 0,
        }
    }

    fn of(self, sample: &Sample) -> f64 {
        match self {
            Self::Programmed => sample.programmed.as_secs_f64(),
            Self::ChangeP50 => millis(quantile(&sample.changes, 0.5)),
            Self::ChangeMax => millis(quantile(&sample.changes, 1.0)),
            Self::CpuAtRest => sample.rest.cpu * 100.0,
            Self::CpuUnderChurn => sample.churn.cpu * 100.0,
            Self::ChurnRate => sample.churn_rate,
            Self::MemoryAtRest => mebibytes(sample.rest.memory.resident),
            Self::MemoryUnderChurn => mebibytes(sample.churn.memory.resident),
            Self::MostMemory => mebibytes(sample.churn.memory.most),
            Self::OwnMemory => mebibytes(sample.churn.memory.own),
        }
    }
}

/// All samples of a run, by number of Services and proxy.
#[derive(Debug)]
pub struct ControlPlaneReport {
    /// Endpoints of each Service.
    endpoints: u8,
    samples: BTreeMap<(u32, Proxy), Vec<Sample>>,
}

impl ControlPlaneReport {
    /// A report without samples.
    pub fn new(endpoints: u8) -> Self {
        Self {
            endpoints,
            samples: BTreeMap::new(),
        }
    }

    /// Adds a sample.
    pub fn add(&mut self, services: u32, proxy: Proxy, sample: Sample) {
        self.samples
            .entry((services, proxy))
            .or_default()
            .push(sample);
    }

    /// The results, for tables and plots.
    pub fn findings(&self) -> Findings {
        Findings {
            key: "control_plane",
            tables: vec![self.table()],
            json: json!(self.json()),
            plots: vec![self.plot()],
        }
    }

    fn table(&self) -> Table {
        let mut columns = vec!["by", "services"];
        columns.extend(Metric::ALL.map(Metric::name));
        let title = format!(
            "Before one API server, {} endpoints per Service",
            self.endpoints
        );
        let mut table = Table::new(&title, 1, &columns);
        table.notes = vec![
            "CPU in % of one, with the programs that a proxy calls; MiB at most: until the end of churn; own MiB: \
             under churn, shared with nobody"
                .to_owned(),
        ];
        for ((services, proxy), samples) in &self.samples {
            let mut row = vec![proxy.name().to_owned(), services.to_string()];
            row.extend(Metric::ALL.map(|metric| match figures(samples, metric) {
                Some(figures) => format!("{:.*}", metric.decimals(), figures.median),
                None => String::new(),
            }));
            table.add(row);
        }
        table
    }

    fn json(&self) -> Vec<Value> {
        let samples = self.samples.iter();
        samples
            .map(|((services, proxy), samples)| {
                let figures = Metric::ALL
                    .map(|metric| (metric.key().to_owned(), json!(figures(samples, metric))));
                let mut object = Map::from_iter(figures);
                object.insert("by".to_owned(), json!(proxy.name()));
                object.insert("services".to_owned(), json!(services));
                Value::Object(object)
            })
            .collect()
    }

    fn plot(&self) -> Plot {
        Plot::Bars(Bars {
            file: "control-plane.svg",
            title: "node-lb and kube-proxy before one API server, by number of Services",
            names: Proxy::ALL.map(Proxy::name).into(),
            panels: Metric::PLOTTED.map(|metric| self.panel(metric)).into(),
        })
    }

    fn panel(&self, metric: Metric) -> Panel {
        let mut groups: Vec<Group> = Vec::new();
        for ((services, _), samples) in &self.samples {
            let label = services.to_string();
            let height = figures(samples, metric).map_or(0.0, |figures| figures.median);
            match groups.last_mut().filter(|group| group.label == label) {
                Some(group) => group.heights.push(height),
                None => groups.push(Group {
                    label,
                    heights: vec![height],
                }),
            }
        }
        Panel {
            title: metric.name(),
            decimals: metric.decimals(),
            groups,
        }
    }
}

fn figures(samples: &[Sample], metric: Metric) -> Option<Figures> {
    let values: Vec<_> = samples.iter().map(|sample| metric.of(sample)).collect();
    Figures::of(&values)
}
