//! What was measured, as a table and as JSON.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use anyhow::Result;
use nix::sys::utsname::uname;
use serde::Serialize;

use crate::{cases::Case, sample::Sample, statistics::median};

/// The cases that others are given as multiples of.
const FLOORS: [&str; 3] = ["empty", "hash-hot", "hash-1m"];

/// All samples of a run.
pub struct Report {
    machine: Machine,
    overheads: BTreeMap<String, f64>,
    rows: Vec<Row>,
}

/// Where the figures come from.
#[derive(Debug, Serialize)]
struct Machine {
    cpu_model: String,
    cpu: usize,
    cpus: usize,
    kernel: String,
    spectre_v2: String,
    retbleed: String,
    spec_rstack_overflow: String,
}

/// The samples of a case.
pub struct Row {
    pub case: Case,
    ns: Vec<f64>,
    peer: Vec<f64>,
    opened: Option<f64>,
}

/// Median and range of samples, in nanoseconds per packet.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    #[serde(rename = "median_ns")]
    pub median: f64,
    #[serde(rename = "min_ns")]
    pub min: f64,
    #[serde(rename = "max_ns")]
    pub max: f64,
}

#[derive(Serialize)]
struct Json<'a> {
    machine: &'a Machine,
    harness_ns: &'a BTreeMap<String, f64>,
    cases: Vec<JsonCase>,
}

#[derive(Serialize)]
struct JsonCase {
    name: &'static str,
    flows: u32,
    #[serde(flatten)]
    figures: Figures,
    rounds: usize,
    repeat: u32,
    /// Multiples of the floors' medians.
    times: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    opened: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<Figures>,
    /// Ours divided by the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

impl Report {
    /// A report without samples.
    pub fn new(cases: &[&Case], cpu: usize) -> Self {
        let row = |case: &&Case| Row {
            case: **case,
            ns: Vec::new(),
            peer: Vec::new(),
            opened: None,
        };
        Self {
            machine: Machine::this(cpu),
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

    /// Notes what was subtracted.
    pub fn set_overheads(&mut self, overheads: impl Iterator<Item = (String, f64)>) {
        self.overheads = overheads.collect();
    }

    /// The cases with their samples.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{}, CPU {}, Linux {}\nspectre_v2: {}\nspec_rstack_overflow: {}\nharness, already subtracted:",
            self.machine.cpu_model,
            self.machine.cpu,
            self.machine.kernel,
            self.machine.spectre_v2,
            self.machine.spec_rstack_overflow
        );
        for (harness, ns) in &self.overheads {
            let _ = write!(text, " {harness} {ns:.1}");
        }
        let with_peer = self.rows.iter().any(|row| !row.peer.is_empty());
        let _ = write!(
            text,
            " ns\n\n{:<16} {:>8} {:>9} {:>19} {:>8} {:>10} {:>9} {:>8}",
            "case",
            "flows",
            "median ns",
            "[min..max]",
            "x empty",
            "x hash-hot",
            "x hash-1m",
            "opened"
        );
        if with_peer {
            let _ = write!(
                text,
                " {:>9} {:>19} {:>6}",
                "peer ns", "[min..max]", "ratio"
            );
        }
        text.push('\n');
        let floors = FLOORS.map(|floor| self.floor(floor));
        for row in &self.rows {
            let Some(ours) = row.ours() else { continue };
            let _ = write!(
                text,
                "{:<16} {:>8} {:>9.1} {:>19}",
                row.case.name,
                row.case.flows,
                ours.median,
                ours.range()
            );
            for (floor, width) in floors.iter().zip([8, 10, 9]) {
                let times = floor.map_or(String::new(), |ns| format!("{:.2}", ours.median / ns));
                let _ = write!(text, " {times:>width$}");
            }
            let opened = row
                .opened
                .map_or(String::new(), |share| format!("{:.2} %", share * 100.0));
            let _ = write!(text, " {opened:>8}");
            if let Some(peer) = row.peers() {
                let ratio = ours.median / peer.median;
                let _ = write!(
                    text,
                    " {:>9.1} {:>19} {ratio:>6.2}",
                    peer.median,
                    peer.range()
                );
            }
            text.push('\n');
        }
        text
    }

    /// For programs.
    ///
    /// # Errors
    ///
    /// If a figure is no number.
    pub fn json(&self) -> Result<String> {
        let cases = self.rows.iter().filter_map(|row| {
            let figures = row.ours()?;
            let times = |floor: &'static str| Some((floor, figures.median / self.floor(floor)?));
            let peer = row.peers();
            Some(JsonCase {
                name: row.case.name,
                flows: row.case.flows,
                figures,
                rounds: row.ns.len(),
                repeat: row.case.repeat,
                times: FLOORS.into_iter().filter_map(times).collect(),
                opened: row.opened,
                peer,
                ratio: peer.map(|peer| figures.median / peer.median),
            })
        });
        Ok(serde_json::to_string_pretty(&Json {
            machine: &self.machine,
            harness_ns: &self.overheads,
            cases: cases.collect(),
        })?)
    }

    fn floor(&self, name: &str) -> Option<f64> {
        let row = self.rows.iter().find(|row| row.case.name == name)?;
        Some(row.ours()?.median)
    }
}

impl Row {
    /// Our figures, if there are samples.
    pub fn ours(&self) -> Option<Figures> {
        Figures::of(&self.ns)
    }

    /// The peer's figures, if it has the case.
    pub fn peers(&self) -> Option<Figures> {
        Figures::of(&self.peer)
    }
}

impl Figures {
    fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        if sorted.is_empty() {
            return None;
        }
        let median = median(&mut sorted);
        Some(Self {
            median,
            min: *sorted.first()?,
            max: *sorted.last()?,
        })
    }

    fn range(&self) -> String {
        format!("[{:.1}..{:.1}]", self.min, self.max)
    }
}

impl Machine {
    fn this(cpu: usize) -> Self {
        let mitigation = |name: &str| {
            let path = format!("/sys/devices/system/cpu/vulnerabilities/{name}");
            let text = fs::read_to_string(path);
            text.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
        };
        let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let kernel = uname().map(|names| names.release().to_string_lossy().into_owned());
        Self {
            cpu_model: model
                .map_or("unknown", |line| line.trim_start_matches(['\t', ' ', ':']))
                .to_owned(),
            cpu,
            cpus: cpus.matches("processor\t").count(),
            kernel: kernel.unwrap_or_else(|_| "unknown".to_owned()),
            spectre_v2: mitigation("spectre_v2"),
            retbleed: mitigation("retbleed"),
            spec_rstack_overflow: mitigation("spec_rstack_overflow"),
        }
    }
}
