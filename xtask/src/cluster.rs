//! `cargo xtask cluster` and `cargo xtask e2e`: a real Kubernetes cluster on this machine, by the
//! scripts of `tests/cluster`, with node-lb deployed on it as `deploy/` says.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use xtask::ebpf::Places;

use crate::{
    cargo::Workspace,
    image::{self, Output},
    privilege::Privilege,
    setup,
};

/// What `cargo xtask cluster` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Brings it up, with these arguments for `up.sh`.
    Up(Vec<String>),
    Down,
    Status,
}

impl Action {
    pub fn parse(arguments: &[String]) -> Result<Self> {
        match arguments {
            [up, options @ ..] if up == "up" => Ok(Self::Up(options.to_vec())),
            [down] if down == "down" => Ok(Self::Down),
            [status] if status == "status" => Ok(Self::Status),
            _ => bail!(
                "cluster takes up [--nodes N] [--families dual|ipv4|ipv6] [--cni ptp|flannel] \
                 [--proxy PROXY], down or status, not {:?}",
                arguments.join(" ")
            ),
        }
    }
}

/// Runs one of the cluster's commands. Returns the exit code of its script.
///
/// # Errors
/// If the machine cannot be set up, node-lb's image cannot be made, or there is no way to be root.
pub fn run(workspace: &Workspace, action: &Action) -> Result<ExitCode> {
    let privilege = Privilege::detect()?;
    match action {
        Action::Up(options) => {
            let mut needs = vec![
                setup::Need::Lab,
                setup::Need::ControlPlane,
                setup::Need::Cluster,
            ];
            if is_on_flannel(options) {
                needs.push(setup::Need::Flannel);
            }
            setup::run(workspace, &needs)?;
            let archive = image::default_archive(workspace);
            image::run(workspace, &Output::Archive(archive.clone()))?;
            let mut up = script(workspace, privilege, "up.sh");
            up.env("NODE_LB_IMAGE", archive)
                .args(["--proxy", "node-lb"]);
            exit_code(up.args(options))
        }
        Action::Down => exit_code(&mut script(workspace, privilege, "down.sh")),
        Action::Status => exit_code(&mut script(workspace, privilege, "status.sh")),
    }
}

/// Runs the official end-to-end tests on the cluster that is up, with these arguments for `e2e.sh`.
///
/// # Errors
/// If there is no way to be root.
pub fn e2e(workspace: &Workspace, options: &[String]) -> Result<ExitCode> {
    exit_code(script(workspace, Privilege::detect()?, "e2e.sh").args(options))
}

/// Whether arguments for `up.sh` ask for Flannel, which set-up builds only then.
fn is_on_flannel(options: &[String]) -> bool {
    options
        .windows(2)
        .any(|pair| pair[0] == "--cni" && pair[1] == "flannel")
}

/// A script of `tests/cluster`, with the programs that set-up has built.
fn script(workspace: &Workspace, privilege: Privilege, name: &str) -> Command {
    let programs = Places::from_env().cluster_programs();
    let mut command = privilege.command(setup::cluster::directory(workspace).join(name));
    command.env("NODE_LB_CLUSTER_BIN", programs);
    command
}

fn exit_code(command: &mut Command) -> Result<ExitCode> {
    let name = command.get_program().to_owned();
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", name.display()))?;
    // A script that a signal ended has no code.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flannel_is_built_only_where_it_is_asked_for() {
        let asks = |options: &str| {
            let options: Vec<_> = options.split(' ').map(str::to_owned).collect();
            is_on_flannel(&options)
        };
        assert!(asks("--nodes 3 --cni flannel --proxy kube-proxy-nft"));
        assert!(!asks("--cni ptp"));
        assert!(!asks("--nodes 3"));
    }
}
