//! The agent's account and rights: exactly those that `deploy/` gives it in a cluster.

use anyhow::Result;

use super::server::ControlPlane;

/// Name of the agent's service account, of its role and of their binding.
pub const AGENT_ACCOUNT: &str = "node-lb";
/// Namespace of the account.
pub const AGENT_NAMESPACE: &str = "kube-system";

/// Creates the account and gives it its rights.
///
/// # Errors
/// If the API server refuses.
pub fn grant(control_plane: &ControlPlane) -> Result<()> {
    make_account(control_plane)?;
    apply(control_plane, "cluster-role.yaml")?;
    apply(control_plane, "cluster-role-binding.yaml")
}

/// Lets the account ask for pods as well.
///
/// # Errors
/// If the API server refuses.
pub fn grant_pods(control_plane: &ControlPlane) -> Result<()> {
    apply_from(control_plane, "components/pods/rbac.yaml")
}

/// Creates the service account.
///
/// # Errors
/// If the API server refuses.
pub fn make_account(control_plane: &ControlPlane) -> Result<()> {
    apply(control_plane, "service-account.yaml")
}

fn apply(control_plane: &ControlPlane, file: &str) -> Result<()> {
    apply_from(control_plane, &format!("base/{file}"))
}

fn apply_from(control_plane: &ControlPlane, file: &str) -> Result<()> {
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
    let file = format!("--filename={deploy}/{file}");
    let namespace = format!("--namespace={AGENT_NAMESPACE}");
    let arguments = ["apply", &namespace, &file];
    control_plane.kubectl(&arguments).map(drop)
}
