//! The agent's account: what a DaemonSet's ClusterRole allows it, and nothing else.

use anyhow::Result;
use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use serde_json::json;

use super::client::Client;

/// Name of the agent's service account, of its role and of their binding.
pub const AGENT_ACCOUNT: &str = "node-lb";
/// Namespace of the account.
pub const AGENT_NAMESPACE: &str = "kube-system";

/// Makes the account and its rights.
///
/// # Errors
/// If the API server refuses.
pub fn grant(client: &Client) -> Result<()> {
    make_account(client)?;
    client.cluster_wide::<ClusterRole>().create(json!({
        "metadata": { "name": AGENT_ACCOUNT },
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["services", "nodes"],
                "verbs": ["list", "watch"],
            },
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["list", "watch"],
            },
            {
                "apiGroups": ["", "events.k8s.io"],
                "resources": ["events"],
                "verbs": ["create", "patch", "update"],
            },
        ],
    }))?;
    bind(client)
}

/// Makes the service account.
///
/// # Errors
/// If the API server refuses.
pub fn make_account(client: &Client) -> Result<()> {
    let accounts = client.of_namespace::<ServiceAccount>(AGENT_NAMESPACE);
    accounts
        .create(json!({ "metadata": { "name": AGENT_ACCOUNT } }))
        .map(drop)
}

/// Gives the account its role.
///
/// # Errors
/// If the API server refuses.
pub fn bind(client: &Client) -> Result<()> {
    let bindings = client.cluster_wide::<ClusterRoleBinding>();
    bindings
        .create(json!({
            "metadata": { "name": AGENT_ACCOUNT },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": AGENT_ACCOUNT,
            },
            "subjects": [{
                "kind": "ServiceAccount",
                "name": AGENT_ACCOUNT,
                "namespace": AGENT_NAMESPACE,
            }],
        }))
        .map(drop)
}
