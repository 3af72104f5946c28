//! TCP, UDP and ICMP: headers in front of data, checksums computed from scratch.

use std::net::{IpAddr, SocketAddr};

use crate::checksum::transport_sum;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// TCP header flags.
pub mod tcp_flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

/// A TCP header to be built.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    pub window: u16,
    /// Window scale (RFC 7323).
    pub scale: Option<u8>,
    /// Timestamp (RFC 7323).
    pub stamp: Option<u32>,
}

impl Tcp {
    pub fn new(sequence: u32, acknowledged: u32, flags: u8) -> Self {
        Self {
            sequence,
            acknowledged,
            flags,
            window: 0x2000,
            scale: None,
            stamp: None,
        }
    }

    /// A segment with this header and a valid checksum.
    pub fn segment(&self, source: SocketAddr, destination: SocketAddr, data: &[u8]) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(stamp) = self.stamp {
            options.extend([1, 1, 8, 10]);
            options.extend(stamp.to_be_bytes());
            options.extend([0; 4]);
        }
        if let Some(scale) = self.scale {
            options.extend([1, 3, 3, scale]);
        }
        let mut segment = ports(source, destination);
        segment.extend(self.sequence.to_be_bytes());
        segment.extend(self.acknowledged.to_be_bytes());
        segment.extend([((20 + options.len()) << 2) as u8, self.flags]);
        segment.extend(self.window.to_be_bytes());
        segment.extend([0; 4]);
        segment.extend(options);
        segment.extend(data);
        complete(source.ip(), destination.ip(), TCP, &mut segment, 16);
        segment
    }
}

/// A TCP segment with a valid checksum, and the numbers of a SYN.
pub fn tcp(source: SocketAddr, destination: SocketAddr, flags: u8, data: &[u8]) -> Vec<u8> {
    Tcp::new(1, 2, flags).segment(source, destination, data)
}

/// A UDP datagram with a valid checksum.
pub fn udp(source: SocketAddr, destination: SocketAddr, data: &[u8]) -> Vec<u8> {
    let mut datagram = ports(source, destination);
    datagram.extend((8 + data.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(data);
    complete(source.ip(), destination.ip(), UDP, &mut datagram, 6);
    if datagram[6..8] == [0, 0] {
        datagram[6..8].copy_from_slice(&[0xff, 0xff]);
    }
    datagram
}

/// An ICMP or ICMPv6 message with a valid checksum.
pub fn icmp(
    source: IpAddr,
    destination: IpAddr,
    kind: (u8, u8),
    word: u32,
    data: &[u8],
) -> Vec<u8> {
    let mut message = vec![kind.0, kind.1, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(data);
    complete(source, destination, icmp_number(source), &mut message, 2);
    message
}

pub fn icmp_number(address: IpAddr) -> u8 {
    if address.is_ipv4() { 1 } else { 58 }
}

pub(crate) fn ports(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    [
        source.port().to_be_bytes(),
        destination.port().to_be_bytes(),
    ]
    .concat()
}

fn complete(source: IpAddr, destination: IpAddr, protocol: u8, segment: &mut [u8], at: usize) {
    let checksum = !transport_sum(source, destination, protocol, segment);
    segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
}
