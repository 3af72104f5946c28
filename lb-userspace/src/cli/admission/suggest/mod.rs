//! `node-lb admission suggest`: levels for the connections that a node has had.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::PathBuf,
};

use anyhow::{Context as _, bail};
use clap::Args;
use lb_admission::{
    proposal::Proposal,
    simulate::{
        recording::Recorded,
        trace::{Trace, TraceArrival},
    },
};

use crate::cli::print;

mod text;

/// Propose priority levels and flow schemas for recorded connections, with reasons
///
/// Each namespace whose Services were used gets a level, large enough for what it used. Prints the
/// objects as YAML, to be checked, changed, and tried with `simulate` on the same recording.
#[derive(Args, Debug)]
pub struct Command {
    /// What `record` has printed
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
}

impl Command {
    /// # Errors
    /// If the trace cannot be read, or has other lines than recorded connections.
    pub fn run(self) -> anyhow::Result<()> {
        let path = self.trace.display();
        let file = File::open(&self.trace).with_context(|| format!("cannot read {path}"))?;
        let recording = read(BufReader::new(file)).with_context(|| path.to_string())?;
        if recording.is_empty() {
            bail!("{path}: there are no connections");
        }
        print(&text::yaml(&Proposal::new(&recording)))
    }
}

/// The recorded connections of a trace.
fn read(reader: impl BufRead) -> anyhow::Result<Vec<Recorded>> {
    let mut recording = Vec::new();
    let mut trace = Trace::new(reader);
    while let Some(arrival) = trace.next() {
        match arrival? {
            TraceArrival::Recorded(recorded) => recording.push(recorded),
            TraceArrival::Named(_) => bail!(
                "line {}: only names a flow, and says nothing of its Service",
                trace.line()
            ),
        }
    }
    Ok(recording)
}
