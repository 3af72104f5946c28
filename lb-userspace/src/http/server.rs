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
    net::{TcpStream, UnixStream},
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

use super::{
    Handler, Limits, Share,
    caller::Caller,
    connection::{Connection, Stopping},
    stream::Socket,
};

/// Pause after a failed accept: out of file descriptors, most likely, so let some come free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The log says so at most once in such a time.
const ACCEPT_WARNING: Duration = Duration::from_secs(60);

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
        share: Arc<Share>,
    ) -> io::Result<Self> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(listener, handler, limits, share, stopped));
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
        share: Arc<Share>,
    ) -> io::Result<Self> {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(listener, handler, limits, share, stopped));
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
    share: Arc<Share>,
    mut stopped: oneshot::Receiver<Duration>,
) {
    let graceful = GracefulShutdown::new();
    let (stop_silent, silent) = watch::channel(());
    let mut warned = None;
    let mut connections = JoinSet::new();
    let grace = loop {
        tokio::select! {
            grace = &mut stopped => break grace.unwrap_or_default(),
            Some(_) = connections.join_next() => {}
            (stream, caller) = accept(&listener, &share, &mut warned) => {
                let connection = Connection {
                    handler: handler.clone(),
                    limits,
                    place: share.admit(caller),
                };
                let stopping = Stopping {
                    silent: silent.clone(),
                    serving: graceful.watcher(),
                };
                connections.spawn(connection.serve(stream, stopping));
            }
        }
    };
    drop(listener);
    if !grace.is_zero() {
        drop(stop_silent);
        // Running out of grace is not an error: what is left is cut below.
        let _ = timeout(grace, graceful.shutdown()).await;
    }
    connections.shutdown().await;
}

/// A listening socket of any kind.
trait Accept: Send + Sync + 'static {
    type Stream: Socket;

    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Caller)>> + Send;
}

impl Accept for tokio::net::TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Caller)> {
        let (stream, peer) = Self::accept(self).await?;
        // Latency only; a socket that refuses still works.
        let _ = stream.set_nodelay(true);
        let caller = Caller::between(peer.ip(), stream.local_addr()?.ip());
        Ok((stream, caller))
    }
}

impl Socket for TcpStream {
    async fn readable(&self) -> io::Result<()> {
        Self::readable(self).await
    }

    fn forget_on_close(&self) {
        let _ = self.set_zero_linger(); // without it, the kernel waits a minute
    }
}

impl Accept for tokio::net::UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Caller)> {
        let (stream, _) = Self::accept(self).await?;
        Ok((stream, Caller::Node))
    }
}

impl Socket for UnixStream {
    async fn readable(&self) -> io::Result<()> {
        Self::readable(self).await
    }

    fn forget_on_close(&self) {}
}

/// The next connection, once there is room for it. `warned` is when the log last said that there is
/// none to be had.
async fn accept<L: Accept>(
    listener: &L,
    share: &Share,
    warned: &mut Option<Instant>,
) -> (L::Stream, Caller) {
    loop {
        share.room().await;
        match Accept::accept(listener).await {
            Ok(accepted) => return accepted,
            Err(error) if is_about_the_client(&error) => {}
            Err(error) => {
                share.cannot_accept();
                if warned.is_none_or(|before| before.elapsed() >= ACCEPT_WARNING) {
                    *warned = Some(Instant::now());
                    tracing::warn!("cannot accept HTTP connections: {error}; trying again");
                }
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
            | io::ErrorKind::NotConnected
    )
}
