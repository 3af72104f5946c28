//! The SYN of a connection that waits, or the INIT of an SCTP association.

use std::net::SocketAddr;

use lb_common::{
    addr::{Address, Ip4, Ip6},
    checksum::fold,
    crc32c,
    flow::queue::{KEPT, Waiter},
    frame::Frame,
    parse::{self, ETHERNET, SCTP, Segment, TCP, Tuple},
    rewrite::looks_partial,
};
use lb_datapath::memory::MemoryFrame;

use crate::flows::socket_addr;

/// A SYN as it came by a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Syn {
    pub connection: Connection,
    /// The number that it begins with, or the tag that it asks for: another one is another attempt.
    pub number: u32,
    /// Its first bytes, with an Ethernet header.
    pub bytes: Vec<u8>,
    /// Whether these are all.
    pub is_whole: bool,
}

/// Who connects to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// IP protocol number.
    pub protocol: u8,
    pub client: SocketAddr,
    pub service: SocketAddr,
}

impl Syn {
    /// What programs have kept of it; `None` if that is no SYN.
    pub fn of(waiter: &Waiter) -> Option<Self> {
        let length = waiter.length as usize;
        let kept = waiter.packet.get(..length.min(KEPT))?;
        let bytes = match waiter.has_ethernet {
            0 => with_ethernet(kept)?,
            _ => kept.to_vec(),
        };
        let is_whole = length <= KEPT;
        let frame = MemoryFrame::<false, false>::new(bytes, waiter.ifindex);
        match parse::ethertype(frame.packet())? {
            Ip4::ETHERTYPE => Self::read::<Ip4>(frame, is_whole),
            Ip6::ETHERTYPE => Self::read::<Ip6>(frame, is_whole),
            _ => None,
        }
    }

    fn read<A: Address>(frame: MemoryFrame, is_whole: bool) -> Option<Self> {
        let packet = frame.packet();
        let (source, destination) = parse::addresses::<A>(packet, ETHERNET)?;
        let network = parse::network::<A>(packet, ETHERNET)?;
        let ports = parse::ports(packet, network.payload)?;
        let mut segment = Segment::default();
        let protocol = network.protocol;
        let number = match protocol {
            TCP => {
                parse::segment(packet, &network, &mut segment)?;
                segment.sequence
            }
            SCTP => {
                parse::association(packet, &network, &mut segment)?;
                segment.next
            }
            _ => return None,
        };
        let tuple = Tuple {
            source,
            destination,
            source_port: ports.source,
            destination_port: ports.destination,
            protocol,
            pad: [0; 3],
        };
        let is_partial = looks_partial(&frame, &network, &tuple);
        let mut bytes = frame.into_bytes();
        if is_partial && is_whole {
            let end = network.offset + network.length as usize;
            let segment = bytes.get_mut(network.payload..end)?;
            match protocol {
                TCP => complete(segment)?,
                _ => complete_sctp(segment)?,
            }
        }
        Some(Self {
            connection: Connection {
                protocol,
                client: socket_addr(source, ports.source),
                service: socket_addr(destination, ports.destination),
            },
            number,
            bytes,
            is_whole,
        })
    }
}

/// A packet with an Ethernet header, whose addresses nobody looks at.
fn with_ethernet(packet: &[u8]) -> Option<Vec<u8>> {
    let ethertype = match packet.first()? >> 4 {
        4 => Ip4::ETHERTYPE,
        6 => Ip6::ETHERTYPE,
        _ => return None,
    };
    let header = [[0; 12].as_slice(), &ethertype.to_be_bytes()].concat();
    Some([&header, packet].concat())
}

/// Completes the checksum of a TCP segment that was left to a device: it holds the sum of the pseudo
/// header so far.
fn complete(segment: &mut [u8]) -> Option<()> {
    const CHECKSUM: usize = 16;
    let words = segment.chunks(2).map(|word| match word {
        [high, low] => u16::from_ne_bytes([*high, *low]),
        word => u16::from_ne_bytes([word[0], 0]),
    });
    let sum = words.map(u64::from).sum();
    let checksum = (!fold(sum)).to_ne_bytes();
    segment
        .get_mut(CHECKSUM..CHECKSUM + 2)?
        .copy_from_slice(&checksum);
    Some(())
}

/// Computes the checksum of an SCTP packet that was left to a device.
fn complete_sctp(packet: &mut [u8]) -> Option<()> {
    // Chunks are padded to words (RFC 9260, 3.2).
    let words = packet.chunks_exact(4);
    let words = words.map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let checksum = crc32c::of(words).to_ne_bytes();
    let at = parse::checksum_offset(SCTP);
    packet.get_mut(at..at + 4)?.copy_from_slice(&checksum);
    Some(())
}
