//! ICMP answers built in place of the packet they are about (RFC 792, RFC 4443).

use crate::{
    addr::{Address, Family},
    checksum::fold,
    flow::Ethernet,
    frame::Frame,
    opaque::rolled,
    packet::Packet,
    parse::{ETHERNET, Network, TCP},
};

/// Length of the ICMP header of an error, in bytes.
const ICMP: usize = 8;
/// Most bytes of the packet that an answer quotes: an IPv6 header, extensions and TCP's header.
const QUOTE_LIMIT: usize = 96;
/// Time to live of answers.
const TTL: u8 = 64;

/// What an answer says: ICMP type, code and the word behind the checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub kind: (u8, u8),
    pub word: u32,
}

impl Message {
    /// Nobody listens at the port.
    #[inline(always)]
    pub fn port_unreachable<A: Address>() -> Self {
        Self {
            kind: A::PORT_UNREACHABLE,
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
///
/// The quote reaches at least to the end of the checksum, since a packet whose checksum a device has
/// yet to complete cannot be cut shorter.
#[inline(never)]
pub fn build<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    message: &Message,
    source: &A,
    to_address: &A,
) -> Option<()> {
    let headers = network.payload - network.offset;
    let transport = if network.protocol == TCP { 20 } else { 8 };
    let quote = headers + transport;
    if quote > QUOTE_LIMIT || (quote as u32) > network.length {
        return None;
    }
    // A node that has no address of the family.
    if source.sum() == 0 {
        return None;
    }
    let packet = frame.packet();
    let Ethernet { to, from } = packet.load(0)?;
    let front = A::HEADER + ICMP;
    frame.reshape(front, ETHERNET + front + quote)?;

    let packet = frame.packet();
    packet.store(0, Ethernet { to: from, from: to })?;
    packet.store(12, A::ETHERTYPE.to_be())?;
    let message_length = (ICMP + quote) as u16;
    store_network(packet, message_length, source, to_address)?;
    let at = ETHERNET + A::HEADER;
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

#[inline(always)]
fn store_network<A: Address>(
    packet: Packet,
    payload: u16,
    source: &A,
    destination: &A,
) -> Option<()> {
    let at = ETHERNET;
    match A::FAMILY {
        Family::V4 => {
            let [l0, l1] = (A::HEADER as u16 + payload).to_be_bytes();
            packet.store(at, u32::from_ne_bytes([0x45, 0, l0, l1]))?;
            packet.store(at + 4, u32::from_ne_bytes([0, 0, 0x40, 0]))?;
            packet.store(at + 8, u32::from_ne_bytes([TTL, A::ICMP, 0, 0]))?;
        }
        Family::V6 => {
            let [l0, l1] = payload.to_be_bytes();
            packet.store(at, u32::from_ne_bytes([0x60, 0, 0, 0]))?;
            packet.store(at + 4, u32::from_ne_bytes([l0, l1, A::ICMP, TTL]))?;
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
