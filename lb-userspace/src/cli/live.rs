//! Commands that show what the agent tells, once or again and again.

use std::{
    io::{self, IsTerminal as _},
    thread,
    time::Duration,
};

use clap::Args;
use serde::Serialize;

use super::{local_api::LocalApi, output::Output, print, print_error};

/// How often something is shown.
const PAUSE: Duration = Duration::from_secs(1);

/// Moves a terminal's cursor to the top and clears what is there (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows what the agent tells, live.
#[derive(Args, Debug)]
pub struct Live {
    #[command(flatten)]
    agent: LocalApi,

    /// Show it every second, until interrupted
    #[arg(short, long)]
    watch: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value = "table")]
    output: Output,
}

impl Live {
    /// Prints what `ask` has from the agent, and returns it. Who watches sees it every second, and also
    /// that the agent does not answer for a while.
    ///
    /// # Errors
    /// If `ask` fails at first, or nothing can be printed.
    pub fn show<T: Serialize>(
        &self,
        ask: impl Fn(&LocalApi) -> anyhow::Result<T>,
        render: fn(&T) -> String,
    ) -> anyhow::Result<T> {
        let mut latest = ask(&self.agent)?;
        let clear = match self.watch && self.output.is_for_people() && io::stdout().is_terminal() {
            true => CLEAR,
            false => "",
        };
        loop {
            let text = self.output.text(&latest, render)?;
            print(&format!("{clear}{text}"))?;
            if !self.watch {
                return Ok(latest);
            }
            latest = loop {
                thread::sleep(PAUSE);
                match ask(&self.agent) {
                    Ok(next) => break next,
                    Err(error) => print_error(&format!("error: {error:#}\n")),
                }
            };
        }
    }
}
