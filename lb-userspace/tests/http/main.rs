//! The agent's HTTP servers, asked over real sockets on loopback.

mod client;
mod clock;
mod limits;
mod local;
mod metrics;
mod process_health;
mod service_health;
mod service_vectors;

/// Upstream's expected results.
fn vectors() -> serde_json::Value {
    serde_json::from_str(include_str!("../data/kube-proxy.json")).unwrap()
}
