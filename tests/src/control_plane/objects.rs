//! Manifests in the form that users write, for the pods that [`super::Kubelets`] run.

use serde_json::{Value, json};

use crate::deployment::{DATAGRAMS, HTTP, LINES};

/// A Service `NAME` for the pods labelled `app=NAME`, of both families, with a port for everything
/// that pods serve: HTTP on 80, lines on 81, datagrams on 53. Fields of `spec` override those here.
pub fn service(name: &str, spec: Value) -> Value {
    let port = |(name, target): (&str, u16), protocol: &str, port: u16| json!({ "name": name, "protocol": protocol, "port": port, "targetPort": target });
    let mut service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name },
        "spec": {
            "selector": { "app": name },
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [
                port(HTTP, "TCP", 80),
                port(LINES, "TCP", 81),
                port(DATAGRAMS, "UDP", 53),
            ],
        },
    });
    if let Value::Object(fields) = spec {
        for (field, value) in fields {
            service["spec"][field] = value;
        }
    }
    service
}

/// A Deployment `NAME` of `replicas` pods labelled `app=NAME`, which replaces them one by one, each
/// when its successor is ready.
pub fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": name },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": name } },
            "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "containers": [{
                        "name": "server",
                        "image": "node-lb.test/server",
                        "ports": [
                            { "name": HTTP.0, "containerPort": HTTP.1 },
                            { "name": LINES.0, "containerPort": LINES.1 },
                            {
                                "name": DATAGRAMS.0,
                                "containerPort": DATAGRAMS.1,
                                "protocol": "UDP",
                            },
                        ],
                    }],
                },
            },
        },
    })
}
