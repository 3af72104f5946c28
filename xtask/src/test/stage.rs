//! The parts of the checks.

use std::{num::NonZeroUsize, process::Stdio, thread};

use anyhow::{Context, Result, anyhow, ensure};
use xtask::ebpf;

use super::{
    Session, command, deps, fuzz, guest, msrv,
    options::Part,
    outcome::Outcome,
    suite::{self, Test},
    tally::Tally,
};
use crate::{architecture::Architecture, image, older, privilege::Privilege, site};

/// A part of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Fmt,
    Clippy,
    /// The dependencies: licences, duplicate versions, sources.
    Deps,
    /// Whether the oldest promised Rust compiles the code.
    Msrv,
    /// Unit and integration tests that need no privilege.
    Unit,
    /// The documentation as a site, and the examples in that of the code.
    Doc,
    /// Each fuzz target for a short time.
    Fuzz,
    /// Tests of crate `lb-tests`: root, network namespaces, BPF in the running kernel.
    Kernel,
    /// Some of them in older kernels, in virtual machines.
    Kernels,
    /// Tests on another architecture: programs built for it, in its kernels.
    Arm64,
}

/// The results of the parts of a stage; empty if nothing is counted.
pub type Tallies = Vec<(Part, Tally)>;

impl Stage {
    pub const ALL: [Self; 10] = [
        Self::Fmt,
        Self::Clippy,
        Self::Deps,
        Self::Msrv,
        Self::Unit,
        Self::Doc,
        Self::Fuzz,
        Self::Kernel,
        Self::Kernels,
        Self::Arm64,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Clippy => "clippy",
            Self::Deps => "deps",
            Self::Msrv => "msrv",
            Self::Unit => "unit",
            Self::Doc => "doc",
            Self::Fuzz => "fuzz",
            Self::Kernel => "kernel",
            Self::Kernels => "kernels",
            Self::Arm64 => "arm64",
        }
    }

    /// The stage that boots kernels of an architecture.
    pub fn of_kernels(architecture: Architecture) -> Self {
        match architecture {
            Architecture::Amd64 => Self::Kernels,
            Architecture::Arm64 => Self::Arm64,
        }
    }

    /// The architecture of the kernels that it boots.
    fn architecture(self) -> Architecture {
        match self {
            Self::Arm64 => Architecture::Arm64,
            _ => Architecture::Amd64,
        }
    }

    /// Whether it runs tests of crate `lb-tests`.
    pub fn needs_lab_tests(self) -> bool {
        matches!(self, Self::Kernel | Self::Kernels)
    }

    /// The stage of that name.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|stage| stage.name() == name);
        found.with_context(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("test has no stage {name:?}; it has {names}")
        })
    }

    /// Runs the stage. Returns the results of its parts.
    ///
    /// # Errors
    ///
    /// If it cannot be run. A failed test is no error.
    pub fn run(self, session: &mut Session) -> Result<Tallies> {
        let workspace = session.workspace;
        match self {
            Self::Fmt => workspace.run_cargo(["fmt", "--all", "--check"])?,
            Self::Clippy => {
                let host =
                    workspace.run_cargo(["clippy", "--all-targets", "--", "--deny=warnings"]);
                ebpf::lint(&workspace.root, &workspace.target)?;
                host?;
            }
            Self::Deps => deps::run(workspace)?,
            Self::Msrv => msrv::run(workspace)?,
            Self::Unit => {
                let tests = session.tests_of(self)?;
                let outcomes = session.pool(None, per_processor(UNIT_TESTS)).run(tests)?;
                return Ok(vec![(Part::Stage(self), outcomes.iter().collect())]);
            }
            Self::Doc => {
                site::build(workspace)?;
                let mut tests = workspace.cargo(["test", "--doc", "--no-fail-fast"]);
                return Ok(vec![(Part::Stage(self), command::run("doc", &mut tests)?)]);
            }
            Self::Fuzz => {
                let outcomes = fuzz::run(workspace)?;
                return Ok(vec![(Part::Stage(self), outcomes.iter().collect())]);
            }
            Self::Kernel => {
                let privilege = Privilege::detect()
                    .map_err(|lack| anyhow!("the kernel tests did not run: {lack}"))?;
                let mut tests = session.tests_of(self)?;
                if tests.iter().any(Test::needs_image) {
                    image::for_tests(workspace, workspace.target.join("image"))?;
                    // They start the agent beside their own directory, which is now the image's
                    // agent.
                    session.suites.forget();
                    tests = session.tests_of(self)?;
                }
                if tests.iter().any(Test::needs_older)
                    && let Err(error) = older::for_tests(workspace)
                {
                    // The tests that need it fail; all others run.
                    eprintln!("error: {error:#}");
                }
                let outcomes = session
                    .pool(Some(privilege), per_processor(LAB_TESTS))
                    .run(tests)?;
                return Ok(by_part(&outcomes));
            }
            Self::Kernels | Self::Arm64 => {
                let tests = session.tests_of(self)?;
                let kernels = session.kernels(self.architecture());
                return guest::run(workspace, &kernels, &tests);
            }
        }
        Ok(Tallies::new())
    }

    /// The numbers of tests in its parts, without those to skip.
    ///
    /// # Errors
    ///
    /// If they cannot be built or listed.
    pub fn count(self, session: &mut Session) -> Result<Vec<(Part, u64)>> {
        let part = Part::Stage(self);
        Ok(match self {
            Self::Fmt | Self::Clippy | Self::Deps | Self::Msrv => Vec::new(),
            Self::Unit => vec![(part, runnable(&session.tests_of(self)?))],
            Self::Doc => vec![(part, doc_tests(session)?)],
            Self::Fuzz => vec![(part, fuzz::targets(session.workspace)?.len() as u64)],
            Self::Kernel => {
                let tests = session.tests_of(self)?;
                let (cluster, others): (Vec<_>, Vec<_>) =
                    tests.into_iter().partition(Test::needs_control_plane);
                vec![
                    (part, runnable(&others)),
                    (Part::ControlPlane, runnable(&cluster)),
                ]
            }
            Self::Kernels | Self::Arm64 => {
                let tests = session.tests_of(self)?;
                let mut counts = Vec::new();
                for series in session.kernels(self.architecture()) {
                    let selected = guest::selected(series, &tests)?;
                    counts.push((Part::Kernel(series), runnable(&selected)));
                }
                counts
            }
        })
    }
}

/// The outcomes of the kernel stage, with those that ran a control plane separate.
fn by_part(outcomes: &[Outcome]) -> Tallies {
    let (cluster, others): (Vec<_>, Vec<_>) = outcomes
        .iter()
        .partition(|outcome| suite::needs_control_plane(&outcome.name));
    vec![
        (Part::Stage(Stage::Kernel), others.into_iter().collect()),
        (Part::ControlPlane, cluster.into_iter().collect()),
    ]
}

fn runnable(tests: &[Test]) -> u64 {
    tests.iter().filter(|test| !test.is_ignored()).count() as u64
}

fn doc_tests(session: &Session) -> Result<u64> {
    let mut list = session.workspace.cargo(["test", "--doc", "--", "--list"]);
    let output = list.stderr(Stdio::inherit()).output();
    let output = output.context("cannot run cargo")?;
    ensure!(output.status.success(), "the examples cannot be listed");
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(suite::listed(&text).count() as u64)
}

/// Unit tests at the same time per processor: they wait more than they compute.
const UNIT_TESTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// The same for tests in labs.
const LAB_TESTS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

fn per_processor(tests: NonZeroUsize) -> NonZeroUsize {
    let processors = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    processors.saturating_mul(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_stage_is_an_error_that_names_those_there_are() {
        assert_eq!(Stage::parse("fuzz").unwrap(), Stage::Fuzz);
        let message = Stage::parse("kernal").unwrap_err().to_string();
        assert!(
            message.contains("\"kernal\"") && message.contains("kernel"),
            "{message}"
        );
    }

    #[test]
    fn tests_with_a_control_plane_are_counted_apart() {
        let outcomes = [
            "control_plane::lists::a",
            "traffic::a",
            "traffic::control_plane::a",
        ];
        let outcomes = outcomes.map(|name| Outcome::ignored(name.to_owned()));
        let tallies = by_part(&outcomes);
        let ignored: Vec<_> = tallies
            .iter()
            .map(|(part, tally)| (*part, tally.ignored))
            .collect();
        assert_eq!(
            ignored,
            [(Part::Stage(Stage::Kernel), 2), (Part::ControlPlane, 1)]
        );
    }
}
