//! etcd, which need not survive anything, and what tests do to it.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};

use super::runtime::HostRuntime;
use crate::{
    http_json,
    lab::{Host, daemon::Daemon},
};

/// Where etcd serves the API server, on the same host.
pub const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);
const PEERS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2380);

/// Starts etcd with its data in `directory`.
///
/// # Errors
/// If it does not start.
pub fn start(host: &Host, directory: &Path) -> Result<Daemon> {
    let arguments = [
        format!("--data-dir={}", directory.join("etcd").display()),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
        format!("--listen-client-urls=http://{ADDRESS}"),
        format!("--advertise-client-urls=http://{ADDRESS}"),
        format!("--listen-peer-urls=http://{PEERS}"),
    ];
    Daemon::start(host, "etcd", &arguments, directory)
}

/// Removes all history before this moment. Returns the revision that is now the oldest.
///
/// # Errors
/// If etcd does not do so.
pub fn compact(runtime: &HostRuntime) -> Result<u64> {
    runtime.wait(async {
        let answer = post("/v3/kv/range", json!({ "key": "YQ==" })).await?;
        let revision = &answer["header"]["revision"];
        let revision: u64 = revision
            .as_str()
            .context("etcd names no revision")?
            .parse()?;
        post(
            "/v3/kv/compaction",
            json!({ "revision": revision, "physical": true }),
        )
        .await?;
        Ok(revision)
    })
}

/// A request to etcd's JSON gateway.
async fn post(path: &str, body: Value) -> Result<Value> {
    let (status, answer) = http_json::ask(Method::POST, ADDRESS, path, &body).await?;
    ensure!(
        status.is_success(),
        "etcd answers {status} to {path}: {answer}"
    );
    Ok(answer)
}
