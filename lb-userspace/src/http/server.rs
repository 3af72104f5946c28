//! One listening socket: accepts connections and closes them.

use std::{io, net::SocketAddr, os::unix::net::UnixListener, sync::Arc, time::Duration};

use tokio::{
    net::{TcpStream, UnixStream},
    sync::{oneshot, watch},
    task::{AbortHandle, JoinHandle, JoinSet, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{
    AnyHandler, Limits, Listening, Share,
    caller::Caller,
    connection::{Connection, Phase},
    stream::Socket,
};

/// Pause after a failed accept: out of file descriptors, most likely, so let some come free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The log says so at most once in such a time.
const ACCEPT_WARNING: Duration = Duration::from_secs(60);

/// A running server. Dropping it closes the listener, in this process, and cuts all connections
/// soon afterwards; to know when that is done, use [`Server::close`].
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<Stop>,
    task: JoinHandle<()>,
    abort_on_drop: AbortOnDrop,
}

/// How a server stops.
#[derive(Debug)]
enum Stop {
    /// With its listener, in all processes; it waits so long for requests in progress.
    Close(Duration),
    /// So that another process can go on with the listener; it serves who is connected for so long.
    Leave(Duration, oneshot::Sender<()>),
}

impl Server {
    /// Serves `handler` on a socket. Needs a Tokio runtime.
    pub fn start(
        listening: Listening,
        handler: Arc<dyn AnyHandler>,
        limits: Limits,
        share: Arc<Share>,
    ) -> io::Result<Self> {
        let address = listening.socket().local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(listening, handler, limits, share, stopped));
        Ok(Self {
            address,
            stop,
            abort_on_drop: AbortOnDrop::of(&task),
            task,
        })
    }

    /// The address on which it listens, with the port that the kernel chose if it was zero.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, waits at most `grace` for requests in progress, and cuts what is left. When
    /// this returns, the port is free, whichever process has a duplicate of the socket.
    pub async fn close(self, grace: Duration) {
        // Both can only fail if the task is gone already.
        let _ = self.stop.send(Stop::Close(grace));
        let _ = self.task.await;
    }

    /// Stops accepting; clients wait until another process accepts them that has a duplicate of
    /// the socket. When this returns, no further client is accepted.
    ///
    /// The task that is returned serves those that are connected: each gets one more answer, if it
    /// asks within `grace`. Idle connections are closed.
    pub async fn leave(self, grace: Duration) -> JoinHandle<()> {
        let (tell, left) = oneshot::channel();
        // Both can only fail if the task is gone already.
        let _ = self.stop.send(Stop::Leave(grace, tell));
        let _ = left.await;
        self.abort_on_drop.disarm();
        self.task
    }
}

/// A running server on a Unix socket. Dropping it closes the listener and cuts all connections.
#[derive(Debug)]
pub struct LocalServer {
    stop: oneshot::Sender<Stop>,
    task: JoinHandle<()>,
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
        handler: Arc<dyn AnyHandler>,
        limits: Limits,
        share: Arc<Share>,
    ) -> io::Result<Self> {
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(listener, handler, limits, share, stopped));
        Ok(Self {
            stop,
            _abort_on_drop: AbortOnDrop::of(&task),
            task,
        })
    }

    /// Closes the listener and cuts all connections. When this returns, nobody listens any more.
    pub async fn close(self) {
        // Both can only fail if the task is gone already.
        let _ = self.stop.send(Stop::Close(Duration::ZERO));
        let _ = self.task.await;
    }
}

#[derive(Debug)]
struct AbortOnDrop(Option<AbortHandle>);

impl AbortOnDrop {
    fn of(task: &JoinHandle<()>) -> Self {
        Self(Some(task.abort_handle()))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

async fn run(
    listener: impl Accept,
    handler: Arc<dyn AnyHandler>,
    limits: Limits,
    share: Arc<Share>,
    mut stopped: oneshot::Receiver<Stop>,
) {
    let (phase, phases) = watch::channel(Phase::Serving);
    let mut warned = None;
    let mut connections = JoinSet::new();
    let stop = loop {
        tokio::select! {
            stop = &mut stopped => break stop.unwrap_or(Stop::Close(Duration::ZERO)),
            Some(_) = connections.join_next() => {}
            (stream, caller) = accept(&listener, &share, &mut warned) => {
                let connection = Connection {
                    handler: handler.clone(),
                    limits,
                    place: share.admit(caller),
                };
                connections.spawn(connection.serve(stream, phases.clone()));
                // Who has asked already, in the socket's queue, is answered before the next one
                // needs its place.
                yield_now().await;
            }
        }
    };
    let grace = match stop {
        Stop::Close(grace) => {
            listener.close();
            phase.send_replace(Phase::Closing);
            grace
        }
        Stop::Leave(grace, left) => {
            drop(listener);
            phase.send_replace(Phase::Leaving);
            let _ = left.send(());
            grace
        }
    };
    if !grace.is_zero() {
        // Running out of grace is not an error: what is left is cut below.
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(grace, ended).await;
    }
    connections.shutdown().await;
}

/// A listening socket of any kind.
trait Accept: Send + Sync + 'static {
    type Stream: Socket;

    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Caller)>> + Send;

    /// Closes it for all processes that have it.
    fn close(self);
}

impl Accept for Listening {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Caller)> {
        let (stream, peer) = self.socket().accept().await?;
        // Latency only; a socket that refuses still works.
        let _ = stream.set_nodelay(true);
        let caller = Caller::between(peer.ip(), stream.local_addr()?.ip());
        Ok((stream, caller))
    }

    fn close(self) {
        Self::close(self);
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

    fn close(self) {}
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
