//! `node-lb completions`: words of the command line for a shell.

use clap_complete::{Shell, generate};

use super::NAME;

/// Print a script that completes this program's commands and options in a shell
#[derive(Debug, clap::Args)]
pub struct Command {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Command {
    /// # Errors
    /// If the script cannot be printed.
    pub fn run(self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        generate(self.shell, &mut super::definition(), NAME, &mut script);
        super::print(&String::from_utf8(script)?)
    }
}
