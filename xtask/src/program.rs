//! `cargo xtask demo | bench | faults | lab`: the programs below `tests`.

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

pub const PROGRAMS: [Program; 4] = [
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
        name: "faults",
        purpose: "what goes wrong for operators, staged, and the command that names it",
        source: "tests/src/bin/faults.rs",
        release: false,
    },
    Program {
        name: "lab",
        purpose: "the lab alone: hosts and pods in network namespaces",
        source: "tests/src/bin/lab.rs",
        release: false,
    },
];

/// Words of arguments with which a program needs more than the lab.
const NEEDS: [(&str, Need); 4] = [
    ("--apiserver", Need::ControlPlane),
    ("--control-plane", Need::ControlPlane),
    ("control-plane", Need::ControlPlane),
    ("admission", Need::Peers),
];

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
    setup::run(workspace, &needs(arguments))?;
    let (profile, flags) = match program.release {
        true => ("release", &["build", "--release"][..]),
        false => ("debug", &["build"][..]),
    };
    workspace.run_cargo(flags)?;
    let path = workspace.target.join(profile).join(program.name);
    let error = privilege.command(&path).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", path.display()))
}

/// What a program needs with these arguments.
fn needs(arguments: &[String]) -> Vec<Need> {
    let has = |wanted: &str| {
        let mut words = arguments.iter().flat_map(|one| one.split(['=', ',']));
        words.any(|word| word == wanted)
    };
    let more = NEEDS.into_iter().filter(|(word, _)| has(word));
    [Need::Lab]
        .into_iter()
        .chain(more.map(|(_, need)| need))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_what_a_program_needs() {
        let of = |line: &str| needs(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("--only lab --json admission.json"), [Need::Lab]);
        let control_plane = [Need::Lab, Need::ControlPlane];
        assert_eq!(of("--control-plane --quick"), control_plane);
        assert_eq!(of("--apiserver=new"), control_plane);
        let all = [Need::Lab, Need::ControlPlane, Need::Peers];
        assert_eq!(of("--only lab,control-plane,admission"), all);
        assert_eq!(of("--only=admission"), [Need::Lab, Need::Peers]);
    }
}
