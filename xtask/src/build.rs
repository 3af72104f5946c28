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
        Kind::StaticDebug => build_static(workspace, Architecture::here(), "debug", &[])?,
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
