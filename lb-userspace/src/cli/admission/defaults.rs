//! `node-lb admission defaults`: the suggested configuration.

use clap::Args;
use lb_admission::suggested::SUGGESTED;

use crate::cli::print;

/// Print the suggested configuration, as a start for your own
#[derive(Args, Debug)]
pub struct Command {}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        print(SUGGESTED)
    }
}
