//! Answers built in place of the packet they are about: ICMP errors (RFC 792, RFC 4443), TCP resets, and
//! SCTP's ABORT.

use crate::{
    addr::{Address, Family},
    checksum::fold,
    flow::Ethernet,
    frame::Frame,
    opaque::rolled,
    packet::Packet,
    parse::{Network, SCTP, TCP, tcp_flag},
};

/// Length of the ICMP header of an error, in bytes.
const ICMP: usize = 8;
/// Most bytes of the packet that an answer quotes: an IPv6 header, extensions and TCP's header.
const QUOTE_LIMIT: usize = 96;
/// Time to live of answers.
const TTL: u8 = 64;

/// Length of an SCTP header and an ABORT chunk, in bytes.
const ABORT: usize = 16;
/// Length of a TCP header without options, in bytes.
const TCP_HEADER: usize = 20;

/// What an answer says: ICMP type, code and the word behind the checksum; or [`Message::RESET`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub kind: (u8, u8),
    pub word: u32,
}

impl Message {
    /// The connection does not exist any more: a RST or an ABORT instead of an ICMP error.
    pub const RESET: Self = Self {
        kind: (u8::MAX, u8::MAX),
        word: 0,
    };
    /// No ICMP error has it.
    const REFUSAL: (u8, u8) = (u8::MAX, u8::MAX - 1);

    /// The connection that a SYN or an INIT asks for is refused: a RST or an ABORT. `next` is the sequence
    /// number after the SYN and its data, or the tag that the INIT asks for.
    #[inline(always)]
    pub fn refusal(next: u32) -> Self {
        Self {
            kind: Self::REFUSAL,
            word: next,
        }
    }

    /// Nothing listens at the port.
    #[inline(always)]
    pub fn port_unreachable<A: Address>() -> Self {
        Self {
            kind: A::PORT_UNREACHABLE,
            word: 0,
        }
    }

    /// Communication is administratively prohibited.
    #[inline(always)]
    pub fn prohibited<A: Address>() -> Self {
        Self {
            kind: A::PROHIBITED,
            word: 0,
        }
    }

    /// The time to live ran out.
    #[inline(always)]
    pub fn time_exceeded<A: Address>() -> Self {
        Self {
            kind: A::TIME_EXCEEDED,
            word: 0,
        }
    }

    /// The next link takes packets of at most `mtu` bytes.
    #[inline(always)]
    pub fn too_big<A: Address>(mtu: u16) -> Self {
        Self {
            kind: A::TOO_BIG,
            word: u32::from(mtu),
        }
    }
}

/// Turns a frame into an answer from `source` to the frame's own source, `to_address`.
#[inline(always)]
pub fn build<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    message: &Message,
    source: &A,
    to_address: &A,
) -> Option<()> {
    match message.kind == Message::RESET.kind || message.kind == Message::REFUSAL {
        true if network.protocol == SCTP => abort(frame, network, message, source, to_address),
        true => reset(frame, network, message, source, to_address),
        false => error(frame, network, message, source, to_address),
    }
}

/// Turns a segment into the RST that its receiver would answer with if it did not know the
/// connection, or would refuse the SYN (RFC 9293, 3.10.7.1).
#[inline(never)]
fn reset<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    message: &Message,
    source: &A,
    to_address: &A,
) -> Option<()> {
    /// Five words of header, and the flag.
    const RST: u32 = (TCP_HEADER as u32) << 26 | (tcp_flag::RST as u32) << 16;
    const ACK: u32 = (tcp_flag::ACK as u32) << 16;
    let packet = frame.packet();
    let ports = packet.load::<u32>(network.payload)?.rotate_left(16);
    let (sequence, acknowledged, flags) = match message.kind == Message::REFUSAL {
        true => (0, message.word.to_be(), RST | ACK),
        false => (packet.load::<u32>(network.payload + 8)?, 0, RST),
    };
    let back = link_back::<F>(packet)?;
    frame.reshape(0, F::LINK_HEADER + A::HEADER + TCP_HEADER)?;

    let packet = frame.packet();
    store_link::<A, F>(packet, back)?;
    store_network::<A, F>(packet, TCP, TCP_HEADER as u16, source, to_address)?;
    let at = F::LINK_HEADER + A::HEADER;
    let flags = flags.to_be();
    packet.store(at, ports)?;
    packet.store(at + 4, sequence)?;
    packet.store(at + 8, acknowledged)?;
    packet.store(at + 12, flags)?;
    packet.store(at + 16, 0_u32)?;
    let pseudo = source.sum()
        + to_address.sum()
        + u64::from((TCP_HEADER as u16).to_be())
        + u64::from(u16::from(TCP).to_be());
    let sum = pseudo
        + u64::from(ports)
        + u64::from(sequence)
        + u64::from(acknowledged)
        + u64::from(flags);
    packet.store(at + 16, !fold(sum))
}

/// Turns an SCTP packet into the ABORT that its receiver would answer with if it did not know the
/// association, or would refuse the INIT (RFC 9260, 8.4).
#[inline(never)]
fn abort<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    message: &Message,
    source: &A,
    to_address: &A,
) -> Option<()> {
    const CHUNK: u32 = 6 << 24 | 4;
    /// The tag is the packet's own.
    const REFLECTS: u32 = 1 << 16;
    let packet = frame.packet();
    let ports = packet.load::<u32>(network.payload)?.rotate_left(16);
    let (tag, chunk) = match (message.kind, packet.load::<u32>(network.payload + 4)?) {
        (Message::REFUSAL, _) => (message.word.to_be(), CHUNK),
        // An INIT bears none.
        (_, 0) => (packet.load::<u32>(network.payload + 16)?, CHUNK),
        (_, tag) => (tag, CHUNK | REFLECTS),
    };
    let back = link_back::<F>(packet)?;
    frame.reshape(0, F::LINK_HEADER + A::HEADER + ABORT)?;

    let packet = frame.packet();
    store_link::<A, F>(packet, back)?;
    store_network::<A, F>(packet, SCTP, ABORT as u16, source, to_address)?;
    let at = F::LINK_HEADER + A::HEADER;
    let chunk = chunk.to_be();
    let checksum = F::crc_of([ports, tag, 0, chunk]);
    packet.store(at, [ports, tag, checksum, chunk])
}

/// Turns a frame into an ICMP error.
///
/// The quote reaches at least to the end of the checksum, since a packet whose checksum a device
/// has yet to complete cannot be cut shorter; of SCTP, to the tag that an INIT asks for, since its sender
/// looks for that.
#[inline(never)]
fn error<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    message: &Message,
    source: &A,
    to_address: &A,
) -> Option<()> {
    let headers = network.payload - network.offset;
    let transport = match network.protocol {
        TCP | SCTP => 20,
        _ => 8,
    };
    let quote = headers + transport;
    if quote > QUOTE_LIMIT || (quote as u32) > network.length {
        return None;
    }
    // A node that has no address of the family.
    if source.sum() == 0 {
        return None;
    }
    let back = link_back::<F>(frame.packet())?;
    let front = A::HEADER + ICMP;
    frame.reshape(front, F::LINK_HEADER + front + quote)?;

    let packet = frame.packet();
    store_link::<A, F>(packet, back)?;
    let message_length = (ICMP + quote) as u16;
    store_network::<A, F>(packet, A::ICMP, message_length, source, to_address)?;
    let at = F::LINK_HEADER + A::HEADER;
    packet.store(
        at,
        u32::from_ne_bytes([message.kind.0, message.kind.1, 0, 0]),
    )?;
    packet.store(at + 4, message.word.to_be())?;
    let mut sum = match A::FAMILY {
        Family::V4 => 0,
        Family::V6 => {
            source.sum()
                + to_address.sum()
                + u64::from(message_length.to_be())
                + u64::from(u16::from(A::ICMP).to_be())
        }
    };
    for word in rolled((QUOTE_LIMIT + ICMP) / 4) {
        if word * 4 >= ICMP + quote {
            break;
        }
        sum += u64::from(packet.load::<u32>(at + word * 4)?);
    }
    packet.store(at + 2, !fold(sum))
}

/// The addresses that lead back to where a frame came from; none matter on links without headers.
#[inline(always)]
fn link_back<F: Frame>(packet: Packet) -> Option<Ethernet> {
    if F::LINK_HEADER == 0 {
        return Some(Ethernet::default());
    }
    let Ethernet { to, from } = packet.load(0)?;
    Some(Ethernet { to: from, from: to })
}

#[inline(always)]
fn store_link<A: Address, F: Frame>(packet: Packet, addresses: Ethernet) -> Option<()> {
    if F::LINK_HEADER == 0 {
        return Some(());
    }
    packet.store(0, addresses)?;
    packet.store(12, A::ETHERTYPE.to_be())
}

#[inline(always)]
fn store_network<A: Address, F: Frame>(
    packet: Packet,
    protocol: u8,
    payload: u16,
    source: &A,
    destination: &A,
) -> Option<()> {
    let at = F::LINK_HEADER;
    match A::FAMILY {
        Family::V4 => {
            let [l0, l1] = (A::HEADER as u16 + payload).to_be_bytes();
            packet.store(at, u32::from_ne_bytes([0x45, 0, l0, l1]))?;
            packet.store(at + 4, u32::from_ne_bytes([0, 0, 0x40, 0]))?;
            packet.store(at + 8, u32::from_ne_bytes([TTL, protocol, 0, 0]))?;
        }
        Family::V6 => {
            let [l0, l1] = payload.to_be_bytes();
            packet.store(at, u32::from_ne_bytes([0x60, 0, 0, 0]))?;
            packet.store(at + 4, u32::from_ne_bytes([l0, l1, protocol, TTL]))?;
        }
    }
    packet.store(at + A::OFFSETS.0, *source)?;
    packet.store(at + A::OFFSETS.1, *destination)?;
    if A::FAMILY == Family::V4 {
        let mut sum = 0;
        for word in rolled(A::HEADER / 4) {
            sum += u64::from(packet.load::<u32>(at + word * 4)?);
        }
        packet.store(at + 10, !fold(sum))?;
    }
    Some(())
}
