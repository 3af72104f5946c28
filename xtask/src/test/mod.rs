//! `cargo xtask test`: everything CI checks, on any machine.

mod fuzz;
mod guest;
mod suite;
mod tally;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use xtask::ebpf;

pub use self::fuzz::as_compiler;
use self::{suite::Suites, tally::Tally};
use crate::{cargo::Workspace, image, privilege::Privilege, setup};

/// A part of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Fmt,
    Clippy,
    /// Unit and integration tests that need no privilege.
    Unit,
    /// Examples in documentation.
    Doc,
    /// Each fuzz target for a short time.
    Fuzz,
    /// Tests of crate `lb-tests`: root, network namespaces, BPF in the running kernel.
    Kernel,
    /// Some of them in older kernels, in virtual machines.
    Kernels,
}

impl Stage {
    const ALL: [Self; 7] = [
        Self::Fmt,
        Self::Clippy,
        Self::Unit,
        Self::Doc,
        Self::Fuzz,
        Self::Kernel,
        Self::Kernels,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Unit => "unit",
            Self::Doc => "doc",
            Self::Fuzz => "fuzz",
            Self::Kernel => "kernel",
            Self::Kernels => "kernels",
        }
    }

    /// The stages named, in their own order; all if none is.
    pub fn parse(arguments: &[String]) -> Result<Vec<Self>> {
        let known = |name: &String| Self::ALL.iter().any(|stage| stage.name() == name);
        if let Some(unknown) = arguments.iter().find(|name| !known(name)) {
            let names = Self::ALL.map(Self::name).join(", ");
            bail!("test has no stage {unknown:?}; it has {names}");
        }
        let wanted = |stage: &Self| {
            arguments.is_empty() || arguments.iter().any(|name| name == stage.name())
        };
        Ok(Self::ALL.into_iter().filter(wanted).collect())
    }

    fn run(self, workspace: &Workspace, suites: &mut Suites) -> Result<Tally> {
        match self {
            Self::Fmt => workspace.run_cargo(["fmt", "--all", "--check"])?,
            Self::Clippy => {
                let host =
                    workspace.run_cargo(["clippy", "--all-targets", "--", "--deny=warnings"]);
                ebpf::lint(&workspace.root, &workspace.target)?;
                host?;
            }
            Self::Unit => {
                let suites = suites
                    .built()?
                    .iter()
                    .filter(|suite| !suite.needs_kernel(workspace));
                return suite::run_all(suites, suite::Manner::Parallel);
            }
            Self::Doc => {
                return suite::run(&mut workspace.cargo(["test", "--doc", "--no-fail-fast"]));
            }
            Self::Fuzz => return fuzz::run(workspace),
            Self::Kernels => return guest::run(workspace, suites),
            Self::Kernel => {
                let privilege = Privilege::detect()
                    .map_err(|lack| anyhow!("the kernel tests did not run: {lack}"))?;
                // They start the agent that lies beside their own directory.
                workspace.run_cargo(["build"])?;
                // And one runs the image.
                image::for_tests(workspace, workspace.target.join("image"))?;
                let suites = suites
                    .built()?
                    .iter()
                    .filter(|suite| suite.needs_kernel(workspace));
                return suite::run_all(suites, suite::Manner::AloneAsRoot(privilege));
            }
        }
        Ok(Tally::default())
    }
}

/// Runs `stages`, all of them even if one fails, and says what ran.
pub fn run(workspace: &Workspace, stages: &[Stage]) -> Result<ExitCode> {
    let started = Instant::now();
    let tools = setup::run(workspace, &setup::Need::TESTS)?;
    println!("eBPF is built with {tools}.");
    let mut suites = Suites::new(workspace);
    let mut outcomes = Vec::new();
    for stage in stages {
        println!("\n== {} ==", stage.name());
        let begin = Instant::now();
        let result = stage.run(workspace, &mut suites);
        if let Err(error) = &result {
            eprintln!("error: {error:#}");
        }
        outcomes.push(Outcome {
            stage: *stage,
            result,
            took: begin.elapsed(),
        });
    }

    println!("\n== summary ==");
    outcomes.iter().for_each(Outcome::print);
    let total = outcomes.iter().map(Outcome::tally).sum::<Tally>();
    println!("\n{}", total.closing_line(started.elapsed()));
    Ok(if total.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

struct Outcome {
    stage: Stage,
    result: Result<Tally>,
    took: Duration,
}

impl Outcome {
    /// A stage that could not run counts as one failed test.
    fn tally(&self) -> Tally {
        match &self.result {
            Ok(tally) => tally.clone(),
            Err(_) => Tally {
                failed: 1,
                ..Tally::default()
            },
        }
    }

    fn print(&self) {
        let (ok, detail) = match &self.result {
            Ok(tally) => (tally.failed == 0, tally.to_string()),
            Err(error) => (false, error.to_string()),
        };
        let name = self.stage.name();
        let verdict = if ok { "ok" } else { "FAILED" };
        let seconds = self.took.as_secs_f32();
        println!("{name:<7} {verdict:<7} {seconds:>7.1} s  {detail}");
        for suite in self.result.iter().flat_map(|tally| &tally.failed_suites) {
            println!("        failed: {suite}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Vec<Stage>> {
        Stage::parse(
            &arguments
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn all_stages_run_unless_some_are_named() {
        assert_eq!(parse(&[]).unwrap(), Stage::ALL);
        assert_eq!(
            parse(&["kernel", "fmt"]).unwrap(),
            [Stage::Fmt, Stage::Kernel]
        );
    }

    #[test]
    fn unknown_stage_is_an_error_not_an_empty_run() {
        let message = parse(&["fmt", "kernal"]).unwrap_err().to_string();
        assert!(message.contains("\"kernal\""), "{message}");
    }
}
