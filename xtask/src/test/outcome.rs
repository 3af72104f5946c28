//! The outcome of one test.

use std::{fmt, time::Duration};

/// Lines of [`Outcome::why`], and characters in one.
const WHY: usize = 8;
const WIDTH: usize = 300;

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Its program and its path there: `traffic::singly::all_rules_at_once`.
    pub name: String,
    pub verdict: Verdict,
    pub took: Duration,
    /// The output of the test and of the processes that it started.
    pub output: String,
    /// Why it failed at the first try, if this is the second.
    pub first_failure: Option<Vec<String>>,
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    /// It did not run, because its source ignores it.
    Ignored,
}

impl Outcome {
    /// The outcome of a test that ran.
    pub fn ended(name: String, passed: bool, took: Duration, output: String) -> Self {
        Self {
            name,
            verdict: match passed {
                true => Verdict::Passed,
                false => Verdict::Failed,
            },
            took,
            output,
            first_failure: None,
        }
    }

    /// The outcome of a test that did not run.
    pub fn ignored(name: String) -> Self {
        Self {
            name,
            verdict: Verdict::Ignored,
            took: Duration::ZERO,
            output: String::new(),
            first_failure: None,
        }
    }

    /// Why it failed: the message of the first panic or error, or the end of the output.
    pub fn why(&self) -> Vec<String> {
        let mut lines = self.output.lines();
        let says_why = |line: &&str| line.contains("panicked at ") || line.starts_with("Error: ");
        let first = lines.find(says_why);
        let mut why: Vec<_> = match first {
            Some(first) => {
                let is_trace = |line: &&str| line.trim().eq_ignore_ascii_case("stack backtrace:");
                let message: Vec<_> = lines.take_while(|line| !is_trace(line)).collect();
                // Tests that measure several things mark those that are wrong.
                let is_marked = |line: &&str| line.trim().starts_with("! ");
                let marks = message.iter().any(is_marked);
                let message = message.into_iter();
                let message = message.filter(|line| !marks || is_marked(line));
                [first].into_iter().chain(message.take(WHY - 1)).collect()
            }
            None => self.output.lines().rev().take(WHY).collect(),
        };
        if first.is_none() {
            why.reverse();
        }
        let shortened = |line: &str| line.trim().chars().take(WIDTH).collect::<String>();
        let why = why.into_iter().map(shortened);
        why.filter(|line| !line.is_empty()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn why(output: &str) -> Vec<String> {
        let outcome = Outcome {
            output: output.to_owned(),
            ..Outcome::ignored("a::b".to_owned())
        };
        outcome.why()
    }

    #[test]
    fn the_first_panic_or_error_says_why() {
        let output = "running 1 test\n\nthread 'b' panicked at b.rs:1:2:\nleft: 1\n\nright: 2\n\
                      Stack backtrace:\n   0: main\nthread 'c' panicked at c.rs:1:2:\n";
        let expected = ["thread 'b' panicked at b.rs:1:2:", "left: 1", "right: 2"];
        assert_eq!(why(output), expected);
        let output = "Error: no lab\n\nCaused by:\n    no root\n\nStack backtrace:\n   0: main\n";
        assert_eq!(why(output), ["Error: no lab", "Caused by:", "no root"]);
    }

    #[test]
    fn of_many_measures_those_that_are_wrong_say_why() {
        let output =
            "thread 'b' panicked at b.rs:1:2:\n1 measures are bad:\n  a: 7\n! b: 8\n  c: 9\n";
        assert_eq!(why(output), ["thread 'b' panicked at b.rs:1:2:", "! b: 8"]);
    }

    #[test]
    fn without_a_panic_the_end_says_why() {
        let many: String = (0..20).map(|line| format!("line {line}\n")).collect();
        let lines = why(&many);
        assert_eq!((lines.len(), &*lines[0]), (WHY, "line 12"));
        assert_eq!(why(""), [""; 0]);
        assert_eq!(why(&"x".repeat(2 * WIDTH))[0].len(), WIDTH);
    }
}
