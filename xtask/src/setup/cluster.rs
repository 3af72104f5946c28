//! The programs that the scripts in `tests/cluster` build from Go modules: the Kubernetes control
//! plane for tests, kube-proxy for the benchmark, and the rest of a cluster.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context, Result};
use xtask::ebpf::Places;

use super::{Installer, go};
use crate::cargo::Workspace;

/// Which part of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// etcd, kube-apiserver (also an older one), kube-controller-manager, kube-proxy, kubectl, Helm
    /// and WireGuard.
    ControlPlane,
    /// Also the nodes' programs, the images of their pods, and the end-to-end tests.
    Whole,
    /// And Flannel.
    WithFlannel,
}

/// Whether anything has to be built.
pub fn is_missing(workspace: &Workspace, places: &Places, extent: Extent) -> bool {
    let mut check = build_script(workspace, places, extent);
    let built = check.arg("--check").output();
    !built.is_ok_and(|output| output.status.success())
}

/// Builds it. If there is no Go, installs one first.
///
/// # Errors
/// If Go cannot be installed, or the modules do not build.
pub(super) fn build(
    installer: &mut Installer,
    workspace: &Workspace,
    extent: Extent,
) -> Result<()> {
    let (what, title) = match extent {
        Extent::ControlPlane => (
            "etcd, kube-apiserver, also an older one, kube-controller-manager, kube-proxy, kubectl, Helm, WireGuard: \
             what tests and the benchmark run with",
            "building the Kubernetes control plane",
        ),
        Extent::Whole | Extent::WithFlannel => (
            "Kubernetes, containerd, CoreDNS and the end-to-end tests: a cluster on this machine",
            "building the cluster",
        ),
    };
    println!("  {what}");
    let wanted = go::wanted_by(&directory(workspace).join("mods/kubernetes/go.mod"))?;
    let go = go::provide(installer, wanted)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let bin = go.parent().map(PathBuf::from);
    let path = env::join_paths(bin.into_iter().chain(env::split_paths(&path)))?;
    let mut script = build_script(workspace, &installer.places, extent);
    script.env("PATH", path).env("GOTOOLCHAIN", "local");
    script.env_remove("GOROOT");
    let built = installer.steps.run(title, &mut script);
    built.with_context(|| format!("{title} failed"))
}

fn build_script(workspace: &Workspace, places: &Places, extent: Extent) -> Command {
    let mut command = Command::new(directory(workspace).join("build.sh"));
    match extent {
        Extent::ControlPlane => command.arg("--control-plane"),
        Extent::Whole => &mut command,
        Extent::WithFlannel => command.args(["--cni", "flannel"]),
    };
    command.env("NODE_LB_CLUSTER_BIN", places.cluster_programs());
    command
}

/// Where the scripts are.
pub fn directory(workspace: &Workspace) -> PathBuf {
    workspace.root.join("tests/cluster")
}
