//! The samples of the cases, and the report about them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::{
    cases::{Case, Work},
    sample::Sample,
};
use crate::{
    plot::{Line, Lines, Plot},
    report::Findings,
    statistics::Figures,
    table::Table,
};

/// The cases to which others are compared.
const FLOORS: [&str; 3] = ["empty", "hash-hot", "hash-1m"];

/// Plots, with the beginnings of the names of their cases, one line each.
const PLOTS: [(&str, &str, &[&str]); 2] = [
    (
        "flows-tcp.svg",
        "established TCP flows",
        &["tcp4-est", "tcp4-reply", "tcp6-est", "tcp6-reply"],
    ),
    (
        "flows-ipv4.svg",
        "established IPv4 flows",
        &["tcp4-est", "udp4-est", "tcp4-local"],
    ),
];

/// All samples of a run.
pub struct Packets {
    cpu: usize,
    overheads: BTreeMap<String, f64>,
    rows: Vec<Row>,
}

/// The samples of a case, in nanoseconds per packet.
struct Row {
    case: Case,
    ns: Vec<f64>,
    peer: Vec<f64>,
    opened: Option<f64>,
}

#[derive(Serialize)]
struct JsonCase {
    name: &'static str,
    flows: u32,
    /// Nanoseconds per packet.
    ns: Figures,
    rounds: usize,
    repeat: u32,
    /// Ratios to the floors' medians.
    times: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opened: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_ns: Option<Figures>,
    /// The ratio to the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

impl Packets {
    /// A report without samples.
    pub fn new(cases: &[&Case], cpu: usize) -> Self {
        let row = |case: &&Case| Row {
            case: **case,
            ns: Vec::new(),
            peer: Vec::new(),
            opened: None,
        };
        Self {
            cpu,
            overheads: BTreeMap::new(),
            rows: cases.iter().map(row).collect(),
        }
    }

    /// Adds a sample of a case.
    pub fn add(&mut self, case: &str, sample: Sample) {
        for row in self.rows.iter_mut().filter(|row| row.case.name == case) {
            row.ns.push(sample.ns);
            row.opened = sample
                .opened
                .map(|share| share.min(row.opened.unwrap_or(1.0)));
        }
    }

    /// Adds a sample of the peer's.
    pub fn add_peer(&mut self, case: &str, ns: f64) {
        for row in self.rows.iter_mut().filter(|row| row.case.name == case) {
            row.peer.push(ns);
        }
    }

    /// Records the overhead that was subtracted.
    pub fn set_overheads(&mut self, overheads: impl Iterator<Item = (String, f64)>) {
        self.overheads = overheads.collect();
    }

    /// The results, for tables and plots.
    pub fn findings(&self) -> Findings {
        let cases: Vec<_> = self.rows.iter().filter_map(|row| self.json(row)).collect();
        Findings {
            key: "packets",
            tables: vec![self.table()],
            json: json!({ "cpu": self.cpu, "harness_ns": self.overheads, "cases": cases }),
            plots: PLOTS.map(|plot| self.plot(plot)).into(),
        }
    }

    fn table(&self) -> Table {
        let mut columns = vec![
            "case",
            "flows",
            "median ns",
            "[min..max]",
            "x empty",
            "x hash-hot",
            "x hash-1m",
            "opened",
        ];
        let with_peer = self.rows.iter().any(|row| !row.peer.is_empty());
        if with_peer {
            columns.extend(["peer ns", "[min..max]", "ratio"]);
        }
        let mut table = Table::new("Nanoseconds per packet", 1, &columns);
        let harness = self.overheads.iter();
        let harness: Vec<_> = harness
            .map(|(name, ns)| format!("{name} {ns:.1}"))
            .collect();
        table.notes.push(format!(
            "CPU {}; harness, already subtracted: {} ns",
            self.cpu,
            harness.join(", ")
        ));
        let floors = FLOORS.map(|floor| self.floor(floor));
        for row in &self.rows {
            let Some(ours) = Figures::of(&row.ns) else {
                continue;
            };
            let mut cells = vec![
                row.case.name.to_owned(),
                row.case.flows.to_string(),
                format!("{:.1}", ours.median),
                ours.range(1),
            ];
            cells.extend(
                floors.iter().map(|floor| {
                    floor.map_or(String::new(), |ns| format!("{:.2}", ours.median / ns))
                }),
            );
            let opened = row.opened.map(|share| format!("{:.2} %", share * 100.0));
            cells.push(opened.unwrap_or_default());
            if with_peer {
                cells.extend(match Figures::of(&row.peer) {
                    Some(peer) => [
                        format!("{:.1}", peer.median),
                        peer.range(1),
                        format!("{:.2}", ours.median / peer.median),
                    ],
                    None => [const { String::new() }; 3],
                });
            }
            table.add(cells);
        }
        table
    }

    fn json(&self, row: &Row) -> Option<JsonCase> {
        let ns = Figures::of(&row.ns)?;
        let times = |floor: &'static str| Some((floor, ns.median / self.floor(floor)?));
        let peer_ns = Figures::of(&row.peer);
        Some(JsonCase {
            name: row.case.name,
            flows: row.case.flows,
            ns,
            rounds: row.ns.len(),
            repeat: row.case.repeat,
            times: FLOORS.into_iter().filter_map(times).collect(),
            opened: row.opened,
            peer_ns,
            ratio: peer_ns.map(|peer| ns.median / peer.median),
        })
    }

    fn floor(&self, name: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.case.name == name)?;
        Some(Figures::of(&row.ns)?.median)
    }

    /// A plot of cost by flows: node-lb's, and the peer's if it has them, with the hash lookups as
    /// levels.
    fn plot(&self, (file, title, names): (&'static str, &'static str, &[&str])) -> Plot {
        let mut lines = Vec::new();
        for name in names {
            let of_name = |row: &&Row| match row.case.name.rsplit_once('-') {
                Some((first, _)) => {
                    first == *name && matches!(row.case.work, Work::Established(..))
                }
                None => false,
            };
            let line = |name: String, samples: fn(&Row) -> &[f64]| {
                let rows = self.rows.iter().filter(of_name);
                let point = |row: &Row| {
                    let median = Figures::of(samples(row))?.median;
                    Some((f64::from(row.case.flows), median))
                };
                let points = rows.filter_map(point).collect();
                Line { name, points }
            };
            lines.push(line((*name).to_owned(), |row| &row.ns));
            lines.push(line(format!("{name}, peer"), |row| &row.peer));
        }
        let levels = ["hash-hot", "hash-1m"];
        let levels = levels
            .iter()
            .filter_map(|floor| Some(((*floor).to_owned(), self.floor(floor)?)));
        Plot::Lines(Lines {
            file,
            title,
            axes: ["flows, hit at random", "ns per packet"],
            lines,
            levels: levels.collect(),
        })
    }
}
