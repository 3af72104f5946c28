//! Counting what test programs report.

use std::{fmt, iter::Sum, time::Duration};

/// How many tests passed, failed and did not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
    /// Test programs with failures.
    pub failed_suites: Vec<String>,
}

impl Tally {
    /// What a test program printed and how it ended.
    ///
    /// One without cargo's result line (another harness, or one that crashed) counts as one test.
    pub fn of_program(name: &str, output: &str, success: bool) -> Self {
        let mut tally = Self::default();
        for line in output
            .lines()
            .filter_map(|line| line.strip_prefix("test result: "))
        {
            tally.passed += count(line, " passed");
            tally.failed += count(line, " failed");
            tally.ignored += count(line, " ignored");
        }
        if !success && tally.failed == 0 {
            tally.failed = 1;
        } else if success && !output.contains("test result: ") {
            tally.passed = 1;
        }
        if tally.failed > 0 {
            tally.failed_suites.push(name.to_owned());
        }
        tally
    }

    /// The line `cargo test` itself would end with.
    pub fn closing_line(&self, took: Duration) -> String {
        format!(
            "test result: {}. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out; \
             finished in {:.2}s",
            if self.failed == 0 { "ok" } else { "FAILED" },
            self.passed,
            self.failed,
            self.ignored,
            took.as_secs_f64()
        )
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut total, tally| {
            total.passed += tally.passed;
            total.failed += tally.failed;
            total.ignored += tally.ignored;
            total.failed_suites.extend(tally.failed_suites);
            total
        })
    }
}

/// Empty where there is nothing to count.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.passed + self.failed + self.ignored == 0 {
            return Ok(());
        }
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.ignored {
            0 => Ok(()),
            ignored => write!(f, ", {ignored} ignored"),
        }
    }
}

/// The number before `word`.
fn count(line: &str, word: &str) -> u64 {
    line.split(';')
        .filter_map(|part| part.strip_suffix(word))
        .filter_map(|part| part.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = "test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; \
                      1 filtered out; finished in 0.05s\n";
    const FAILED: &str = "test result: FAILED. 3 passed; 12 failed; 0 ignored; 0 measured; \
                          0 filtered out; finished in 0.05s\n";

    #[test]
    fn adds_up_all_result_lines() {
        let output = format!("running 7 tests\n{OK}\nrunning 15 tests\n{FAILED}");
        let tally = Tally::of_program("unit", &output, false);
        assert_eq!((tally.passed, tally.failed, tally.ignored), (8, 12, 2));
        assert_eq!(tally.failed_suites, ["unit"]);
    }

    #[test]
    fn crash_counts_even_after_good_results() {
        assert_eq!(Tally::of_program("unit", OK, false).failed, 1);
        assert_eq!(
            Tally::of_program("unit", "running 3 tests\n", false).failed,
            1
        );
    }

    #[test]
    fn program_with_another_harness_counts_once() {
        let tally = Tally::of_program("own", "all good\n", true);
        assert_eq!((tally.passed, tally.failed), (1, 0));
    }

    #[test]
    fn program_without_tests_counts_nothing() {
        let empty = OK
            .replace("5 passed", "0 passed")
            .replace("2 ignored", "0 ignored");
        assert_eq!(Tally::of_program("empty", &empty, true), Tally::default());
    }

    #[test]
    fn closing_line_is_cargos() {
        let tally = Tally {
            passed: 8,
            ignored: 2,
            ..Tally::default()
        };
        let line = tally.closing_line(Duration::from_millis(1234));
        assert_eq!(
            line,
            "test result: ok. 8 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; \
             finished in 1.23s"
        );
        assert_eq!(Tally::of_program("again", &line, true), tally);
    }
}
