//! The clients of the Service, and their packets.

use std::net::Ipv4Addr;

use lb_common::{
    addr::Ip4,
    flow::table,
    parse::{Tuple, UDP},
    pipeline,
    verdict::{Action, Reason},
    work::Work,
};
use lb_datapath::memory::MemoryFrame;

use crate::world::{Cpu, RECORDS, SECRET};

pub const FRONTEND: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
pub const FRONTEND_PORT: u16 = 80;
pub const ENDPOINT_PORT: u16 = 8080;
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

const SYN_FLAG: u8 = 0x02;
const RST_FLAG: u8 = 0x04;
const ACK_FLAG: u8 = 0x10;
/// The first sequence numbers of clients and endpoints.
const CLIENT_FIRST: u32 = 100;
const ENDPOINT_FIRST: u32 = 500;
const ETHERNET: usize = 14;
const IP: usize = 20;

/// The address of the endpoint with this id.
pub fn endpoint(id: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 1, id as u8)
}

/// A client's port, which identifies a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    pub port: u16,
    /// IP protocol number.
    pub protocol: u8,
}

impl Client {
    /// Clients with packets whose search starts at record `home`, and with answers whose search
    /// starts at record `answers`, both counted within the table.
    pub fn at(protocol: u8, home: u32, answers: u32) -> impl Iterator<Item = Self> {
        let place =
            |tuple: &Tuple<Ip4>| table::position(table::hash(tuple, SECRET), RECORDS - 1, 0);
        let ports = 1..=u16::MAX;
        let clients = ports.map(move |port| Self { port, protocol });
        clients.filter(move |client| {
            place(&client.tuple()) == home && place(&client.answers()) == answers
        })
    }

    pub fn tuple(&self) -> Tuple<Ip4> {
        self.between(FRONTEND, FRONTEND_PORT)
    }

    /// The answers' tuple.
    pub fn answers(&self) -> Tuple<Ip4> {
        self.to(self.endpoint()).reversed()
    }

    /// The tuple of packets to the endpoint with this id.
    fn to(&self, id: u32) -> Tuple<Ip4> {
        self.between(endpoint(id), ENDPOINT_PORT)
    }

    /// Id of the endpoint that serves the client at first; a hash chooses it.
    pub fn endpoint(&self) -> u32 {
        1 + (table::hash(&self.tuple(), SECRET) >> 63) as u32
    }

    fn between(&self, to: Ipv4Addr, port: u16) -> Tuple<Ip4> {
        Tuple {
            source: CLIENT.into(),
            destination: to.into(),
            source_port: self.port,
            destination_port: port,
            protocol: self.protocol,
            pad: [0; 3],
        }
    }
}

/// The role of a packet in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client's first packet: a SYN, or a datagram.
    First,
    /// The endpoint's first packet.
    Answer,
    /// The client's packet after the answer, which proves the connection.
    Proof,
    /// The client resets the connection.
    Reset,
    /// The endpoint refuses the connection.
    Refusal,
    /// The endpoint sends data.
    Data,
}

impl Kind {
    /// Sequence number, acknowledgement and flags.
    fn numbers(self) -> (u32, u32, u8) {
        let (client, endpoint) = (CLIENT_FIRST + 1, ENDPOINT_FIRST + 1);
        match self {
            Self::First => (CLIENT_FIRST, 0, SYN_FLAG),
            Self::Answer => (ENDPOINT_FIRST, client, SYN_FLAG | ACK_FLAG),
            Self::Proof => (client, endpoint, ACK_FLAG),
            Self::Reset => (client, endpoint, RST_FLAG),
            Self::Refusal => (0, client, RST_FLAG | ACK_FLAG),
            Self::Data => (endpoint, client, ACK_FLAG),
        }
    }
}

impl Cpu {
    /// Handles a packet as a program does. If the packet is translated, it must be by its own flow.
    pub fn receive(&self, client: Client, kind: Kind) -> Reason {
        self.world.run(self.number, || {
            self.looked.set(false);
            let is_answer = matches!(kind, Kind::Answer | Kind::Refusal | Kind::Data);
            let tuple = match is_answer {
                true => client.answers(),
                false => client.tuple(),
            };
            let mut frame = MemoryFrame::<false>::new(bytes(&tuple, kind), 1);
            let mut work = Work::<Ip4>::default();
            let verdict = match is_answer {
                true => pipeline::egress(self, &mut frame, &mut work),
                false => pipeline::ingress(self, &mut frame, &mut work),
            };
            let frame = frame.into_bytes();
            let addresses = &frame[ETHERNET + 12..ETHERNET + IP + 4];
            let shift = self.world.endpoint_shift();
            let wanted = match verdict.reason {
                Reason::Opened => [shift; 2].map(|shift| client.to(client.endpoint() + shift)),
                Reason::ToEndpoint => [0, shift].map(|shift| client.to(client.endpoint() + shift)),
                Reason::ToClient => [client.tuple().reversed(); 2],
                _ => [tuple; 2],
            };
            if !wanted
                .iter()
                .any(|wanted| addresses == addresses_of(wanted))
            {
                self.world.violation(format!(
                    "{kind:?} of {client:?} was translated wrongly: {addresses:?}"
                ));
            }
            let is_lost = verdict.action == Action::Drop;
            if is_lost && !self.world.setup.loses_packets {
                self.world.violation(format!(
                    "{kind:?} of {client:?} was lost: {:?}",
                    verdict.reason
                ));
            }
            verdict.reason
        })
    }
}

/// Addresses and ports in the form of a packet.
fn addresses_of(tuple: &Tuple<Ip4>) -> Vec<u8> {
    let mut bytes = [tuple.source.octets, tuple.destination.octets].concat();
    bytes.extend(tuple.source_port.to_be_bytes());
    bytes.extend(tuple.destination_port.to_be_bytes());
    bytes
}

/// A frame without checksums, which are not checked here.
fn bytes(tuple: &Tuple<Ip4>, kind: Kind) -> Vec<u8> {
    let mut transport = Vec::new();
    if tuple.protocol == UDP {
        transport.extend([0, 8, 0, 0]);
    } else {
        let (sequence, acknowledged, flags) = kind.numbers();
        transport.extend(sequence.to_be_bytes());
        transport.extend(acknowledged.to_be_bytes());
        transport.extend([5 << 4, flags, 0x20, 0, 0, 0, 0, 0]);
    }
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00]);
    let length = (IP + 4 + transport.len()) as u16;
    frame.extend([0x45, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([0, 7, 0x40, 0, 64, tuple.protocol, 0, 0]);
    frame.extend(addresses_of(tuple));
    frame.extend(transport);
    frame
}
