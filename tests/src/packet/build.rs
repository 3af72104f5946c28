//! Ethernet frames from their meaning: lengths and checksums are filled in, whole and from scratch.

use std::net::IpAddr;

use super::checksum::{internet_checksum, pseudo_header};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// TCP header flags.
pub mod tcp {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT_HEADER: u8 = 44;
const ROUTING_HEADER: u8 = 43;

/// An IP packet in an Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    to: Mac,
    from: Mac,
    vlan: Option<u16>,
    source: IpAddr,
    destination: IpAddr,
    ttl: u8,
    traffic_class: u8,
    flow_label: u32,
    id: u16,
    dont_fragment: bool,
    /// IPv4 options, of whole words.
    options: Vec<u8>,
    /// IPv6 extension headers: number, and contents behind the first two bytes.
    extensions: Vec<(u8, Vec<u8>)>,
    fragment: Option<FragmentOf>,
    body: Body,
    /// Bytes behind the IP packet, as Ethernet pads short ones.
    padding: usize,
}

/// What follows the IP headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Tcp {
        ports: (u16, u16),
        /// Sequence number, and what is acknowledged.
        numbers: (u32, u32),
        flags: u8,
        payload: Vec<u8>,
    },
    Udp {
        ports: (u16, u16),
        payload: Vec<u8>,
        /// Whether there is a checksum; IPv4 goes without as well (RFC 768).
        checksum: bool,
    },
    /// An ICMP or ICMPv6 message: type and code, the word behind the checksum, the rest.
    Icmp {
        kind: (u8, u8),
        word: u32,
        rest: Vec<u8>,
    },
    /// Anything, as it is.
    Raw { protocol: u8, bytes: Vec<u8> },
}

/// Where a fragment lies in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FragmentOf {
    id: u32,
    /// In units of eight bytes.
    offset: u16,
    more: bool,
}

/// Making packets.
impl Packet {
    fn new(source: IpAddr, destination: IpAddr, body: Body) -> Self {
        Self {
            to: [0x02, 0, 0, 0, 0xff, 1],
            from: [0x02, 0, 0, 0, 0xff, 2],
            vlan: None,
            source,
            destination,
            ttl: 64,
            traffic_class: 0,
            flow_label: 0xabcde,
            id: 0x1234,
            dont_fragment: true,
            options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
            body,
            padding: 0,
        }
    }

    /// A TCP segment with [`tcp`] flags and a few bytes.
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

    pub fn ttl(self, ttl: u8) -> Self {
        Self { ttl, ..self }
    }

    /// The same packet one router further.
    pub fn hop(self) -> Self {
        let ttl = self.ttl - 1;
        self.ttl(ttl)
    }

    pub fn traffic_class(self, traffic_class: u8) -> Self {
        Self {
            traffic_class,
            ..self
        }
    }

    pub fn flow_label(self, flow_label: u32) -> Self {
        Self { flow_label, ..self }
    }

    pub fn id(self, id: u16) -> Self {
        Self { id, ..self }
    }

    pub fn may_be_fragmented(self) -> Self {
        Self {
            dont_fragment: false,
            ..self
        }
    }

    /// Gives an IPv4 packet options, whole words.
    pub fn options(self, options: &[u8]) -> Self {
        assert!(options.len().is_multiple_of(4) && options.len() <= 40);
        Self {
            options: options.to_vec(),
            ..self
        }
    }

    /// Adds an IPv6 extension header of `length` bytes; a routing header has no segments left.
    pub fn extension(mut self, number: u8, length: usize) -> Self {
        assert!(length.is_multiple_of(8) && length >= 8);
        let mut contents = vec![0; length - 2];
        // Padding options as far as the header has options (RFC 8200 section 4.2).
        if number != ROUTING_HEADER {
            contents[..2].copy_from_slice(&[1, length as u8 - 4]);
        }
        self.extensions.push((number, contents));
        self
    }

    /// Adds an IPv6 routing header by which the packet still has to visit other nodes.
    pub fn unfinished_route(mut self, segments_left: u8) -> Self {
        self = self.extension(ROUTING_HEADER, 24);
        let (_, contents) = self.extensions.last_mut().expect("just added");
        contents[1] = segments_left;
        self
    }

    pub fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    /// Replaces source address and port.
    pub fn source(mut self, (address, port): (IpAddr, u16)) -> Self {
        self.source = address;
        if let Some(ports) = self.ports_mut() {
            ports.0 = port;
        }
        self
    }

    /// Replaces destination address and port.
    pub fn destination(mut self, (address, port): (IpAddr, u16)) -> Self {
        self.destination = address;
        if let Some(ports) = self.ports_mut() {
            ports.1 = port;
        }
        self
    }

    /// Replaces the addresses of a packet without ports.
    pub fn addresses(self, source: IpAddr, destination: IpAddr) -> Self {
        Self {
            source,
            destination,
            ..self
        }
    }

    pub fn payload(mut self, bytes: &[u8]) -> Self {
        match &mut self.body {
            Body::Tcp { payload, .. } | Body::Udp { payload, .. } => *payload = bytes.to_vec(),
            Body::Icmp { rest, .. } => *rest = bytes.to_vec(),
            Body::Raw { bytes: raw, .. } => *raw = bytes.to_vec(),
        }
        self
    }

    /// A TCP segment with this sequence number, that acknowledges what is before the other.
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

    /// The packet in fragments, the first ones with `size` bytes of what follows the IP header.
    pub fn fragments(self, id: u32, size: usize) -> Vec<Self> {
        assert!(size.is_multiple_of(8));
        let protocol = self.protocol();
        let whole = self.body_bytes();
        let count = whole.len().div_ceil(size);
        let parts = whole.chunks(size).enumerate();
        parts
            .map(|(index, part)| Self {
                fragment: Some(FragmentOf {
                    id,
                    offset: (index * size / 8) as u16,
                    more: index + 1 < count,
                }),
                dont_fragment: false,
                body: Body::Raw {
                    protocol,
                    bytes: part.to_vec(),
                },
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
        self.source
    }

    pub fn destination_address(&self) -> IpAddr {
        self.destination
    }

    pub fn time_to_live(&self) -> u8 {
        self.ttl
    }

    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Who sent it, as an Ethernet header has it: destination first.
    pub fn ethernet(&self) -> (Mac, Mac) {
        (self.to, self.from)
    }

    /// IP protocol number of the body.
    pub fn protocol(&self) -> u8 {
        match &self.body {
            Body::Tcp { .. } => TCP,
            Body::Udp { .. } => UDP,
            Body::Icmp { .. } if self.source.is_ipv4() => 1,
            Body::Icmp { .. } => 58,
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
        let ethertype: u16 = if self.source.is_ipv4() {
            0x0800
        } else {
            0x86dd
        };
        frame.extend(ethertype.to_be_bytes());
        frame.extend(self.ip_bytes());
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    /// The IP packet alone.
    pub fn ip_bytes(&self) -> Vec<u8> {
        let body = self.body_bytes();
        let mut packet = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.header4(source.octets(), destination.octets(), body.len())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.header6(source.octets(), destination.octets(), body.len())
            }
            (source, destination) => panic!("{source} and {destination} are of two families"),
        };
        packet.extend(body);
        packet
    }

    /// What an ICMP error about this packet quotes: the IP headers and `length` bytes behind them.
    pub fn quote(&self, length: usize) -> Vec<u8> {
        let packet = self.ip_bytes();
        let headers = packet.len() - self.body_bytes().len();
        packet[..packet.len().min(headers + length)].to_vec()
    }

    fn header4(&self, source: [u8; 4], destination: [u8; 4], body: usize) -> Vec<u8> {
        let header = 20 + self.options.len();
        let (id, flags) = match self.fragment {
            Some(fragment) => (
                fragment.id as u16,
                fragment.offset | u16::from(fragment.more) << 13,
            ),
            None => (self.id, u16::from(self.dont_fragment) << 14),
        };
        let mut bytes = vec![0x40 | (header / 4) as u8, self.traffic_class];
        bytes.extend(((header + body) as u16).to_be_bytes());
        bytes.extend(id.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend([self.ttl, self.protocol(), 0, 0]);
        bytes.extend(source);
        bytes.extend(destination);
        bytes.extend(&self.options);
        let checksum = internet_checksum(0, &bytes);
        bytes[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    fn header6(&self, source: [u8; 16], destination: [u8; 16], body: usize) -> Vec<u8> {
        let mut extensions = self.extensions.clone();
        if let Some(fragment) = self.fragment {
            let mut contents = (fragment.offset << 3 | u16::from(fragment.more))
                .to_be_bytes()
                .to_vec();
            contents.extend(fragment.id.to_be_bytes());
            extensions.push((FRAGMENT_HEADER, contents));
        }
        let numbers: Vec<u8> = extensions
            .iter()
            .map(|(number, _)| *number)
            .chain([self.protocol()])
            .collect();
        let mut tail = Vec::new();
        for ((number, contents), next) in extensions.iter().zip(&numbers[1..]) {
            let length = match *number {
                FRAGMENT_HEADER => 0,
                // The authentication header counts words (RFC 4302 section 2.2).
                51 => (contents.len() + 2) / 4 - 2,
                _ => (contents.len() + 2) / 8 - 1,
            };
            tail.extend([*next, length as u8]);
            tail.extend(contents);
        }
        let mut bytes = vec![
            0x60 | self.traffic_class >> 4,
            self.traffic_class << 4 | (self.flow_label >> 16) as u8,
        ];
        bytes.extend((self.flow_label as u16).to_be_bytes());
        bytes.extend(((tail.len() + body) as u16).to_be_bytes());
        bytes.extend([numbers[0], self.ttl]);
        bytes.extend(source);
        bytes.extend(destination);
        bytes.extend(tail);
        bytes
    }

    /// Transport header and payload, checksum included.
    fn body_bytes(&self) -> Vec<u8> {
        let (mut bytes, at) = match &self.body {
            Body::Raw { bytes, .. } => return bytes.clone(),
            Body::Tcp {
                ports,
                numbers,
                flags,
                payload,
            } => {
                let mut bytes = [ports.0.to_be_bytes(), ports.1.to_be_bytes()].concat();
                bytes.extend(numbers.0.to_be_bytes());
                bytes.extend(numbers.1.to_be_bytes());
                bytes.extend([0x50, *flags, 0xfa, 0xf0, 0, 0, 0, 0]);
                bytes.extend(payload);
                (bytes, 16)
            }
            Body::Udp {
                ports,
                payload,
                checksum,
            } => {
                let length = 8 + payload.len() as u16;
                let mut bytes = [ports.0, ports.1, length, 0].map(u16::to_be_bytes).concat();
                bytes.extend(payload);
                if !checksum {
                    return bytes;
                }
                (bytes, 6)
            }
            Body::Icmp { kind, word, rest } => {
                let mut bytes = vec![kind.0, kind.1, 0, 0];
                bytes.extend(word.to_be_bytes());
                bytes.extend(rest);
                (bytes, 2)
            }
        };
        let protocol = self.protocol();
        let pseudo = match protocol {
            1 => 0,
            _ => pseudo_header(self.source, self.destination, protocol, bytes.len()),
        };
        let checksum = match internet_checksum(pseudo, &bytes) {
            0 if protocol == UDP => 0xffff,
            checksum => checksum,
        };
        bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }
}
