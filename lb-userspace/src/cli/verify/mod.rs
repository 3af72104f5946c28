//! `node-lb verify`: whether the kernel does what the source asks for.

use std::{collections::BTreeSet, process::ExitCode, thread, time::Duration};

use lb_common::abi;
use lb_datapath::maps::Maps;
use serde::Serialize;

use self::views::Views;
use super::{
    flows::{pinned, pinned_maps},
    output::{Output, plain},
    snapshot::Snapshot,
};
use crate::{
    config::{Config, Flags},
    map_writer::node_addresses,
};

mod programs;
mod views;

/// The exit status if something differs.
const DIFFERS: u8 = 3;
/// A change of the source that is on its way to the maps is there after this time.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// Compare the kernel's maps with what the source asks for, and look whether programs are attached
///
/// Reads the source once, plans every Service anew, and compares what packets to each of its addresses
/// meet with what the maps on this node say. It asks no agent and changes nothing. What differs is
/// looked at again after two seconds, because a change may be on its way. It takes the agent's
/// settings: run it in the agent's pod. The exit status is 0 if nothing differs, 3 if something does,
/// and 1 if that cannot be told.
#[derive(Debug, clap::Args)]
pub struct Command {
    #[command(flatten)]
    flags: Flags,

    /// Format of the output; JSON is an object with all differences
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

/// What has been compared, and what differs.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Addresses of Services, each with port and protocol.
    frontends: usize,
    /// Attached programs.
    programs: usize,
    differences: BTreeSet<Difference>,
    /// What could not be compared, and why.
    not_compared: Option<String>,
}

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// An address, or a program's place.
    subject: String,
    /// What of it differs.
    what: String,
    found: String,
    /// What the source asks for.
    wanted: String,
}

impl Command {
    /// # Errors
    /// If the source or the maps cannot be read.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::try_from(self.flags)?;
        let mut report = compare(&config)?;
        if !report.differences.is_empty() {
            thread::sleep(ON_ITS_WAY);
            let again = compare(&config)?;
            let both = report.differences.intersection(&again.differences);
            report = Report {
                differences: both.cloned().collect(),
                ..again
            };
        }
        super::print(&self.output.text(&report, render)?)?;
        Ok(match report.differences.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(DIFFERS),
        })
    }
}

fn compare(config: &Config) -> anyhow::Result<Report> {
    let root = &config.datapath.bpf_root;
    let settings = pinned::<abi::Config>(root, "CONFIG")?.read(0);
    let known = node_addresses(&settings);
    let mut snapshot = Snapshot::load(config)?.on_this_node(config, known);
    let situation = snapshot.situation(config);
    let tables = snapshot.tables(config, &situation, config.datapath.maglev_table_size);

    let maps = pinned_maps(root);
    let kernel = Views::of(&Maps::pinned(&maps)?)?;
    let wanted = Views::of(&tables.maps())?;
    let mut differences = kernel.differences(&wanted, &snapshot.plans());
    let programs = programs::compare(&maps.with_file_name("links"))?;
    differences.extend(programs.differences);
    Ok(Report {
        frontends: wanted.frontends(),
        programs: programs.number,
        differences,
        not_compared: programs.not_compared,
    })
}

/// A sentence, and three lines for each difference.
fn render(report: &Report) -> String {
    let Report {
        frontends,
        programs,
        differences,
        not_compared,
    } = report;
    let compared = format!("{frontends} addresses of Services and {programs} attached programs");
    let mut text = match differences.len() {
        0 => format!("{compared} are as they should be.\n"),
        1 => format!("Of {compared}, one thing differs:\n"),
        several => format!("Of {compared}, {several} things differ:\n"),
    };
    for difference in differences {
        let Difference {
            subject,
            what,
            found,
            wanted,
        } = difference;
        // Names of objects may be anything.
        let [subject, found, wanted] = [subject, found, wanted].map(|text| plain(text));
        text += &format!("\n{subject}: {what}\n  found   {found}\n  wanted  {wanted}\n");
    }
    if let Some(reason) = not_compared {
        text += &format!("\n{reason}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_three_lines() {
        let mut report = Report {
            frontends: 12,
            programs: 4,
            ..Report::default()
        };
        let nothing = "12 addresses of Services and 4 attached programs are as they should be.\n";
        assert_eq!(render(&report), nothing);
        report.differences.insert(Difference {
            subject: "10.96.0.10:80 TCP".to_owned(),
            what: "endpoints".to_owned(),
            found: "10.1.0.1:8080".to_owned(),
            wanted: "10.1.0.2:8080".to_owned(),
        });
        let one = "\
Of 12 addresses of Services and 4 attached programs, one thing differs:

10.96.0.10:80 TCP: endpoints
  found   10.1.0.1:8080
  wanted  10.1.0.2:8080
";
        assert_eq!(render(&report), one);
    }
}
