//! `cargo xtask bench`: what a packet costs in node-lb, beside floors and other programs.

mod cases;
mod check;
mod datapath;
mod family;
mod flows;
mod harness;
mod netns;
mod peer;
mod plot;
mod report;
mod rig;
mod sample;
mod statistics;
mod traffic;

use std::{
    io::{BufRead as _, Write as _},
    path::PathBuf,
    thread,
};

use anyhow::{Context, Result};
use clap::Parser;
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    cases::{CASES, Case},
    peer::Peer,
    report::Report,
    sample::Sampler,
};

/// Measures node-lb packet by packet (docs/benchmark.md says how).
#[derive(Parser)]
#[command(name = "bench")]
struct Arguments {
    /// Print the names of the cases.
    #[arg(long, conflicts_with = "serve")]
    list: bool,
    /// Answer case names, one a line, with one sample each, in nanoseconds.
    #[arg(long)]
    serve: bool,
    /// Cases to measure, in place of all.
    #[arg(long, value_delimiter = ',', value_parser = parse_case, value_name = "NAME,...")]
    cases: Vec<&'static Case>,
    /// Samples per case.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// The CPU to run on; the last, unless given.
    #[arg(long)]
    cpu: Option<usize>,
    /// Print JSON in place of a table.
    #[arg(long)]
    json: bool,
    /// Write plots (SVG) to this directory.
    #[arg(long, value_name = "DIRECTORY")]
    plots: Option<PathBuf>,
    /// Alternate with a program that answers case names as `--serve` does.
    #[arg(long, value_name = "COMMAND")]
    peer: Option<String>,
    /// Compare a case with one of another name.
    #[arg(long = "peer-case", requires = "peer", value_parser = parse_pair, value_name = "OURS=THEIRS")]
    peer_cases: Vec<(&'static str, String)>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if arguments.list {
        CASES.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    }
    let cpu = pin(arguments.cpu)?;
    if arguments.serve {
        return serve(&mut Sampler::load()?);
    }

    let mut peer = match &arguments.peer {
        Some(command) => Some(Peer::start(command, arguments.peer_cases)?),
        None => None,
    };
    let cases = match arguments.cases.is_empty() {
        true => CASES.iter().collect(),
        false => arguments.cases,
    };
    let mut sampler = Sampler::load()?;
    let mut report = Report::new(&cases, cpu);
    for round in 1..=arguments.rounds {
        for case in &cases {
            report.add(case.name, sampler.take(case)?);
            if let Some(peer) = &mut peer
                && let Some(ns) = peer.sample(case.name)?
            {
                report.add_peer(case.name, ns);
            }
        }
        eprintln!("round {round} of {} done", arguments.rounds);
    }
    report.set_overheads(sampler.overheads());
    match arguments.json {
        true => println!("{}", report.json()?),
        false => print!("{}", report.table()),
    }
    match arguments.plots {
        Some(directory) => plot::write(&report, &directory),
        None => Ok(()),
    }
}

/// Answers each line with one sample of the case it names.
fn serve(sampler: &mut Sampler) -> Result<()> {
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let name = line?;
        match cases::find(name.trim()) {
            Some(case) => writeln!(out, "{:.2}", sampler.take(case)?.ns)?,
            None => writeln!(out, "error: no case {}", name.trim())?,
        }
        out.flush()?;
    }
    Ok(())
}

/// Keeps this thread on one CPU.
fn pin(cpu: Option<usize>) -> Result<usize> {
    let last = || thread::available_parallelism().map_or(0, |count| count.get() - 1);
    let cpu = cpu.unwrap_or_else(last);
    let mut set = CpuSet::new();
    set.set(cpu)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .with_context(|| format!("cannot run on CPU {cpu}"))?;
    Ok(cpu)
}

fn parse_case(name: &str) -> Result<&'static Case, String> {
    cases::find(name).ok_or_else(|| format!("no case {name}; --list prints their names"))
}

fn parse_pair(pair: &str) -> Result<(&'static str, String), String> {
    let (ours, theirs) = pair.split_once('=').ok_or("expected OURS=THEIRS")?;
    Ok((parse_case(ours)?.name, theirs.to_owned()))
}
