//! The options of `cargo xtask test`.

use std::{fmt, num::NonZeroUsize};

use anyhow::{Context, Result, bail, ensure};

use super::stage::Stage;
use crate::{
    architecture::Architecture,
    setup::{
        Need,
        kernels::{SERIES, Series},
    },
};

/// The stages with tests among which `--only` chooses.
const CHOSEN_AMONG: [Stage; 2] = [Stage::Unit, Stage::Kernel];

/// What runs only if it is named: it is too slow for each run of CI.
const IF_NAMED: Stage = Stage::Arm64;

/// What to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub stages: Vec<Stage>,
    /// What is to be left out, and why.
    pub skipped: Vec<(Part, &'static str)>,
    /// Parts of test names; if empty, all tests run.
    pub only: Vec<String>,
    /// How many tests run at the same time, if specified.
    pub jobs: Option<NonZeroUsize>,
    /// Whether to write the numbers of tests instead of running them.
    pub update_counts: bool,
}

/// What can be left out, and has its own number of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Stage(Stage),
    /// The kernel tests that run a Kubernetes control plane.
    ControlPlane,
    /// One of the kernels that tests boot.
    Kernel(Series),
}

impl Part {
    /// Every part.
    pub fn all() -> impl Iterator<Item = Self> {
        let stages = Stage::ALL.into_iter().map(Self::Stage);
        let kernels = SERIES.into_iter().map(Self::Kernel);
        stages.chain([Self::ControlPlane]).chain(kernels)
    }

    fn parse(name: &str) -> Result<Self> {
        let found = Self::all().find(|part| part.to_string() == name);
        found.with_context(|| {
            let names: Vec<_> = Self::all().map(|part| part.to_string()).collect();
            format!("there is no {name:?} to skip, only {}", names.join(", "))
        })
    }

    /// Whether it is all of a stage or a part of it.
    pub fn is_of(self, stage: Stage) -> bool {
        match self {
            Self::Stage(own) => own == stage,
            Self::ControlPlane => stage == Stage::Kernel,
            Self::Kernel(series) => stage == Stage::of_kernels(series.architecture),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stage(stage) => f.write_str(stage.name()),
            Self::ControlPlane => f.write_str("control-plane"),
            Self::Kernel(series) => {
                let stage = match series.architecture {
                    Architecture::Amd64 => "kernel",
                    Architecture::Arm64 => "arm64",
                };
                write!(f, "{stage}:{}", series.version)
            }
        }
    }
}

impl Options {
    /// Reads a command line.
    ///
    /// # Errors
    ///
    /// Names options that are unknown, or do not go together.
    pub fn parse(arguments: &[String]) -> Result<Self> {
        let mut named = Vec::new();
        let mut options = Self {
            stages: Vec::new(),
            skipped: Vec::new(),
            only: Vec::new(),
            jobs: None,
            update_counts: false,
        };
        let mut rest = arguments.iter().map(String::as_str);
        while let Some(argument) = rest.next() {
            let mut value = || {
                let value = rest.next();
                value.with_context(|| format!("{argument} takes a value"))
            };
            match argument {
                "--skip" => {
                    let part = Part::parse(value()?)?;
                    options.skipped.push((part, "as asked for"));
                }
                "--only" => options.only.push(value()?.to_owned()),
                "--jobs" => {
                    let jobs = value()?;
                    let jobs = jobs.parse().ok();
                    options.jobs = Some(jobs.context("--jobs takes a number from 1")?);
                }
                "--update-counts" => options.update_counts = true,
                option if option.starts_with('-') => bail!(
                    "test has no option {option:?}; it has --only NAME, --skip PART, --jobs N and --update-counts"
                ),
                stage => named.push(Stage::parse(stage)?),
            }
        }
        let all: &[_] = match options.only.is_empty() {
            true => &Stage::ALL,
            false => &CHOSEN_AMONG,
        };
        if let Some(stage) = named.iter().find(|stage| !all.contains(stage)) {
            bail!(
                "--only chooses among the tests of unit and kernel, not of {}",
                stage.name()
            );
        }
        ensure!(
            options.only.is_empty() || !options.update_counts,
            "--update-counts counts all tests, so it goes not with --only"
        );
        if named.is_empty() && all.contains(&IF_NAMED) && !options.update_counts {
            let reason = "because only `cargo xtask test arm64` runs it";
            options.skipped.retain(|(part, _)| !part.is_of(IF_NAMED));
            options.skipped.push((Part::Stage(IF_NAMED), reason));
        }
        let wanted = |stage: &Stage| {
            let named = named.is_empty() || named.contains(stage);
            named && !options.skips(Part::Stage(*stage))
        };
        options.stages = all.iter().copied().filter(wanted).collect();
        ensure!(
            !options.stages.is_empty(),
            "all that was to run is to be skipped"
        );
        Ok(options)
    }

    /// Whether a part is to be left out.
    pub fn skips(&self, part: Part) -> bool {
        self.skipped.iter().any(|(skipped, _)| *skipped == part)
    }

    /// What must be set up.
    pub fn needs(&self) -> Vec<Need> {
        let mut needs = Vec::new();
        for stage in &self.stages {
            match stage {
                Stage::Fmt | Stage::Clippy => needs.push(Need::Lint),
                Stage::Deps | Stage::Msrv | Stage::Unit | Stage::Doc => {}
                Stage::Fuzz => needs.push(Need::Fuzz),
                Stage::Kernel => needs.push(Need::Lab),
                Stage::Kernels => {
                    let kernels = Need::Kernels(Architecture::Amd64);
                    needs.extend([Need::Lab, Need::Guests, kernels]);
                }
                Stage::Arm64 => {
                    let arm64 = Architecture::Arm64;
                    needs.extend([Need::Cross(arm64), Need::Guests, Need::Kernels(arm64)]);
                }
            }
        }
        // With --only, it is known only later whether a test needs these.
        let all = self.stages.contains(&Stage::Kernel) && self.only.is_empty();
        if all {
            needs.push(Need::Browser);
        }
        if all && !self.skips(Part::ControlPlane) {
            needs.push(Need::ControlPlane);
        }
        needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let words = line.split_whitespace().map(str::to_owned);
        Options::parse(&words.collect::<Vec<_>>())
    }

    #[test]
    fn all_stages_run_unless_some_are_named() {
        let mut all = Stage::ALL.to_vec();
        all.retain(|stage| *stage != IF_NAMED);
        assert_eq!(parse("").unwrap().stages, all);
        let stages = parse("kernel fmt").unwrap().stages;
        assert_eq!(stages, [Stage::Fmt, Stage::Kernel]);
    }

    #[test]
    fn what_is_unknown_is_an_error_not_an_empty_run() {
        for (line, word) in [
            ("fmt kernal", "\"kernal\""),
            ("--skip kernal", "\"kernal\""),
            ("--skip kernel:5.4", "\"kernel:5.4\""),
            ("--skip", "--skip takes a value"),
            ("--jobs 0", "--jobs takes a number"),
            ("--fast", "\"--fast\""),
            ("fmt --skip fmt", "to be skipped"),
            ("fuzz --only parse", "not of fuzz"),
            ("--only a --update-counts", "--only"),
        ] {
            let message = format!("{:#}", parse(line).unwrap_err());
            assert!(message.contains(word), "{line}: {message}");
        }
    }

    #[test]
    fn what_is_skipped_is_not_set_up() {
        let all = parse("").unwrap().needs();
        assert!(Need::TESTS.iter().all(|need| all.contains(need)), "{all:?}");
        let needs = parse("--skip kernels --skip control-plane")
            .unwrap()
            .needs();
        for need in [
            Need::Cross(Architecture::Arm64),
            Need::Guests,
            Need::Kernels(Architecture::Amd64),
            Need::Kernels(Architecture::Arm64),
            Need::ControlPlane,
        ] {
            assert!(!needs.contains(&need), "{need:?}");
        }
        assert!(needs.contains(&Need::Lab));
        let needs = parse("arm64").unwrap().needs();
        let arm64 = Architecture::Arm64;
        // No lab of this machine.
        assert_eq!(
            needs,
            [Need::Cross(arm64), Need::Guests, Need::Kernels(arm64)]
        );
        assert_eq!(parse("unit doc").unwrap().needs(), []);
    }

    #[test]
    fn one_kernel_can_be_skipped() {
        let options = parse("kernels arm64 --skip kernel:6.1 --skip arm64:6.12").unwrap();
        let skips = |series| options.skips(Part::Kernel(series));
        assert!(skips(Series::amd64("6.1")) && !skips(Series::amd64("6.12")));
        assert!(!skips(Series::arm64("6.1")) && skips(Series::arm64("6.12")));
        assert_eq!(options.stages, [Stage::Kernels, Stage::Arm64]);
    }

    #[test]
    fn arm64_is_tested_if_it_is_named_and_else_said_to_be_left_out() {
        for (line, runs, skipped) in [
            ("", false, 1),
            ("--skip unit", false, 2),
            ("--skip arm64:6.12", false, 1),
            ("--skip arm64", false, 1),
            ("arm64", true, 0),
            ("unit arm64", true, 0),
            ("unit", false, 0),
            ("--only traffic::access", false, 0),
            ("--update-counts", true, 0),
        ] {
            let options = parse(line).unwrap();
            assert_eq!(options.stages.contains(&Stage::Arm64), runs, "{line:?}");
            assert_eq!(options.skipped.len(), skipped, "{line:?}");
        }
    }

    #[test]
    fn tests_are_chosen_among_those_with_names() {
        let options = parse("--only traffic::access").unwrap();
        assert_eq!(options.stages, [Stage::Unit, Stage::Kernel]);
        assert_eq!(options.only, ["traffic::access"]);
        assert_eq!(parse("kernel --only a").unwrap().stages, [Stage::Kernel]);
    }
}
