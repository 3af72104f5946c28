//! The cost of a packet, measured by test runs (`BPF_PROG_TEST_RUN`) of node-lb's program.

pub mod cases;

mod check;
mod datapath;
mod family;
mod flows;
mod harness;
mod netns;
mod peer;
mod report;
mod rig;
mod sample;
mod traffic;

use std::{
    io::{BufRead as _, Write as _},
    panic::resume_unwind,
    thread,
};

use anyhow::Result;

use self::{
    cases::{CASES, Case},
    peer::Peer,
    report::Packets,
    sample::Sampler,
};
use crate::{
    machine::pin,
    options::{Options, Part},
    report::Findings,
};

/// Prints the names of the cases.
pub fn list() {
    CASES.iter().for_each(|case| println!("{}", case.name));
}

/// Measures the wanted cases in rotation.
///
/// # Errors
///
/// Without root, if the kernel refuses something, or if a sample is wrong.
pub fn run(options: &Options) -> Result<Findings> {
    alone(|| measure(options))
}

/// Answers each line of the input, the name of a case, with one sample in nanoseconds.
///
/// # Errors
///
/// As [`run`].
pub fn serve(options: &Options) -> Result<()> {
    pin(options.cpu())?;
    let mut sampler = Sampler::load()?;
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

fn measure(options: &Options) -> Result<Findings> {
    // The peer chooses its own CPU.
    let mut peer = match &options.peer {
        Some(command) => Some(Peer::start(command, options.peer_cases.clone())?),
        None => None,
    };
    let cpu = options.cpu();
    pin(cpu)?;
    let cases: Vec<&Case> = match options.cases.is_empty() {
        true => CASES.iter().collect(),
        false => options.cases.clone(),
    };
    let rounds = options.rounds(Part::Packets);
    let mut sampler = Sampler::load()?;
    let mut packets = Packets::new(&cases, cpu);
    for round in 1..=rounds {
        for case in &cases {
            packets.add(case.name, sampler.take(case)?);
            if let Some(peer) = &mut peer
                && let Some(ns) = peer.sample(case.name)?
            {
                packets.add_peer(case.name, ns);
            }
        }
        eprintln!("packets: round {round} of {rounds} done");
    }
    packets.set_overheads(sampler.overheads());
    Ok(packets.findings())
}

/// Runs work on a thread with a CPU and a network namespace of its own.
fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}
