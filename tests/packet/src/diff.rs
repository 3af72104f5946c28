//! Compares two frames field by field.

use std::fmt::Write as _;

/// The fields of a frame with their offsets. What has no known fields is `payload`.
fn fields(frame: &[u8]) -> Vec<(&'static str, usize)> {
    let mut fields = vec![("eth.to", 0), ("eth.from", 6), ("eth.type", 12)];
    let at = 14;
    let protocol = match frame.get(12..14) {
        Some([0x08, 0x00]) => {
            fields.extend([
                ("ip.version+ihl", at),
                ("ip.tos", at + 1),
                ("ip.length", at + 2),
                ("ip.id", at + 4),
                ("ip.fragment", at + 6),
                ("ip.ttl", at + 8),
                ("ip.protocol", at + 9),
                ("ip.checksum", at + 10),
                ("ip.source", at + 12),
                ("ip.destination", at + 16),
                ("ip.options", at + 20),
            ]);
            let header = usize::from(frame.get(at).copied().unwrap_or(5) & 0x0f) * 4;
            (frame.get(at + 9).copied(), at + header)
        }
        Some([0x86, 0xdd]) => {
            fields.extend([
                ("ip6.version+class+label", at),
                ("ip6.length", at + 4),
                ("ip6.next", at + 6),
                ("ip6.hoplimit", at + 7),
                ("ip6.source", at + 8),
                ("ip6.destination", at + 24),
            ]);
            (frame.get(at + 6).copied(), at + 40)
        }
        _ => (None, at),
    };
    let (protocol, at) = protocol;
    let transport: &[(&'static str, usize)] = match protocol {
        Some(6) => &[
            ("tcp.ports", 0),
            ("tcp.seq+ack", 4),
            ("tcp.flags", 12),
            ("tcp.window", 14),
            ("tcp.checksum", 16),
            ("tcp.urgent", 18),
            ("payload", 20),
        ],
        Some(17) => &[
            ("udp.ports", 0),
            ("udp.length", 4),
            ("udp.checksum", 6),
            ("payload", 8),
        ],
        Some(1 | 58) => &[
            ("icmp.type+code", 0),
            ("icmp.checksum", 2),
            ("icmp.word", 4),
            ("icmp.quote", 8),
        ],
        _ => &[("payload", 0)],
    };
    fields.extend(transport.iter().map(|(name, offset)| (*name, at + offset)));
    fields.retain(|(_, offset)| *offset < frame.len());
    fields
}

/// The differences, one field per line; `None` if there are none.
pub fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    let mut report = String::new();
    if expected.len() != found.len() {
        let _ = writeln!(
            report,
            "  {} bytes expected, {} found",
            expected.len(),
            found.len()
        );
    }
    let fields = fields(expected);
    let ends = fields[1..].iter().map(|(_, offset)| *offset);
    for ((name, start), end) in fields.iter().zip(ends.chain([usize::MAX])) {
        let part = |frame: &[u8]| {
            let end = end.min(frame.len());
            frame.get(*start..end).unwrap_or_default().to_vec()
        };
        let (wanted, got) = (part(expected), part(found));
        if wanted != got {
            let _ = writeln!(
                report,
                "  {name:24} expected {} found {}",
                hex(&wanted),
                hex(&got)
            );
        }
    }
    Some(report)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use crate::packet::Packet;

    use super::*;

    #[test]
    fn a_difference_names_its_field() {
        let from = ("192.0.2.1".parse().unwrap(), 1000);
        let to = ("192.0.2.2".parse().unwrap(), 80);
        let packet = Packet::udp(from, to);
        assert_eq!(difference(&packet.bytes(), &packet.bytes()), None);
        let report = difference(&packet.bytes(), &packet.clone().ttl(7).bytes()).unwrap();
        let names: Vec<_> = report
            .lines()
            .map(|line| line.split_whitespace().next())
            .collect();
        assert_eq!(names, [Some("ip.ttl"), Some("ip.checksum")]);
        let report = difference(&packet.bytes(), &packet.padding(3).bytes()).unwrap();
        assert!(report.contains("50 bytes expected, 53 found"), "{report}");
    }
}
