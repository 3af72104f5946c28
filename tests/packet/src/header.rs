//! Ethernet, IPv4 and IPv6 headers.

use std::net::IpAddr;

use crate::checksum::internet_checksum;

/// Length of an Ethernet header, in bytes.
pub const ETHERNET: usize = 14;
/// MAC addresses of arriving frames.
pub const ARRIVED: [u8; 12] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
const FRAGMENT_HEADER: u8 = 44;
const AUTHENTICATION_HEADER: u8 = 51;

/// A network header to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    pub traffic_class: u8,
    /// IPv6 only.
    pub flow_label: u32,
    /// Only for IPv4 packets that are not fragments.
    pub id: u16,
    /// IPv4 options, a multiple of four bytes.
    pub options: Vec<u8>,
    /// IPv6 extension headers before a fragment header.
    pub extensions: Vec<Extension>,
    pub fragment: Option<Fragment>,
    pub dont_fragment: bool,
}

/// An IPv6 extension header: its number, and the bytes after next header and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    pub number: u8,
    /// Its length is six more than a multiple of eight bytes.
    pub body: Vec<u8>,
}

/// Which part of a packet this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            traffic_class: 0,
            flow_label: 0,
            id: 7,
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
            dont_fragment: true,
        }
    }

    /// An Ethernet frame with this header in front of `payload`.
    pub fn frame(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        [&self.ethernet()[..], &self.packet(protocol, payload)].concat()
    }

    /// The fragments of a packet with this header, of `size` bytes each but for the last: their headers, and
    /// what follows them.
    pub fn fragments(&self, id: u32, size: usize, payload: &[u8]) -> Vec<(Self, Vec<u8>)> {
        assert!(size.is_multiple_of(8));
        let count = payload.len().div_ceil(size);
        let parts = payload.chunks(size).enumerate();
        parts
            .map(|(index, part)| {
                let fragment = Fragment {
                    id,
                    offset: (index * size / 8) as u16,
                    more: index + 1 < count,
                };
                let header = Self {
                    fragment: Some(fragment),
                    dont_fragment: false,
                    ..self.clone()
                };
                (header, part.to_vec())
            })
            .collect()
    }

    fn ethernet(&self) -> [u8; ETHERNET] {
        let mut header = [0; ETHERNET];
        header[..12].copy_from_slice(&ARRIVED);
        header[12..].copy_from_slice(&self.ethertype().to_be_bytes());
        header
    }

    /// The EtherType of its family.
    pub fn ethertype(&self) -> u16 {
        match self.source {
            IpAddr::V4(_) => 0x0800,
            IpAddr::V6(_) => 0x86dd,
        }
    }

    /// An IP packet with this header in front of `payload`.
    pub fn packet(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = 20 + self.options.len();
                let (id, flags) = match self.fragment {
                    Some(Fragment { id, offset, more }) => {
                        (id as u16, offset | u16::from(more) << 13)
                    }
                    None => (self.id, u16::from(self.dont_fragment) << 14),
                };
                let mut packet = vec![0x40 | (header / 4) as u8, self.traffic_class];
                packet.extend(((header + payload.len()) as u16).to_be_bytes());
                packet.extend(id.to_be_bytes());
                packet.extend(flags.to_be_bytes());
                packet.extend([self.ttl, protocol, 0, 0]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(&self.options);
                let checksum = internet_checksum(0, &packet);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                packet.extend(payload);
                packet
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (first, extensions) = self.extension_headers(protocol);
                let class_and_label =
                    6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
                let mut packet = class_and_label.to_be_bytes().to_vec();
                packet.extend(((extensions.len() + payload.len()) as u16).to_be_bytes());
                packet.extend([first, self.ttl]);
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(extensions);
                packet.extend(payload);
                packet
            }
            (source, destination) => panic!("{source} and {destination} are of two families"),
        }
    }

    /// The number of the first extension header and the bytes of all.
    fn extension_headers(&self, protocol: u8) -> (u8, Vec<u8>) {
        let (mut next, mut bytes) = (protocol, Vec::new());
        if let Some(Fragment { id, offset, more }) = self.fragment {
            bytes = vec![next, 0];
            bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
            bytes.extend(id.to_be_bytes());
            next = FRAGMENT_HEADER;
        }
        for extension in self.extensions.iter().rev() {
            let bytes_of = extension.body.len() + 2;
            let length = match extension.number {
                // The authentication header counts words (RFC 4302 section 2.2).
                AUTHENTICATION_HEADER => bytes_of / 4 - 2,
                _ => bytes_of / 8 - 1,
            };
            let header = [&[next, length as u8], &extension.body[..]].concat();
            bytes.splice(..0, header);
            next = extension.number;
        }
        (next, bytes)
    }
}
