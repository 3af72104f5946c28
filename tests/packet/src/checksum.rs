//! The Internet checksum over whole headers, computed in the slow and obvious way (RFC 1071).

use std::net::IpAddr;

/// The checksum of some bytes. `sum` covers what comes before them, in the form of [`partial`].
pub fn internet_checksum(sum: u32, bytes: &[u8]) -> u16 {
    let mut sum = u64::from(sum) + u64::from(partial(bytes));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What a sender leaves in the checksum's place for a device to complete: the pseudo header's sum.
pub fn pseudo_header_sum(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u16 {
    !internet_checksum(pseudo_header(source, destination, protocol, length), &[])
}

/// The sum over a segment and its pseudo header, including its checksum: 0xffff if that is right.
/// ICMP for IPv4 has no pseudo header.
pub fn transport_sum(source: IpAddr, destination: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    let pseudo = match protocol {
        1 => 0,
        _ => pseudo_header(source, destination, protocol, segment.len()),
    };
    !internet_checksum(pseudo, segment)
}

/// The one's complement sum of 16-bit words.
pub fn sum(bytes: &[u8]) -> u16 {
    !internet_checksum(0, bytes)
}

/// The sum of the pseudo header of TCP, UDP and ICMPv6 (RFC 9293 section 3.1, RFC 8200 section
/// 8.1).
pub(crate) fn pseudo_header(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    length: usize,
) -> u32 {
    let addresses = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            partial(&source.octets()) + partial(&destination.octets())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            partial(&source.octets()) + partial(&destination.octets())
        }
        _ => panic!("{source} and {destination} are of two families"),
    };
    addresses + u32::from(protocol) + length as u32
}

/// The sum of 16-bit words. An odd byte at the end is padded with zero.
fn partial(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| match *word {
        [high, low] => u16::from_be_bytes([high, low]),
        [high] => u16::from_be_bytes([high, 0]),
        _ => 0,
    });
    words.map(u32::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum(0, &bytes), !0xddf2);
    }

    #[test]
    fn a_header_from_the_wire_is_valid() {
        // The IPv4 header that Wikipedia's article on it explains.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(internet_checksum(0, &header), 0);
    }
}
