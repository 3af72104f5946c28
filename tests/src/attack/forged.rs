//! A frame with fields that change from one sending to the next. Its checksums are updated at
//! little cost.

use std::net::IpAddr;

use lb_packet::{Mac, Packet};

const ETHERNET: usize = 14;
const UDP: u8 = 17;

/// A TCP segment or UDP datagram without IP options, in an Ethernet frame.
#[derive(Clone, Debug)]
pub struct Forged {
    frame: Vec<u8>,
    /// Offset of the source address.
    source: usize,
    /// Offset of the transport header.
    transport: usize,
    /// Offsets of the checksums that cover the source address: that of the IPv4 header and that of
    /// the transport.
    header_checksum: Option<usize>,
    checksum: usize,
    is_udp: bool,
}

impl Forged {
    /// The frame of a packet, to be sent from and to these Ethernet addresses.
    pub fn new(packet: Packet, to: Mac, from: Mac) -> Self {
        let is_udp = packet.protocol() == UDP;
        let is_v4 = packet.source_address().is_ipv4();
        let transport = ETHERNET + if is_v4 { 20 } else { 40 };
        Self {
            frame: packet.macs(to, from).bytes(),
            source: ETHERNET + if is_v4 { 12 } else { 8 },
            transport,
            header_checksum: is_v4.then_some(ETHERNET + 10),
            checksum: transport + if is_udp { 6 } else { 16 },
            is_udp,
        }
    }

    /// The frame as it is now.
    pub fn bytes(&self) -> &[u8] {
        &self.frame
    }

    /// Replaces the source address, by one of the same family, and the source port.
    pub fn set_source(&mut self, address: IpAddr, port: u16) {
        match address {
            IpAddr::V4(v4) => self.replace(self.source, &v4.octets(), self.header_checksum),
            IpAddr::V6(v6) => self.replace(self.source, &v6.octets(), None),
        }
        self.replace(self.transport, &port.to_be_bytes(), None);
    }

    /// Replaces the sequence and the acknowledgement number of a TCP segment.
    pub fn set_numbers(&mut self, sequence: u32, acknowledgement: u32) {
        assert!(!self.is_udp, "a datagram has no sequence number");
        self.replace(self.transport + 4, &sequence.to_be_bytes(), None);
        self.replace(self.transport + 8, &acknowledgement.to_be_bytes(), None);
    }

    /// Replaces words that the transport's checksum covers, and perhaps another checksum too.
    fn replace(&mut self, at: usize, bytes: &[u8], also: Option<usize>) {
        for (offset, new) in bytes.chunks_exact(2).enumerate() {
            let at = at + 2 * offset;
            let (old, new) = (self.word(at), u16::from_be_bytes([new[0], new[1]]));
            self.put(at, new);
            for checksum in also.into_iter().chain([self.checksum]) {
                let updated = update(self.word(checksum), old, new);
                self.put(checksum, updated);
            }
        }
        // Zero means that there is none (RFC 768).
        if self.is_udp && self.word(self.checksum) == 0 {
            self.put(self.checksum, 0xffff);
        }
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.frame[at], self.frame[at + 1]])
    }

    fn put(&mut self, at: usize, word: u16) {
        self.frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
    }
}

/// A checksum after one word that it covers has changed (RFC 1624, equation 3).
fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let mut sum = u32::from(!checksum) + u32::from(!old) + u32::from(new);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_packet::{internet_checksum, pseudo_header_sum, tcp_flag};

    const MACS: [Mac; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];

    /// Asserts that all checksums of a frame are right.
    fn assert_valid(forged: &Forged, source: IpAddr, destination: IpAddr, protocol: u8) {
        let (header, transport) = forged.bytes()[ETHERNET..].split_at(forged.transport - ETHERNET);
        if source.is_ipv4() {
            assert_eq!(internet_checksum(0, header), 0, "IPv4 header of {source}");
        }
        let pseudo = pseudo_header_sum(source, destination, protocol, transport.len());
        let left = internet_checksum(pseudo.into(), transport);
        assert_eq!(left, 0, "transport from {source}");
    }

    #[test]
    fn checksums_stay_right() {
        let cases = [
            (
                ["198.18.0.0", "172.30.77.11"],
                ["198.19.255.254", "198.18.3.4"],
            ),
            (
                ["2001:db8::", "fd00::1"],
                ["2001:db8::ffff:1", "2001:db8:1:2:3:4:5:6"],
            ),
        ];
        for (addresses, sources) in cases {
            let [from, to] = addresses.map(|text| text.parse::<IpAddr>().unwrap());
            let segment = Packet::tcp((from, 1), (to, 80), tcp_flag::SYN).payload(b"");
            let mut segment = Forged::new(segment, MACS[0], MACS[1]);
            let mut datagram = Forged::new(Packet::udp((from, 1), (to, 53)), MACS[0], MACS[1]);
            for (number, source) in sources.into_iter().enumerate() {
                let source = source.parse().unwrap();
                segment.set_source(source, 40_000 + number as u16);
                segment.set_numbers(0xffff_fff0 + number as u32, 7);
                assert_valid(&segment, source, to, 6);
                datagram.set_source(source, 50_000 + number as u16);
                assert_valid(&datagram, source, to, UDP);
            }
        }
    }
}
