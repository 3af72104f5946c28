//! From bytes to headers: what a packet is, or why node-lb leaves it alone.

use core::mem;

use crate::{
    addr::{Address, Family, Ip4, Ip6},
    opaque::{rolled, settled},
    packet::Packet,
};

/// Length of the Ethernet header, in bytes.
pub const ETHERNET: usize = 14;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of SCTP.
pub const SCTP: u8 = 132;

/// Number of IPv6's routing header.
const ROUTING: u8 = 43;

/// TCP header flags.
pub mod tcp_flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const ACK: u8 = 0x10;
}

/// Largest offset of a transport header, in bytes; one less than a power of two.
const PAYLOAD_LIMIT: usize = 0x1ff;
/// Largest offset of a TCP option or an SCTP chunk, in bytes; one less than a power of two.
const OPTIONS_LIMIT: usize = 0x3ff;
/// Chunks of an SCTP packet that are looked at.
const CHUNKS: usize = 4;
/// Words of options that a TCP header can have.
const OPTION_WORDS: usize = 10;
/// IPv6 extension headers walked before giving up (RFC 8200 has no limit; real packets have one or
/// two).
const EXTENSION_HEADERS: usize = 4;

/// What identifies a connection; ports in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuple<A> {
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    /// [`TCP`], [`UDP`] or [`SCTP`].
    pub protocol: u8,
    pub pad: [u8; 3],
}

impl<A: Address> Tuple<A> {
    /// The tuple of the opposite direction.
    #[inline(always)]
    pub fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            protocol: self.protocol,
            pad: [0; 3],
        }
    }
}

/// What a packet's network header says, but for its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Protocol of what follows, behind all IPv6 extension headers.
    pub protocol: u8,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Offset of the header in the packet, in bytes.
    pub offset: usize,
    /// Offset of what follows the header and its extensions, in bytes.
    pub payload: usize,
    /// Length of the IP packet in bytes, headers included.
    pub length: u32,
    pub fragment: Fragment,
    /// Identification that the fragments of a packet share; 0 for whole IPv6 packets.
    pub id: u32,
}

impl Network {
    /// The same header, `settled` whichever way through options and extensions led here.
    #[inline(always)]
    pub fn settled(mut self, memory: &mut u64) -> Self {
        let packed = (self.payload & PAYLOAD_LIMIT) as u64
            | u64::from(self.protocol) << 16
            | u64::from(self.fragment as u8) << 24
            | u64::from(self.id) << 32;
        let packed = settled(packed, memory);
        self.payload = packed as usize & PAYLOAD_LIMIT;
        self.protocol = (packed >> 16) as u8;
        // Without branches: the verifier would look at everything behind them once for each. SAFETY: the
        // byte is a fragment's, packed just now.
        self.fragment = unsafe { mem::transmute::<u8, Fragment>((packed >> 24) as u8) };
        self.id = (packed >> 32) as u32;
        self
    }
}

/// Which part of an IP packet this is.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    Whole,
    /// The first fragment: it has the ports.
    First,
    /// A later fragment: only the identification ties it to its packet.
    Later,
}

/// Source and destination port of a TCP, UDP or SCTP header.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub source: u16,
    pub destination: u16,
}

/// What a TCP segment says of its connection, or an SCTP packet of its association; all zero for UDP.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Number of its first byte, or of its SYN; 0 for SCTP.
    pub sequence: u32,
    /// Number after its last byte and its FIN. SCTP: the tag that its sender wants to see from now on, in
    /// INIT and INIT ACK; else 0.
    pub next: u32,
    /// What it acknowledges; meaningless without [`tcp_flag::ACK`]. SCTP: its verification tag.
    pub acknowledged: u32,
    /// Timestamp (RFC 7323), of segments with SYN or FIN only; 0 if it has none.
    pub stamp: u32,
    /// The window that it offers, before scaling. SCTP: 1 if the verification tag is not the receiver's,
    /// but the sender's own (the T bit; RFC 9260, 8.5.1), else 0.
    pub window: u16,
    /// [`tcp_flag`]s. SCTP: what corresponds to them, see [`association`].
    pub flags: u8,
    /// Window scale (RFC 7323) of a segment with SYN; 0 if it has none.
    pub scale: u8,
}

/// The EtherType of an Ethernet frame.
#[inline(always)]
pub fn ethertype(packet: Packet) -> Option<u16> {
    packet.load::<u16>(12).map(u16::from_be)
}

/// Reads the IP header at `offset`. `None` if it is malformed, cut short or too long to walk.
#[inline(always)]
pub fn network<A: Address>(packet: Packet, offset: usize) -> Option<Network> {
    let network = match A::FAMILY {
        Family::V4 => network4(packet, offset),
        Family::V6 => network6(packet, offset),
    }?;
    (network.payload <= PAYLOAD_LIMIT).then_some(network)
}

/// Reads source and destination address of the IP header at `offset`.
#[inline(always)]
pub fn addresses<A: Address>(packet: Packet, offset: usize) -> Option<(A, A)> {
    let [source, destination] = packet.load(offset + A::OFFSETS.0)?;
    Some((source, destination))
}

/// Whether a router may fragment the packet whose IP header is at `offset`. No router fragments IPv6
/// (RFC 8200, section 5).
#[inline(always)]
pub fn may_be_fragmented<A: Address>(packet: Packet, offset: usize) -> bool {
    const DONT_FRAGMENT: u16 = 0x4000;
    A::FAMILY == Family::V4
        && packet
            .load::<u16>(offset + 6)
            .is_some_and(|word| u16::from_be(word) & DONT_FRAGMENT == 0)
}

/// Reads the ports of the TCP, UDP or SCTP header at `offset`.
#[inline(always)]
pub fn ports(packet: Packet, offset: usize) -> Option<Ports> {
    let ports = u32::from_be(packet.load(offset)?);
    Some(Ports {
        source: (ports >> 16) as u16,
        destination: ports as u16,
    })
}

/// Reads what the TCP header of a packet says of its connection.
#[inline(always)]
pub fn segment(packet: Packet, network: &Network, segment: &mut Segment) -> Option<()> {
    let at = network.payload;
    let [sequence, acknowledged, rest] = packet.load::<[u32; 3]>(at + 4)?.map(u32::from_be);
    let header = rest >> 28 << 2;
    let flags = (rest >> 16) as u8;
    // Unknown for a jumbogram, because its header has no length.
    let data = network
        .length
        .saturating_sub((at - network.offset) as u32 + header);
    let ends = u32::from(flags & tcp_flag::FIN != 0) + u32::from(flags & tcp_flag::SYN != 0);
    *segment = Segment {
        sequence,
        next: sequence.wrapping_add(data).wrapping_add(ends),
        acknowledged,
        stamp: 0,
        window: rest as u16,
        flags,
        scale: 0,
    };
    if flags & (tcp_flag::SYN | tcp_flag::FIN) != 0 {
        options(packet, at + 20, at + header as usize, segment);
    }
    Some(())
}

/// Reads the options of a TCP header that tell connections apart. They are looked for where every
/// common stack has them, aligned to words (RFC 7323, appendix A).
#[inline(never)]
fn options(packet: Packet, start: usize, end: usize, segment: &mut Segment) {
    for word in rolled(OPTION_WORDS) {
        let at = start + 4 * word;
        if at + 4 > end {
            return;
        }
        let Some(option) = packet.load::<u32>(at & OPTIONS_LIMIT).map(u32::from_be) else {
            return;
        };
        if option & 0xffff == 0x080a {
            if let Some(stamp) = packet.load::<u32>((at & OPTIONS_LIMIT) + 4) {
                segment.stamp = u32::from_be(stamp);
            }
        } else if option >> 8 == 0x01_03_03 {
            segment.scale = (option as u8).min(14);
        }
    }
}

/// Reads what an SCTP packet says of its association (RFC 9260, section 3), in TCP's flags: INIT is a
/// SYN, INIT ACK a SYN with ACK, ABORT a RST. SHUTDOWN is a FIN, and its acknowledgement a FIN with ACK.
/// What completes that, and ends the association for both, is a FIN with RST.
#[inline(always)]
pub fn association(packet: Packet, network: &Network, segment: &mut Segment) -> Option<()> {
    let at = network.payload;
    *segment = Segment {
        acknowledged: u32::from_be(packet.load(at + 4)?),
        flags: tcp_flag::ACK,
        ..Segment::default()
    };
    // The checksum and a chunk's header.
    packet.load::<[u32; 2]>(at + 8)?;
    chunks(packet, at + 12, segment);
    Some(())
}

/// Looks for the chunk that matters most to an association. Those that do not are skipped: control chunks
/// come before data.
#[inline(never)]
fn chunks(packet: Packet, mut at: usize, segment: &mut Segment) {
    const DATA: u8 = 0;
    const INIT: u8 = 1;
    const INIT_ACK: u8 = 2;
    const ABORT: u8 = 6;
    const SHUTDOWN: u8 = 7;
    const SHUTDOWN_ACK: u8 = 8;
    const SHUTDOWN_COMPLETE: u8 = 14;
    const REFLECTS: u32 = 1;
    use tcp_flag::{ACK, FIN, RST, SYN};
    for _ in rolled(CHUNKS) {
        if at > OPTIONS_LIMIT {
            return;
        }
        let Some(header) = packet.load::<u32>(at & OPTIONS_LIMIT).map(u32::from_be) else {
            return;
        };
        let flags = match (header >> 24) as u8 {
            INIT if segment.acknowledged == 0 => SYN,
            INIT_ACK => SYN | ACK,
            ABORT => RST,
            SHUTDOWN => FIN,
            SHUTDOWN_ACK => FIN | ACK,
            SHUTDOWN_COMPLETE => FIN | RST,
            DATA | INIT => return,
            _ => 0,
        };
        if flags != 0 {
            segment.flags = flags;
            segment.window = (flags & RST != 0 && header >> 16 & REFLECTS != 0).into();
            if flags & SYN != 0 {
                let tag = packet.load((at & OPTIONS_LIMIT) + 4);
                segment.next = tag.map_or(0, u32::from_be);
            }
            return;
        }
        // Padded to words, and no shorter than its header.
        at += ((header & 0xffff).max(4) as usize + 3) & !3;
    }
}

/// Offset of the checksum in a TCP, UDP or SCTP header.
#[inline(always)]
pub fn checksum_offset(protocol: u8) -> usize {
    match protocol {
        TCP => 16,
        SCTP => 8,
        _ => 6,
    }
}

/// Whether an ICMP or ICMPv6 type reports an error and therefore quotes a packet.
#[inline(always)]
pub fn is_icmp_error<A: Address>(icmp_type: u8) -> bool {
    match A::FAMILY {
        Family::V4 => matches!(icmp_type, 3 | 11 | 12),
        Family::V6 => matches!(icmp_type, 1..=4),
    }
}

/// Whether an ICMP or ICMPv6 message asks its receiver for something, such as an echo: of those, the
/// kernel's connection tracking sees the first one as that of a new connection.
#[inline(always)]
pub fn is_icmp_query<A: Address>(packet: Packet, offset: usize) -> bool {
    match (A::FAMILY, packet.load::<u8>(offset)) {
        (Family::V4, Some(kind)) => matches!(kind, 8 | 13 | 15 | 17),
        (Family::V6, Some(kind)) => matches!(kind, 128 | 139),
        _ => false,
    }
}

/// Whether an ICMP or ICMPv6 message says that a packet cannot reach its destination, whatever its
/// size (RFC 792, RFC 4443).
#[inline(always)]
pub fn is_unreachable<A: Address>(packet: Packet, offset: usize) -> bool {
    const FRAGMENTATION_NEEDED: u8 = 4;
    match (A::FAMILY, packet.load::<[u8; 2]>(offset)) {
        (Family::V4, Some([3, code])) => code != FRAGMENTATION_NEEDED,
        (Family::V6, Some([1, _])) => true,
        _ => false,
    }
}

#[inline(always)]
fn network4(packet: Packet, offset: usize) -> Option<Network> {
    // RFC 791, section 3.1: the first three words.
    let [first, second, third] = packet.load::<[u32; 3]>(offset)?.map(u32::from_be);
    let header = (first >> 24 & 0x0f) as usize * 4;
    let length = first & 0xffff;
    if first >> 28 != 4 || header < Ip4::HEADER {
        return None;
    }
    let id = second >> 16;
    let fragment = match second & 0x3fff {
        0 => Fragment::Whole,
        0x2000 => Fragment::First,
        _ => Fragment::Later,
    };
    if length < (header + least_payload(fragment)) as u32 {
        return None;
    }
    let ttl = (third >> 24) as u8;
    let protocol = (third >> 16) as u8;
    Some(Network {
        protocol,
        ttl,
        offset,
        payload: offset + header,
        length,
        fragment,
        id,
    })
}

#[inline(always)]
fn network6(packet: Packet, offset: usize) -> Option<Network> {
    // RFC 8200, section 3: the first two words.
    let [first, second] = packet.load::<[u32; 2]>(offset)?.map(u32::from_be);
    if first >> 28 != 6 {
        return None;
    }
    let length = (second >> 16) + Ip6::HEADER as u32;
    let ttl = second as u8;
    let mut protocol = (second >> 8) as u8;
    let mut payload = offset + Ip6::HEADER;
    let mut fragment = Fragment::Whole;
    let mut id = 0;
    for _ in rolled(EXTENSION_HEADERS) {
        // RFC 8200 section 4, RFC 4302 section 2.2.
        let units = match protocol {
            0 | ROUTING | 60 => 8,
            51 => 4,
            44 => {
                let word = u32::from_be(packet.load(payload)?);
                id = u32::from_be(packet.load(payload + 4)?);
                fragment = match word & 0xfff9 {
                    0 => Fragment::Whole,
                    1 => Fragment::First,
                    _ => Fragment::Later,
                };
                protocol = (word >> 24) as u8;
                payload += 8;
                if fragment == Fragment::Later {
                    break;
                }
                continue;
            }
            _ => break,
        };
        let word = u32::from_be(packet.load(payload)?);
        // With segments left the destination is only the next stop, and the transport checksum
        // covers another one (RFC 8200, 4.4 and 8.1): such a packet is the kernel's.
        if protocol == ROUTING && word as u8 != 0 {
            break;
        }
        let size = usize::from((word >> 16) as u8);
        payload += if units == 8 {
            (size + 1) * 8
        } else {
            (size + 2) * 4
        };
        protocol = (word >> 24) as u8;
    }
    // A jumbogram's header has no length (RFC 2675).
    let least = payload - offset + least_payload(fragment);
    if second >> 16 != 0 && length < least as u32 {
        return None;
    }
    Some(Network {
        protocol,
        ttl,
        offset,
        payload,
        length,
        fragment,
        id,
    })
}

/// The least number of bytes after the headers of a packet: ports and checksum of UDP. Protocols
/// with less are not handled here.
#[inline(always)]
fn least_payload(fragment: Fragment) -> usize {
    match fragment {
        Fragment::Later => 0,
        Fragment::Whole | Fragment::First => 8,
    }
}
