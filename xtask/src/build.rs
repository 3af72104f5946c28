//! `cargo xtask build`.

use std::{env, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use xtask::ebpf;

use crate::{cargo::Workspace, setup};

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
    // The agent's build script would do it too, but silently.
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
        Kind::Static => build_static(workspace, "release", &["--release"])?,
        Kind::StaticDebug => build_static(workspace, "debug", &[])?,
    };
    ensure!(
        agent.is_file(),
        "cargo built, but {} is not there",
        agent.display()
    );
    Ok(agent)
}

/// Builds the agent with the C library inside, and returns where it is.
fn build_static(workspace: &Workspace, profile: &str, flags: &[&str]) -> Result<PathBuf> {
    // Naming the target keeps the flag away from build scripts and procedural macros.
    let target = host_target(workspace)?;
    let arguments = ["build", "--package", "node-lb", "--target", &target];
    let mut rust_flags = env::var("RUSTFLAGS").unwrap_or_default();
    rust_flags += " -Ctarget-feature=+crt-static";
    crate::cargo::run(
        workspace
            .cargo(arguments.iter().chain(flags))
            .env("RUSTFLAGS", rust_flags.trim_start()),
    )?;
    Ok(workspace.target.join(target).join(profile).join("node-lb"))
}

/// The target triple cargo builds for by default.
fn host_target(workspace: &Workspace) -> Result<String> {
    let output = workspace
        .cargo(["-vV"])
        .output()
        .context("cannot ask cargo for its version")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("`cargo -vV` does not say its host")
}
