//! One listening socket: accepts connections and closes them.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    sync::Arc,
    time::Duration,
};

use hyper_util::server::graceful::GracefulShutdown;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    task::{JoinHandle, JoinSet},
    time::{sleep, timeout},
};

use super::{Handler, Limits, connection::Connection};

/// Pause after a failed accept. Most likely there are no file descriptors left, and some may be
/// freed meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running server. Dropping it closes the listener and cuts all connections soon afterwards; to
/// know when that is done, use [`Server::close`].
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

    /// The address on which it listens, with the port that the kernel chose if it was zero.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, waits at most `grace` for requests in progress, and cuts what is left. When
    /// this returns, the port is free.
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
    /// If the runtime does not accept the socket.
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
        // It is no error if `grace` is too short: what is left is cut below.
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
        // Only improves latency, so a socket that refuses is no problem.
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
