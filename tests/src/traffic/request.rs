//! One request, its options and its result.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::connection::Connection;
use super::failure::{Failure, FailureKind};
use super::job::{Job, Running};
use super::wire::{Answer, Ask};
use crate::lab::Host;
use crate::patience::{SILENCE, patient};

/// A request to a [`Serve`](super::Serve).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[must_use = "call `send`"]
pub struct Request {
    pub(super) protocol: Protocol,
    pub(super) target: SocketAddr,
    /// Port 0 and the unspecified address mean: the kernel chooses.
    pub(super) source: SocketAddr,
    pub(super) deadline: Duration,
    payload: usize,
    held_for: Duration,
    server_closes: bool,
}

/// How a request is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// A line over TCP.
    Tcp,
    /// HTTP/1.1.
    Http,
    /// A datagram over a connected socket: it gets ICMP errors, but no answers from other
    /// addresses.
    Udp,
    /// A datagram over a socket that is not connected.
    UdpUnconnected,
}

/// A proper answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// The name of the server that answered.
    pub server: String,
    /// The client's address as that server saw it.
    pub peer: SocketAddr,
    /// The address the server was reached at.
    pub server_address: SocketAddr,
    /// The source of the answer as the client sees it: `getpeername` of a connected socket, or else
    /// the datagram's source.
    pub from: SocketAddr,
    /// The client's own address as it sees it.
    pub source: SocketAddr,
    /// From before the socket was created until the answer was complete.
    pub latency: Duration,
}

impl Request {
    /// Connects, sends a line and reads the answer.
    pub fn tcp(target: SocketAddr) -> Self {
        Self::new(Protocol::Tcp, target)
    }

    /// Makes an HTTP request on a connection of its own.
    pub fn http(target: SocketAddr) -> Self {
        Self::new(Protocol::Http, target)
    }

    /// Sends a datagram from a connected socket.
    pub fn udp(target: SocketAddr) -> Self {
        Self::new(Protocol::Udp, target)
    }

    /// Sends a datagram from a socket that is not connected.
    pub fn udp_unconnected(target: SocketAddr) -> Self {
        Self::new(Protocol::UdpUnconnected, target)
    }

    /// A request with a deadline of two seconds ([`patient`]) and a small payload.
    pub fn new(protocol: Protocol, target: SocketAddr) -> Self {
        let any: IpAddr = match target {
            SocketAddr::V4(_) => [0; 4].into(),
            SocketAddr::V6(_) => [0; 16].into(),
        };
        Self {
            protocol,
            target,
            source: SocketAddr::new(any, 0),
            deadline: patient(Duration::from_secs(2)),
            payload: 0,
            held_for: Duration::ZERO,
            server_closes: false,
        }
    }

    /// Sends from this port.
    pub fn from_port(mut self, port: u16) -> Self {
        self.source.set_port(port);
        self
    }

    /// Sends from this address, of the target's family.
    pub fn from_ip(mut self, ip: IpAddr) -> Self {
        self.source.set_ip(ip);
        self
    }

    /// Sets how long it may take until the answer is complete.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Waits only [`SILENCE`] ([`patient`]) for an answer, for requests that must not get one.
    pub fn in_vain(self) -> Self {
        self.deadline(patient(SILENCE))
    }

    /// Sends this many bytes, and asks for as many in the answer.
    pub fn payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }

    /// Makes the server take this long to answer.
    pub fn held_for(mut self, time: Duration) -> Self {
        self.held_for = time;
        self
    }

    /// Makes the server close the connection first, after its answer; only over TCP.
    pub fn server_closes(mut self) -> Self {
        self.server_closes = true;
        self
    }

    /// Sends the request from `host`, and waits for the answer.
    pub fn send(self, host: impl AsRef<Host>) -> Result<Reply, Failure> {
        self.start(host)?.reply()
    }

    /// Sends the request from `host`. The answer can be waited for later.
    pub fn start(self, host: impl AsRef<Host>) -> Result<RequestUnderWay, Failure> {
        let running = Running::start(host.as_ref(), self);
        running.map(RequestUnderWay).map_err(lab_failure)
    }

    /// Makes the exchange from the calling thread's namespace.
    pub(super) async fn exchange(self) -> Result<Reply, Failure> {
        let start = Instant::now();
        let exchange = async {
            let mut connection = Connection::open(&self).await?;
            let answer = connection.ask(self.ask()).await?;
            Ok(self.reply(&connection, answer, start))
        };
        let deadline = start + self.deadline;
        timeout_at(deadline.into(), exchange)
            .await
            .unwrap_or_else(|_| Err(self.too_late()))
    }

    pub(super) fn ask(&self) -> Ask {
        Ask {
            payload: self.payload,
            delay: self.held_for,
            last: self.server_closes,
        }
    }

    pub(super) fn too_late(&self) -> Failure {
        Failure::new(
            FailureKind::Timeout,
            format!("no answer within {:?}", self.deadline),
        )
    }

    fn reply(&self, connection: &Connection, answer: Answer, start: Instant) -> Reply {
        Reply {
            server: answer.server,
            peer: answer.peer,
            server_address: answer.local,
            from: connection.remote(),
            source: connection.local(),
            latency: start.elapsed(),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            server,
            peer,
            server_address,
            from,
            source,
            latency,
        } = self;
        write!(f, "{server} ({server_address}) answered in {latency:.1?}: ")?;
        write!(f, "it saw {peer}, the client is {source} and saw {from}")
    }
}

/// A request that has been sent. Its answer can be waited for.
#[derive(Debug)]
pub struct RequestUnderWay(Running<Request>);

impl RequestUnderWay {
    /// Waits for the answer.
    pub fn reply(self) -> Result<Reply, Failure> {
        self.0.wait().unwrap_or_else(|e| Err(lab_failure(e)))
    }
}

impl Job for Request {
    const NAME: &str = "request";
    type Stop = ();
    type Report = Result<Reply, Failure>;

    async fn run(
        self,
        ready: oneshot::Sender<()>,
        stop: oneshot::Receiver<()>,
    ) -> Result<Self::Report> {
        let _ = ready.send(());
        tokio::select! {
            result = self.exchange() => Ok(result),
            _ = stop => Ok(Err(Failure::new(FailureKind::Lab, "given up"))),
        }
    }
}

fn lab_failure(error: anyhow::Error) -> Failure {
    Failure::new(FailureKind::Lab, format!("{error:#}"))
}
