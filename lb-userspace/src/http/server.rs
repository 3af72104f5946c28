//! One listening socket and its connections: accepting, limits, closing.

use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    sync::Arc,
    time::Duration,
};

use http_body_util::Limited;
use hyper::{
    StatusCode,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{Handler, Response, WriteDeadline, stream::DeadlineStream, text};

/// Pause after a failed accept: out of file descriptors, most likely, so let some come free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a server grants its clients. The defaults suit health checks: small, short exchanges
/// with clients that are not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections served at a time; others wait to be accepted. Once half of them are in use,
    /// new ones are closed after their first response instead of being kept alive.
    pub connections: usize,
    /// Size of the request line and all headers, in bytes, at least 8192. Beyond it the answer
    /// is 431.
    pub header_bytes: usize,
    /// Number of headers. Beyond it the answer is 431.
    pub headers: usize,
    /// Size of a request body. Beyond it the answer is 413 if the length was declared, otherwise
    /// the handler sees an error.
    pub body_bytes: usize,
    /// Time to send a request up to the end of its headers, counted from the start of the
    /// connection or the end of the last response: so also how long a connection may idle.
    pub header_timeout: Duration,
    /// Time for the rest of an exchange, from the end of the headers until the client has taken
    /// the response. A handler that takes longer is dropped and the answer is 504.
    pub request_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            header_bytes: 16 * 1024,
            headers: 64,
            body_bytes: 64 * 1024,
            header_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
        }
    }
}

/// A running server. Dropping it closes the listener and cuts all connections, soon; use
/// [`Server::close`] to know when.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<Duration>,
    task: JoinHandle<()>,
    _abort_on_drop: AbortOnDrop,
}

impl Server {
    /// Serves `handler` on `listener`, which must be non-blocking. Needs a Tokio runtime.
    pub fn start(
        listener: TcpListener,
        handler: Arc<impl Handler>,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(listener, handler, limits, stopped));
        Ok(Self {
            address,
            stop,
            _abort_on_drop: AbortOnDrop(task.abort_handle()),
            task,
        })
    }

    /// The address it listens on, with the port the kernel chose if none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, lets requests under way finish for at most `grace`, cuts what is left.
    /// When this returns the port is free again.
    pub async fn close(self, grace: Duration) {
        // Both can only fail if the task is gone already.
        let _ = self.stop.send(grace);
        let _ = self.task.await;
    }
}

/// A running server on a Unix socket. Dropping it closes the listener and cuts all connections.
#[derive(Debug)]
pub struct LocalServer {
    _stop: oneshot::Sender<Duration>,
    _abort_on_drop: AbortOnDrop,
}

impl LocalServer {
    /// Serves `handler` on `listener`, which must be non-blocking. Needs a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the runtime does not take the socket.
    pub fn start(
        listener: UnixListener,
        handler: Arc<impl Handler>,
        limits: Limits,
    ) -> io::Result<Self> {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(listener, handler, limits, stopped));
        Ok(Self {
            _stop: stop,
            _abort_on_drop: AbortOnDrop(task.abort_handle()),
        })
    }
}

#[derive(Debug)]
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(
    listener: impl Accept,
    handler: Arc<impl Handler>,
    limits: Limits,
    mut stopped: oneshot::Receiver<Duration>,
) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let grace = loop {
        tokio::select! {
            grace = &mut stopped => break grace.unwrap_or_default(),
            Some(_) = connections.join_next() => {}
            stream = accept(&listener), if connections.len() < limits.connections => {
                let connection = Connection {
                    handler: handler.clone(),
                    limits,
                    keep_alive: connections.len() < limits.connections / 2,
                };
                connections.spawn(connection.serve(stream, graceful.watcher()));
            }
        }
    };
    drop(listener);
    if !grace.is_zero() {
        // Running out of grace is not an error: what is left is cut below.
        let _ = timeout(grace, graceful.shutdown()).await;
    }
    connections.shutdown().await;
}

/// A listening socket of any kind.
trait Accept: Send + 'static {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Accept for tokio::net::TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Latency only; a socket that refuses still works.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

impl Accept for tokio::net::UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = Self::accept(self).await?;
        Ok(stream)
    }
}

async fn accept<L: Accept>(listener: &L) -> L::Stream {
    loop {
        match Accept::accept(listener).await {
            Ok(stream) => return stream,
            Err(error) if is_about_the_client(&error) => {}
            Err(error) => {
                tracing::warn!("cannot accept HTTP connections: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_about_the_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
    )
}

struct Connection<H> {
    handler: Arc<H>,
    limits: Limits,
    keep_alive: bool,
}

impl<H: Handler> Connection<H> {
    async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        watcher: hyper_util::server::graceful::Watcher,
    ) {
        let limits = self.limits;
        let deadline =
            WriteDeadline::new(Instant::now() + limits.header_timeout + limits.request_timeout);
        let io = TokioIo::new(DeadlineStream::new(stream, deadline.clone()));
        let service = service_fn(|request| self.answer(request, deadline.clone()));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .max_headers(limits.headers)
            .max_buf_size(limits.header_bytes)
            .keep_alive(self.keep_alive)
            .half_close(true) // simple probes shut down their side after the request
            .serve_connection(io, service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!("HTTP connection ended: {error}");
        }
    }

    async fn answer(
        &self,
        mut request: hyper::Request<Incoming>,
        write_deadline: WriteDeadline,
    ) -> Result<Response, Infallible> {
        let limits = &self.limits;
        let deadline = Instant::now() + limits.request_timeout;
        write_deadline.set(deadline);
        if request.body().size_hint().lower() > limits.body_bytes as u64 {
            return Ok(text(
                StatusCode::PAYLOAD_TOO_LARGE,
                format_args!("request body exceeds {} bytes", limits.body_bytes),
            ));
        }
        request.extensions_mut().insert(write_deadline);
        let request = request.map(|body| Limited::new(body, limits.body_bytes));
        let response = timeout_at(deadline, self.handler.call(request)).await;
        Ok(response.unwrap_or_else(|_| {
            text(
                StatusCode::GATEWAY_TIMEOUT,
                format_args!("request not answered within {:?}", limits.request_timeout),
            )
        }))
    }
}
