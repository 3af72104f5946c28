//! `node-lb plan`: what each service port becomes on this node.

use anyhow::Context;
use clap::{Args, ValueEnum};

use self::report::PortReport;
use super::snapshot::Snapshot;
use crate::config::{Config, Flags};

mod report;
mod table;

/// Show what each service port becomes on this node
///
/// Reads the source once and plans as the agent would, without touching the kernel. Addresses of
/// the node are those of its Node object and --node-address.
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    flags: Flags,

    /// Form of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// To read
    Table,
    /// An array with one object per service port, both families together
    Json,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let plans = Snapshot::load(&Config::try_from(self.flags)?)?.plans();
        let ports: Vec<_> = plans.iter().flat_map(PortReport::all).collect();
        let text = match self.output {
            Output::Table => table::render(&ports),
            Output::Json => {
                serde_json::to_string_pretty(&ports).context("cannot write JSON")? + "\n"
            }
        };
        super::print(&text)
    }
}
