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

/// Creates the service account.
///
/// # Errors
/// If the API server refuses.
pub fn make_account(control_plane: &ControlPlane) -> Result<()> {
    apply(control_plane, "service-account.yaml")
}

fn apply(control_plane: &ControlPlane, file: &str) -> Result<()> {
    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/base");
    let file = format!("--filename={base}/{file}");
    let namespace = format!("--namespace={AGENT_NAMESPACE}");
    let arguments = ["apply", &namespace, &file];
    control_plane.kubectl(&arguments).map(drop)
}
