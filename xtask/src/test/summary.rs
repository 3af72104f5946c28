//! The final report of `cargo xtask test`.

use std::{fmt, time::Duration};

use anyhow::Result;

use super::{
    counts::Counts,
    options::Part,
    stage::{Stage, Tallies},
    tally::{Failure, Tally},
};

/// How many of the slowest tests are named.
const SLOWEST: usize = 10;

/// The result of a stage.
pub struct StageResult {
    pub stage: Stage,
    pub result: Result<Tallies>,
    pub took: Duration,
}

/// The results of all stages.
pub struct Summary {
    lines: Vec<Line>,
    /// What was left out, why, and how many tests that is.
    skipped: Vec<(Part, &'static str, u64)>,
    /// Messages about changed numbers of tests.
    differences: Vec<String>,
    /// All tests. A stage that could not be run, or has fewer tests than before, counts as one more
    /// failed test. Skipped tests count as ignored.
    pub total: Tally,
}

/// The line about one stage.
struct Line {
    stage: Stage,
    took: Duration,
    ok: bool,
    detail: String,
    failures: Vec<Failure>,
    repeated: Vec<Failure>,
}

impl Summary {
    /// Sums up the results. `skipped` is what was left out, and why. `known` are the numbers of
    /// tests in the repository, if they are to be compared.
    pub fn new(
        results: &[StageResult],
        skipped: &[(Part, &'static str)],
        known: Option<&Counts>,
    ) -> Self {
        let count = |part: Part| known.map_or(0, |known| known.of(part));
        let mut summary = Self {
            lines: Vec::new(),
            skipped: skipped
                .iter()
                .map(|(skipped, reason)| {
                    let parts = Part::all().filter(|part| contains(*skipped, *part));
                    (*skipped, *reason, parts.map(count).sum())
                })
                .collect(),
            differences: Vec::new(),
            total: Tally::default(),
        };
        for result in results {
            let line = summary.add(result, known);
            summary.lines.push(line);
        }
        summary.total.ignored += summary.skipped.iter().map(|(.., count)| count).sum::<u64>();
        summary
    }

    fn add(&mut self, result: &StageResult, known: Option<&Counts>) -> Line {
        let mut line = Line {
            stage: result.stage,
            took: result.took,
            ok: true,
            detail: String::new(),
            failures: Vec::new(),
            repeated: Vec::new(),
        };
        match &result.result {
            Ok(tallies) => {
                let tally: Tally = tallies.iter().map(|(_, tally)| tally.clone()).sum();
                line.ok = tally.failed == 0;
                line.detail = tally.to_string();
                line.failures.clone_from(&tally.failures);
                line.repeated.clone_from(&tally.repeated);
                let ran = tallies.iter().map(|(part, tally)| (*part, tally.ran()));
                for difference in ran.filter_map(|(part, ran)| {
                    let skipped = self.skipped.iter().any(|(skipped, ..)| *skipped == part);
                    known.filter(|_| !skipped)?.compare(part, ran)
                }) {
                    if difference.fewer {
                        line.ok = false;
                        line.failures.push(Failure {
                            name: "fewer tests ran than are known".to_owned(),
                            why: Vec::new(),
                        });
                        self.total.failed += 1;
                    }
                    self.differences.push(difference.text);
                }
                self.total = [std::mem::take(&mut self.total), tally].into_iter().sum();
            }
            Err(error) => {
                line.ok = false;
                line.detail = error.to_string();
                self.total.failed += 1;
            }
        }
        line
    }
}

/// Whether `part` is left out with `skipped`.
fn contains(skipped: Part, part: Part) -> bool {
    match skipped {
        Part::Stage(stage) => part.is_of(stage),
        one => one == part,
    }
}

fn write_failure(f: &mut fmt::Formatter<'_>, how: &str, failure: &Failure) -> fmt::Result {
    writeln!(f, "        {how}: {}", failure.name)?;
    let mut why = failure.why.iter();
    why.try_for_each(|line| writeln!(f, "            {line}"))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            let name = line.stage.name();
            let verdict = if line.ok { "ok" } else { "FAILED" };
            let seconds = line.took.as_secs_f32();
            writeln!(
                f,
                "{name:<7} {verdict:<7} {seconds:>7.1} s  {}",
                line.detail
            )?;
            for failure in &line.failures {
                write_failure(f, "failed", failure)?;
            }
            for failure in &line.repeated {
                write_failure(f, "failed, then passed alone", failure)?;
            }
        }
        for (part, reason, count) in &self.skipped {
            writeln!(
                f,
                "{part} was left out, {reason}: {count} tests did not run"
            )?;
        }
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        let slowest = self.total.slowest(SLOWEST);
        if !slowest.is_empty() {
            writeln!(f, "\nThe slowest tests:")?;
        }
        for (took, name) in slowest {
            writeln!(f, "{:>7.1} s  {name}", took.as_secs_f32())?;
        }
        let Tally {
            passed,
            failed,
            ignored,
            ..
        } = self.total;
        write!(f, "\n{passed} passed, {failed} failed, {ignored} skipped")
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::setup::kernels::Series;

    fn failure(name: &str) -> Failure {
        Failure {
            name: name.to_owned(),
            why: vec!["because".to_owned()],
        }
    }

    fn tally(passed: u64, failed: u64) -> Tally {
        Tally {
            passed,
            failed,
            failures: (0..failed)
                .map(|n| failure(&format!("web::test_{n}")))
                .collect(),
            ..Tally::default()
        }
    }

    fn result(stage: Stage, result: Result<Tallies>) -> StageResult {
        StageResult {
            stage,
            result,
            took: Duration::from_secs(2),
        }
    }

    fn known() -> Counts {
        let mut counts = Counts::default();
        counts.set(Part::Stage(Stage::Unit), 10);
        counts.set(Part::Kernel(Series::amd64("6.1")), 4);
        counts.set(Part::Kernel(Series::amd64("6.12")), 5);
        counts
    }

    fn unit(tally: Tally) -> StageResult {
        result(Stage::Unit, Ok(vec![(Part::Stage(Stage::Unit), tally)]))
    }

    #[test]
    fn all_tests_that_are_known_have_to_run() {
        let summary = Summary::new(&[unit(tally(10, 0))], &[], Some(&known()));
        assert_eq!((summary.total.passed, summary.total.failed), (10, 0));
        let text = summary.to_string();
        assert!(text.ends_with("\n10 passed, 0 failed, 0 skipped"), "{text}");

        let summary = Summary::new(&[unit(tally(9, 0))], &[], Some(&known()));
        assert_eq!((summary.total.passed, summary.total.failed), (9, 1));
        let text = summary.to_string();
        assert!(text.contains("unit: only 9 of 10 tests ran"), "{text}");
        assert!(text.contains("--update-counts"), "{text}");

        // A selection is smaller than the whole.
        let summary = Summary::new(&[unit(tally(1, 0))], &[], None);
        assert_eq!(summary.total.failed, 0);
    }

    #[test]
    fn what_failed_is_named() {
        let results = [
            unit(tally(9, 1)),
            result(Stage::Clippy, Err(anyhow!("no clippy"))),
        ];
        let summary = Summary::new(&results, &[], Some(&known()));
        assert_eq!((summary.total.passed, summary.total.failed), (9, 2));
        let text = summary.to_string();
        let failed = "failed: web::test_0\n            because\n";
        assert!(text.contains(failed), "{text}");
        assert!(text.contains("no clippy"), "{text}");
    }

    #[test]
    fn what_passed_at_the_second_try_is_named() {
        let tally = Tally {
            repeated: vec![failure("web::late")],
            ..tally(10, 0)
        };
        let summary = Summary::new(&[unit(tally)], &[], Some(&known()));
        assert_eq!((summary.total.passed, summary.total.failed), (10, 0));
        let text = summary.to_string();
        let repeated = "failed, then passed alone: web::late\n            because\n";
        assert!(text.contains(repeated), "{text}");
    }

    #[test]
    fn what_was_skipped_is_said_and_counted() {
        let kernels = result(
            Stage::Kernels,
            Ok(vec![(Part::Kernel(Series::amd64("6.12")), tally(5, 0))]),
        );
        let skipped = [(Part::Kernel(Series::amd64("6.1")), "as asked for")];
        let summary = Summary::new(&[kernels], &skipped, Some(&known()));
        assert_eq!((summary.total.failed, summary.total.ignored), (0, 4));
        let text = summary.to_string();
        assert!(
            text.contains("kernel:6.1 was left out, as asked for: 4 tests"),
            "{text}"
        );

        let skipped = [(Part::Stage(Stage::Kernels), "as asked for")];
        let summary = Summary::new(&[unit(tally(10, 0))], &skipped, Some(&known()));
        assert_eq!(summary.total.ignored, 9);
    }
}
