//! Unconnected UDP sockets without number, as any process may open them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::lab::Host;
use crate::traffic::{Job, Running};

/// Sends an empty datagram from each of many sockets, one after the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[must_use = "call `run`"]
pub struct Sockets {
    target: SocketAddr,
    number: u32,
}

impl Sockets {
    /// Will open so many sockets.
    pub fn new(target: SocketAddr, number: u32) -> Self {
        Self { target, number }
    }

    /// Opens them in a process of `host`. Returns how many have sent.
    pub fn run(self, host: impl AsRef<Host>) -> Result<u32> {
        Running::start(&host.as_ref().with_processes(), self)?.wait()
    }
}

impl Job for Sockets {
    const NAME: &str = "sockets";
    type Stop = ();
    type Report = u32;

    async fn run(self, ready: oneshot::Sender<()>, mut stop: oneshot::Receiver<()>) -> Result<u32> {
        let any: SocketAddr = match self.target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let _ = ready.send(());
        let mut sent = 0;
        while sent < self.number && stop.try_recv() == Err(TryRecvError::Empty) {
            let socket = UdpSocket::bind(any).context("cannot open a socket")?;
            socket
                .send_to(&[], self.target)
                .context("cannot send a datagram")?;
            sent += 1;
        }
        Ok(sent)
    }
}
