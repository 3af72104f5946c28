//! `node-lb admission check`: validates objects.

use clap::Args;

use super::report::{Arguments, Report};
use crate::cli::{output::Output, print};

/// Validate priority levels and flow schemas
///
/// Fails if one of them is invalid.
#[derive(Args, Debug)]
pub struct Command {
    #[command(flatten)]
    arguments: Arguments,
}

impl Command {
    pub fn run(self) -> anyhow::Result<()> {
        let report = Report::new(&self.arguments.files)?;
        let errors = report.error_lines();
        match self.arguments.output {
            Output::Json => print(&report.json()?)?,
            Output::Table if errors.is_empty() => {
                let (levels, schemas) = (report.levels(), report.schemas);
                print(&format!(
                    "{levels} priority levels, {schemas} flow schemas: all valid\n"
                ))?;
            }
            Output::Table => print(&errors)?,
        }
        report.result()
    }
}
