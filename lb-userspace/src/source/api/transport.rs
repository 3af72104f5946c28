//! The connection itself: one for all watches where the server speaks HTTP/2, and none that is dead
//! is taken for one that is quiet.
//!
//! A peer that vanishes (power, a route, a load balancer that forgets) sends no FIN. Whichever of
//! these comes first ends such a connection, 35 s after the last sign of it at the latest:
//! - HTTP/2: a PING without an answer. It also finds a server whose kernel lives and which itself
//!   does not.
//! - Anything sent that is not acknowledged (`TCP_USER_TIMEOUT`).
//! - Nothing sent: a TCP keepalive probe that is not acknowledged.

use anyhow::bail;
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _},
};
use tower::{BoxError, ServiceExt as _, util::option_layer};

use super::dial::{Dialer, PATIENCE, QUIET};

/// How far an HTTP/2 server may be ahead with one answer.
const STREAM_WINDOW: u32 = 1 << 20;
/// And with all of them. Each of the watches, of which there are seven at most, and the writer of Events
/// may have its own window full and unread: none takes the others' part.
const CONNECTION_WINDOW: u32 = 8 * STREAM_WINDOW;

/// A client that reaches the API server as `config` says, over connections of `dialer`.
///
/// # Errors
/// If `config` cannot be used, or asks for a proxy.
pub fn client(config: &Config, dialer: Dialer) -> anyhow::Result<Client> {
    if let Some(proxy) = &config.proxy_url {
        bail!(
            "the API server is to be reached by the proxy {proxy}, which node-lb cannot do: leave out \
             `proxy-url` of the kubeconfig, or unset HTTPS_PROXY"
        );
    }
    let service = legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(QUIET)
        .http2_keep_alive_timeout(PATIENCE)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build::<_, Body>(dialer)
        .map_err(BoxError::from);
    let client = ClientBuilder::new(service, config.default_namespace.clone())
        .with_layer(&config.extra_headers_layer()?)
        .with_layer(&option_layer(config.auth_layer()?))
        .with_layer(&config.base_uri_layer());
    Ok(client.build())
}
