//! Builds Ethernet frames from their meaning. Lengths and checksums are computed from scratch.

use std::net::{IpAddr, SocketAddr};

use crate::{
    header::{Extension, Header},
    transport::{self, TCP, Tcp, UDP, icmp_number, tcp_flag},
};

/// An Ethernet address.
pub type Mac = [u8; 6];

const ROUTING_HEADER: u8 = 43;
/// The window of segments, before scaling.
const WINDOW: u16 = 0xfaf0;

/// An IP packet in an Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    to: Mac,
    from: Mac,
    vlan: Option<u16>,
    header: Header,
    body: Body,
    /// Bytes after the IP packet, with which Ethernet pads short ones.
    padding: usize,
}

/// What follows the IP headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Tcp {
        ports: (u16, u16),
        /// The sequence number and the acknowledgement.
        numbers: (u32, u32),
        flags: u8,
        payload: Vec<u8>,
    },
    Udp {
        ports: (u16, u16),
        payload: Vec<u8>,
        /// Whether there is a checksum. IPv4 allows datagrams without one (RFC 768).
        checksum: bool,
    },
    /// An ICMP or ICMPv6 message: type and code, the word after the checksum, and the rest.
    Icmp {
        kind: (u8, u8),
        word: u32,
        rest: Vec<u8>,
    },
    /// Any bytes.
    Raw { protocol: u8, bytes: Vec<u8> },
}

/// Making packets.
impl Packet {
    fn new(source: IpAddr, destination: IpAddr, body: Body) -> Self {
        Self {
            to: [0x02, 0, 0, 0, 0xff, 1],
            from: [0x02, 0, 0, 0, 0xff, 2],
            vlan: None,
            header: Header {
                flow_label: 0xabcde,
                id: 0x1234,
                ..Header::new(source, destination)
            },
            body,
            padding: 0,
        }
    }

    /// A TCP segment with [`tcp_flag`](transport::tcp_flag)s and a few bytes.
    pub fn tcp(source: (IpAddr, u16), destination: (IpAddr, u16), flags: u8) -> Self {
        let body = Body::Tcp {
            ports: (source.1, destination.1),
            numbers: (0x1122_3344, 0x5566_7788),
            flags,
            payload: b"segment".to_vec(),
        };
        Self::new(source.0, destination.0, body)
    }

    /// A UDP datagram of a few bytes.
    pub fn udp(source: (IpAddr, u16), destination: (IpAddr, u16)) -> Self {
        let body = Body::Udp {
            ports: (source.1, destination.1),
            payload: b"datagram".to_vec(),
            checksum: true,
        };
        Self::new(source.0, destination.0, body)
    }

    /// An ICMP or ICMPv6 message.
    pub fn icmp(
        source: IpAddr,
        destination: IpAddr,
        kind: (u8, u8),
        word: u32,
        rest: Vec<u8>,
    ) -> Self {
        Self::new(source, destination, Body::Icmp { kind, word, rest })
    }

    /// A packet of any protocol.
    pub fn raw(source: IpAddr, destination: IpAddr, protocol: u8, bytes: Vec<u8>) -> Self {
        Self::new(source, destination, Body::Raw { protocol, bytes })
    }
}

/// Changing packets.
impl Packet {
    pub fn macs(self, to: Mac, from: Mac) -> Self {
        Self { to, from, ..self }
    }

    pub fn vlan(self, id: u16) -> Self {
        Self {
            vlan: Some(id),
            ..self
        }
    }

    pub fn ttl(mut self, ttl: u8) -> Self {
        self.header.ttl = ttl;
        self
    }

    /// The same packet after one more router.
    pub fn hop(self) -> Self {
        let ttl = self.header.ttl - 1;
        self.ttl(ttl)
    }

    pub fn traffic_class(mut self, traffic_class: u8) -> Self {
        self.header.traffic_class = traffic_class;
        self
    }

    pub fn flow_label(mut self, flow_label: u32) -> Self {
        self.header.flow_label = flow_label;
        self
    }

    pub fn id(mut self, id: u16) -> Self {
        self.header.id = id;
        self
    }

    pub fn may_be_fragmented(mut self) -> Self {
        self.header.dont_fragment = false;
        self
    }

    /// Gives an IPv4 packet options, whole words.
    pub fn options(mut self, options: &[u8]) -> Self {
        assert!(options.len().is_multiple_of(4) && options.len() <= 40);
        self.header.options = options.to_vec();
        self
    }

    /// Adds an IPv6 extension header of `length` bytes; a routing header has no segments left.
    pub fn extension(mut self, number: u8, length: usize) -> Self {
        assert!(length.is_multiple_of(8) && length >= 8);
        let mut body = vec![0; length - 2];
        // Padding options, if the header has options (RFC 8200 section 4.2).
        if number != ROUTING_HEADER {
            body[..2].copy_from_slice(&[1, length as u8 - 4]);
        }
        self.header.extensions.push(Extension { number, body });
        self
    }

    /// Adds an IPv6 routing header: the packet still has to visit other nodes.
    pub fn unfinished_route(mut self, segments_left: u8) -> Self {
        self = self.extension(ROUTING_HEADER, 24);
        let extension = self.header.extensions.last_mut().expect("just added");
        extension.body[1] = segments_left;
        self
    }

    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Replaces source address and port.
    pub fn source(mut self, (address, port): (IpAddr, u16)) -> Self {
        self.header.source = address;
        if let Some(ports) = self.ports_mut() {
            ports.0 = port;
        }
        self
    }

    /// Replaces destination address and port.
    pub fn destination(mut self, (address, port): (IpAddr, u16)) -> Self {
        self.header.destination = address;
        if let Some(ports) = self.ports_mut() {
            ports.1 = port;
        }
        self
    }

    /// Replaces the addresses of a packet without ports.
    pub fn addresses(mut self, source: IpAddr, destination: IpAddr) -> Self {
        (self.header.source, self.header.destination) = (source, destination);
        self
    }

    pub fn payload(mut self, bytes: &[u8]) -> Self {
        match &mut self.body {
            Body::Tcp { payload, .. } | Body::Udp { payload, .. } => *payload = bytes.to_vec(),
            Body::Icmp { rest, .. } => *rest = bytes.to_vec(),
            Body::Raw { bytes: raw, .. } => *raw = bytes.to_vec(),
        }
        self
    }

    /// Sets the sequence number and the acknowledgement of a TCP segment.
    pub fn numbers(mut self, sequence: u32, acknowledged: u32) -> Self {
        if let Body::Tcp { numbers, .. } = &mut self.body {
            *numbers = (sequence, acknowledged);
        }
        self
    }

    /// A UDP datagram without checksum.
    pub fn without_checksum(mut self) -> Self {
        if let Body::Udp { checksum, .. } = &mut self.body {
            *checksum = false;
        }
        self
    }

    /// The packet's fragments. All but the last have `size` bytes of what follows the IP header.
    pub fn fragments(self, id: u32, size: usize) -> Vec<Self> {
        let protocol = self.protocol();
        let parts = self.header.fragments(id, size, &self.body_bytes());
        parts
            .into_iter()
            .map(|(header, bytes)| Self {
                header,
                body: Body::Raw { protocol, bytes },
                ..self.clone()
            })
            .collect()
    }

    fn ports_mut(&mut self) -> Option<&mut (u16, u16)> {
        match &mut self.body {
            Body::Tcp { ports, .. } | Body::Udp { ports, .. } => Some(ports),
            _ => None,
        }
    }
}

impl From<&Packet> for Vec<u8> {
    fn from(packet: &Packet) -> Self {
        packet.bytes()
    }
}

/// Reading packets.
impl Packet {
    pub fn source_address(&self) -> IpAddr {
        self.header.source
    }

    pub fn destination_address(&self) -> IpAddr {
        self.header.destination
    }

    pub fn time_to_live(&self) -> u8 {
        self.header.ttl
    }

    /// Whether it is an IPv4 packet without the don't-fragment bit.
    pub fn may_be_fragmented_by_routers(&self) -> bool {
        self.header.source.is_ipv4() && !self.header.dont_fragment
    }

    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The addresses of its Ethernet header, the destination first.
    pub fn ethernet(&self) -> (Mac, Mac) {
        (self.to, self.from)
    }

    /// IP protocol number of the body.
    pub fn protocol(&self) -> u8 {
        match &self.body {
            Body::Tcp { .. } => TCP,
            Body::Udp { .. } => UDP,
            Body::Icmp { .. } => icmp_number(self.header.source),
            Body::Raw { protocol, .. } => *protocol,
        }
    }

    /// The frame.
    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = [self.to, self.from].concat();
        if let Some(vlan) = self.vlan {
            frame.extend([0x81, 0x00]);
            frame.extend(vlan.to_be_bytes());
        }
        frame.extend(self.header.ethertype().to_be_bytes());
        frame.extend(self.ip_bytes());
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    /// The IP packet alone.
    pub fn ip_bytes(&self) -> Vec<u8> {
        self.header.packet(self.protocol(), &self.body_bytes())
    }

    /// What an ICMP error about this packet quotes: the IP headers and `length` bytes after them.
    pub fn quote(&self, length: usize) -> Vec<u8> {
        let packet = self.ip_bytes();
        let headers = packet.len() - self.body_bytes().len();
        packet[..packet.len().min(headers + length)].to_vec()
    }

    /// Transport header and payload, checksum included.
    fn body_bytes(&self) -> Vec<u8> {
        let Header {
            source,
            destination,
            ..
        } = self.header;
        let ends = |ports: &(u16, u16)| {
            let from = SocketAddr::new(source, ports.0);
            (from, SocketAddr::new(destination, ports.1))
        };
        match &self.body {
            Body::Raw { bytes, .. } => bytes.clone(),
            Body::Tcp {
                ports,
                numbers,
                flags,
                payload,
            } => {
                let (from, to) = ends(ports);
                let header = Tcp {
                    // Who resets a connection takes nothing more.
                    window: match flags & tcp_flag::RST {
                        0 => WINDOW,
                        _ => 0,
                    },
                    ..Tcp::new(numbers.0, numbers.1, *flags)
                };
                header.segment(from, to, payload)
            }
            Body::Udp {
                ports,
                payload,
                checksum,
            } => {
                let (from, to) = ends(ports);
                let mut datagram = transport::udp(from, to, payload);
                if !checksum {
                    datagram[6..8].fill(0);
                }
                datagram
            }
            Body::Icmp { kind, word, rest } => {
                transport::icmp(source, destination, *kind, *word, rest)
            }
        }
    }
}
