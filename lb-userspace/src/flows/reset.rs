//! Resets a side of a TCP connection in the other side's name.
//!
//! Both sides of a connection that has run into a deadline are reset when they send. One that does not
//! send would keep its socket.

use std::{io, net::SocketAddr, time::Duration};

use lb_common::addr::Address;
use nix::sys::socket::sockopt::{IpTransparent, ReuseAddr, TcpRepair};
use nix::{setsockopt_impl, sockopt_impl, sys::socket::setsockopt};
use socket2::{Domain, Socket, Type};

use super::records::{Connection, socket_addr};

/// A reset of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The side in whose name it is sent.
    pub from: SocketAddr,
    /// The side that is reset.
    pub to: SocketAddr,
    /// The number that `to` expects of `from` (RFC 9293, 3.10.7.4): it has said so itself.
    pub sequence: u32,
    /// The same of what `from` expects.
    pub acknowledged: u32,
}

/// A function that sends a reset.
pub type Sender = Box<dyn Fn(&Reset) -> io::Result<()> + Send>;

impl Reset {
    /// Of the client and of the endpoint of a connection.
    pub fn both<A: Address>(connection: &Connection<A>) -> [Self; 2] {
        let Connection { forward, reply } = connection;
        [(reply, forward), (forward, reply)].map(|(flow, other)| {
            let to = &flow.rewrite;
            Self {
                from: socket_addr(to.source, to.source_port),
                to: socket_addr(to.destination, to.destination_port),
                sequence: other.acknowledged,
                acknowledged: flow.acknowledged,
            }
        })
    }

    /// Sends it from a socket that takes the place of `from` for a moment. For that, Linux asks for no
    /// handshake where it is allowed to repair sockets (`CAP_NET_ADMIN`). Connection tracking takes a
    /// reset of no connection for invalid: it leaves no entry, and no rule gives it another source.
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
        for (queue, number) in [
            (SEND_QUEUE, self.sequence),
            (RECEIVE_QUEUE, self.acknowledged),
        ] {
            setsockopt(&socket, RepairQueue, &queue)?;
            setsockopt(&socket, QueueNumber, &number)?;
        }
        socket.bind(&self.from.into())?;
        socket.connect(&self.to.into())?;
        // From here on, the end of the socket resets the other side.
        socket.set_linger(Some(Duration::ZERO))?;
        Ok(setsockopt(&socket, TcpRepair, &OFF_QUIETLY)?)
    }
}

// Of linux/tcp.h, as the next ones.
const ON: u32 = 1;
/// Without a segment that asks for the other side's window. The kernel knows it as -1.
const OFF_QUIETLY: u32 = u32::MAX;
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
