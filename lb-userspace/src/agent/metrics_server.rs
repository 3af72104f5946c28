//! The metrics address, `:10249` as in kube-proxy.

use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use prometheus::TEXT_FORMAT;

use crate::{
    health::readiness::Readiness,
    http::{
        Class, Handler, PostTimeout, Request, Response, json, not_found, response, run_blocking,
        text,
    },
    metrics::Metrics,
};

/// The answer to `/proxyMode`. kube-proxy says `iptables` or `nftables` there. Tools that know only
/// those must not mistake node-lb for one of them.
const PROXY_MODE: &str = "node-lb";

/// What the metrics address serves: `/metrics`, `/healthz` (says only that the process answers),
/// `/readyz`, `/proxyMode`, `/configz` and `/debug/requests`.
pub struct MetricsServer {
    pub metrics: Arc<Metrics>,
    pub readiness: Arc<Readiness>,
    /// Shown as `/debug/requests`.
    pub post_timeout: Arc<PostTimeout>,
    /// `/configz`: the settings in force, a JSON object.
    pub configz: Bytes,
}

impl MetricsServer {
    async fn metrics(&self, request: &Request) -> Response {
        let metrics = self.metrics.clone();
        self.readiness
            .each(|check, holds| metrics.set_ready(check, holds));
        match run_blocking(request, move || metrics.encode()).await {
            Ok(body) => response(StatusCode::OK, TEXT_FORMAT, body),
            Err(error) => text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format_args!("metrics were not collected: {error}"),
            ),
        }
    }

    fn debug_requests(&self) -> Response {
        match serde_json::to_vec_pretty(&self.post_timeout.list()) {
            Ok(body) => json(StatusCode::OK, body),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error),
        }
    }
}

impl Handler for MetricsServer {
    fn class(&self, request: &Request) -> Class {
        match request.uri().path() {
            "/healthz" => Class::Probe,
            path if Readiness::serves(path) => Class::Probe,
            _ => Class::Bounded,
        }
    }

    async fn call(&self, request: Request) -> Response {
        match request.uri().path() {
            "/metrics" => self.metrics(&request).await,
            "/healthz" => plain("ok"),
            "/proxyMode" => plain(PROXY_MODE),
            "/configz" => json(StatusCode::OK, self.configz.clone()),
            "/debug/requests" => self.debug_requests(),
            path if Readiness::serves(path) => self.readiness.answer(request.uri()),
            _ => not_found(),
        }
    }
}

/// Without a final line feed, because scripts compare these answers with words.
fn plain(word: &'static str) -> Response {
    response(StatusCode::OK, "text/plain; charset=utf-8", word)
}
