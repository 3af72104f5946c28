//! Packets written byte by byte, without any of the code under test.

use std::net::{IpAddr, SocketAddr};

pub const ETHERNET: usize = 14;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// MAC addresses of frames as they arrive.
pub const ARRIVED: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];

/// A network header to be.
#[derive(Clone, Debug)]
pub struct Header {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    /// IPv4 options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv6 extension headers before a fragment header.
    pub extensions: Vec<Extension>,
    pub fragment: Option<Fragment>,
    pub dont_fragment: bool,
}

/// An IPv6 extension header: its number, and what comes behind next header and length.
#[derive(Clone, Debug)]
pub struct Extension {
    pub number: u8,
    /// Six more than a multiple of eight bytes.
    pub body: Vec<u8>,
}

/// Which part of a packet this is.
#[derive(Clone, Copy, Debug)]
pub struct Fragment {
    pub id: u32,
    /// In units of eight bytes.
    pub offset: u16,
    pub more: bool,
}

impl Header {
    pub fn new(source: IpAddr, destination: IpAddr) -> Self {
        Self {
            source,
            destination,
            ttl: 64,
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
            dont_fragment: true,
        }
    }

    /// An Ethernet frame with this header in front of `payload`.
    pub fn frame(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        [&ethernet(self.source)[..], &self.packet(protocol, payload)].concat()
    }

    /// An IP packet with this header in front of `payload`.
    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = 20 + self.options.len();
                let mut packet = vec![0x40 | (header / 4) as u8, 0];
                packet.extend(((header + payload.len()) as u16).to_be_bytes());
                let fragment = self.fragment.unwrap_or(Fragment {
                    id: 7,
                    offset: 0,
                    more: false,
                });
                packet.extend((fragment.id as u16).to_be_bytes());
                let flags = u16::from(self.dont_fragment && self.fragment.is_none()) << 14
                    | u16::from(fragment.more) << 13
                    | fragment.offset;
                packet.extend(flags.to_be_bytes());
                packet.extend([self.ttl, protocol, 0, 0]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(&self.options);
                let checksum = !sum(&packet);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                packet.extend(payload);
                packet
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (first, extensions) = self.extension_headers(protocol);
                let mut packet = vec![0x60, 0, 0, 0];
                packet.extend(((extensions.len() + payload.len()) as u16).to_be_bytes());
                packet.extend([first, self.ttl]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(extensions);
                packet.extend(payload);
                packet
            }
            _ => panic!("addresses of two families"),
        }
    }

    /// The number of the first extension header and the bytes of all.
    fn extension_headers(&self, protocol: u8) -> (u8, Vec<u8>) {
        let (mut next, mut bytes) = (protocol, Vec::new());
        if let Some(Fragment { id, offset, more }) = self.fragment {
            bytes = vec![next, 0];
            bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
            bytes.extend(id.to_be_bytes());
            next = 44;
        }
        for extension in self.extensions.iter().rev() {
            let units = (extension.body.len() + 2) / 8;
            let header = [&[next, (units - 1) as u8], &extension.body[..]].concat();
            bytes.splice(..0, header);
            next = extension.number;
        }
        (next, bytes)
    }
}

fn ethernet(address: IpAddr) -> [u8; ETHERNET] {
    let ethertype: u16 = if address.is_ipv4() { 0x0800 } else { 0x86dd };
    let mut header = [0; ETHERNET];
    header[..12].copy_from_slice(&ARRIVED);
    header[12..].copy_from_slice(&ethertype.to_be_bytes());
    header
}

/// A TCP header to be.
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

/// A TCP segment with a valid checksum, whose numbers are those of a SYN.
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

fn ports(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
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

/// The one's complement sum with the pseudo header (RFC 9293, RFC 8200).
pub fn transport_sum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let mut bytes = pseudo_header(source, destination, protocol, segment.len());
    bytes.extend(segment);
    sum(&bytes)
}

/// The sum over a segment's pseudo header alone, as senders leave it for a device to complete.
pub fn pseudo_header_sum(source: IpAddr, to: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    sum(&pseudo_header(source, to, protocol, segment.len()))
}

fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    // ICMP for IPv4 has none.
    if (protocol, source.is_ipv4()) != (1, true) {
        for address in [source, destination] {
            match address {
                IpAddr::V4(v4) => bytes.extend(v4.octets()),
                IpAddr::V6(v6) => bytes.extend(v6.octets()),
            }
        }
        bytes.extend((length as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
    }
    bytes
}

/// The one's complement sum of 16-bit words (RFC 1071).
pub fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or_default();
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    words.fold(0, |sum: u16, word| {
        let sum = u32::from(sum) + word;
        (sum as u16) + (sum >> 16) as u16
    })
}
