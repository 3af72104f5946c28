//! `node-lb admission`: connection admission from files alone, without root or kernel.

use clap::{Args, Subcommand};

mod check;
mod cluster;
mod crds;
mod defaults;
mod explain;
mod files;
mod plan;
mod report;
mod simulate;

/// Check, explain and simulate the configuration of connection admission, without root
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
    Defaults(defaults::Command),
    Crds(crds::Command),
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Admission::Plan(command) => command.run(),
            Admission::Check(command) => command.run(),
            Admission::Explain(command) => command.run(),
            Admission::Simulate(command) => command.run(),
            Admission::Defaults(command) => command.run(),
            Admission::Crds(command) => command.run(),
        }
    }
}
