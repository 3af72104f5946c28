//! What one side of a conversation sends: everything but the addresses and ports, which are not the
//! same at both twins.

use std::{fmt, net::SocketAddr};

use fastrand::Rng;
use lb_packet::{
    Chunk, Extension, Header, SCTP, TCP, Tcp, UDP, chunk, icmp, icmp_number, sctp, tcp_flag, udp,
};

use super::scene::choose;

/// The protocol of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Udp,
    Sctp,
    /// ICMP echo.
    Echo,
    /// A protocol without ports (GRE).
    Other,
}

/// A message of either side.
#[derive(Clone, Debug)]
pub struct Message {
    pub body: Body,
    pub shape: Shape,
}

#[derive(Clone)]
pub enum Body {
    Tcp {
        flags: u8,
        sequence: u32,
        acknowledged: u32,
        data: Vec<u8>,
    },
    Udp {
        data: Vec<u8>,
        has_checksum: bool,
    },
    Sctp {
        tag: u32,
        chunks: Vec<Chunk>,
    },
    Echo,
    Other,
}

/// What its packets look like.
#[derive(Clone, Debug)]
pub struct Shape {
    pub ttl: u8,
    pub traffic_class: u8,
    pub dont_fragment: bool,
    pub options: Vec<u8>,
    pub extensions: Vec<Extension>,
    /// Bytes in each fragment.
    pub fragments: Option<usize>,
    /// Whether the transport's checksum is wrong.
    pub is_damaged: bool,
}

/// The client's first sequence number, and the endpoint's.
pub const NUMBERS: [u32; 2] = [1_000_000, 77_000_000];
/// The tags that the client and the endpoint ask for.
pub const TAGS: [u32; 2] = [0xc11e_0001, 0xe9d0_0001];

impl Kind {
    pub fn of(protocol: u8) -> Self {
        match protocol {
            TCP => Self::Tcp,
            UDP => Self::Udp,
            SCTP => Self::Sctp,
            other => panic!("no Service has protocol {other}"),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp {
                flags,
                sequence,
                acknowledged,
                data,
            } => {
                let length = data.len();
                write!(
                    f,
                    "TCP {flags:#x} {sequence} {acknowledged}, {length} bytes"
                )
            }
            Self::Udp { data, has_checksum } => {
                let length = data.len();
                write!(f, "UDP of {length} bytes, checksum: {has_checksum}")
            }
            Self::Sctp { tag, chunks } => write!(f, "SCTP {tag:#x} {chunks:?}"),
            Self::Echo => f.write_str("ICMP echo"),
            Self::Other => f.write_str("GRE"),
        }
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            ttl: 64,
            traffic_class: 0,
            dont_fragment: true,
            options: Vec::new(),
            extensions: Vec::new(),
            fragments: None,
            is_damaged: false,
        }
    }
}

impl Shape {
    /// A shape as packets have it in the wild, odd ones too.
    pub fn random(rng: &mut Rng) -> Self {
        let mut shape = Self {
            ttl: *choose(rng, &[64, 64, 64, 255, 128, 3, 2]),
            traffic_class: *choose(rng, &[0, 0, 0, 0x10, 0xb8, 0x03, 0xfe]),
            dont_fragment: rng.u8(..) < 200,
            ..Self::default()
        };
        match rng.u8(0..40) {
            0 => shape.ttl = 1,
            1 => shape.is_damaged = true,
            // No operation, and a router alert.
            2 => shape.options = vec![1, 1, 1, 0],
            3 => shape.options = vec![0x94, 4, 0, 0],
            4 => shape.extensions.push(Extension {
                // Destination options: padding.
                number: 60,
                body: vec![1, 4, 0, 0, 0, 0],
            }),
            _ => {}
        }
        shape
    }
}

impl Message {
    /// What opens a conversation.
    pub fn first(kind: Kind) -> Self {
        let body = match kind {
            Kind::Tcp => Body::Tcp {
                flags: tcp_flag::SYN,
                sequence: NUMBERS[0],
                acknowledged: 0,
                data: Vec::new(),
            },
            Kind::Udp => Body::Udp {
                data: b"question".to_vec(),
                has_checksum: true,
            },
            Kind::Sctp => Body::Sctp {
                tag: 0,
                chunks: vec![Chunk::asking_for(chunk::INIT, TAGS[0])],
            },
            Kind::Echo => Body::Echo,
            Kind::Other => Body::Other,
        };
        Self {
            body,
            shape: Shape::default(),
        }
    }

    /// Its packets, from one address to another.
    pub fn packets(&self, from: SocketAddr, to: SocketAddr) -> Vec<Vec<u8>> {
        let (protocol, mut bytes) = self.transport(from, to);
        let shape = &self.shape;
        if shape.is_damaged
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 0x55;
        }
        let is_v4 = from.is_ipv4();
        let header = Header {
            ttl: shape.ttl,
            traffic_class: shape.traffic_class,
            id: 0x4321,
            dont_fragment: shape.dont_fragment,
            options: if is_v4 {
                shape.options.clone()
            } else {
                Vec::new()
            },
            extensions: if is_v4 {
                Vec::new()
            } else {
                shape.extensions.clone()
            },
            ..Header::new(from.ip(), to.ip())
        };
        let Some(size) = shape.fragments.filter(|size| *size < bytes.len()) else {
            return vec![header.packet(protocol, &bytes)];
        };
        // Not two datagrams with one number: fragments of them would be mixed.
        let id = u32::from(from.port()) << 16 | u32::from(to.port()) ^ bytes.len() as u32;
        let parts = header.fragments(id ^ id >> 16, size, &bytes).into_iter();
        parts
            .map(|(header, part)| header.packet(protocol, &part))
            .collect()
    }

    fn transport(&self, from: SocketAddr, to: SocketAddr) -> (u8, Vec<u8>) {
        match &self.body {
            Body::Tcp {
                flags,
                sequence,
                acknowledged,
                data,
            } => {
                let header = Tcp {
                    scale: (flags & tcp_flag::SYN != 0).then_some(7),
                    ..Tcp::new(*sequence, *acknowledged, *flags)
                };
                (TCP, header.segment(from, to, data))
            }
            Body::Udp { data, has_checksum } => {
                let mut bytes = udp(from, to, data);
                if !has_checksum {
                    bytes[6..8].fill(0);
                }
                (UDP, bytes)
            }
            Body::Sctp { tag, chunks } => (SCTP, sctp(from, to, *tag, chunks)),
            Body::Echo => {
                let query = if from.is_ipv4() { 8 } else { 128 };
                let word = u32::from(from.port()) << 16 | 1;
                let message = icmp(from.ip(), to.ip(), (query, 0), word, b"echo, echo, echo");
                (icmp_number(to.ip()), message)
            }
            Body::Other => (47, vec![0, 0, 0x08, 0, 1, 2, 3, 4]),
        }
    }
}
