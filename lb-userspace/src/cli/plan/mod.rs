//! `node-lb plan`: the plan of each service port on this node.

use clap::Args;

use super::{output::Output, snapshot::Snapshot};
use crate::{
    config::{Config, Flags},
    plan::report::PortReport,
};

mod table;

/// Show the plan of each service port on this node
///
/// Reads the source once and plans like the agent. It changes nothing in the kernel. The node's
/// addresses come from its Node object and --node-address.
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    flags: Flags,

    /// Format of the output; JSON is an array with one object per service port, both families
    /// together
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let plans = Snapshot::load(&Config::try_from(self.flags)?)?.plans();
        let ports: Vec<_> = plans.iter().flat_map(PortReport::all).collect();
        super::print(&self.output.text(&ports, |ports| table::render(ports))?)
    }
}
