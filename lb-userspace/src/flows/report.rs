//! One flow in the form of `node-lb flows` and the agent's API. Serialised, it is their JSON
//! object.

use std::net::SocketAddr;

use lb_common::{
    addr::Address,
    flow::{flow_flag, stage::idle, tag},
};
use lb_datapath::TickRate;
use lb_objects::Protocol;
use serde::Serialize;

use super::{Connection, Records, records::socket_addr, stats::stage_name};

/// One connection, both directions together.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowReport {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    /// `namespace/name:port`, if the source knows the frontend.
    pub service: Option<String>,
    pub endpoint: SocketAddr,
    /// The node's own address and port that the endpoint sees; `None` if it sees the client's.
    pub source_nat: Option<SocketAddr>,
    /// `unreplied`, `handshake`, `established`, `half-closed` or `closed`.
    pub stage: &'static str,
    /// Seconds since the last packet, in either direction.
    pub idle_seconds: u64,
    /// `forward` past the host's stack, or `stack` through it.
    pub mode: &'static str,
    #[serde(skip)]
    pub transport: Protocol,
}

impl FlowReport {
    /// The flows in a table at tick `now`, without the names of their Services.
    pub fn all<A: Address>(
        records: &impl Records<A>,
        rate: TickRate,
        now: u32,
    ) -> impl Iterator<Item = Self> {
        (0..records.len()).filter_map(move |index| Self::at(records, index, rate, now))
    }

    /// The flow with the record at `index` as its first direction; `None` if there is none.
    pub fn at<A: Address>(
        records: &impl Records<A>,
        index: u32,
        rate: TickRate,
        now: u32,
    ) -> Option<Self> {
        let forward = records.read(index);
        if !tag::in_use(forward.tag) || forward.has(flow_flag::REPLY) {
            return None;
        }
        let connection = Connection::new(records, index, &forward)?;
        Some(Self::new(&connection, rate, now))
    }

    /// The frontend, as the key by which services are found.
    pub fn key(&self) -> (SocketAddr, Protocol) {
        (self.frontend, self.transport)
    }

    /// A sort key: by frontend, then by client.
    pub fn order(&self) -> impl Ord + '_ {
        (self.frontend, &self.protocol, self.client)
    }

    fn new<A: Address>(connection: &Connection<A>, rate: TickRate, now: u32) -> Self {
        let forward = &connection.forward;
        let transport = connection.protocol();
        Self {
            protocol: transport.to_string(),
            client: socket_addr(forward.source, forward.source_port),
            frontend: socket_addr(forward.destination, forward.destination_port),
            service: None,
            endpoint: connection.endpoint(),
            source_nat: forward
                .has(flow_flag::SOURCE_NAT)
                .then(|| socket_addr(forward.rewrite.source, forward.rewrite.source_port)),
            stage: stage_name(connection.stage()),
            idle_seconds: rate.duration(idle(connection.last_seen(), now)).as_secs(),
            mode: match forward.has(flow_flag::FORWARD) {
                true => "forward",
                false => "stack",
            },
            transport,
        }
    }
}
