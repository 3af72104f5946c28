//! A UDP socket for servers: it knows which of the host's addresses each datagram was sent to,
//! and answers from that one, as a server for many addresses must.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::cmsg_space;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// A bound UDP socket.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    port: u16,
}

/// Where a datagram came from and where it was sent to.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub peer: SocketAddr,
    pub local: SocketAddr,
}

impl Datagrams {
    /// Binds a socket; the unspecified IPv6 address takes IPv4 as well.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind(address)
            .await
            .with_context(|| format!("cannot bind UDP {address}"))?;
        if address.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)
        }
        .context("cannot ask for the addresses of datagrams")?;
        Ok(Self {
            port: socket.local_addr()?.port(),
            socket,
        })
    }

    /// Waits for a datagram and returns its size and way.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Way)> {
        self.socket
            .async_io(Interest::READABLE, || self.try_receive(buffer))
            .await
    }

    /// Answers a datagram, from the address it was sent to.
    pub async fn answer(&self, answer: &[u8], way: Way) -> io::Result<usize> {
        self.socket
            .async_io(Interest::WRITABLE, || self.try_answer(answer, way))
            .await
    }

    fn try_receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Way)> {
        let mut control = cmsg_space!(libc::in_pktinfo, libc::in6_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.socket.as_raw_fd();
        let received =
            recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), MsgFlags::empty())?;
        let peer = received.address.as_ref().and_then(socket_address);
        let local = received.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(IpAddr::V4(v4_of(info.ipi_addr))),
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
            _ => None,
        });
        match (peer, local) {
            (Some(peer), Some(ip)) => Ok((
                received.bytes,
                Way {
                    peer,
                    local: SocketAddr::new(ip, self.port),
                },
            )),
            _ => Err(io::Error::other("a datagram without addresses")),
        }
    }

    fn try_answer(&self, answer: &[u8], way: Way) -> io::Result<usize> {
        let (v4, v6);
        let source = match way.local.ip() {
            IpAddr::V4(ip) => {
                let any = libc::in_addr { s_addr: 0 };
                let own = libc::in_addr {
                    s_addr: u32::from(ip).to_be(),
                };
                v4 = libc::in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: own,
                    ipi_addr: any,
                };
                ControlMessage::Ipv4PacketInfo(&v4)
            }
            IpAddr::V6(ip) => {
                let own = libc::in6_addr {
                    s6_addr: ip.octets(),
                };
                v6 = libc::in6_pktinfo {
                    ipi6_addr: own,
                    ipi6_ifindex: 0,
                };
                ControlMessage::Ipv6PacketInfo(&v6)
            }
        };
        let fd = self.socket.as_raw_fd();
        let parts = [IoSlice::new(answer)];
        let peer = SockaddrStorage::from(way.peer);
        Ok(sendmsg(
            fd,
            &parts,
            &[source],
            MsgFlags::empty(),
            Some(&peer),
        )?)
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address
        .as_sockaddr_in()
        .map(|v4| SocketAddr::V4((*v4).into()));
    v4.or_else(|| {
        address
            .as_sockaddr_in6()
            .map(|v6| SocketAddr::V6((*v6).into()))
    })
}

fn v4_of(address: libc::in_addr) -> Ipv4Addr {
    u32::from_be(address.s_addr).into()
}
