//! The outcome of one test.

use std::{fmt, time::Duration};

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its program and its path there: `traffic::singly::all_rules_at_once`.
    pub name: String,
    pub verdict: Verdict,
    pub took: Duration,
    /// The output of the test and of the processes that it started.
    pub output: String,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// It did not run, because its source ignores it.
    Ignored,
}

impl Verdict {
    pub fn of(passed: bool) -> Self {
        match passed {
            true => Self::Passed,
            false => Self::Failed,
        }
    }
}

impl Outcome {
    /// The outcome of a test that did not run.
    pub fn ignored(name: String) -> Self {
        Self {
            name,
            verdict: Verdict::Ignored,
            took: Duration::ZERO,
            output: String::new(),
        }
    }

    /// Prints the outcome in one piece; with the output if the test failed, or if that is wanted.
    pub fn show(&self, with_output: bool) {
        let mut text = format!("{self}\n");
        if with_output || self.verdict == Verdict::Failed {
            // Indented, so that its last line is not mistaken for one of this program's.
            text.extend(self.output.lines().map(|line| format!("    {line}\n")));
        }
        print!("{text}");
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        write!(f, "test {} ... ", self.name)?;
        match self.verdict {
            Verdict::Passed => write!(f, "ok ({seconds:.2} s)"),
            Verdict::Failed => write!(f, "FAILED ({seconds:.2} s)"),
            Verdict::Ignored => f.write_str("ignored"),
        }
    }
}
