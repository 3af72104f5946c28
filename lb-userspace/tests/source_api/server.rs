//! An API server on loopback without any objects, for tests that need real connections.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Request, Response,
    body::{Frame, Incoming},
    header::AUTHORIZATION,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
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
    /// The only token that is accepted; `None` accepts requests without one.
    token: Arc<Mutex<Option<String>>>,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start(address: SocketAddr, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let token = Arc::default();
        Self {
            address: listener.local_addr().unwrap(),
            task: tokio::spawn(accept(listener, tls, Arc::clone(&token))),
            token,
        }
    }

    pub fn only_let_in(&self, token: &str) {
        *self.token.lock().unwrap() = Some(token.to_owned());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A certificate for loopback, as PEM, and a server's side of TLS with it.
pub fn certificate() -> (String, TlsAcceptor) {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    (cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    token: Arc<Mutex<Option<String>>>,
) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, token) = (tls.clone(), token.clone());
        connections.spawn(async move {
            match tls {
                None => serve(socket, token).await,
                Some(tls) => {
                    // Clients that do not trust the certificate leave here.
                    if let Ok(socket) = tls.accept(socket).await {
                        serve(socket, token).await;
                    }
                }
            }
        });
    }
}

async fn serve(
    socket: impl AsyncRead + AsyncWrite + Unpin + 'static,
    token: Arc<Mutex<Option<String>>>,
) {
    let answer = service_fn(|request: Request<Incoming>| {
        let given = request.headers().get(AUTHORIZATION);
        let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let wanted = token.lock().unwrap();
        let welcome = wanted.as_deref().is_none_or(|wanted| given == Some(wanted));
        let answer = answer(welcome);
        async { Ok::<_, Infallible>(answer) }
    });
    // The source handles aborted connections.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(socket), answer)
        .await;
}

/// An empty list and a watch without events, or a refusal.
fn answer(welcome: bool) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let (code, text) = match welcome {
        true => (200, INITIAL_END),
        false => (
            401,
            r#"{"kind":"Status","code":401,"message":"Unauthorized"}"#,
        ),
    };
    let text = stream::iter([Ok(Frame::data(Bytes::from(text)))]);
    let body = match welcome {
        true => StreamBody::new(text.chain(stream::pending())).boxed_unsync(),
        false => StreamBody::new(text).boxed_unsync(),
    };
    Response::builder().status(code).body(body).unwrap()
}
