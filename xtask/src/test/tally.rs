//! Counts outcomes of tests.

use std::{fmt, iter::Sum, time::Duration};

use super::outcome::{Outcome, Verdict};

/// How many tests passed, failed and did not run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
    pub failures: Vec<Failure>,
    /// Tests that failed at first and passed when they were repeated alone, with the first failure.
    pub repeated: Vec<Failure>,
    /// How long tests took, if each ran on its own.
    pub timed: Vec<(Duration, String)>,
}

/// A test that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    pub name: String,
    /// A few lines; none if only the test's program knows.
    pub why: Vec<String>,
}

impl Tally {
    /// Counts a test.
    fn add(&mut self, outcome: &Outcome) {
        match outcome.verdict {
            Verdict::Passed => {
                self.passed += 1;
                let first = outcome.first_failure.clone();
                self.repeated.extend(first.map(|why| Failure {
                    name: outcome.name.clone(),
                    why,
                }));
            }
            Verdict::Failed => {
                self.failed += 1;
                self.failures.push(Failure {
                    name: outcome.name.clone(),
                    why: outcome.why(),
                });
            }
            Verdict::Ignored => {
                self.ignored += 1;
                return;
            }
        }
        self.timed.push((outcome.took, outcome.name.clone()));
    }

    /// Counts what a command printed that runs tests itself, and how it ended.
    ///
    /// A command without cargo's result line (another harness, or a crash) counts as one test.
    pub fn of_command(name: &str, output: &str, success: bool, took: Duration) -> Self {
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
            tally.failures.push(Failure {
                name: name.to_owned(),
                why: Vec::new(),
            });
        }
        tally.timed.push((took, name.to_owned()));
        tally
    }

    /// How many tests ran.
    pub fn ran(&self) -> u64 {
        self.passed + self.failed
    }

    /// The slowest tests, slowest first.
    pub fn slowest(&self, count: usize) -> Vec<(Duration, String)> {
        let mut timed = self.timed.clone();
        timed.sort_by(|a, b| b.cmp(a));
        timed.truncate(count);
        timed
    }

    /// A final line like that of `cargo test`.
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

impl<'o> FromIterator<&'o Outcome> for Tally {
    fn from_iter<I: IntoIterator<Item = &'o Outcome>>(outcomes: I) -> Self {
        let mut tally = Self::default();
        outcomes.into_iter().for_each(|outcome| tally.add(outcome));
        tally
    }
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |mut total, tally| {
            total.passed += tally.passed;
            total.failed += tally.failed;
            total.ignored += tally.ignored;
            total.failures.extend(tally.failures);
            total.repeated.extend(tally.repeated);
            total.timed.extend(tally.timed);
            total
        })
    }
}

/// Empty if there is nothing to count.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ran() + self.ignored == 0 {
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

    fn of_command(output: &str, success: bool) -> Tally {
        Tally::of_command("doc", output, success, Duration::ZERO)
    }

    fn outcome(name: &str, passed: bool, seconds: u64) -> Outcome {
        let took = Duration::from_secs(seconds);
        Outcome::ended(name.to_owned(), passed, took, String::new())
    }

    fn names(failures: &[Failure]) -> Vec<&str> {
        failures.iter().map(|failure| &*failure.name).collect()
    }

    #[test]
    fn adds_up_all_result_lines() {
        let output = format!("running 7 tests\n{OK}\nrunning 15 tests\n{FAILED}");
        let tally = of_command(&output, false);
        assert_eq!((tally.passed, tally.failed, tally.ignored), (8, 12, 2));
        assert_eq!(names(&tally.failures), ["doc"]);
    }

    #[test]
    fn crash_counts_even_after_good_results() {
        assert_eq!(of_command(OK, false).failed, 1);
        assert_eq!(of_command("running 3 tests\n", false).failed, 1);
    }

    #[test]
    fn command_with_another_harness_counts_once() {
        let tally = of_command("all good\n", true);
        assert_eq!((tally.passed, tally.failed), (1, 0));
    }

    #[test]
    fn tests_are_counted_one_by_one_and_the_slowest_named() {
        let outcomes = [
            outcome("a", true, 1),
            outcome("b", false, 3),
            outcome("c", true, 2),
            Outcome::ignored("d".to_owned()),
        ];
        let tally: Tally = outcomes.iter().collect();
        assert_eq!((tally.passed, tally.failed, tally.ignored), (2, 1, 1));
        assert_eq!(tally.ran(), 3);
        assert_eq!(names(&tally.failures), ["b"]);
        let slowest = tally.slowest(2).into_iter().map(|(_, name)| name);
        assert_eq!(slowest.collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn a_test_that_passed_at_the_second_try_is_named_with_its_first_failure() {
        let outcome = |passed| Outcome {
            first_failure: Some(vec!["late".to_owned()]),
            ..outcome("a", passed, 1)
        };
        let tally: Tally = [&outcome(true)].into_iter().collect();
        assert_eq!((tally.passed, tally.failed), (1, 0));
        assert_eq!(names(&tally.repeated), ["a"]);
        assert_eq!(tally.repeated[0].why, ["late"]);
        let tally: Tally = [&outcome(false)].into_iter().collect();
        assert_eq!((tally.passed, tally.failed), (0, 1));
        assert_eq!(tally.repeated, []);
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
        let again = of_command(&line, true);
        assert_eq!((again.passed, again.failed, again.ignored), (8, 0, 2));
    }
}
