//! `cargo xtask bench`: the cost of packets, connections and changes with node-lb and with other
//! ways to do the same.

mod admission;
mod cluster;
mod control_plane;
mod lab;
mod machine;
mod memory;
mod options;
mod packets;
mod plot;
mod programming;
mod report;
mod self_checks;
mod statistics;
mod table;
mod top;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use clap::Parser as _;

use crate::{
    options::{Options, Part},
    report::Report,
};

fn main() -> Result<()> {
    let options = Options::parse();
    if options.list {
        packets::list();
        return Ok(());
    }
    if options.serve {
        return packets::serve(&options);
    }

    let mut report = Report::new();
    println!("{}\n", report.heading());
    for (part, run) in PARTS {
        if options.wants(part) {
            let findings = run(&options)?;
            println!("{}", findings.text());
            report.add(findings);
        }
    }
    if let Some(path) = &options.json {
        write(path, &report.json()?)?;
    }
    if let Some(path) = &options.markdown {
        write(path, &report.markdown())?;
    }
    options
        .plots
        .as_ref()
        .map_or(Ok(()), |path| report.plot(path))
}

type Run = fn(&Options) -> Result<report::Findings>;

/// All parts, in order.
const PARTS: [(Part, Run); 9] = [
    (Part::Packets, packets::run),
    (Part::Lab, lab::run),
    (Part::Programming, programming::run),
    (Part::Memory, memory::run),
    (Part::ControlPlane, control_plane::run),
    (Part::SelfChecks, self_checks::run),
    (Part::Top, top::run),
    (Part::Admission, admission::run),
    (Part::AdmissionGoals, admission::goals::run),
];

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
