//! The costs of programming, and the report about them.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use super::{
    changes::Change,
    pods::Starts,
    wide::{ADDRESSES, PORTS, Step},
};
use crate::{
    cluster::{Proxy, usage::Usage},
    report::Findings,
    statistics::{Figures, mebibytes, millis},
    table::Table,
};

/// A number of services and a proxy.
type Subject = (u32, Proxy);

/// All samples of a run.
#[derive(Debug, Default)]
pub struct Programming {
    loads: BTreeMap<Subject, Vec<Usage>>,
    changes: BTreeMap<Subject, Vec<Change>>,
    /// Of the Service of very many addresses, beside so many others.
    wide: BTreeMap<(u32, Step), Vec<Change>>,
    starts: Vec<Starts>,
}

impl Programming {
    /// Adds the cost of programming all services from nothing.
    pub fn add_load(&mut self, proxy: Proxy, services: u32, usage: Usage) {
        self.loads.entry((services, proxy)).or_default().push(usage);
    }

    /// Adds the cost of one change.
    pub fn add_change(&mut self, proxy: Proxy, services: u32, change: Change) {
        let changes = self.changes.entry((services, proxy)).or_default();
        changes.push(change);
    }

    /// Adds what changes of a Service of very many addresses took.
    pub fn add_wide(&mut self, services: u32, changes: Vec<(Step, Change)>) {
        for (step, change) in changes {
            self.wide.entry((services, step)).or_default().push(change);
        }
    }

    /// Adds what pods that start cost.
    pub fn add_starts(&mut self, starts: Starts) {
        self.starts.push(starts);
    }

    /// What there is to tell.
    pub fn findings(&self) -> Findings {
        Findings {
            key: "programming",
            tables: vec![
                self.load_table(),
                self.change_table(),
                self.wide_table(),
                self.starts_table(),
            ],
            json: json!({
                "load": self.load_json(),
                "change": self.change_json(),
                "wide": self.wide_json(),
                "starts": self.starts_json(),
            }),
            plots: Vec::new(),
        }
    }

    fn load_table(&self) -> Table {
        let columns = [
            "by",
            "services",
            "wall s",
            "[min..max]",
            "CPU s",
            "[min..max]",
            "peak MiB",
            "[min..max]",
            "own MiB",
        ];
        let mut table = Table::new("Programming all services from nothing", 1, &columns);
        for ((services, proxy), usages) in &self.loads {
            let mut row = vec![proxy.name().to_owned(), services.to_string()];
            row.extend(cells(usages, |usage| seconds(usage.wall), 3));
            row.extend(cells(usages, |usage| seconds(usage.cpu), 3));
            row.extend(cells(usages, |usage| mebibytes(usage.memory), 1));
            let own = figures(usages, |usage| mebibytes(usage.own_memory));
            let own = own.filter(|own| own.max != 0.0);
            row.push(own.map_or(String::new(), |own| format!("{:.1}", own.median)));
            table.add(row);
        }
        table
    }

    fn change_table(&self) -> Table {
        let changes = self.changes.iter();
        let rows = changes.map(|((services, proxy), changes)| (proxy.name(), services, changes));
        let title = "One endpoint replaced by another";
        table_of_changes(title, ["by", "services"], 2, rows)
    }

    fn wide_table(&self) -> Table {
        let wide = self.wide.iter();
        let rows = wide.map(|((services, step), changes)| (step.name(), services, changes));
        let title = format!("A Service of {} addresses", PORTS * ADDRESSES);
        table_of_changes(&title, ["is", "beside"], 1, rows)
    }

    fn starts_table(&self) -> Table {
        let columns = ["pods", "services", "CPU %", "services planned"];
        let mut table = Table::new("Pods that start, 20 in a second", 0, &columns);
        for starts in &self.starts {
            table.add(vec![
                starts.pods.to_string(),
                starts.services.to_string(),
                format!("{:.1}", 100.0 * starts.cpu),
                starts.planned.to_string(),
            ]);
        }
        table
    }

    fn wide_json(&self) -> Vec<Value> {
        let wide = self.wide.iter();
        wide.map(|((services, step), changes)| {
            json!({
                "step": step.name(),
                "addresses": PORTS * ADDRESSES,
                "beside": services,
                "wall_ms": figures(changes, |change| millis(change.wall)),
                "work_ms": figures(changes, |change| millis(change.work)),
                "cpu_ms": figures(changes, |change| millis(change.cpu)),
            })
        })
        .collect()
    }

    fn starts_json(&self) -> Vec<Value> {
        let starts = self.starts.iter();
        starts
            .map(|starts| {
                json!({
                    "pods": starts.pods,
                    "services": starts.services,
                    "cpu": starts.cpu,
                    "planned": starts.planned,
                })
            })
            .collect()
    }

    fn load_json(&self) -> Vec<Value> {
        let loads = self.loads.iter();
        loads
            .map(|((services, proxy), usages)| {
                json!({
                    "by": proxy.name(),
                    "services": services,
                    "wall_s": figures(usages, |usage| seconds(usage.wall)),
                    "cpu_s": figures(usages, |usage| seconds(usage.cpu)),
                    "peak_mib": figures(usages, |usage| mebibytes(usage.memory)),
                    "own_mib": figures(usages, |usage| mebibytes(usage.own_memory)),
                })
            })
            .collect()
    }

    fn change_json(&self) -> Vec<Value> {
        let changes = self.changes.iter();
        changes
            .map(|((services, proxy), changes)| {
                json!({
                    "by": proxy.name(),
                    "services": services,
                    "changes": changes.len(),
                    "wall_ms": figures(changes, |change| millis(change.wall)),
                    "work_ms": figures(changes, |change| millis(change.work)),
                    "cpu_ms": figures(changes, |change| millis(change.cpu)),
                })
            })
            .collect()
    }
}

/// What changes took, a row for each name and number of services, under the heads `name` and
/// `number`.
fn table_of_changes<'a>(
    title: &str,
    [name, number]: [&str; 2],
    decimals: usize,
    rows: impl Iterator<Item = (&'a str, &'a u32, &'a Vec<Change>)>,
) -> Table {
    let columns = [
        name,
        number,
        "wall ms",
        "[min..max]",
        "work ms",
        "[min..max]",
        "CPU ms",
        "[min..max]",
    ];
    let mut table = Table::new(title, 1, &columns);
    for (name, services, changes) in rows {
        let mut row = vec![name.to_owned(), services.to_string()];
        row.extend(cells(changes, |change| millis(change.wall), decimals));
        row.extend(cells(changes, |change| millis(change.work), decimals));
        row.extend(cells(changes, |change| millis(change.cpu), decimals));
        table.add(row);
    }
    table
}

fn figures<T>(samples: &[T], value: impl Fn(&T) -> f64) -> Option<Figures> {
    let values: Vec<_> = samples.iter().map(value).collect();
    Figures::of(&values)
}

/// Median and range.
fn cells<T>(samples: &[T], value: impl Fn(&T) -> f64, decimals: usize) -> [String; 2] {
    match figures(samples, value) {
        Some(figures) => [
            format!("{:.decimals$}", figures.median),
            figures.range(decimals),
        ],
        None => [const { String::new() }; 2],
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
