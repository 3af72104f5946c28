//! What `node-lb flows` says of one flow; serialised, it is an object of `-o json`.

use std::net::SocketAddr;

use lb_common::{
    addr::Address,
    flow::{flow_flag, tag},
};
use serde::Serialize;

use crate::{
    flows::{Connection, Records, TickRate, idle, records::socket_addr, stats::stage_name},
    model::Protocol,
};

/// One connection, both directions together.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowReport {
    /// `TCP` or `UDP`.
    pub protocol: String,
    pub client: SocketAddr,
    pub frontend: SocketAddr,
    /// `namespace/name:port`, if the source knows the frontend.
    pub service: Option<String>,
    pub endpoint: SocketAddr,
    /// The node's own address and port that the endpoint sees; `None` if it sees the client's.
    pub source_nat: Option<SocketAddr>,
    /// `unreplied`, `established`, `half-closed` or `closed`.
    pub stage: &'static str,
    /// Seconds since the last packet, in either direction.
    pub idle_seconds: u64,
    /// `forward`, past the host's stack, or `stack`, through it.
    pub mode: &'static str,
    #[serde(skip)]
    transport: Protocol,
}

impl FlowReport {
    /// The flows in a table, at tick `now`.
    pub fn all<A: Address>(
        records: &impl Records<A>,
        rate: TickRate,
        now: u32,
        service: impl Fn((SocketAddr, Protocol)) -> Option<String>,
    ) -> Vec<Self> {
        let indices = 0..records.len();
        indices
            .filter_map(|index| {
                let forward = records.read(index);
                if tag::state(forward.tag) != tag::LIVE || forward.has(flow_flag::REPLY) {
                    return None;
                }
                let connection = Connection::new(records, index, &forward)?;
                let mut flow = Self::new(&connection, rate, now);
                flow.service = service(flow.key());
                Some(flow)
            })
            .collect()
    }

    /// The frontend, as services are found by.
    pub fn key(&self) -> (SocketAddr, Protocol) {
        (self.frontend, self.transport)
    }

    /// By frontend, then by client.
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
