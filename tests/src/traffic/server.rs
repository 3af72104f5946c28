//! Servers that tell their name and which client address they see, and that can shut down like a
//! well-behaved pod.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::datagrams::Datagrams;
use super::job::{Job, Running};
use super::wire::{Answer, Ask, filling};
use crate::lab::Host;

/// A server that is being prepared.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use = "call `start`"]
pub struct Serve {
    name: String,
    address: IpAddr,
    http: Vec<u16>,
    tcp: Vec<u16>,
    udp: Vec<u16>,
    capacity: Capacity,
}

/// How many TCP connections a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Connections that are served at a time. Further ones are in the kernel's backlog: they are
    /// open, and nobody reads what they ask.
    pub served: usize,
    /// Connections in the backlog. Beyond that the kernel drops SYNs. The host's
    /// `net.core.somaxconn` may allow fewer.
    pub backlog: u32,
}

impl Capacity {
    /// Serves all, with the backlog of servers in Rust's library.
    const USUAL: Self = Self {
        served: usize::MAX,
        backlog: 128,
    };
}

impl Serve {
    /// A server that calls itself `name`, on all addresses of both families.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            address: Ipv6Addr::UNSPECIFIED.into(),
            http: Vec::new(),
            tcp: Vec::new(),
            udp: Vec::new(),
            capacity: Capacity::USUAL,
        }
    }

    /// Takes only so many TCP connections, at each port.
    pub fn capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = capacity;
        self
    }

    /// Serves on this address only.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.address = address;
        self
    }

    /// Answers HTTP requests on a port.
    pub fn http(mut self, port: u16) -> Self {
        self.http.push(port);
        self
    }

    /// Answers lines over TCP on a port.
    pub fn tcp(mut self, port: u16) -> Self {
        self.tcp.push(port);
        self
    }

    /// Answers datagrams on a port.
    pub fn udp(mut self, port: u16) -> Self {
        self.udp.push(port);
        self
    }

    /// Starts the server on `host`. When this returns, the ports are open.
    pub fn start(self, host: impl AsRef<Host>) -> Result<RunningServer> {
        Ok(RunningServer(Running::start(host.as_ref(), self)?))
    }
}

/// A running server. If dropped, it ends at once and resets its connections.
#[derive(Debug)]
pub struct RunningServer(Running<Serve>);

impl RunningServer {
    /// Shuts the server down in this way, and waits for it.
    pub fn shut_down(self, grace: Grace) -> Result<Served> {
        self.0.stop(grace)
    }

    /// Lets the server run on, for a lab that is kept, until the lab is removed. Works on hosts
    /// with servers in processes.
    pub fn leave_running(self) -> Result<()> {
        self.0.leave()
    }
}

/// How a server shuts down.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Grace {
    /// How long it goes on as before, as in a pod's `preStop` sleep.
    pub accept_for: Duration,
    /// After that it accepts nothing new, ends idle connections, and gives current requests this
    /// long to finish.
    pub drain_for: Duration,
}

impl Grace {
    /// No delay, and five seconds for current requests.
    pub const SHORT: Self = Self {
        accept_for: Duration::ZERO,
        drain_for: Duration::from_secs(5),
    };
}

/// What a server did.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Questions answered, over all protocols.
    pub answers: u64,
    /// Whether everything under way was finished in time.
    pub drained: bool,
}

impl Job for Serve {
    const NAME: &str = "serve";
    type Stop = Grace;
    type Report = Served;

    async fn run(
        self,
        ready: oneshot::Sender<()>,
        stop: oneshot::Receiver<Grace>,
    ) -> Result<Served> {
        let (close, closing) = watch::channel(false);
        let me = Arc::new(Me {
            name: self.name,
            answers: AtomicU64::new(0),
        });
        let mut ports = JoinSet::new();
        for port in self.http {
            let listener = listen(self.address, port, self.capacity.backlog)?;
            ports.spawn(accept(
                listener,
                Arc::clone(&me),
                closing.clone(),
                self.capacity.served,
                serve_http,
            ));
        }
        for port in self.tcp {
            let listener = listen(self.address, port, self.capacity.backlog)?;
            ports.spawn(accept(
                listener,
                Arc::clone(&me),
                closing.clone(),
                self.capacity.served,
                serve_lines,
            ));
        }
        for port in self.udp {
            let socket = Datagrams::bind(SocketAddr::new(self.address, port)).await?;
            ports.spawn(serve_datagrams(
                Arc::new(socket),
                Arc::clone(&me),
                closing.clone(),
            ));
        }
        let _ = ready.send(());

        let Ok(grace) = stop.await else {
            return Ok(me.served(false));
        };
        sleep(grace.accept_for).await;
        close.send_replace(true);
        let all = async { while ports.join_next().await.is_some() {} };
        let drained = timeout(grace.drain_for, all).await.is_ok();
        Ok(me.served(drained))
    }
}

/// What all connections of a server share.
#[derive(Debug)]
struct Me {
    name: String,
    answers: AtomicU64,
}

impl Me {
    async fn answer(&self, ask: Ask, peer: SocketAddr, local: SocketAddr) -> Answer {
        sleep(ask.delay).await;
        self.answers.fetch_add(1, Ordering::Relaxed);
        Answer {
            server: self.name.clone(),
            peer: canonical(peer),
            local: canonical(local),
            padding: filling(ask.payload),
        }
    }

    fn served(&self, drained: bool) -> Served {
        Served {
            answers: self.answers.load(Ordering::Relaxed),
            drained,
        }
    }
}

type Closing = watch::Receiver<bool>;

/// A server that closes goes on for so long: on a busy machine, it may not have been told yet of
/// what has arrived in its sockets.
const LAST_ARRIVAL: Duration = Duration::from_millis(50);
/// How long a connection accepted at the very end may take to send its first question.
const FIRST_QUESTION: Duration = Duration::from_millis(500);

fn listen(address: IpAddr, port: u16, backlog: u32) -> Result<TcpListener> {
    let address = SocketAddr::new(address, port);
    let listen = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(backlog)
    };
    listen().with_context(|| format!("cannot bind TCP {address}"))
}

/// Returns when everything that was sent before closing has arrived.
async fn last_arrival(mut closing: Closing) {
    let _ = closing.wait_for(|closing| *closing).await;
    sleep(LAST_ARRIVAL).await;
}

/// Accepts until closing, and serves `most` at a time. Then accepts what is still in the backlog,
/// because closing a listener resets it. Returns when all its connections have ended.
async fn accept<F>(
    listener: TcpListener,
    me: Arc<Me>,
    closing: Closing,
    most: usize,
    serve: fn(TcpStream, Arc<Me>, Closing) -> F,
) where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let end = last_arrival(closing.clone());
    tokio::pin!(end);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept(), if connections.len() < most => accepted,
            Some(_) = connections.join_next() => continue,
            () = &mut end => break,
        };
        if let Ok((stream, _)) = accepted {
            connections.spawn(serve(stream, Arc::clone(&me), closing.clone()));
        }
    }
    while let Ok(Ok((stream, _))) = timeout(Duration::ZERO, listener.accept()).await {
        connections.spawn(serve(stream, Arc::clone(&me), closing.clone()));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve_http(stream: TcpStream, me: Arc<Me>, mut closing: Closing) -> Result<()> {
    let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
    let asked = Notify::new();
    let service = service_fn(|request: Request<Incoming>| {
        asked.notify_one();
        let me = Arc::clone(&me);
        async move {
            let ask = Ask::parse(request.uri().query().unwrap_or_default());
            // Reading the body to its end keeps the connection usable.
            let _ = request.into_body().collect().await;
            let line = me.answer(ask, peer, local).await.line();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(line)))
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let time_to_end = async {
        let _ = closing.wait_for(|closing| *closing).await;
        let _ = timeout(FIRST_QUESTION, asked.notified()).await;
    };
    tokio::select! {
        result = connection.as_mut() => return Ok(result?),
        () = time_to_end => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

async fn serve_lines(stream: TcpStream, me: Arc<Me>, mut closing: Closing) -> Result<()> {
    stream.set_nodelay(true)?;
    let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
    let mut stream = BufReader::new(stream);
    let mut patience = FIRST_QUESTION;
    loop {
        let mut line = String::new();
        let time_to_end = async {
            let _ = closing.wait_for(|closing| *closing).await;
            sleep(patience).await;
        };
        let size = tokio::select! {
            biased;
            size = stream.read_line(&mut line) => size?,
            () = time_to_end => return Ok(()),
        };
        if size == 0 {
            return Ok(());
        }
        let ask = Ask::parse(line.trim_end());
        let answer = me.answer(ask, peer, local).await;
        stream.write_all(answer.line().as_bytes()).await?;
        if ask.last {
            return Ok(());
        }
        patience = Duration::ZERO;
    }
}

async fn serve_datagrams(socket: Arc<Datagrams>, me: Arc<Me>, closing: Closing) {
    let mut answers = JoinSet::new();
    let end = last_arrival(closing);
    tokio::pin!(end);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let received = tokio::select! {
            biased;
            received = socket.receive(&mut buffer) => received,
            () = &mut end => break,
        };
        // An error here is an ICMP message about an earlier answer.
        let Ok((size, way)) = received else { continue };
        let ask = Ask::parse(String::from_utf8_lossy(&buffer[..size]).trim_end());
        let (socket, me) = (Arc::clone(&socket), Arc::clone(&me));
        answers.spawn(async move {
            let answer = me.answer(ask, way.peer, way.local).await;
            // The client will notice the missing answer.
            let _ = socket.answer(answer.line().as_bytes(), way).await;
        });
        while answers.try_join_next().is_some() {}
    }
    while answers.join_next().await.is_some() {}
}

/// An IPv4 peer of a socket that is bound to all addresses shows as `::ffff:a.b.c.d`.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
