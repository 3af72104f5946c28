//! An API server on loopback without any objects, for tests that need real connections.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    header::AUTHORIZATION,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

const INITIAL_END: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    "\n"
);

/// Serves until dropped.
pub struct Server {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// The only token that is let in; none asks for none.
    token: Mutex<Option<String>>,
    /// Path and query of every request that was let in.
    requests: Mutex<Vec<String>>,
    connections: AtomicUsize,
    /// Raised to end all watches in good order.
    ends: watch::Sender<u64>,
    /// Whether nothing is read or written any more, though the kernel goes on.
    frozen: watch::Sender<bool>,
}

impl Server {
    pub async fn start(address: SocketAddr, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let shared = Arc::<Shared>::default();
        Self {
            address: listener.local_addr().unwrap(),
            task: tokio::spawn(accept(listener, tls, shared.clone())),
            shared,
        }
    }

    pub fn only_let_in(&self, token: &str) {
        *self.shared.token.lock().unwrap() = Some(token.to_owned());
    }

    /// Path and query of every request that was let in.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().clone()
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Ends all watches in good order.
    pub fn end_watches(&self) {
        self.shared.ends.send_modify(|ends| *ends += 1);
    }

    /// Hangs: the kernel still acknowledges what comes on connections that there are, and nobody
    /// reads it. New connections are served.
    pub fn freeze(&self) {
        self.shared.frozen.send_replace(true);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A certificate for loopback, as PEM, and a server's side of TLS with it, which speaks HTTP/2.
pub fn certificate() -> (String, TlsAcceptor) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    (cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, shared) = (tls.clone(), shared.clone());
        connections.spawn(async move {
            match tls {
                None => serve(socket, shared).await,
                Some(tls) => {
                    // Clients that do not trust the certificate leave here.
                    if let Ok(socket) = tls.accept(socket).await {
                        serve(socket, shared).await;
                    }
                }
            }
        });
    }
}

async fn serve(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let answer = service_fn(|request| {
        let answer = answer(&request, &shared);
        async { Ok::<_, Infallible>(answer) }
    });
    let mut freezes = shared.frozen.subscribe();
    freezes.mark_unchanged();
    let builder = auto::Builder::new(TokioExecutor::new());
    shared.connections.fetch_add(1, Ordering::Relaxed);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), answer));
    tokio::select! {
        // Held, so that it is not closed.
        _ = freezes.changed() => std::future::pending().await,
        // An aborted connection is the source's business.
        _ = &mut connection => {}
    }
    shared.connections.fetch_sub(1, Ordering::Relaxed);
}

/// An empty list and a watch that never says anything, or a refusal.
fn answer(
    request: &Request<Incoming>,
    shared: &Shared,
) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let given = request.headers().get(AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let wanted = shared.token.lock().unwrap();
    let welcome = wanted.as_deref().is_none_or(|wanted| given == Some(wanted));
    let (code, text) = match welcome {
        true => (200, INITIAL_END),
        false => (
            401,
            r#"{"kind":"Status","code":401,"message":"Unauthorized"}"#,
        ),
    };
    let text = stream::iter([Ok(Frame::data(Bytes::from(text)))]);
    let body = match welcome {
        true => {
            let asked = request.uri().to_string();
            shared.requests.lock().unwrap().push(asked);
            let mut ends = shared.ends.subscribe();
            let end = async move { drop(ends.changed().await) };
            StreamBody::new(text.chain(stream::pending().take_until(Box::pin(end)))).boxed_unsync()
        }
        false => StreamBody::new(text).boxed_unsync(),
    };
    Response::builder().status(code).body(body).unwrap()
}
