//! `cargo xtask demo | bench | lab`: the programs below `tests`.

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
    /// Its main file.
    source: &'static str,
    /// Whether its figures or its load require an optimised build.
    release: bool,
}

pub const PROGRAMS: [Program; 3] = [
    Program {
        name: "demo",
        purpose: "services, a rolling update and health checks, shown in the lab",
        source: "tests/src/bin/demo/main.rs",
        release: false,
    },
    Program {
        name: "bench",
        purpose: "what packets, connections and updates cost, beside other systems",
        source: "tests/bench/src/main.rs",
        release: true,
    },
    Program {
        name: "lab",
        purpose: "the lab alone: hosts and pods in network namespaces",
        source: "tests/src/bin/lab.rs",
        release: false,
    },
];

/// Arguments, or parts of arguments, with which a program needs a control plane.
const CONTROL_PLANE_ARGUMENTS: [&str; 2] = ["--apiserver", "control-plane"];

impl Program {
    pub fn exists(&self, workspace: &Workspace) -> bool {
        workspace.root.join(self.source).is_file()
    }
}

pub fn exists(workspace: &Workspace, name: &str) -> bool {
    PROGRAMS
        .iter()
        .any(|program| program.name == name && program.exists(workspace))
}

/// Sets up the machine, builds the program, and becomes it.
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
