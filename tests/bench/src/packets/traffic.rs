//! The addresses in the benchmark, and the frames that are sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::{
    addr::{Address, Ip6},
    checksum::fold,
    crc32c,
    flow::Ethernet,
    parse::{ETHERNET, SCTP, TCP, Tuple, UDP, checksum_offset, tcp_flag},
};

use super::harness;

/// The node's address, per family.
pub const NODE: [IpAddr; 2] = [v4(10, 210, 0, 1), v6(0x2_0000_0001)];
/// Networks of the clients and of the endpoints: first address and prefix length.
pub const CLIENTS: [(IpAddr, u8); 2] = [(v4(11, 0, 0, 0), 8), (v6(1 << 32), 96)];
pub const ENDPOINTS: [(IpAddr, u8); 2] = [(v4(10, 220, 0, 0), 16), (v6(3 << 32), 96)];
/// The range of services' addresses, which has no stranger's: first address and prefix length.
pub const SERVICES: [(IpAddr, u32); 2] = [(v4(10, 200, 0, 0), 21), (v6(4 << 32), 96)];
/// The address that all services share.
const FRONTEND: [IpAddr; 2] = [v4(10, 200, 1, 1), v6(4 << 32)];
/// An address that no service has.
const STRANGER: [IpAddr; 2] = [v4(10, 200, 9, 9), v6(5 << 32)];
/// Where endpoints listen.
pub const TARGET_PORT: u16 = 8080;

/// Time to live of frames as they arrive.
const TTL: u8 = 64;
/// Bytes of a TCP header without options.
const TCP_HEADER: usize = 20;
/// Bytes of an SCTP header with an INIT, or with as much of another chunk.
const ASSOCIATION: usize = 32;
/// The tag that both sides of an association ask for.
const TAG: u32 = 7;

/// The destinations of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A service with endpoints on other nodes: DNAT and SNAT, sent on from the hook.
    Remote,
    /// A service with endpoints on this node that keeps the client's address: DNAT, to the stack.
    Local,
    /// A service without endpoints.
    Empty,
    /// As [`Self::Remote`], and each connection takes a place within a limit that is far away.
    Limited,
    /// The same, and the limit is that of a priority level, which a flow schema finds.
    Level,
    /// The same, and the schema depends on the client's address.
    LevelOfSource,
    /// As [`Self::Level`], and each client may have so many connections of the schema.
    LevelOfParties,
    /// As [`Self::Level`], and the level has no seat for anybody.
    FullLevel,
    /// An address that no service has.
    Stranger,
}

impl Destination {
    /// The services, in the order of their ids, which start at 1.
    pub const SERVICES: [Self; 8] = [
        Self::Remote,
        Self::Local,
        Self::Empty,
        Self::Limited,
        Self::Level,
        Self::LevelOfSource,
        Self::LevelOfParties,
        Self::FullLevel,
    ];

    /// Whether the endpoints are on other nodes.
    pub fn is_remote(self) -> bool {
        matches!(self, Self::Remote | Self::Limited) || self.is_classified()
    }

    /// Whether connections are classified by flow schemas.
    pub fn is_classified(self) -> bool {
        matches!(
            self,
            Self::Level | Self::LevelOfSource | Self::LevelOfParties | Self::FullLevel
        )
    }

    /// Address and port of the frontend.
    pub fn frontend(self, family: usize) -> (IpAddr, u16) {
        match self {
            Self::Remote => (FRONTEND[family], 80),
            Self::Local => (FRONTEND[family], 81),
            Self::Empty => (FRONTEND[family], 82),
            Self::Limited => (FRONTEND[family], 83),
            Self::Level => (FRONTEND[family], 84),
            Self::LevelOfSource => (FRONTEND[family], 85),
            Self::LevelOfParties => (FRONTEND[family], 86),
            Self::FullLevel => (FRONTEND[family], 87),
            Self::Stranger => (STRANGER[family], 80),
        }
    }
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// IP protocol number.
    pub protocol: u8,
    /// TCP flags, or those that say what an SCTP packet does; without meaning for UDP.
    pub flags: u8,
    /// The sequence number and the acknowledgement.
    pub numbers: (u8, u8),
    /// Length of the frame in bytes.
    pub length: usize,
}

impl Kind {
    /// The packet that opens a flow.
    pub fn first<A: Address>(protocol: u8) -> Self {
        Self {
            protocol,
            flags: tcp_flag::SYN,
            numbers: (0, 0),
            length: frame_length::<A>(protocol),
        }
    }

    /// The endpoint's answer to it.
    pub fn answer<A: Address>(protocol: u8) -> Self {
        Self {
            flags: tcp_flag::SYN | tcp_flag::ACK,
            numbers: (0, 1),
            ..Self::first::<A>(protocol)
        }
    }

    /// A later packet.
    pub fn later<A: Address>(protocol: u8) -> Self {
        Self {
            flags: tcp_flag::ACK,
            numbers: (1, 1),
            ..Self::first::<A>(protocol)
        }
    }
}

/// The shortest Ethernet frame without its checksum is 60 bytes; IPv6 with TCP needs more, and SCTP's INIT.
fn frame_length<A: Address>(protocol: u8) -> usize {
    ETHERNET
        + A::HEADER
        + match protocol {
            SCTP => ASSOCIATION,
            _ if A::HEADER == 20 => 30,
            _ => 20,
        }
}

/// The client's packets of a flow, by the flow's number.
pub fn client<A: Address>(number: u32, protocol: u8, destination: Destination) -> Tuple<A> {
    let family = family::<A>();
    let host = u128::from(number >> 12);
    let source = match CLIENTS[family].0 {
        IpAddr::V4(first) => IpAddr::from((first.to_bits() + host as u32).to_be_bytes()),
        IpAddr::V6(first) => IpAddr::from((first.to_bits() + host).to_be_bytes()),
    };
    let (address, port) = destination.frontend(family);
    Tuple {
        source: address_of(source),
        destination: address_of(address),
        source_port: 4096 + (number & 0xfff) as u16,
        destination_port: port,
        protocol,
        pad: [0; 3],
    }
}

/// An endpoint's address, by its number.
pub fn endpoint(family: usize, number: u32) -> IpAddr {
    match ENDPOINTS[family].0 {
        IpAddr::V4(first) => IpAddr::from((first.to_bits() + 1 + number).to_be_bytes()),
        IpAddr::V6(first) => IpAddr::from((first.to_bits() + 1 + u128::from(number)).to_be_bytes()),
    }
}

/// Whether an address is one that an endpoint may have.
pub fn is_endpoint<A: Address>(address: A) -> bool {
    let (network, prefix) = ENDPOINTS[family::<A>()];
    address.within(address_of(network), u32::from(prefix))
}

/// Index of a family in this file's tables.
pub fn family<A: Address>() -> usize {
    usize::from(A::HEADER == 40)
}

/// An address of the family that is asked for.
pub fn address_of<A: Address>(address: IpAddr) -> A {
    A::from_mapped(Ip6::from(address))
}

/// A frame as it arrives.
pub fn arriving<A: Address>(tuple: &Tuple<A>, kind: Kind) -> Vec<u8> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = harness::ETHERNET;
    let ethernet = Ethernet {
        to: [a, b, c, d, e, f],
        from: [g, h, i, j, k, l],
    };
    frame(ethernet, TTL, tuple, kind)
}

/// A frame as it is sent on, translated to `tuple`.
pub fn forwarded<A: Address>(ethernet: Ethernet, tuple: &Tuple<A>, kind: Kind) -> Vec<u8> {
    frame(ethernet, TTL - 1, tuple, kind)
}

/// The answer to an IPv4 frame to a port without a listener (RFC 792), from the frame's
/// destination.
pub fn port_unreachable(frame: &[u8]) -> Vec<u8> {
    let (ethernet, padded) = frame.split_at(ETHERNET);
    let length = u16::from_be_bytes([padded[2], padded[3]]);
    let quote = &padded[..usize::from(length)];
    let (to, from) = (&ethernet[..6], &ethernet[6..12]);
    let mut ip = vec![0; 20];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(28 + quote.len() as u16).to_be_bytes());
    ip[6] = 0x40; // don't fragment
    ip[8] = 64;
    ip[9] = 1; // ICMP
    ip[12..16].copy_from_slice(&quote[16..20]);
    ip[16..20].copy_from_slice(&quote[12..16]);
    let checksum = !fold(sum(&ip));
    ip[10..12].copy_from_slice(&checksum.to_ne_bytes());
    let mut icmp = [&[3, 3, 0, 0, 0, 0, 0, 0], quote].concat();
    let checksum = !fold(sum(&icmp));
    icmp[2..4].copy_from_slice(&checksum.to_ne_bytes());
    [from, to, &ethernet[12..], &ip, &icmp].concat()
}

/// Builds a frame with checksums computed from nothing.
fn frame<A: Address>(ethernet: Ethernet, ttl: u8, tuple: &Tuple<A>, kind: Kind) -> Vec<u8> {
    let mut bytes = vec![0; kind.length];
    bytes[..6].copy_from_slice(&ethernet.to);
    bytes[6..12].copy_from_slice(&ethernet.from);
    bytes[12..14].copy_from_slice(&A::ETHERTYPE.to_be_bytes());

    // A segment has no data, because it would be the same data in every packet, which is rare. The
    // rest of a short frame is padding.
    let payload = match kind.protocol {
        TCP => TCP_HEADER,
        _ => kind.length - ETHERNET - A::HEADER,
    } as u16;
    let (ip, transport) = bytes[ETHERNET..].split_at_mut(A::HEADER);
    let (from, to) = A::OFFSETS;
    let width = to - from;
    let octets = |address: A| address.to_mapped().octets;
    ip[from..to].copy_from_slice(&octets(tuple.source)[16 - width..]);
    ip[to..to + width].copy_from_slice(&octets(tuple.destination)[16 - width..]);
    let pseudo = sum(&ip[from..to + width])
        + u64::from(payload.to_be())
        + u64::from(u16::from(kind.protocol).to_be());
    if A::HEADER == 20 {
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&(A::HEADER as u16 + payload).to_be_bytes());
        ip[6] = 0x40; // don't fragment
        ip[8] = ttl;
        ip[9] = kind.protocol;
        let checksum = !fold(sum(ip));
        ip[10..12].copy_from_slice(&checksum.to_ne_bytes());
    } else {
        ip[0] = 0x60;
        ip[4..6].copy_from_slice(&payload.to_be_bytes());
        ip[6] = kind.protocol;
        ip[7] = ttl;
    }

    transport[..2].copy_from_slice(&tuple.source_port.to_be_bytes());
    transport[2..4].copy_from_slice(&tuple.destination_port.to_be_bytes());
    if kind.protocol == TCP {
        transport[7] = kind.numbers.0;
        transport[11] = kind.numbers.1;
        transport[12] = 0x50; // five words of header
        transport[13] = kind.flags;
        transport[14] = 0x40; // window
    } else if kind.protocol == SCTP {
        associate(transport, kind.flags);
        return bytes;
    } else {
        assert_eq!(kind.protocol, UDP, "no other protocol is measured");
        transport[4..6].copy_from_slice(&payload.to_be_bytes());
    }
    let checksum = match !fold(pseudo + sum(transport)) {
        // RFC 768: a computed zero is sent as all ones.
        0 if kind.protocol == UDP => 0xffff,
        checksum => checksum,
    };
    let at = checksum_offset(kind.protocol);
    transport[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
    bytes
}

/// Makes an SCTP packet of one that has its ports only, with one chunk (RFC 9260, section 3).
fn associate(transport: &mut [u8], flags: u8) {
    let (tag, chunk, asked) = match flags {
        tcp_flag::SYN => (0, 1, TAG),
        flags if flags & tcp_flag::SYN != 0 => (TAG, 2, TAG),
        _ => (TAG, 0, 1),
    };
    transport[4..8].copy_from_slice(&tag.to_be_bytes());
    transport[12] = chunk;
    transport[15] = 20; // its length
    transport[16..20].copy_from_slice(&asked.to_be_bytes());
    let (words, _) = transport.as_chunks::<4>();
    let words = words.iter().map(|word| u32::from_ne_bytes(*word));
    let (at, checksum) = (checksum_offset(SCTP), crc32c::of(words));
    transport[at..at + 4].copy_from_slice(&checksum.to_ne_bytes());
}

/// Sum of 16-bit words as they lie in memory.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |&byte| u64::from(byte.to_le()));
    words
        .iter()
        .map(|&w| u64::from(u16::from_ne_bytes(w)))
        .sum::<u64>()
        + last
}

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// An address in fd00::/64: the harness leaves the upper halves alone.
const fn v6(lower: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(0xfd00_u128 << 112 | lower as u128))
}
