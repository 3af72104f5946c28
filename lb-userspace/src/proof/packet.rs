//! The first packets of connections, as frames, and what is to be read back of them.

use std::net::{IpAddr, SocketAddr};

use lb_objects::Protocol;

/// Of an Ethernet header.
const ETHERNET: usize = 14;
/// Who sends the frames: a locally administered address.
const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];
const TTL: u8 = 64;
/// Sequence number, or SCTP's tag and number of the first chunk of data: anything but 0.
const NUMBER: u32 = 0x6e6f_6465;

/// The first packet of a connection, in a frame to this link-layer address: a SYN, an INIT, or a datagram
/// without content. Both addresses are of one family.
pub fn first(to_link: [u8; 6], source: SocketAddr, to: SocketAddr, protocol: Protocol) -> Vec<u8> {
    let number = protocol.number();
    let mut transport = match protocol {
        Protocol::Tcp => syn(),
        Protocol::Udp => datagram(),
        Protocol::Sctp => init(),
    };
    transport[..2].copy_from_slice(&source.port().to_be_bytes());
    transport[2..4].copy_from_slice(&to.port().to_be_bytes());
    let pseudo = pseudo_header(source.ip(), to.ip(), number, transport.len());
    let sum = checksum(&pseudo, &transport);
    match protocol {
        Protocol::Tcp => put(&mut transport, 16, sum),
        // 0 says that there is none.
        Protocol::Udp => put(&mut transport, 6, if sum == 0 { u16::MAX } else { sum }),
        Protocol::Sctp => {
            let sum = crc32c(&transport).to_le_bytes();
            transport[8..12].copy_from_slice(&sum);
        }
    }
    let mut frame = [to_link, SENDER].concat();
    match (source.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(to)) => {
            let length = (20 + transport.len() as u16).to_be_bytes();
            frame.extend([8, 0]);
            // Not to be fragmented.
            let mut header = vec![
                0x45, 0, length[0], length[1], 0, 0, 0x40, 0, TTL, number, 0, 0,
            ];
            header.extend(source.octets());
            header.extend(to.octets());
            let sum = checksum(&[], &header);
            put(&mut header, 10, sum);
            frame.extend(header);
        }
        (source, to) => {
            let length = (transport.len() as u16).to_be_bytes();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, length[0], length[1], number, TTL]);
            frame.extend(octets(source));
            frame.extend(octets(to));
        }
    }
    frame.extend(transport);
    frame
}

/// Source and destination of such a packet, whatever they have become; `None` if it is none any more.
pub fn addresses(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (source, to, transport) = match frame.get(ETHERNET)? >> 4 {
        4 => {
            let v4 = |at| Some(IpAddr::from(array::<4>(frame, at)?));
            (v4(ETHERNET + 12)?, v4(ETHERNET + 16)?, ETHERNET + 20)
        }
        6 => {
            let v6 = |at| Some(IpAddr::from(array::<16>(frame, at)?));
            (v6(ETHERNET + 8)?, v6(ETHERNET + 24)?, ETHERNET + 40)
        }
        _ => return None,
    };
    let port = |at| array::<2>(frame, at).map(u16::from_be_bytes);
    Some((
        SocketAddr::new(source, port(transport)?),
        SocketAddr::new(to, port(transport + 2)?),
    ))
}

fn syn() -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[4..8].copy_from_slice(&NUMBER.to_be_bytes());
    // Five words of header, SYN, and a window.
    segment[12..16].copy_from_slice(&[5 << 4, 2, 0xfa, 0xf0]);
    segment
}

fn datagram() -> Vec<u8> {
    vec![0, 0, 0, 0, 0, 8, 0, 0]
}

/// An association's first packet (RFC 9260, 3.3.2): it bears no tag, and asks for one.
fn init() -> Vec<u8> {
    let mut packet = vec![0; 12];
    packet.extend([1, 0, 0, 20]);
    packet.extend(NUMBER.to_be_bytes());
    packet.extend([0, 1, 0, 0, 0, 1, 0, 1]);
    packet.extend(NUMBER.to_be_bytes());
    packet
}

fn pseudo_header(source: IpAddr, to: IpAddr, protocol: u8, length: usize) -> Vec<u8> {
    let mut header = octets(source);
    header.extend(octets(to));
    header.extend([0, protocol]);
    header.extend((length as u16).to_be_bytes());
    header
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The Internet's checksum (RFC 1071) of two parts, of which the first has an even length.
fn checksum(first: &[u8], second: &[u8]) -> u16 {
    let words = first.chunks(2).chain(second.chunks(2));
    let word = |bytes: &[u8]| u32::from(bytes[0]) << 8 | u32::from(*bytes.get(1).unwrap_or(&0));
    let mut sum: u32 = words.map(word).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

/// SCTP's checksum, of a packet that has zeros in its place (RFC 9260, appendix A).
fn crc32c(packet: &[u8]) -> u32 {
    let shifted = |crc: u32| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    !packet.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| shifted(crc))
    })
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn array<const LENGTH: usize>(frame: &[u8], at: usize) -> Option<[u8; LENGTH]> {
    frame.get(at..at + LENGTH)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use lb_packet::Read;

    use super::*;

    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const V4: [&str; 2] = ["192.0.2.1:4000", "10.96.0.1:80"];
    const V6: [&str; 2] = ["[2001:db8::1]:4000", "[fd00:96::1]:53"];

    #[test]
    fn packets_are_what_a_client_would_send() {
        for [source, to] in [V4, V6] {
            let (source, to) = (source.parse().unwrap(), to.parse().unwrap());
            for (protocol, number, kind) in [
                (Protocol::Tcp, 6, (13, 2)),
                (Protocol::Udp, 17, (5, 8)),
                (Protocol::Sctp, 132, (12, 1)),
            ] {
                let frame = first(LINK, source, to, protocol);
                assert_eq!(frame[..6], LINK);
                let read = Read::frame(&frame);
                read.assert_checksums();
                assert_eq!(
                    (read.protocol, read.from(), read.to()),
                    (number, source, to)
                );
                // A SYN, an empty datagram, an INIT.
                let (at, what) = kind;
                assert_eq!(read.bytes[read.transport + at], what, "{protocol}");
                assert_eq!(
                    read.bytes.len(),
                    frame.len() - ETHERNET,
                    "nothing is behind it"
                );
                assert_eq!(addresses(&frame), Some((source, to)));
            }
        }
    }

    #[test]
    fn what_is_no_such_packet_has_no_addresses() {
        let [source, to] = V4.map(|address| address.parse().unwrap());
        let frame = first(LINK, source, to, Protocol::Tcp);
        let cut = |length: usize| addresses(&frame[..length]);
        assert!(cut(38).is_some(), "the ports are the last that is read");
        for length in [0, 14, 15, 37] {
            assert_eq!(cut(length), None, "{length}");
        }
        let mut other = frame;
        other[ETHERNET] = 0x50;
        assert_eq!(addresses(&other), None);
    }
}
