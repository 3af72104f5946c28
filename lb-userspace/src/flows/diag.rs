//! Lists the kernel's UDP sockets, and ends single ones: sock_diag(7) over netlink.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_sock_diag::{
    SockDiagDestroy, SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_UDP},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::{Socket, SocketAddr as KernelAddress, protocols::NETLINK_SOCK_DIAG};

/// Works on the sockets of the network namespace in which it was opened.
pub struct SocketDiag {
    socket: Socket,
}

/// A connected UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    /// What `SO_COOKIE` returns: unique until the next start of the machine.
    pub cookie: u64,
    /// The address it is connected to. IPv4 addresses are IPv4 even if the socket is IPv6.
    pub peer: SocketAddr,
    family: u8,
    id: SocketId,
}

impl SocketDiag {
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.bind_auto()?;
        socket.connect(&KernelAddress::new(0, 0))?;
        Ok(Self { socket })
    }

    /// The connected UDP sockets of both families.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn connected_udp(&self) -> io::Result<Vec<UdpSocket>> {
        let mut sockets = Vec::new();
        for (family, any) in [
            (AF_INET, SocketId::new_v4()),
            (AF_INET6, SocketId::new_v6()),
        ] {
            self.send(
                SockDiagMessage::InetRequest(request(family, any)),
                NLM_F_REQUEST | NLM_F_DUMP,
            )?;
            self.receive(|message: SockDiagMessage| {
                if let SockDiagMessage::InetResponse(response) = message {
                    sockets.push(UdpSocket::new(family, response.header.socket_id));
                }
            })?;
        }
        Ok(sockets)
    }

    /// Ends a socket. A process that waits for an answer, now or later, gets `ECONNABORTED`; one
    /// that sends gets `EDESTADDRREQ`. Sockets are compared by cookie, so a later socket on the
    /// same port is safe.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::NotFound`] if the socket is gone, `EOPNOTSUPP` if the kernel was built
    /// without `CONFIG_INET_DIAG_DESTROY`, or another error of the kernel.
    pub fn destroy(&self, socket: UdpSocket) -> io::Result<()> {
        let message = SockDiagMessage::InetRequest(request(socket.family, socket.id));
        self.send(SockDiagDestroy::new(message), NLM_F_REQUEST | NLM_F_ACK)?;
        self.receive(|_: SockDiagMessage| ())
    }

    fn send<M>(&self, message: M, flags: u16) -> io::Result<()>
    where
        M: NetlinkSerializable + Into<NetlinkPayload<M>>,
    {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        let mut message = NetlinkMessage::new(header, message.into());
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(())
    }

    /// Passes on the messages of an answer until its end.
    fn receive<M: NetlinkDeserializable>(&self, mut take: impl FnMut(M)) -> io::Result<()> {
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let message = NetlinkMessage::<M>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(()),
                            Some(_) => Err(error.to_io()),
                        };
                    }
                    NetlinkPayload::InnerMessage(inner) => take(inner),
                    _ => {}
                }
                let length = (message.header.length as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
            }
        }
    }
}

impl UdpSocket {
    fn new(family: u8, id: SocketId) -> Self {
        let [a, b, c, d, e, f, g, h] = id.cookie;
        let halves = [[a, b, c, d], [e, f, g, h]].map(|half| u64::from(u32::from_ne_bytes(half)));
        let address: IpAddr = id.destination_address.to_canonical();
        Self {
            cookie: halves[1] << 32 | halves[0],
            peer: SocketAddr::new(address, id.destination_port),
            family,
            id,
        }
    }
}

fn request(family: u8, socket_id: SocketId) -> InetRequest {
    InetRequest {
        family,
        protocol: IPPROTO_UDP,
        extensions: ExtensionFlags::empty(),
        // The kernel's name for the state of a connected UDP socket.
        states: StateFlags::ESTABLISHED,
        socket_id,
    }
}
