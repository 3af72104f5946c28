//! What the demo prints: acts, explained steps, commands with their output, and promises kept or
//! broken. Coloured on a terminal.

use std::fmt::Display;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

use lb_tests::LoadReport;

/// The terminal, and the count of broken promises.
pub struct Screen {
    colour: bool,
    acts: u32,
    promises: u32,
    broken: u32,
}

impl Screen {
    pub fn new() -> Self {
        Self {
            colour: stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            acts: 0,
            promises: 0,
            broken: 0,
        }
    }

    /// How many promises were broken.
    pub fn broken(&self) -> u32 {
        self.broken
    }

    /// Begins a part.
    pub fn act(&mut self, title: &str) {
        self.acts += 1;
        let title = self.paint(BOLD, format_args!("{}. {title}", self.acts));
        println!("\n{title}");
    }

    /// Explains.
    pub fn say(&self, text: impl Display) {
        println!("   {text}");
    }

    /// Shows a command as one would type it, and what it answered.
    pub fn command(&self, line: impl Display, output: &str) {
        println!("   {}", self.paint(CYAN, format_args!("$ {line}")));
        for line in output.lines() {
            println!("     {line}");
        }
    }

    /// Prints what must be true, and whether it is.
    pub fn promise(&mut self, kept: bool, text: impl Display) {
        self.promises += 1;
        let mark = if kept {
            self.paint(GREEN, "ok    ")
        } else {
            self.broken += 1;
            self.paint(RED, "BROKEN")
        };
        println!("   {mark} {text}");
    }

    /// Promises that no request of a load failed.
    pub fn no_failures(&mut self, who: &str, load: &LoadReport) {
        let LoadReport {
            ok, failed, p99, ..
        } = load;
        self.promise(
            *failed == 0 && *ok > 0,
            format_args!(
                "{who}: {failed} of {} requests failed, p99 {p99:.1?}",
                ok + failed
            ),
        );
        for (at, failure) in &load.failures {
            self.say(format_args!("       after {at:.1?}: {failure}"));
        }
    }

    /// The last line.
    pub fn verdict(&self, elapsed: Duration) {
        let Self {
            promises, broken, ..
        } = self;
        let (colour, text) = match broken {
            0 => (GREEN, format!("All {promises} promises kept")),
            _ => (RED, format!("{broken} of {promises} promises broken")),
        };
        println!("\n{} in {elapsed:.1?}.", self.paint(colour, text));
    }

    fn paint(&self, code: &str, text: impl Display) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }
}

const BOLD: &str = "1";
const RED: &str = "1;31";
const GREEN: &str = "32";
const CYAN: &str = "36";
