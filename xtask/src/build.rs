//! `cargo xtask build`.

use std::{env, fs, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xtask::ebpf;

use crate::{
    architecture::Architecture,
    cargo::{Workspace, run as run_shown},
    setup::{self, Need},
};

/// What to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Debug,
    Release,
    /// A release of the agent alone, with the C library inside.
    Static,
    /// The same for tests, which is built in a third of the time.
    StaticDebug,
}

/// Features that only tests ask for. With them, an agent is made of what the tests are made of, so
/// only the program itself is compiled again.
const FEATURES_OF_TESTS: &str = "lb-common/model,tokio/test-util,tracing-subscriber/default";

impl Kind {
    pub fn parse(arguments: &[String]) -> Result<Self> {
        match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Debug),
            ["--release"] => Ok(Self::Release),
            ["--static"] | ["--static", "--release"] | ["--release", "--static"] => {
                Ok(Self::Static)
            }
            _ => bail!(
                "build takes --release or --static, not {:?}",
                arguments.join(" ")
            ),
        }
    }
}

/// Sets up, builds, and returns where the agent is.
pub fn run(workspace: &Workspace, kind: Kind) -> Result<PathBuf> {
    setup::run(workspace, &[])?;
    // The agent's build script would do this too, but without output.
    if env::var_os(ebpf::OBJECT_VARIABLE).is_none() {
        ebpf::build_object(&workspace.root, &workspace.target, ebpf::PROGRAMS)?;
    }
    let agent = match kind {
        Kind::Debug => {
            workspace.run_cargo(["build"])?;
            workspace.target.join("debug/node-lb")
        }
        Kind::Release => {
            workspace.run_cargo(["build", "--release"])?;
            workspace.target.join("release/node-lb")
        }
        Kind::Static => build_static(workspace, Architecture::here(), "release", &["--release"])?,
        Kind::StaticDebug => {
            let flags = ["--features", FEATURES_OF_TESTS];
            build_static(workspace, Architecture::here(), "debug", &flags)?
        }
    };
    ensure!(
        agent.is_file(),
        "cargo built, but {} is not there",
        agent.display()
    );
    Ok(agent)
}

/// Sets up, builds a release of the agent for an architecture with the C library inside, and returns
/// where it is.
pub fn static_for(workspace: &Workspace, architecture: Architecture) -> Result<PathBuf> {
    if architecture.is_here() {
        return run(workspace, Kind::Static);
    }
    setup::run(workspace, &[Need::Cross(architecture)])?;
    build_static(workspace, architecture, "release", &["--release"])
}

/// Builds the agent with the C library inside, and returns where it is.
fn build_static(
    workspace: &Workspace,
    architecture: Architecture,
    profile: &str,
    flags: &[&str],
) -> Result<PathBuf> {
    // The linking of the C library is chosen only for the program, so that everything else is
    // shared with other builds.
    let arguments = ["rustc", "--package", "node-lb", "--bin", "node-lb"];
    let mut command = workspace.cargo_for(architecture, [&arguments, flags].concat());
    run_shown(command.args(["--", "-Ctarget-feature=+crt-static"]))?;
    // The next build of the workspace replaces the agent at that path.
    let built = workspace.built(architecture, profile).join("node-lb");
    let mut agent = workspace.target.join("static");
    if !architecture.is_here() {
        agent.push(architecture.target());
    }
    let agent = agent.join(profile).join("node-lb");
    let directory = agent.parent().context("the agent is in no directory")?;
    fs::create_dir_all(directory)
        .and_then(|()| fs::copy(&built, &agent))
        .with_context(|| format!("cannot copy {} to {}", built.display(), agent.display()))?;
    Ok(agent)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The packages that cargo builds, each with its features.
    fn packages(arguments: &[&str]) -> BTreeSet<String> {
        let workspace = Workspace::locate().unwrap();
        let mut tree = workspace.cargo(["tree", "--locked", "--prefix=none", "--format={p} {f}"]);
        let output = tree.args(arguments).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaint}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| line.trim_end_matches(" (*)"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn the_static_agent_of_tests_is_made_of_what_tests_are_made_of() {
        let tests = packages(&["--edges=normal,build,dev"]);
        let features = ["--package=node-lb", "--features", FEATURES_OF_TESTS];
        let agent = packages(&[&["--edges=normal,build"], &features[..]].concat());
        let others: Vec<_> = agent.difference(&tests).collect();
        assert!(
            others.is_empty(),
            "built again for the static agent, because their features differ: {others:#?}"
        );
    }
}
