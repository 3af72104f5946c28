//! The agent's HTTP servers, used over real sockets on loopback.

mod client;
mod clock;
mod crowds;
mod deadlines;
mod explain;
mod http2;
mod inflight;
mod leaving;
mod limits;
mod local;
mod local_api;
mod metrics;
mod page;
mod process_health;
mod readiness;
mod service_health;
mod service_vectors;
mod support;

/// The expected results from Kubernetes.
fn vectors() -> serde_json::Value {
    serde_json::from_str(include_str!("../../vectors/data/kube-proxy.json")).unwrap()
}
