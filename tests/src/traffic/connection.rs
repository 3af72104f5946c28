//! The client's end of a connection, or of what corresponds to one over UDP.

use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, header};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::AbortHandle;

use super::failure::{Failure, FailureKind};
use super::request::{Protocol, Request};
use super::tcp;
use super::wire::{Answer, Ask, filling};

/// A connection on which questions can be asked one after the other.
#[derive(Debug)]
pub struct Connection {
    means: Means,
    local: SocketAddr,
    remote: SocketAddr,
    repeated_syns: u32,
}

#[derive(Debug)]
enum Means {
    Tcp(BufReader<TcpStream>),
    Http {
        requests: SendRequest<Full<Bytes>>,
        _driver: Driver,
    },
    Udp(UdpSocket),
    UdpUnconnected {
        socket: UdpSocket,
        target: SocketAddr,
    },
}

impl Connection {
    /// Opens a connection; has no deadline of its own.
    pub async fn open(request: &Request) -> Result<Self, Failure> {
        match request.protocol {
            Protocol::Tcp | Protocol::Http => Self::open_tcp(request).await,
            Protocol::Udp | Protocol::UdpUnconnected => Self::open_udp(request).await,
        }
    }

    /// Asks and waits for the answer; has no deadline of its own.
    pub async fn ask(&mut self, ask: Ask) -> Result<Answer, Failure> {
        let reply = match &mut self.means {
            Means::Tcp(stream) => {
                stream.write_all(ask.line().as_bytes()).await?;
                let mut line = String::new();
                if stream.read_line(&mut line).await? == 0 {
                    return Err(Failure::new(
                        FailureKind::Closed,
                        "closed without an answer",
                    ));
                }
                let mut rest = String::new();
                if ask.last && stream.read_line(&mut rest).await? != 0 {
                    return Err(Failure::new(FailureKind::Malformed, rest));
                }
                line.into_bytes()
            }
            Means::Http { requests, .. } => ask_http(requests, self.remote, ask).await?,
            Means::Udp(socket) => {
                socket.send(ask.line().as_bytes()).await?;
                let mut buffer = vec![0; MAX_DATAGRAM];
                let size = socket.recv(&mut buffer).await?;
                buffer.truncate(size);
                buffer
            }
            Means::UdpUnconnected { socket, target } => {
                socket.send_to(ask.line().as_bytes(), *target).await?;
                let mut buffer = vec![0; MAX_DATAGRAM];
                let (size, from) = socket.recv_from(&mut buffer).await?;
                self.remote = from;
                buffer.truncate(size);
                buffer
            }
        };
        let answer: Answer =
            serde_json::from_slice(&reply).map_err(|e| Failure::new(FailureKind::Malformed, e))?;
        if answer.padding.len() != ask.payload {
            let detail = format!("{} bytes of {}", answer.padding.len(), ask.payload);
            return Err(Failure::new(FailureKind::Malformed, detail));
        }
        Ok(answer)
    }

    /// Whether the server is known to have ended the connection.
    pub fn is_closed(&self) -> bool {
        matches!(&self.means, Means::Http { requests, .. } if requests.is_closed())
    }

    /// Segments that this end of a connection of [`Protocol::Tcp`] sent again.
    pub fn retransmissions(&self) -> u64 {
        match &self.means {
            Means::Tcp(stream) => tcp::retransmissions(stream.get_ref()).unwrap_or(0).into(),
            _ => 0,
        }
    }

    /// The socket's own address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The other side, as the kernel tells it to the client.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// How often the SYN had to be sent again before the connection was there.
    pub fn repeated_syns(&self) -> u32 {
        self.repeated_syns
    }

    async fn open_tcp(request: &Request) -> Result<Self, Failure> {
        let socket = match request.target {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        if is_chosen(request.source) {
            socket.set_reuseaddr(true)?;
            if request.source.port() == 0 {
                // A port is enough if this target's connections do not use it; others may.
                setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)
                    .map_err(io::Error::from)?;
            }
            socket.bind(request.source)?;
        }
        let stream = socket.connect(request.target).await?;
        // Nothing else has been sent yet.
        let repeated_syns = tcp::retransmissions(&stream)?;
        stream.set_nodelay(true)?;
        let (local, remote) = (stream.local_addr()?, stream.peer_addr()?);
        let means = if request.protocol == Protocol::Http {
            let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // Errors of the task are also errors of the request.
            let driver = Driver(tokio::spawn(async { drop(connection.await) }).abort_handle());
            Means::Http {
                requests,
                _driver: driver,
            }
        } else {
            Means::Tcp(BufReader::new(stream))
        };
        Ok(Self {
            means,
            local,
            remote,
            repeated_syns,
        })
    }

    async fn open_udp(request: &Request) -> Result<Self, Failure> {
        let socket = UdpSocket::bind(request.source).await?;
        if request.protocol == Protocol::Udp {
            socket.connect(request.target).await?;
            let (local, remote) = (socket.local_addr()?, socket.peer_addr()?);
            return Ok(Self {
                means: Means::Udp(socket),
                local,
                remote,
                repeated_syns: 0,
            });
        }
        let local = socket.local_addr()?;
        let means = Means::UdpUnconnected {
            socket,
            target: request.target,
        };
        Ok(Self {
            means,
            local,
            remote: request.target,
            repeated_syns: 0,
        })
    }
}

/// The task that moves an HTTP connection's bytes; it ends with the connection.
#[derive(Debug)]
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

const MAX_DATAGRAM: usize = 1 << 16;

async fn ask_http(
    requests: &mut SendRequest<Full<Bytes>>,
    host: SocketAddr,
    ask: Ask,
) -> Result<Vec<u8>, Failure> {
    let request = hyper::Request::builder()
        .method(if ask.payload == 0 {
            Method::GET
        } else {
            Method::POST
        })
        .uri(format!("/?{}", ask.words('&')))
        .header(header::HOST, host.to_string())
        .body(Full::from(filling(ask.payload)))
        .map_err(io::Error::other)?;
    requests.ready().await?;
    let response = requests.send_request(request).await?;
    if !response.status().is_success() {
        return Err(Failure::new(FailureKind::Malformed, response.status()));
    }
    Ok(response.into_body().collect().await?.to_bytes().into())
}

fn is_chosen(source: SocketAddr) -> bool {
    source.port() != 0 || !source.ip().is_unspecified()
}
