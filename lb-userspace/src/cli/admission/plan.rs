//! `node-lb admission plan`: the limits of each priority level.

use clap::Args;

use super::report::{Arguments, Report};
use crate::cli::{output::Output, print, print_error};

/// Show how many seats each priority level gets
///
/// Fails if an object is invalid, and shows the limits without it.
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let report = Report::new(&self.arguments.files)?;
        match self.arguments.output {
            Output::Json => print(&report.json()?)?,
            Output::Table => {
                print_error(&report.error_lines());
                print(&report.table())?;
            }
        }
        report.result()
    }
}
