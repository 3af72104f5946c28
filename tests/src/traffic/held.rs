//! A connection that a test controls step by step.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, TcpKeepalive, Type};

use super::tcp::{self, Numbers};
use super::wire::{Answer, Ask};
use crate::lab::{Family, Host};
use crate::patience::patient;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(2);

/// A TCP connection to a [`Serve`](super::Serve), on which the owner asks when it wants.
#[derive(Debug)]
pub struct Held {
    stream: BufReader<Socket>,
    local: SocketAddr,
}

impl Held {
    /// How long connecting may take: less than the time until a SYN is first sent again.
    pub const PATIENCE: Duration = Duration::from_millis(900);
    /// How long it may take where a SYN may be sent again.
    const LATE: Duration = Duration::from_secs(10);

    /// Connects from `host`.
    pub fn open(host: impl AsRef<Host>, target: SocketAddr) -> Result<Self> {
        Self::open_from(host, 0, target)
    }

    /// Connects from `host` so many times, one after the other: the connections that were let in.
    pub fn open_all(host: impl AsRef<Host>, target: SocketAddr, tries: usize) -> Vec<Self> {
        let tries = (0..tries).map(|_| Self::open(host.as_ref(), target));
        tries.filter_map(Result::ok).collect()
    }

    /// Connects from `host`, if need be with a later SYN than the first: where a server may be late
    /// and the first SYN is not what matters.
    pub fn open_patiently(host: impl AsRef<Host>, target: SocketAddr) -> Result<Self> {
        Self::connect(host.as_ref(), 0, target, patient(Self::LATE))
    }

    /// Connects from a port of `host`; zero leaves it to the kernel.
    pub fn open_from(host: impl AsRef<Host>, port: u16, target: SocketAddr) -> Result<Self> {
        Self::connect(host.as_ref(), port, target, Self::PATIENCE)
    }

    fn connect(host: &Host, port: u16, target: SocketAddr, limit: Duration) -> Result<Self> {
        let connect = || -> Result<_> {
            let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
            if port != 0 {
                socket.set_reuse_address(true)?;
                let any = match Family::of(target.ip()) {
                    Family::V4 => SocketAddr::from(([0; 4], port)),
                    Family::V6 => SocketAddr::from(([0; 16], port)),
                };
                socket.bind(&any.into())?;
            }
            socket.connect_timeout(&target.into(), limit)?;
            socket.set_read_timeout(Some(patient(ANSWER)))?;
            Ok(socket)
        };
        let socket = host.netns().run(connect)?;
        let socket = socket.with_context(|| format!("{host} cannot connect to {target}"))?;
        socket.set_tcp_nodelay(true)?;
        let local = socket.local_addr()?.as_socket();
        Ok(Self {
            local: local.context("a TCP socket without address")?,
            stream: BufReader::new(socket),
        })
    }

    /// Has the client's kernel ask so often whether the server is there.
    pub fn keep_alive(&self, every: Duration) -> Result<()> {
        let keepalive = TcpKeepalive::new().with_time(every).with_interval(every);
        let socket = self.stream.get_ref();
        socket
            .set_tcp_keepalive(&keepalive)
            .context("cannot set keepalive")
    }

    /// Sends a question, and waits for the answer.
    pub fn ask(&mut self) -> Result<Answer> {
        self.ask_for(0)
    }

    /// Sends a question with so many bytes of padding, and waits for the answer, which has as many.
    pub fn ask_for(&mut self, payload: usize) -> Result<Answer> {
        let ask = Ask {
            payload,
            ..Ask::default()
        };
        let line = ask.line();
        self.stream
            .get_mut()
            .write_all(line.as_bytes())
            .context("cannot ask")?;
        let mut line = String::new();
        let size = self.stream.read_line(&mut line).context("no answer")?;
        ensure!(size > 0, "closed without an answer");
        serde_json::from_str(&line).with_context(|| format!("{line:?} is no answer"))
    }

    /// The client's own address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// What it is connected to, as the client sees it.
    ///
    /// # Errors
    ///
    /// If it is no longer connected.
    pub fn peer(&self) -> Result<SocketAddr> {
        let peer = self.stream.get_ref().peer_addr()?.as_socket();
        peer.context("a TCP socket that is connected to no address")
    }

    /// Its sequence numbers.
    pub fn numbers(&self) -> Result<Numbers> {
        tcp::numbers(self.stream.get_ref()).context("cannot read sequence numbers")
    }

    /// Segments that the client sent again.
    pub fn retransmissions(&self) -> Result<u32> {
        tcp::retransmissions(self.stream.get_ref()).context("cannot read TCP_INFO")
    }

    /// Ends without sending anything, as when the client's machine loses power.
    pub fn vanish(self) -> Result<()> {
        tcp::silence(self.stream.get_ref()).context("cannot silence a socket")
    }

    /// Ends with a reset.
    pub fn reset(self) -> Result<()> {
        let socket = self.stream.get_ref();
        socket
            .set_linger(Some(Duration::ZERO))
            .context("cannot set a socket to reset")
    }
}
