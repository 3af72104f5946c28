//! What the demo prints: acts, explained steps, commands with their output, and promises kept or
//! broken. Coloured on a terminal.

use std::cell::RefCell;
use std::fmt::Display;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

use lb_tests::LoadReport;

use super::recording::{Part, Recording};

/// How a part of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Title,
    Command,
    Kept,
    Broken,
}

impl Style {
    /// Its name, in the classes of pictures.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Title => "title",
            Self::Command => "command",
            Self::Kept => "kept",
            Self::Broken => "broken",
        }
    }

    /// The parameters of its escape sequence (ECMA-48, SGR).
    fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Title => Some("1"),
            Self::Command => Some("36"),
            Self::Kept => Some("32"),
            Self::Broken => Some("1;31"),
        }
    }
}

/// The terminal, and the count of broken promises.
pub struct Screen {
    colour: bool,
    /// What has been shown.
    recording: RefCell<Recording>,
    acts: u32,
    promises: u32,
    broken: u32,
}

impl Screen {
    pub fn new() -> Self {
        Self {
            colour: stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            recording: RefCell::new(Recording::new()),
            acts: 0,
            promises: 0,
            broken: 0,
        }
    }

    /// What has been shown so far, as a picture that shows it again.
    pub fn picture(&self) -> String {
        self.recording.borrow().svg()
    }

    /// How many promises were broken.
    pub fn broken(&self) -> u32 {
        self.broken
    }

    /// Begins a part.
    pub fn act(&mut self, title: &str) {
        self.acts += 1;
        self.line(vec![]);
        self.line(vec![(Style::Title, format!("{}. {title}", self.acts))]);
    }

    /// Explains.
    pub fn say(&self, text: impl Display) {
        self.line(vec![plain(format_args!("   {text}"))]);
    }

    /// Shows a command as one would type it, and what it answered.
    pub fn command(&self, line: impl Display, output: &str) {
        self.line(vec![plain("   "), (Style::Command, format!("$ {line}"))]);
        for line in output.lines() {
            self.line(vec![plain(format_args!("     {line}"))]);
        }
    }

    /// Prints what must be true, and whether it is.
    pub fn promise(&mut self, kept: bool, text: impl Display) {
        self.promises += 1;
        let (style, mark) = if kept {
            (Style::Kept, "ok    ")
        } else {
            self.broken += 1;
            (Style::Broken, "BROKEN")
        };
        let text = plain(format_args!(" {text}"));
        self.line(vec![plain("   "), (style, mark.to_owned()), text]);
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
        let verdict = match broken {
            0 => (Style::Kept, format!("All {promises} promises kept")),
            _ => (
                Style::Broken,
                format!("{broken} of {promises} promises broken"),
            ),
        };
        self.line(vec![]);
        self.line(vec![verdict, plain(format_args!(" in {elapsed:.1?}."))]);
    }

    /// Prints a line, and remembers it.
    fn line(&self, parts: Vec<Part>) {
        let line: String = parts.iter().map(|part| self.paint(part)).collect();
        println!("{line}");
        self.recording.borrow_mut().add(parts);
    }

    fn paint(&self, (style, text): &Part) -> String {
        match style.code().filter(|_| self.colour) {
            Some(code) => format!("\x1b[{code}m{text}\x1b[0m"),
            None => text.clone(),
        }
    }
}

fn plain(text: impl Display) -> Part {
    (Style::Plain, text.to_string())
}
