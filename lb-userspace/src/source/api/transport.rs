//! The connection itself: one for all watches where the server speaks HTTP/2, and none that is dead
//! is taken for one that is quiet.
//!
//! A peer that vanishes (power, a route, a load balancer that forgets) sends no FIN. Whichever of
//! these comes first ends such a connection, 35 s after the last sign of it at the latest:
//! - HTTP/2: a PING without an answer. It also finds a server whose kernel lives and which itself
//!   does not.
//! - Anything sent that is not acknowledged (`TCP_USER_TIMEOUT`).
//! - Nothing sent: a TCP keepalive probe that is not acknowledged.

use std::time::Duration;

use anyhow::{Context as _, bail};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _},
};
use tower::{BoxError, ServiceExt as _, util::option_layer};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After so long without anything from the server it is asked whether it is there.
const QUIET: Duration = Duration::from_secs(15);
/// How long its answer may take; also how long what was sent may stay unacknowledged.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between two probes of TCP.
const PROBE: Duration = Duration::from_secs(5);

/// How far an HTTP/2 server may be ahead with one answer.
const STREAM_WINDOW: u32 = 1 << 20;
/// And with all of them. Each of the three watches and the writer of Events may have its own window
/// full and unread: none takes the others' part.
const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;

/// A client that reaches the API server as `config` says.
///
/// # Errors
/// If `config` cannot be used, or asks for a proxy.
pub fn client(config: &Config) -> anyhow::Result<Client> {
    if let Some(proxy) = &config.proxy_url {
        bail!(
            "the API server is to be reached by the proxy {proxy}, which node-lb cannot do: leave out \
             `proxy-url` of the kubeconfig, or unset HTTPS_PROXY"
        );
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(QUIET));
    tcp.set_keepalive_interval(Some(PROBE));
    tcp.set_keepalive_retries(Some((PATIENCE.as_secs() / PROBE.as_secs()) as u32));
    // Counts for probes as well, instead of their number: from the last that was heard.
    tcp.set_tcp_user_timeout(Some(QUIET + PATIENCE));

    let tls = HttpsConnectorBuilder::new().with_tls_config(config.rustls_client_config()?);
    let mut tls = tls.https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into();
        let name = name.context("tls-server-name is not a name or an address")?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    // ALPN decides: HTTP/2, or HTTP/1.1 with a connection for each watch.
    let connector = tls.enable_all_versions().wrap_connector(tcp);
    let service = legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(QUIET)
        .http2_keep_alive_timeout(PATIENCE)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build::<_, Body>(connector)
        .map_err(BoxError::from);

    let client = ClientBuilder::new(service, config.default_namespace.clone())
        .with_layer(&config.extra_headers_layer()?)
        .with_layer(&option_layer(config.auth_layer()?))
        .with_layer(&config.base_uri_layer());
    Ok(client.build())
}
