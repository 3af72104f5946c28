//! What is told of a packet, made of the lines that programs log (`lb-ebpf/src/trace.rs`).

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use lb_common::{
    flow::flow_flag,
    parse::{SCTP, TCP, UDP, tcp_flag},
    trace::{Known, Place},
    verdict::{Hook, Reason},
};
use serde::{Deserialize, Serialize};

/// Packets whose last line has not come yet; more are told as they are.
const MOST_OPEN: usize = 256;

/// One look at a packet, by one hook. What was not decided is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Packet {
    /// Its number in the trace, from 1.
    pub number: u32,
    /// Since the start of the trace.
    pub microseconds: u64,
    pub hook: String,
    /// The device that it came by, or leaves by at `tc-egress`; none for sockets.
    pub device: Option<String>,
    pub protocol: Option<String>,
    /// `SYN`, `ACK` and so on.
    pub tcp_flags: Vec<String>,
    /// `INIT` and so on: the chunk of an SCTP packet that begins or ends its association, if it has one.
    pub sctp_chunk: Option<String>,
    /// Port 0 means that it has none, or that it was not read.
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
    /// `none`, `found` or `opened`; none for sockets.
    pub flow: Option<String>,
    /// What is special about the flow's direction.
    pub flow_facts: Vec<String>,
    /// `namespace/name:port`.
    pub service: Option<String>,
    /// The flow schema that takes the connection that the packet asks for, and its priority level.
    pub flow_schema: Option<String>,
    pub priority_level: Option<String>,
    pub endpoint: Option<SocketAddr>,
    /// As it leaves.
    pub rewritten_source: Option<SocketAddr>,
    pub rewritten_destination: Option<SocketAddr>,
    /// `pass`, `redirect`, `resolve`, `answer` or `drop`.
    pub way: String,
    pub leaves_by: Option<String>,
    /// As in metrics; empty if its line was lost.
    pub reason: String,
}

/// What numbers in lines stand for.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub devices: HashMap<u32, String>,
    /// Service ports by service id.
    pub services: HashMap<u32, String>,
    /// Flow schemas by their numbers, and their priority levels.
    pub schemas: HashMap<u32, (String, String)>,
}

/// Makes packets of lines, which may be mixed with those of other CPUs.
#[derive(Debug, Default)]
pub struct Assembler {
    names: Names,
    started: Duration,
    open: BTreeMap<u32, Packet>,
}

impl Assembler {
    /// For a trace that has started at a moment of the lines' clock.
    pub fn new(names: Names, started: Duration) -> Self {
        Self {
            names,
            started,
            open: BTreeMap::new(),
        }
    }

    /// Takes a line; the packet that it completes. A line of another form is ignored.
    pub fn take(&mut self, line: &str) -> Option<Packet> {
        let (number, line) = line.split_once(' ')?;
        let number = number.parse().ok()?;
        let mut packet = self.open.remove(&number).unwrap_or(Packet {
            number,
            ..Packet::default()
        });
        let is_last = line.starts_with("reason ");
        let _ = self.read(&mut packet, line);
        if is_last {
            return Some(packet);
        }
        self.open.insert(number, packet);
        match self.open.len() > MOST_OPEN {
            true => self.open.pop_first().map(|(_, packet)| packet),
            false => None,
        }
    }

    /// Packets some of whose lines were lost.
    pub fn rest(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Takes over what a line says; none if it says something else.
    fn read(&self, packet: &mut Packet, line: &str) -> Option<()> {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        match *words.first()? {
            "hook" => {
                packet.hook = Hook::ALL.get(number(1)? as usize)?.name().to_owned();
                packet.device = self.device(number(2)? as u32);
                let since = Duration::from_nanos(number(3)?).saturating_sub(self.started);
                packet.microseconds = since.as_micros() as u64;
            }
            "parse" => {
                let protocol = number(1)? as u8;
                packet.protocol = Some(protocol_name(protocol));
                let flags = number(2)? as u32;
                match protocol {
                    TCP => packet.tcp_flags = flag_names(flags, &TCP_FLAGS),
                    SCTP => packet.sctp_chunk = chunk_name(flags).map(ToOwned::to_owned),
                    _ => {}
                }
            }
            "address" => {
                let place = *Place::ALL.get(number(1)? as usize)?;
                let address: IpAddr = words.get(2)?.parse().ok()?;
                let address = SocketAddr::new(address, number(3)? as u16);
                *match place {
                    Place::Source => &mut packet.source,
                    Place::Destination => &mut packet.destination,
                    Place::Endpoint => &mut packet.endpoint,
                    Place::NewSource => &mut packet.rewritten_source,
                    Place::NewDestination => &mut packet.rewritten_destination,
                } = Some(address);
            }
            "flow" => {
                let known = number(1)? as u32;
                let name = KNOWN.iter().find(|(number, _)| *number as u32 == known)?.1;
                packet.flow = Some(name.to_owned());
                if known != Known::No as u32 {
                    let flags = number(2)? as u32;
                    packet.flow_facts = flag_names(flags, &FLOW_FACTS);
                    let way = match flags & flow_flag::FORWARD {
                        0 => "through the host's stack",
                        _ => "past the host's stack",
                    };
                    packet.flow_facts.push(way.to_owned());
                }
            }
            "service" => {
                let id = number(1)? as u32;
                let name = self.names.services.get(&id).cloned();
                packet.service = Some(name.unwrap_or_else(|| format!("number {id}")));
            }
            "schema" => {
                let number = number(1)? as u32;
                let known = self.names.schemas.get(&number).cloned();
                let (schema, level) = known.map_or_else(
                    || (format!("number {number}"), None),
                    |(schema, level)| (schema, Some(level)),
                );
                (packet.flow_schema, packet.priority_level) = (Some(schema), level);
            }
            "way" => {
                packet.way = (*WAYS.get(number(1)? as usize)?).to_owned();
                packet.leaves_by = self.device(number(2)? as u32);
            }
            "reason" => {
                packet.reason = Reason::ALL.get(number(1)? as usize)?.name().to_owned();
            }
            _ => return None,
        }
        Some(())
    }

    fn device(&self, index: u32) -> Option<String> {
        let name = || self.names.devices.get(&index).cloned();
        (index != 0).then(|| name().unwrap_or_else(|| format!("number {index}")))
    }
}

/// [`lb_common::verdict::Action`]s by their numbers.
const WAYS: [&str; 5] = ["pass", "redirect", "resolve", "answer", "drop"];

const KNOWN: [(Known, &str); 3] = [
    (Known::No, "none"),
    (Known::Found, "found"),
    (Known::Opened, "opened"),
];

const TCP_FLAGS: [(u32, &str); 4] = [
    (tcp_flag::SYN as u32, "SYN"),
    (tcp_flag::ACK as u32, "ACK"),
    (tcp_flag::FIN as u32, "FIN"),
    (tcp_flag::RST as u32, "RST"),
];

const FLOW_FACTS: [(u32, &str); 4] = [
    (flow_flag::REPLY, "answer"),
    (flow_flag::SOURCE_NAT, "source NAT"),
    (flow_flag::PICKED_UP, "picked up"),
    (flow_flag::GONE, "endpoint gone"),
];

fn flag_names(flags: u32, names: &[(u32, &str)]) -> Vec<String> {
    let set = names.iter().filter(|(flag, _)| flags & flag != 0);
    set.map(|(_, name)| (*name).to_owned()).collect()
}

/// What [`parse::association`](lb_common::parse::association) has noted as TCP's flags.
fn chunk_name(flags: u32) -> Option<&'static str> {
    const SYN: u8 = tcp_flag::SYN;
    const FIN: u8 = tcp_flag::FIN;
    const ENDS: u8 = tcp_flag::FIN | tcp_flag::RST;
    let acknowledges = flags & u32::from(tcp_flag::ACK) != 0;
    Some(match (flags as u8 & !tcp_flag::ACK, acknowledges) {
        (SYN, false) => "INIT",
        (SYN, true) => "INIT ACK",
        (tcp_flag::RST, _) => "ABORT",
        (FIN, false) => "SHUTDOWN",
        (FIN, true) => "SHUTDOWN ACK",
        (ENDS, _) => "SHUTDOWN COMPLETE",
        _ => return None,
    })
}

fn protocol_name(protocol: u8) -> String {
    match protocol {
        TCP => "TCP".to_owned(),
        UDP => "UDP".to_owned(),
        SCTP => "SCTP".to_owned(),
        1 => "ICMP".to_owned(),
        58 => "ICMPv6".to_owned(),
        other => format!("protocol {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_two_cpus_make_two_packets() {
        let names = Names {
            devices: HashMap::from([(2, "eth0".to_owned())]),
            services: HashMap::from([(5, "shop/web:http".to_owned())]),
            schemas: HashMap::from([(9, ("tenants".to_owned(), "low".to_owned()))]),
        };
        let mut assembler = Assembler::new(names, Duration::from_micros(10));
        let lines = [
            "1 hook 0 2 15000",
            "2 hook 3 0 11000",
            "1 parse 6 18",
            "1 address 0 192.0.2.7 40000",
            "2 parse 17 0",
            "nonsense",
            "1 flow 1 786432",
            "1 service 5",
            "2 service 6",
            "1 schema 9",
            "2 schema 8",
            "2 way 0 0",
            "2 reason 3",
            "3 hook 0 2 15000",
            "3 parse 132 18",
            "3 reason 13",
            "1 address 2 2001:db8::1 80",
            "1 way 1 9",
            "1 reason 11",
        ];
        let packets: Vec<_> = lines
            .iter()
            .filter_map(|line| assembler.take(line))
            .collect();
        let [socket, association, segment] = packets.try_into().unwrap();
        assert_eq!(association.protocol.as_deref(), Some("SCTP"));
        assert_eq!(association.sctp_chunk.as_deref(), Some("INIT ACK"));
        assert_eq!((socket.number, &*socket.hook), (2, "socket"));
        assert_eq!(socket.service.as_deref(), Some("number 6"));
        assert_eq!(socket.flow_schema.as_deref(), Some("number 8"));
        assert_eq!(socket.priority_level, None);
        assert_eq!(socket.reason, "not-service");
        assert_eq!(segment.device.as_deref(), Some("eth0"));
        assert_eq!(segment.microseconds, 5);
        assert_eq!(segment.tcp_flags, ["SYN", "ACK"]);
        assert_eq!(segment.source, Some("192.0.2.7:40000".parse().unwrap()));
        assert_eq!(segment.endpoint, Some("[2001:db8::1]:80".parse().unwrap()));
        assert_eq!(segment.flow_facts, ["source NAT", "past the host's stack"]);
        assert_eq!(segment.service.as_deref(), Some("shop/web:http"));
        assert_eq!(segment.flow_schema.as_deref(), Some("tenants"));
        assert_eq!(segment.priority_level.as_deref(), Some("low"));
        assert_eq!(segment.leaves_by.as_deref(), Some("number 9"));
        assert_eq!(segment.reason, "to-endpoint");
        assert_eq!(assembler.rest(), []);
    }

    #[test]
    fn a_packet_without_its_last_line_is_told_at_the_end() {
        let mut assembler = Assembler::new(Names::default(), Duration::ZERO);
        assert_eq!(assembler.take("7 hook 0 2 15000"), None);
        let rest = assembler.rest();
        assert_eq!((rest[0].number, &*rest[0].reason), (7, ""));
    }
}
