//! The metrics address, `:10249` as kube-proxy's.

use std::sync::Arc;

use hyper::StatusCode;
use prometheus::TEXT_FORMAT;
use tokio::task::spawn_blocking;

use super::Metrics;
use crate::http::{Handler, Request, Response, not_found, response, text};

/// What `/proxyMode` says where kube-proxy says `iptables` or `nftables`: tools that only know
/// those must not take this for one of them.
const PROXY_MODE: &str = "node-lb";

/// `/metrics`, `/healthz` (the process answers; says nothing about its health) and `/proxyMode`.
pub struct MetricsEndpoints {
    metrics: Arc<Metrics>,
}

impl MetricsEndpoints {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }

    async fn metrics(&self) -> Response {
        let metrics = self.metrics.clone();
        match spawn_blocking(move || metrics.encode()).await {
            Ok(body) => response(StatusCode::OK, TEXT_FORMAT, body),
            Err(error) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format_args!("metrics were not collected: {error}"),
            ),
        }
    }
}

impl Handler for MetricsEndpoints {
    async fn call(&self, request: Request) -> Response {
        match request.uri().path() {
            "/metrics" => self.metrics().await,
            "/healthz" => plain("ok"),
            "/proxyMode" => plain(PROXY_MODE),
            _ => not_found(),
        }
    }
}

/// Without the final line feed: scripts compare these with words.
fn plain(word: &'static str) -> Response {
    response(StatusCode::OK, "text/plain; charset=utf-8", word)
}
