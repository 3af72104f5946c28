//! Asks a side of a TCP connection for a sign of life, in the other side's name.
//!
//! A side that is asked with a number that it has received already says what it expects (RFC 9293,
//! 3.10.7.4), as with TCP's keepalive. So a connection that is to be reset, but in which nobody sends
//! anything, can be reset: by what the programs answer to that.

use std::{io, net::SocketAddr};

use lb_common::addr::Address;
use nix::sys::socket::sockopt::{IpTransparent, ReuseAddr, TcpRepair};
use nix::{errno::Errno, setsockopt_impl, sockopt_impl, sys::socket::setsockopt};
use socket2::{Domain, Socket, Type};

use super::records::{Connection, socket_addr};

/// A question to one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The side in whose name it is asked.
    pub from: SocketAddr,
    /// The side that is asked.
    pub to: SocketAddr,
    /// The number after the last one that `to` has received of `from`.
    pub next: u32,
    /// The same of what `from` has received.
    pub acknowledged: u32,
}

/// A function that sends a question.
pub type Ask = Box<dyn Fn(&Probe) -> io::Result<()> + Send>;

impl Probe {
    /// Of the client and of the endpoint of a connection.
    pub fn both<A: Address>(connection: &Connection<A>) -> [Self; 2] {
        let Connection { forward, reply } = connection;
        let [of_client, of_endpoint] = [(forward, reply), (reply, forward)].map(|(flow, other)| {
            let to = &flow.rewrite;
            Self {
                from: socket_addr(to.source, to.source_port),
                to: socket_addr(to.destination, to.destination_port),
                next: flow.next,
                acknowledged: other.next,
            }
        });
        [of_endpoint, of_client]
    }

    /// Sends it from a socket that takes the place of `from` for a moment. For that, Linux does not ask
    /// for a handshake where it is allowed to repair sockets (`CAP_NET_ADMIN`); it sends such a question
    /// by itself when the repair ends.
    ///
    /// # Errors
    ///
    /// If the kernel does not allow it, or has no way to `to`.
    pub fn send(&self) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(self.from), Type::STREAM, None)?;
        setsockopt(&socket, TcpRepair, &ON)?;
        match self.from {
            SocketAddr::V4(_) => setsockopt(&socket, IpTransparent, &true)?,
            SocketAddr::V6(_) => setsockopt(&socket, Ipv6Transparent, &true)?,
        }
        setsockopt(&socket, ReuseAddr, &true)?;
        for (queue, number) in [(SEND_QUEUE, self.next), (RECEIVE_QUEUE, self.acknowledged)] {
            setsockopt(&socket, RepairQueue, &queue)?;
            setsockopt(&socket, QueueNumber, &number)?;
        }
        socket.bind(&self.from.into())?;
        socket.connect(&self.to.into())?;
        let asked: Result<(), Errno> = setsockopt(&socket, TcpRepair, &OFF);
        // A socket under repair is closed without a word.
        setsockopt(&socket, TcpRepair, &ON)?;
        Ok(asked?)
    }
}

// Of linux/tcp.h, as the next ones.
const ON: u32 = 1;
const OFF: u32 = 0;
const RECEIVE_QUEUE: u32 = 1;
const SEND_QUEUE: u32 = 2;

sockopt_impl!(
    /// The queue that [`QueueNumber`] is about.
    RepairQueue,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_REPAIR_QUEUE,
    u32
);
sockopt_impl!(
    /// The number at which a queue begins.
    QueueNumber,
    SetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_QUEUE_SEQ,
    u32
);
sockopt_impl!(
    /// [`IpTransparent`] for IPv6.
    Ipv6Transparent,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_TRANSPARENT,
    bool
);
