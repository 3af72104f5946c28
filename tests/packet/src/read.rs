//! Reads packets back, without any of the code under test.

use std::net::{IpAddr, SocketAddr};

use crate::{
    checksum::{sum, transport_sum},
    header::{ETHERNET, Fragment},
    sctp::{SCTP, crc32c},
    transport::{TCP, UDP, icmp_number},
};

/// A packet as read, from the network header on.
#[derive(Clone, Debug)]
pub struct Read {
    pub bytes: Vec<u8>,
    pub source: IpAddr,
    pub destination: IpAddr,
    pub ttl: u8,
    pub protocol: u8,
    /// Offset of the transport header.
    pub transport: usize,
    /// Which part of a packet it is. A packet in one fragment (RFC 6946) is a part too.
    pub fragment: Option<Fragment>,
}

impl Read {
    pub fn frame(frame: &[u8]) -> Self {
        let read = Self::packet(&frame[ETHERNET..]);
        let ethertype = if read.source.is_ipv4() {
            [0x08, 0x00]
        } else {
            [0x86, 0xdd]
        };
        assert_eq!(frame[12..ETHERNET], ethertype, "EtherType");
        read
    }

    /// Reads an IP packet, which may be truncated after its headers.
    pub fn packet(bytes: &[u8]) -> Self {
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        match bytes[0] >> 4 {
            4 => {
                let address = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap().into();
                let length = usize::from(word(2)).min(bytes.len());
                Self {
                    bytes: bytes[..length].to_vec(),
                    source: address(12),
                    destination: address(16),
                    ttl: bytes[8],
                    protocol: bytes[9],
                    transport: usize::from(bytes[0] & 0xf) * 4,
                    fragment: (word(6) & 0x3fff != 0).then(|| Fragment {
                        id: word(4).into(),
                        offset: word(6) & 0x1fff,
                        more: word(6) & 0x2000 != 0,
                    }),
                }
            }
            6 => {
                let address = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap().into();
                let (mut protocol, mut transport, mut fragment) = (bytes[6], 40, None);
                while matches!(protocol, 0 | 43 | 44 | 60) {
                    let units = if protocol == 44 {
                        0
                    } else {
                        bytes[transport + 1]
                    };
                    if protocol == 44 {
                        fragment = Some(Fragment {
                            id: u32::from(word(transport + 4)) << 16
                                | u32::from(word(transport + 6)),
                            offset: word(transport + 2) >> 3,
                            more: word(transport + 2) & 1 != 0,
                        });
                    }
                    protocol = bytes[transport];
                    transport += (usize::from(units) + 1) * 8;
                }
                let length = (usize::from(word(4)) + 40).min(bytes.len());
                Self {
                    bytes: bytes[..length].to_vec(),
                    source: address(8),
                    destination: address(24),
                    ttl: bytes[7],
                    protocol,
                    transport,
                    fragment,
                }
            }
            version => panic!("IP version {version}"),
        }
    }

    pub fn from(&self) -> SocketAddr {
        SocketAddr::new(self.source, self.word(self.transport))
    }

    pub fn to(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.word(self.transport + 2))
    }

    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.transport..]
    }

    /// ICMP type and code.
    pub fn icmp_kind(&self) -> (u8, u8) {
        assert_eq!(self.protocol, icmp_number(self.source), "not ICMP");
        (self.payload()[0], self.payload()[1])
    }

    /// The packet that an ICMP error quotes.
    pub fn quoted(&self) -> Self {
        self.icmp_kind();
        Self::packet(&self.payload()[8..])
    }

    /// Asserts that every checksum in the packet equals a newly computed one.
    pub fn assert_checksums(&self) {
        self.assert_header_checksum();
        let payload = self.payload();
        if self.fragment.is_some() || self.protocol == UDP && payload[6..8] == [0, 0] {
            return;
        }
        if self.protocol == SCTP {
            let (mut packet, checksum) = (payload.to_vec(), &payload[8..12]);
            packet[8..12].fill(0);
            assert_eq!(checksum, crc32c(&packet).to_le_bytes(), "SCTP: {self:x?}");
            return;
        }
        let sum = transport_sum(self.source, self.destination, self.protocol, payload);
        assert_eq!(
            sum, 0xffff,
            "checksum of protocol {}: {self:x?}",
            self.protocol
        );
    }

    /// The sum over the pseudo header and everything that is there of a possibly truncated packet;
    /// `None` if its checksum was cut off, not computed by the sender, or is no sum, as SCTP's.
    /// Translation preserves it.
    pub fn sum_if_checked(&self) -> Option<u16> {
        if self.protocol == SCTP {
            return None;
        }
        let payload = self.payload();
        let checksum = if self.protocol == TCP { 16..18 } else { 6..8 };
        let checked = *payload.get(checksum)? != [0, 0] || self.protocol == TCP;
        checked.then(|| transport_sum(self.source, self.destination, self.protocol, payload))
    }

    pub fn assert_header_checksum(&self) {
        if self.source.is_ipv4() {
            assert_eq!(
                sum(&self.bytes[..self.transport]),
                0xffff,
                "IPv4 header checksum"
            );
        }
    }

    /// The same bytes, with zeros in place of everything that translation and forwarding may
    /// change.
    pub fn unchanging(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let (ttl, addresses) = match self.source {
            IpAddr::V4(_) => {
                bytes[10..12].fill(0);
                (8, 12..20)
            }
            IpAddr::V6(_) => (7, 8..40),
        };
        bytes[ttl] = 0;
        bytes[addresses].fill(0);
        let transport = &mut bytes[self.transport..];
        transport[..4].fill(0);
        match self.protocol {
            TCP => transport[16..18].fill(0),
            UDP => transport[6..8].fill(0),
            SCTP => transport[8..12].fill(0),
            protocol => panic!("protocol {protocol}"),
        }
        bytes
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}
