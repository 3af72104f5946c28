//! The possible results for a packet, and what is kept of its flow.

use std::net::IpAddr;

use lb_common::{
    abi::{ServiceStats, Shortages},
    addr::Address,
    flow::{Flow, flow_flag, tag},
    verdict::{Hook, Reason},
};
use lb_packet::{Packet, difference, tcp_flag};

use super::service::TCP;

/// Port unreachable: ICMP's type and code (RFC 792), and ICMPv6's (RFC 4443).
pub const PORT_UNREACHABLE: [(u8, u8); 2] = [(3, 3), (1, 4)];
/// Time exceeded: types and codes of ICMP and ICMPv6.
pub const TIME_EXCEEDED: [(u8, u8); 2] = [(11, 0), (3, 0)];
/// Packet too big: types and codes of ICMP and ICMPv6.
pub const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];

/// The flags by which packets show how far a flow has come.
pub const SHOWN: u32 = flow_flag::SEEN | flow_flag::FIN | flow_flag::FIN_ACKED | flow_flag::RST;

/// What is kept of one direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The source and destination that its packets are given.
    pub to: ((IpAddr, u16), (IpAddr, u16)),
    /// Whether the connection has still to prove itself. The client's direction says so.
    pub half: bool,
    /// The [`flow_flag`]s among [`SHOWN`] that are set.
    pub shown: u32,
    /// The sequence number after its latest segment, and the acknowledgement in that segment.
    pub next: u32,
    pub acknowledged: u32,
}

/// The programs under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// XDP on a device that completes checksums.
    Xdp,
    /// XDP on a virtual device.
    XdpVirtual,
    TcIngress,
    TcEgress,
}

impl At {
    /// All programs.
    pub const ALL: [Self; 4] = [Self::Xdp, Self::XdpVirtual, Self::TcIngress, Self::TcEgress];
    /// The programs for packets that arrive.
    pub const INGRESS: [Self; 3] = [Self::Xdp, Self::XdpVirtual, Self::TcIngress];

    /// The program's name in the object.
    pub fn program(self) -> &'static str {
        match self {
            Self::Xdp => "xdp_ingress",
            Self::XdpVirtual => "xdp_ingress_virtual",
            Self::TcIngress => "tc_ingress",
            Self::TcEgress => "tc_egress",
        }
    }

    /// Whether it is a program of XDP, not of TC.
    pub fn is_xdp(self) -> bool {
        matches!(self, Self::Xdp | Self::XdpVirtual)
    }

    /// The hook that it counts packets at.
    pub fn hook(self) -> Hook {
        match self {
            Self::Xdp | Self::XdpVirtual => Hook::Xdp,
            Self::TcIngress => Hook::TcIngress,
            Self::TcEgress => Hook::TcEgress,
        }
    }
}

/// What a program told the kernel to do with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Pass,
    Drop,
    /// Out of the device on which it arrived. TC has only `Redirect` for that.
    Transmit,
    Redirect,
}

impl Action {
    /// The meaning of a program's return value.
    pub fn of(at: At, value: u32) -> Self {
        match (at.is_xdp(), value) {
            (true, 1) | (false, 2) => Self::Drop,
            (true, 2) | (false, u32::MAX) => Self::Pass,
            (true, 3) => Self::Transmit,
            (true, 4) | (false, 7) => Self::Redirect,
            _ => panic!("{} returned {value}", at.program()),
        }
    }

    /// The form of this action at a hook.
    pub fn at(self, at: At) -> Self {
        match self {
            Self::Transmit if !at.is_xdp() => Self::Redirect,
            action => action,
        }
    }
}

/// The expected result of a run: the action, the frame afterwards, and the counters that move.
#[derive(Clone, Debug)]
pub struct Expected {
    action: Action,
    /// `None` for dropped frames, which do not matter.
    frame: Option<Vec<u8>>,
    reason: Reason,
    opens: Option<bool>,
}

impl Expected {
    /// The frame passes in this form.
    pub fn passes(frame: impl Into<Vec<u8>>, reason: Reason) -> Self {
        Self::new(Action::Pass, Some(frame.into()), reason)
    }

    /// The frame is sent back to the device on which it arrived, in this form.
    pub fn transmits(frame: impl Into<Vec<u8>>, reason: Reason) -> Self {
        Self::new(Action::Transmit, Some(frame.into()), reason)
    }

    /// The frame is sent out of another device, in this form.
    pub fn redirects(frame: impl Into<Vec<u8>>, reason: Reason) -> Self {
        Self::new(Action::Redirect, Some(frame.into()), reason)
    }

    /// The frame is dropped.
    pub fn drops(reason: Reason) -> Self {
        Self::new(Action::Drop, None, reason)
    }

    fn new(action: Action, frame: Option<Vec<u8>>, reason: Reason) -> Self {
        Self {
            action,
            frame,
            reason,
            opens: None,
        }
    }

    /// A connection is counted, whatever the reason is.
    pub fn and_opens(self) -> Self {
        Self {
            opens: Some(true),
            ..self
        }
    }

    /// The changes of the counters of services.
    fn stats(&self, at: At) -> Stats {
        let opens = self.opens.unwrap_or(self.reason == Reason::Opened);
        let ingress = at != At::TcEgress;
        let rejected = match self.reason {
            Reason::NoEndpoints => true,
            reason if reason.is_limit() => true,
            Reason::AnswerRateLimited => !opens,
            _ => false,
        };
        let dropped = matches!(
            self.reason,
            Reason::NoLocalEndpoints
                | Reason::SourceRange
                | Reason::NotProgrammed
                | Reason::FlowTableFull
                | Reason::SnatPortsExhausted
                | Reason::InsertRace
                | Reason::NoNodeAddress
                | Reason::StraySegment
        );
        let full = self.reason == Reason::FlowTableFull;
        let exhausted = self.reason == Reason::SnatPortsExhausted;
        [opens, rejected, dropped && ingress, full, exhausted].map(u64::from)
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub action: Action,
    pub frame: Vec<u8>,
    /// The counters that moved, and by how much.
    pub counted: Vec<(Hook, Reason, u64)>,
    pub stats: Stats,
}

/// Connections, rejections and drops counted for services; and among the drops those for lack of a
/// record in the flow table, and those for lack of a port.
pub type Stats = [u64; 5];

/// The sum of what services count, as it was at the last call.
#[derive(Clone, Debug, Default)]
pub struct Tally(Stats);

impl Tally {
    /// What has been added since the last call, given the counts of each service.
    pub fn newly(
        &mut self,
        services: impl IntoIterator<Item = (ServiceStats, Shortages)>,
    ) -> Stats {
        let before = std::mem::take(&mut self.0);
        for (stats, shortages) in services {
            let counted = [
                stats.connections,
                stats.rejected,
                stats.dropped,
                shortages.flow_table_full,
                shortages.snat_ports_exhausted,
            ];
            self.0 = std::array::from_fn(|i| self.0[i] + counted[i]);
        }
        std::array::from_fn(|i| self.0[i] - before[i])
    }

    /// Connections, so far.
    pub fn connections(&self) -> u64 {
        self.0[0]
    }
}

/// Compares everything about the result of a run.
///
/// # Panics
///
/// If anything differs. The message contains `name`.
#[track_caller]
pub fn assert_expected(name: &str, at: At, found: &Outcome, expected: &Expected) {
    let wanted = vec![(at.hook(), expected.reason, 1)];
    assert_eq!(
        (found.action, &found.counted),
        (expected.action.at(at), &wanted),
        "{name}"
    );
    if let Some(wanted) = &expected.frame
        && let Some(difference) = difference(wanted, &found.frame)
    {
        panic!("{name}: the frame is another\n{difference}");
    }
    let counted = expected.stats(at);
    assert_eq!(
        found.stats, counted,
        "{name}: connections, rejected, dropped, table full, ports exhausted"
    );
}

/// What is kept of one direction of a flow, if it is among these records.
pub fn kept<A: Address>(
    mut records: impl Iterator<Item = Flow<A>>,
    protocol: u8,
    from: (IpAddr, u16),
    to: (IpAddr, u16),
) -> Option<Kept> {
    let ip = |address: A| IpAddr::from(address.to_mapped());
    let flow = records.find(|flow| {
        tag::in_use(flow.tag)
            && flow.protocol() == protocol
            && (ip(flow.source), flow.source_port) == from
            && (ip(flow.destination), flow.destination_port) == to
    })?;
    let rewrite = flow.rewrite;
    Some(Kept {
        to: (
            (ip(rewrite.source), rewrite.source_port),
            (ip(rewrite.destination), rewrite.destination_port),
        ),
        half: tag::state(flow.tag) == tag::HALF && !flow.has(flow_flag::REPLY),
        shown: flow.flags & SHOWN,
        next: flow.next,
        acknowledged: flow.acknowledged,
    })
}

/// The answer to a packet of a connection that is refused: port unreachable, or to a SYN a RST.
/// `next` is the sequence number after the SYN.
pub fn refusal(packet: &Packet, source: (IpAddr, u16), to: (IpAddr, u16), next: u32) -> Packet {
    if packet.protocol() != TCP {
        return answer(packet, source.0, PORT_UNREACHABLE, 0);
    }
    let (to_mac, from_mac) = packet.ethernet();
    Packet::tcp(source, to, tcp_flag::RST | tcp_flag::ACK)
        .numbers(0, next)
        .payload(b"")
        .id(0)
        .flow_label(0)
        .macs(from_mac, to_mac)
}

/// The ICMP error that a node sends about a packet: of the `kind` for its family, quoting the
/// packet as far as its ports and checksum.
pub fn answer(packet: &Packet, from: IpAddr, kinds: [(u8, u8); 2], word: u32) -> Packet {
    let kind = kinds[usize::from(from.is_ipv6())];
    let quote = packet.quote(match packet.protocol() {
        TCP => 20,
        _ => 8,
    });
    let (to_mac, from_mac) = packet.ethernet();
    Packet::icmp(from, packet.source_address(), kind, word, quote)
        .id(0)
        .flow_label(0)
        .macs(from_mac, to_mac)
}
