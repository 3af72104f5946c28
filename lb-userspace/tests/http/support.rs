//! Servers, layers and clocks that several tests use.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request as ClientRequest, StatusCode, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use node_lb::{
    config::HttpConfig,
    health::initialization::Initialization,
    http::{
        Class, ConnectionBudget, Handler, Limits, Request, Response, Server, Share, Stack, bind,
    },
    metrics::Metrics,
    source::health::SourceHealth,
};
use tokio::{net::TcpStream, sync::mpsc};

use crate::client::{PATIENCE, any_port};

/// How often the beats come that keep a runtime going.
const BEAT: Duration = Duration::from_millis(5);

/// A handler with a given class.
pub struct Of<F>(pub Class, pub F);

impl<F, R> Handler for Of<F>
where
    F: Fn(Request) -> R + Send + Sync + 'static,
    R: Future<Output = Response> + Send,
{
    fn class(&self, _: &Request) -> Class {
        self.0
    }

    async fn call(&self, request: Request) -> Response {
        (self.1)(request).await
    }
}

/// The layers with the default configuration, for an initialised agent.
pub fn stack() -> Arc<Stack> {
    Parts::new(HttpConfig::default()).stack
}

/// A server's part of a budget that nobody else uses.
pub fn share(limits: &Limits) -> Arc<Share> {
    let observer = Arc::new(Metrics::new().http.clone());
    ConnectionBudget::new(limits.connections, observer).share("test", limits)
}

/// The layers, and what they say.
pub struct Parts {
    pub metrics: Metrics,
    pub initialization: Arc<Initialization>,
    pub stack: Arc<Stack>,
}

impl Parts {
    /// For an agent that knows the whole cluster.
    pub fn new(config: HttpConfig) -> Self {
        let parts = Self::uninitialized(config);
        parts.initialization.finish();
        parts
    }

    /// For an agent that does not know the Services yet.
    pub fn uninitialized(config: HttpConfig) -> Self {
        let metrics = Metrics::new();
        let source = Arc::new(SourceHealth::new(["services"]));
        let initialization = Arc::new(Initialization::new(source));
        let asked = initialization.clone();
        let unready = Arc::new(move || asked.unready());
        let observer = Arc::new(metrics.http.clone());
        Self {
            stack: Arc::new(Stack::new(&config, unready, observer)),
            metrics,
            initialization,
        }
    }

    pub fn serve(&self, handler: impl Handler) -> Server {
        self.serve_within(handler, Limits::default())
    }

    pub fn serve_within(&self, handler: impl Handler, limits: Limits) -> Server {
        let listener = bind(any_port()).unwrap();
        self.stack.serve(listener, "test", handler, limits).unwrap()
    }

    /// Waits until so many answers have been broken off.
    pub async fn wait_for_aborts(&self, number: u32) {
        let aborts = r#"node_lb_http_request_aborts_total{server="test"}"#;
        eventually(|| self.metric(aborts) == f64::from(number)).await;
    }

    /// Waits until so many connections are open.
    pub async fn wait_for_connections(&self, number: u32) {
        let open = r#"node_lb_http_connections{server="test"}"#;
        eventually(|| self.metric(open) == f64::from(number)).await;
    }

    /// The value of a series, without labels or with the given ones, as Prometheus would read it.
    pub fn metric(&self, series: &str) -> f64 {
        let text = String::from_utf8(self.metrics.encode()).unwrap();
        let mut values = text
            .lines()
            .filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        values.next().map_or(0.0, |value| value.parse().unwrap())
    }
}

/// An HTTP/2 connection, by prior knowledge.
pub async fn http2(server: &Server) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(server.address()).await.unwrap();
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection); // its end shows in the requests
    sender
}

pub fn get_over_http2(path: &str) -> ClientRequest<Empty<Bytes>> {
    let uri = format!("http://node{path}");
    ClientRequest::get(uri).body(Empty::new()).unwrap()
}

/// Status and body, if the answer is complete.
pub async fn ask_over_http2(
    client: &mut SendRequest<Empty<Bytes>>,
    path: &str,
) -> hyper::Result<(StatusCode, String)> {
    client.ready().await?;
    let answer = client.send_request(get_over_http2(path));
    let answer = tokio::time::timeout(PATIENCE, answer)
        .await
        .expect("no answer")?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8(body.to_vec()).unwrap()))
}

/// Moves a test's clock in small steps, and lets the runtime work between them. So no deadline
/// passes while a busy machine delays the test or its runtime. To be called first, on a runtime
/// with one thread.
pub fn steady_clock() {
    tokio::time::pause();
    // While a blocking task runs, a paused clock does not advance on its own.
    let mut beats = beats();
    tokio::spawn(async move {
        while beats.recv().await.is_some() {
            tokio::time::advance(BEAT).await;
        }
    });
}

/// Wakes the runtime all the time, as happens in an agent. A blocked thread may be the one that
/// drives the clock; another thread takes over once it is woken.
pub fn never_idle() {
    let mut beats = beats();
    tokio::spawn(async move { while beats.recv().await.is_some() {} });
}

/// Beats that a blocking task sends every [`BEAT`].
fn beats() -> mpsc::Receiver<()> {
    let (sender, beats) = mpsc::channel(1);
    tokio::task::spawn_blocking(move || {
        while sender.blocking_send(()).is_ok() {
            thread::sleep(BEAT);
        }
    });
    beats
}

/// Waits for something that is certain to happen.
pub async fn eventually(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "it never happens");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
