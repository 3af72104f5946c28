//! `cargo xtask demo | bench | lab`: the programs of crate `lb-tests`.

use std::{os::unix::process::CommandExt, process::ExitCode};

use anyhow::{Context, Result};

use crate::{
    cargo::Workspace,
    privilege::Privilege,
    setup::{self, Need},
};

/// A program that needs root and a set-up machine.
pub struct Program {
    pub name: &'static str,
    pub purpose: &'static str,
    /// Whether its figures or its load call for an optimised build.
    release: bool,
}

pub const PROGRAMS: [Program; 3] = [
    Program {
        name: "demo",
        purpose: "services, a rolling update and health checks, shown in the lab",
        release: false,
    },
    Program {
        name: "bench",
        purpose: "what packets, connections and updates cost, beside other systems",
        release: true,
    },
    Program {
        name: "lab",
        purpose: "the lab alone: hosts and pods in network namespaces",
        release: false,
    },
];

/// Arguments of theirs with which they need a control plane, or parts of arguments.
const CONTROL_PLANE_ARGUMENTS: [&str; 2] = ["--apiserver", "control-plane"];

impl Program {
    pub fn exists(&self, workspace: &Workspace) -> bool {
        let sources = workspace.root.join("tests/src/bin");
        sources.join(format!("{}.rs", self.name)).is_file()
            || sources.join(self.name).join("main.rs").is_file()
    }
}

pub fn exists(workspace: &Workspace, name: &str) -> bool {
    PROGRAMS
        .iter()
        .any(|program| program.name == name && program.exists(workspace))
}

/// Sets up, builds, and becomes the program.
pub fn run(workspace: &Workspace, name: &str, arguments: &[String]) -> Result<ExitCode> {
    let program = PROGRAMS
        .iter()
        .find(|program| program.name == name)
        .context("no such program")?;
    let privilege = Privilege::detect()?;
    let has_control_plane = arguments.iter().any(|argument| {
        CONTROL_PLANE_ARGUMENTS
            .iter()
            .any(|wanted| argument.contains(wanted))
    });
    let needs: &[_] = match has_control_plane {
        true => &[Need::Lab, Need::ControlPlane],
        false => &[Need::Lab],
    };
    setup::run(workspace, needs)?;
    let (profile, flags) = match program.release {
        true => ("release", &["build", "--release"][..]),
        false => ("debug", &["build"][..]),
    };
    workspace.run_cargo(flags)?;
    let path = workspace.target.join(profile).join(program.name);
    let error = privilege.command(&path).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", path.display()))
}
