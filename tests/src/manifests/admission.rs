//! Objects of connection admission.

use serde_json::{Value, json};

/// A priority level with so many shares, which borrows nothing and refuses at once.
pub fn priority_level(name: &str, shares: u32) -> Value {
    json!({
        "apiVersion": "node-lb.io/v1alpha1",
        "kind": "PriorityLevel",
        "metadata": { "name": name },
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": shares,
                "borrowingLimitPercent": 0,
                "limitResponse": { "type": "Reject" },
            },
        },
    })
}

/// A flow schema for the level of its name: connections from such a source to such Services.
pub fn flow_schema(name: &str, subject: &Value, destination: &Value) -> Value {
    json!({
        "apiVersion": "node-lb.io/v1alpha1",
        "kind": "FlowSchema",
        "metadata": { "name": name },
        "spec": {
            "priorityLevelConfiguration": { "name": name },
            "rules": [{ "subjects": [subject], "destinations": [destination] }],
        },
    })
}
