//! SCTP: chunks behind a header, with a checksum computed bit by bit (RFC 9260).

use std::net::SocketAddr;

use crate::transport::ports;

pub const SCTP: u8 = 132;

/// Types of chunks.
pub mod chunk {
    pub const DATA: u8 = 0;
    pub const INIT: u8 = 1;
    pub const INIT_ACK: u8 = 2;
    pub const SACK: u8 = 3;
    pub const HEARTBEAT: u8 = 4;
    pub const ABORT: u8 = 6;
    pub const SHUTDOWN: u8 = 7;
    pub const SHUTDOWN_ACK: u8 = 8;
    pub const COOKIE_ECHO: u8 = 10;
    pub const COOKIE_ACK: u8 = 11;
    pub const SHUTDOWN_COMPLETE: u8 = 14;
}

/// A chunk to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// One of [`chunk`].
    pub kind: u8,
    pub flags: u8,
    pub value: Vec<u8>,
}

impl Chunk {
    pub fn new(kind: u8) -> Self {
        Self {
            kind,
            flags: 0,
            value: Vec::new(),
        }
    }

    /// An INIT or an INIT ACK that asks for a tag.
    pub fn asking_for(kind: u8, tag: u32) -> Self {
        // A window, the numbers of streams, and the first number of its data.
        let rest = [0, 1, 0, 0, 0, 10, 0, 10, 0, 0, 0, 1];
        Self::new(kind).with(&[&tag.to_be_bytes()[..], &rest].concat())
    }

    /// Its value.
    pub fn with(self, value: &[u8]) -> Self {
        Self {
            value: value.to_vec(),
            ..self
        }
    }

    /// With the T bit: its packet bears the tag of the packet that it is an answer to.
    pub fn reflecting(self) -> Self {
        Self { flags: 1, ..self }
    }
}

/// An SCTP packet with a valid checksum.
pub fn sctp(source: SocketAddr, destination: SocketAddr, tag: u32, chunks: &[Chunk]) -> Vec<u8> {
    let mut packet = ports(source, destination);
    packet.extend(tag.to_be_bytes());
    packet.extend([0; 4]);
    for chunk in chunks {
        packet.extend([chunk.kind, chunk.flags]);
        packet.extend((4 + chunk.value.len() as u16).to_be_bytes());
        packet.extend(&chunk.value);
        packet.resize(packet.len().next_multiple_of(4), 0);
    }
    let checksum = crc32c(&packet);
    packet[8..12].copy_from_slice(&checksum.to_le_bytes());
    packet
}

/// The checksum of a packet in whose place there are zeros (RFC 9260, appendix A).
pub fn crc32c(packet: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for byte in packet {
        register ^= u32::from(*byte);
        for _ in 0..8 {
            let low = register & 1;
            register = (register >> 1) ^ (0x82f6_3b78 * low);
        }
    }
    !register
}
