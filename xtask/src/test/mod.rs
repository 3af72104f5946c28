//! `cargo xtask test`: everything that CI checks, on any machine.

mod alone;
mod command;
mod counts;
mod deps;
mod fuzz;
mod guest;
mod long;
mod msrv;
mod options;
mod outcome;
mod pool;
mod queue;
mod stage;
mod suite;
mod summary;
mod tally;

use std::{num::NonZeroUsize, process::ExitCode, time::Instant};

use anyhow::{Result, bail, ensure};

use self::{
    counts::Counts,
    options::Part,
    pool::Pool,
    stage::Stage,
    suite::{Suites, Test},
    summary::{StageResult, Summary},
};
pub use self::{fuzz::as_compiler, options::Options};
use crate::{
    architecture::Architecture,
    cargo::Workspace,
    privilege::Privilege,
    setup::{
        self, Need,
        kernels::{self, Series},
    },
};

/// How many failed tests of labs are repeated. They measure losses and times in a machine of which
/// others take time; a test that somebody asks for by name is not repeated.
const LAB_SECOND_TRIES: usize = 8;

/// One run of the command.
pub struct Session<'a> {
    workspace: &'a Workspace,
    options: &'a Options,
    suites: Suites<'a>,
    /// The tests for arm64, as programs for it.
    arm64: Suites<'a>,
}

/// Runs what `options` ask for, everything even if some of it fails, and reports what ran.
///
/// # Errors
///
/// If the machine cannot be set up, or no test has a requested name.
pub fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    let tools = setup::run(workspace, &options.needs())?;
    println!("eBPF is built with {tools}.");
    let mut session = Session {
        workspace,
        options,
        suites: Suites::new(workspace, &options.stages, &options.only),
        arm64: Suites::foreign(workspace, Architecture::Arm64),
    };
    if options.update_counts {
        return session.update_counts();
    }
    let stages = session.stages()?;
    // rustup's servers cannot be reached from everywhere.
    ensure!(
        !stages.contains(&Stage::Arm64) || setup::can_build_for(Architecture::Arm64),
        "arm64 cannot be tested: this Rust has no standard library for it (rustup target add {})",
        Architecture::Arm64.target()
    );
    let mut results = Vec::new();
    for stage in stages {
        println!("\n== {} ==", stage.name());
        let begin = Instant::now();
        let result = stage.run(&mut session);
        if let Err(error) = &result {
            eprintln!("error: {error:#}");
        }
        results.push(StageResult {
            stage,
            result,
            took: begin.elapsed(),
        });
    }
    // A selection has fewer tests than the whole.
    let counts = match options.only.is_empty() {
        true => Some(Counts::load(workspace)?),
        false => None,
    };
    let summary = Summary::new(&results, &options.skipped, counts.as_ref());
    println!("\n== summary ==\n{summary}");
    println!("\n{}", summary.total.closing_line(started.elapsed()));
    Ok(match summary.total.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

impl Session<'_> {
    /// The stages with something to run.
    fn stages(&mut self) -> Result<Vec<Stage>> {
        let mut stages = self.options.stages.clone();
        if self.options.only.is_empty() {
            return Ok(stages);
        }
        let mut chosen = Vec::new();
        let mut empty = Vec::new();
        for stage in &stages {
            match self.tests_of(*stage)? {
                tests if tests.is_empty() => empty.push(*stage),
                tests => chosen.extend(tests),
            }
        }
        for word in &self.options.only {
            if !chosen.iter().any(|test| test.name().contains(word)) {
                let names: Vec<_> = stages.iter().map(|stage| stage.name()).collect();
                bail!(
                    "no test of {} has {word:?} in its name; names are PROGRAM::MODULE::FUNCTION, such as \
                     traffic::access::source_ranges",
                    names.join(" or ")
                );
            }
        }
        stages.retain(|stage| !empty.contains(stage));
        if chosen.iter().any(Test::needs_browser) {
            setup::run(self.workspace, &[Need::Lab, Need::Browser])?;
        }
        if chosen.iter().any(Test::needs_control_plane) {
            setup::run(self.workspace, &[Need::Lab, Need::ControlPlane])?;
        }
        Ok(stages)
    }

    /// The tests of a stage with test programs, without those to skip.
    fn tests_of(&mut self, stage: Stage) -> Result<Vec<Test>> {
        let mut tests = match stage {
            Stage::Unit => self.suites.unit_tests()?,
            // In older kernels run some of them, which depends on the kernel.
            Stage::Kernel | Stage::Kernels => self.suites.kernel_tests()?,
            Stage::Arm64 => self.arm64.kernel_tests()?,
            Stage::Fmt | Stage::Clippy | Stage::Deps | Stage::Msrv | Stage::Doc | Stage::Fuzz => {
                Vec::new()
            }
        };
        let skips =
            |test: &Test| test.needs_control_plane() && self.options.skips(Part::ControlPlane);
        tests.retain(|test| !skips(test));
        Ok(tests)
    }

    /// The series of kernels of an architecture to test in.
    fn kernels(&self, architecture: Architecture) -> Vec<Series> {
        let wanted = |series: &Series| !self.options.skips(Part::Kernel(*series));
        kernels::of(architecture).filter(wanted).collect()
    }

    /// The pool that runs tests, by default `workers` at the same time.
    fn pool(&self, privilege: Option<Privilege>, workers: NonZeroUsize) -> Pool {
        Pool {
            privilege,
            workers: self.options.jobs.unwrap_or(workers),
            outputs: self.workspace.target.join("test-output"),
            show_output: !self.options.only.is_empty(),
            second_tries: match privilege {
                Some(_) if self.options.only.is_empty() => LAB_SECOND_TRIES,
                _ => 0,
            },
        }
    }

    fn update_counts(&mut self) -> Result<ExitCode> {
        let mut counts = Counts::load(self.workspace).unwrap_or_default();
        for stage in &self.options.stages {
            for (part, count) in stage.count(self)? {
                if !self.options.skips(part) {
                    println!("{part}: {count} tests (had {})", counts.of(part));
                    counts.set(part, count);
                }
            }
        }
        println!("{}", counts.save(self.workspace)?.display());
        Ok(ExitCode::SUCCESS)
    }
}
