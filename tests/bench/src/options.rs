//! The command line.

use std::{path::PathBuf, thread};

use clap::{Parser, ValueEnum};
use node_lb::config::XdpMode;

use crate::packets::cases::{self, Case};

/// Measures node-lb beside other ways to do the same (docs/benchmark.md says how).
#[derive(Parser)]
#[command(name = "bench")]
pub struct Options {
    /// Run only these parts [default: all but control-plane, self-checks, top, admission
    /// and admission-goals]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART,...")]
    only: Vec<Part>,
    /// Run only the part control-plane, which takes a quarter of an hour
    #[arg(long, conflicts_with = "only")]
    control_plane: bool,
    /// Samples of each figure [default: 10 of packets and in the lab, 3 of programming, 1 of
    /// the others]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// A rough check: few rounds, short samples, 1 and 1,000 services (control-plane:
    /// 100)
    #[arg(long)]
    pub quick: bool,
    /// Numbers of services, for all parts but packets [default: 1,1000,10000; control-plane
    /// and self-checks: 1000,10000; top: 10000]
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,...",
        value_parser = clap::value_parser!(u32).range(1..=50_000)
    )]
    services: Vec<u32>,
    /// Endpoints of each service, for control-plane
    #[arg(
        long,
        value_name = "N",
        default_value = "10",
        value_parser = clap::value_parser!(u8).range(1..=100)
    )]
    pub endpoints: u8,
    /// How to attach node-lb, in the lab, to the device that leads to clients
    #[arg(long, value_enum, default_value = "auto")]
    pub xdp_mode: XdpMode,
    /// CPU to measure on [default: the last]
    #[arg(long)]
    pub cpu: Option<usize>,

    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the tables to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Write plots (SVG) to this directory
    #[arg(long, value_name = "DIRECTORY")]
    pub plots: Option<PathBuf>,

    /// Measure only these packet cases
    #[arg(long, value_delimiter = ',', value_parser = parse_case, value_name = "NAME,...")]
    pub cases: Vec<&'static Case>,
    /// Print the names of the packet cases
    #[arg(long, conflicts_with = "serve")]
    pub list: bool,
    /// Read names of packet cases, one per line, and answer each with one sample in nanoseconds
    #[arg(long)]
    pub serve: bool,
    /// Alternate packet cases with another program, which answers names like `--serve`
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Compare one of our cases with a case of the peer that has another name
    #[arg(long = "peer-case", requires = "peer", value_parser = parse_pair, value_name = "OURS=THEIRS")]
    pub peer_cases: Vec<(&'static str, String)>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// What a packet costs, by test runs of the programs
    Packets,
    /// Connections and throughput, between network namespaces
    Lab,
    /// How long it takes to program services, and to change one
    Programming,
    /// What memory the agent takes in large clusters
    Memory,
    /// The same and more with an API server, beside kube-proxy
    ControlPlane,
    /// What the agent's checks of the data plane cost, and a day of them in little time
    SelfChecks,
    /// What it takes to watch many Services and flows
    Top,
    /// What a quiet client sees beside noisy ones, also with nftables and HAProxy
    Admission,
    /// The goals of connection admission on live traffic
    AdmissionGoals,
}

impl Options {
    /// Whether a part is to run.
    pub fn wants(&self, part: Part) -> bool {
        match &self.only[..] {
            _ if self.control_plane => part == Part::ControlPlane,
            // They take long, and some need programs that others have written.
            [] => !matches!(
                part,
                Part::ControlPlane
                    | Part::SelfChecks
                    | Part::Top
                    | Part::Admission
                    | Part::AdmissionGoals
            ),
            only => only.contains(&part),
        }
    }

    /// The CPU to measure on.
    pub fn cpu(&self) -> usize {
        let last = || thread::available_parallelism().map_or(0, |count| count.get() - 1);
        self.cpu.unwrap_or_else(last)
    }

    /// Samples of each figure of a part.
    pub fn rounds(&self, part: Part) -> u32 {
        let usual = match part {
            Part::ControlPlane
            | Part::Memory
            | Part::SelfChecks
            | Part::Top
            | Part::Admission
            | Part::AdmissionGoals => 1,
            _ if self.quick => 2,
            Part::Packets | Part::Lab => 10,
            Part::Programming => 3,
        };
        self.rounds.unwrap_or(usual)
    }

    /// The numbers of services of a part, in rising order.
    pub fn services(&self, part: Part) -> Vec<u32> {
        let mut services = match (&self.services[..], part) {
            ([], Part::ControlPlane) if self.quick => vec![100],
            ([], Part::SelfChecks | Part::Top) if self.quick => vec![1000],
            ([], Part::ControlPlane | Part::SelfChecks) => vec![1000, 10_000],
            ([], Part::Top) => vec![10_000],
            ([], _) if self.quick => vec![1, 1000],
            ([], _) => vec![1, 1000, 10_000],
            (given, _) => given.to_vec(),
        };
        services.sort_unstable();
        services.dedup();
        services
    }
}

fn parse_case(name: &str) -> Result<&'static Case, String> {
    cases::find(name).ok_or_else(|| format!("no case {name}; --list prints their names"))
}

fn parse_pair(pair: &str) -> Result<(&'static str, String), String> {
    let (ours, theirs) = pair.split_once('=').ok_or("expected OURS=THEIRS")?;
    Ok((parse_case(ours)?.name, theirs.to_owned()))
}

#[cfg(test)]
mod tests {
    use xtask::docs::{self, Check, Page, check, words};

    use super::*;

    #[test]
    fn each_command_of_the_pages_is_one() {
        let pages = docs::pages().unwrap();
        let commands: Vec<_> = pages.iter().flat_map(Page::scripts).flatten().collect();
        let parts = commands.iter().flat_map(docs::Command::parts);
        let parts = parts.filter(|part| check(part) == Some(Check::Xtask));
        let mut count = 0;
        for words in parts.map(words).filter(|words| words[2] == "bench") {
            count += 1;
            let parsed = Options::try_parse_from(&words[2..]);
            let error = parsed.err().map(|error| error.to_string());
            assert_eq!(error, None, "{words:?}");
        }
        assert!(count > 10, "{count}");
    }
}
