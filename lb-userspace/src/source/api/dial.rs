//! Opens connections to the API server, by the first of several ways that works.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use hyper::Uri;
use hyper_rustls::{
    DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, MaybeHttpsStream,
    ResolveServerName,
};
use hyper_util::rt::TokioIo;
use kube::{Config, client::ConfigExt as _};
use lb_common::abi::OWN_SOCKET_PRIORITY;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpSocket, TcpStream, lookup_host},
    time::{sleep, timeout},
};
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use super::servers::{ApiServers, Kind, Way};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After so long without anything from the server it is asked whether it is there.
pub const QUIET: Duration = Duration::from_secs(15);
/// How long its answer may take; also how long what was sent may stay unacknowledged.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// Between two probes of TCP.
const PROBE: Duration = Duration::from_secs(5);
/// How long one way may take before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_secs(2);

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// The connector of the API server's client.
#[derive(Clone)]
pub struct Dialer {
    open: Arc<dyn Fn(Way) -> BoxFuture<'static, Result<Stream, BoxError>> + Send + Sync>,
    uri: Uri,
    /// Whether a certificate proves that a server is the API server.
    proves: bool,
    servers: Arc<ApiServers>,
}

impl Dialer {
    /// Connects as `config` says.
    ///
    /// # Errors
    /// If `config` cannot be used.
    pub fn new(config: &Config, servers: Arc<ApiServers>) -> anyhow::Result<Self> {
        let mut tls = config.rustls_client_config()?;
        // That decides: HTTP/2, or HTTP/1.1 with a connection for each watch.
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let tls = Arc::new(tls);
        let resolver: Arc<dyn ResolveServerName + Send + Sync> = match &config.tls_server_name {
            Some(name) => {
                let name = name.clone().try_into();
                let name = name.context("tls-server-name is not a name or an address")?;
                Arc::new(FixedServerNameResolver::new(name))
            }
            None => Arc::new(DefaultServerNameResolver::default()),
        };
        let uri = config.cluster_url.clone();
        let target = uri.clone();
        let open = move |way: Way| {
            let connect = move |_: Uri| async move { tcp(way).await.map(TokioIo::new) };
            let connect = service_fn(connect);
            let https = HttpsConnector::new(connect, tls.clone(), false, resolver.clone());
            https.oneshot(target.clone()).boxed()
        };
        Ok(Self {
            open: Arc::new(open),
            proves: uri.scheme_str() == Some("https") && !config.accept_invalid_certs,
            uri,
            servers,
        })
    }

    /// Asks endpoints for the API server's certificate.
    pub async fn prove(&self, way: Way) {
        if self.proves && self.open(way).await.is_ok() {
            self.servers.prove(way);
        }
    }

    async fn open(&self, way: Way) -> Result<Stream, BoxError> {
        let opened = timeout(CONNECT_TIMEOUT, (self.open)(way)).await;
        opened.unwrap_or_else(|_| {
            let waited = CONNECT_TIMEOUT.as_secs();
            Err(format!("no connection to {} within {waited} s", way.address).into())
        })
    }

    /// Tries one way after the other, each with a head start.
    async fn dial(self) -> Result<Stream, BoxError> {
        let (configured, unknown) = match resolve(&self.uri).await {
            Ok(addresses) => (addresses, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let mut ways = self.servers.ways(&configured, self.proves).into_iter();
        let mut error = unknown.map(|error| (usize::MAX, error));
        let mut attempts = FuturesUnordered::new();
        let mut begun: Vec<Way> = Vec::new();
        loop {
            if let Some(way) = ways.next() {
                begun.push(way);
                attempts.push(self.open(way).map(move |opened| (way, opened)));
            }
            let head_start = sleep(HEAD_START);
            tokio::pin!(head_start);
            tokio::select! {
                Some((way, opened)) = attempts.next() => match opened {
                    Ok(stream) => {
                        let slower = begun.iter().take_while(|other| **other != way);
                        slower.for_each(|slower| self.servers.failed(*slower));
                        self.servers.reached(way);
                        return Ok(stream);
                    }
                    Err(failure) => {
                        self.servers.failed(way);
                        // That of the configured address says most.
                        let rank = way.kind as usize;
                        if error.as_ref().is_none_or(|(known, _)| rank < *known) {
                            error = Some((rank, failure));
                        }
                    }
                },
                () = &mut head_start, if ways.len() > 0 => {}
                else => break,
            }
        }
        let nowhere = || "the API server's name has no address".into();
        Err(error.map_or_else(nowhere, |(_, error)| error))
    }
}

impl Service<Uri> for Dialer {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    /// All requests are to the configured URL.
    fn call(&mut self, _: Uri) -> Self::Future {
        self.clone().dial().boxed()
    }
}

/// The present addresses of a URL's host, and its port.
///
/// # Errors
/// If the URL has no host, or the host has no address.
pub async fn resolve(uri: &Uri) -> Result<Vec<SocketAddr>, BoxError> {
    let host = uri.host().ok_or("the API server's URL has no host")?;
    let host = host.trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(match uri.scheme_str() {
        Some("http") => 80,
        _ => 443,
    });
    let found = timeout(CONNECT_TIMEOUT, lookup_host((host, port))).await;
    let found = found.map_err(|_| format!("no answer about the address of {host}"))?;
    let mut addresses: Vec<_> = found.map_err(|error| format!("{host}: {error}"))?.collect();
    addresses.dedup();
    Ok(addresses)
}

async fn tcp(way: Way) -> Result<TcpStream, BoxError> {
    let socket = match way.address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    let options = SockRef::from(&socket);
    options.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(QUIET).with_interval(PROBE);
    let probes = PATIENCE.as_secs() / PROBE.as_secs();
    options.set_tcp_keepalive(&keepalive.with_retries(probes as u32))?;
    // Counts for probes as well, instead of their number: from the last that was heard.
    options.set_tcp_user_timeout(Some(QUIET + PATIENCE))?;
    if way.kind != Kind::ThroughServices {
        // Without the right to do so, as a command on another machine: then there is nothing to
        // pass by, either.
        let _ = setsockopt(&socket, sockopt::Priority, &(OWN_SOCKET_PRIORITY as i32));
    }
    let connected = socket.connect(way.address).await;
    Ok(connected.map_err(|error| Unconnected(way.address, error))?)
}

/// That no connection came about.
#[derive(Debug, thiserror::Error)]
#[error("no connection to {0}")]
struct Unconnected(SocketAddr, #[source] std::io::Error);
