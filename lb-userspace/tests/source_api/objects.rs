//! Objects as an API server sends them.

use serde_json::{Value, json};

/// A ClusterIP Service with this name. Its port tells its versions apart.
pub fn service(name: &str, version: u64) -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": name, "resourceVersion": version.to_string(),
            "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ipFamilies": ["IPv4"],
            "ports": [{"port": version % 60_000 + 1, "protocol": "TCP"}],
        },
    })
}

/// A slice of Service `web`, with endpoints that changed at this time.
pub fn slice(name: &str, version: u64, changed: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": name, "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": changed},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

/// A Service that cannot be decoded.
pub fn undecodable(name: &str, version: u64) -> Value {
    let mut service = service(name, version);
    service["spec"]["ports"] = json!("none");
    service
}
