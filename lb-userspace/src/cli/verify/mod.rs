//! `node-lb verify`: whether the kernel does what the source asks for.

use std::{collections::BTreeSet, process::ExitCode, thread};

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
    proof::{ON_ITS_WAY, Prover, Tally},
};

mod packets;
mod programs;
mod views;

/// The exit status if something differs.
const DIFFERS: u8 = 3;

/// Compare what the kernel does with what the source asks for: maps, programs, and test packets
///
/// Reads the source once, plans every Service anew, and compares what packets to each of its addresses
/// meet with what the maps on this node say. Then it has a copy of the attached programs, with the same
/// maps of Services and flows and counters of its own, decide about test packets to each address. It
/// asks no agent and changes nothing. What differs is looked at again after two seconds, because a
/// change may be on its way. It takes the agent's settings: run it in the agent's pod. The exit status
/// is 0 if nothing differs, 3 if something does, and 1 if that cannot be told.
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
    /// Test packets that programs have decided about.
    packets: u64,
    differences: BTreeSet<Difference>,
    /// What could not be compared, and why.
    not_compared: Vec<String>,
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
        let mut prover = None;
        let mut report = compare(&config, &mut prover)?;
        if !report.differences.is_empty() {
            thread::sleep(ON_ITS_WAY);
            let again = compare(&config, &mut prover)?;
            report = again.confirming(&report);
        }
        super::print(&self.output.text(&report, render)?)?;
        Ok(match report.differences.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(DIFFERS),
        })
    }
}

impl Report {
    /// Leaves only what differed before as well, and should be the same by now as then. What is found there may have
    /// changed: it is drawn to which endpoint a packet goes.
    fn confirming(mut self, before: &Self) -> Self {
        let is_same = |one: &Difference, other: &Difference| {
            (&one.subject, &one.what, &one.wanted) == (&other.subject, &other.what, &other.wanted)
        };
        let before = &before.differences;
        self.differences
            .retain(|now| before.iter().any(|known| is_same(known, now)));
        self
    }
}

/// Compares everything. The first time also loads the programs for test packets, unless the kernel refuses.
fn compare(config: &Config, prover: &mut Option<anyhow::Result<Prover>>) -> anyhow::Result<Report> {
    let root = &config.datapath.bpf_root;
    let settings = pinned::<abi::Config>(root, "CONFIG")?.read(0);
    let known = node_addresses(&settings);
    let mut snapshot = Snapshot::load(config)?.on_this_node(config, known);
    let situation = snapshot.situation(config);
    let mut tables = snapshot.tables(config, &situation, config.datapath.maglev_table_size);
    let plans = snapshot.plans();

    let maps = pinned_maps(root);
    let kernel = Views::of(&Maps::pinned(&maps)?)?;
    let wanted = Views::of(&tables.maps())?;
    let mut differences = kernel.differences(&wanted, &plans);
    let prover = prover.get_or_insert_with(|| packets::prover(config, snapshot.node()));
    let mut not_compared = Vec::new();
    let mut tally = Tally::default();
    let mut copies = Vec::new();
    match prover {
        Ok(prover) => {
            prover.begin();
            differences.extend(packets::compare(prover, &mut tables, &plans)?);
            tally = prover.tally;
            copies = prover.tags()?;
        }
        Err(error) => not_compared.push(format!("no test packets: {error:#}")),
    }
    if tally.not_taken > 0 {
        not_compared.push(format!(
            "{} of the test packets show nothing: the node has no way back to their sources",
            tally.not_taken
        ));
    }
    let programs = programs::compare(&maps.with_file_name("links"), &copies)?;
    differences.extend(programs.differences);
    not_compared.extend(programs.not_compared);
    Ok(Report {
        frontends: wanted.frontends(),
        programs: programs.number,
        packets: tally.packets,
        differences,
        not_compared,
    })
}

/// A sentence, and three lines for each difference.
fn render(report: &Report) -> String {
    let Report {
        frontends,
        programs,
        packets,
        differences,
        not_compared,
    } = report;
    let compared = format!(
        "{frontends} addresses of Services, {programs} attached programs and {packets} test packets"
    );
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
    for reason in not_compared {
        text += &format!("\n{reason}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn a_difference_has_three_lines() {
        let mut report = Report {
            frontends: 12,
            programs: 4,
            packets: 30,
            ..Report::default()
        };
        let nothing = "12 addresses of Services, 4 attached programs and 30 test packets are as they should be.\n";
        assert_eq!(render(&report), nothing);
        report
            .differences
            .insert(difference("10.1.0.1:8080", "10.1.0.2:8080"));
        let one = "\
Of 12 addresses of Services, 4 attached programs and 30 test packets, one thing differs:

10.96.0.10:80 TCP: endpoints
  found   10.1.0.1:8080
  wanted  10.1.0.2:8080
";
        assert_eq!(render(&report), one);
    }

    #[test]
    fn what_differs_is_looked_at_twice() {
        let of = |differences: &[Difference]| Report {
            differences: differences.iter().cloned().collect(),
            ..Report::default()
        };
        let (one, other) = (difference("a", "c"), difference("b", "c"));
        let confirmed =
            |again: &[Difference]| of(again).confirming(&of(from_ref(&one))).differences;
        assert!(confirmed(&[]).is_empty());
        assert_eq!(confirmed(from_ref(&one)).len(), 1);
        assert_eq!(confirmed(&[other]).len(), 1, "another endpoint was drawn");
        let changing = difference("a", "d");
        assert!(
            confirmed(&[changing]).is_empty(),
            "the Service is being changed"
        );
    }

    fn difference(found: &str, wanted: &str) -> Difference {
        Difference {
            subject: "10.96.0.10:80 TCP".to_owned(),
            what: "endpoints".to_owned(),
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        }
    }
}
