//! `node-lb admission`: connection admission from files, without root or kernel; only `levels` and
//! `connections` ask the agent, and `record` reads the node's flow tables.

use std::{thread, time::Duration};

use clap::{Args, Subcommand};

mod check;
mod cluster;
mod connections;
mod crds;
mod defaults;
mod explain;
mod files;
mod levels;
mod plan;
mod record;
mod report;
mod simulate;
mod suggest;

/// Record connections; propose, check, explain, simulate and watch a configuration of connection
/// admission
#[derive(Args, Debug)]
pub struct Command {
    #[command(subcommand)]
    command: Admission,
}

#[derive(Debug, Subcommand)]
enum Admission {
    Plan(plan::Command),
    Check(check::Command),
    Explain(explain::Command),
    Simulate(simulate::Command),
    Levels(levels::Command),
    Connections(connections::Command),
    Record(record::Command),
    Suggest(suggest::Command),
    Defaults(defaults::Command),
    Crds(crds::Command),
}

/// How often [`Watch`] shows something.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether to go on showing something.
#[derive(Args, Debug)]
struct Watch {
    /// Show them every second, until interrupted
    #[arg(short, long)]
    watch: bool,
}

impl Watch {
    /// Prints what `show` returns, once or every second.
    ///
    /// # Errors
    /// If `show` fails, or nothing can be printed.
    fn print(&self, show: impl Fn() -> anyhow::Result<String>) -> anyhow::Result<()> {
        loop {
            super::print(&show()?)?;
            if !self.watch {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
    }
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Admission::Plan(command) => command.run(),
            Admission::Check(command) => command.run(),
            Admission::Explain(command) => command.run(),
            Admission::Simulate(command) => command.run(),
            Admission::Levels(command) => command.run(),
            Admission::Connections(command) => command.run(),
            Admission::Record(command) => command.run(),
            Admission::Suggest(command) => command.run(),
            Admission::Defaults(command) => command.run(),
            Admission::Crds(command) => command.run(),
        }
    }
}
