//! Who holds the seats of priority levels: the connections of each flow of a flow schema, as API
//! Priority and Fairness calls a client of it. Where a flow may have only so many, programs count them
//! too: see [`lb_common::flow::party`].

use std::{collections::HashMap, net::SocketAddr};

use ipnet::IpNet;
use lb_common::{
    addr::Address,
    flow::{
        Flow, Stage, flow_flag,
        party::{Common, PartyRule},
        tag,
    },
};
use lb_objects::Protocol;

use super::{
    Records,
    records::{Connection, protocol, socket_addr},
};

/// The most flows that are told apart. More of them would need much memory for a moment.
const MOST: usize = 65_536;

/// A flow of the schema with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    pub schema: u32,
    pub whose: Whose,
}

/// What its connections have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whose {
    /// The schema alone.
    Schema,
    /// The network of their sources, which may be one address.
    Source(IpNet),
    /// The id of their service.
    Service(u32),
}

/// Its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Those that hold seats of a level, and how many seats they hold.
    pub connections: u32,
    pub seats: u32,
    /// TCP connections whose handshake is not complete, with a seat or without.
    pub handshakes: u32,
    /// The frontend of one of them.
    pub frontend: (SocketAddr, Protocol),
}

/// The flows of flow schemas that have connections.
#[derive(Debug, Default)]
pub struct Holders {
    all: HashMap<Holder, Held>,
    /// Connections of further flows.
    left_out: u64,
}

impl Holders {
    /// Adds the connections in a table. `rule` is that of a schema, by its number.
    pub fn add<A: Address>(
        &mut self,
        records: &impl Records<A>,
        rule: impl Fn(u32) -> Option<PartyRule>,
    ) {
        for index in 0..records.len() {
            let forward = records.read(index);
            let schema = forward.taker().schema();
            if schema == 0 || !tag::in_use(forward.tag) || forward.has(flow_flag::REPLY) {
                continue;
            }
            if let Some(rule) = rule(schema)
                && let Some(connection) = Connection::new(records, index, &forward)
            {
                self.count(schema, rule, &connection);
            }
        }
    }

    fn count<A: Address>(&mut self, schema: u32, rule: PartyRule, connection: &Connection<A>) {
        let Connection { forward, reply } = connection;
        let has_seat = reply.place().level() != 0;
        let stage = connection.stage();
        let is_handshake = matches!(stage, Stage::Unreplied | Stage::Handshake)
            && !forward.has(flow_flag::UDP)
            && reply.own_place().level() != 0;
        if !has_seat && !is_handshake {
            return;
        }
        let holder = Holder {
            schema,
            whose: whose(rule, forward),
        };
        if self.all.len() >= MOST && !self.all.contains_key(&holder) {
            self.left_out += 1;
            return;
        }
        let held = self.all.entry(holder).or_insert_with(|| Held {
            connections: 0,
            seats: 0,
            handshakes: 0,
            frontend: (
                socket_addr(forward.destination, forward.destination_port),
                protocol(forward),
            ),
        });
        if has_seat {
            held.connections += 1;
            held.seats += reply.place().width();
        }
        held.handshakes += u32::from(is_handshake);
    }

    /// At most `limit` of them, those with the most seats first, and whether there are more.
    pub fn largest(self, limit: usize) -> (Vec<(Holder, Held)>, bool) {
        let mut all: Vec<_> = self.all.into_iter().collect();
        let key = |(holder, held): &(Holder, Held)| {
            let source = match holder.whose {
                Whose::Source(network) => Some(network),
                _ => None,
            };
            (
                u32::MAX - held.seats,
                u32::MAX - held.handshakes,
                holder.schema,
                source,
                held.frontend.0,
            )
        };
        all.sort_by_key(key);
        let more = all.len() > limit || self.left_out != 0;
        all.truncate(limit);
        (all, more)
    }
}

/// Whose a flow is by a rule; this is its client's direction.
fn whose<A: Address>(rule: PartyRule, forward: &Flow<A>) -> Whose {
    let source = socket_addr(forward.source, 0).ip();
    match rule.common(source, forward.taker().is_inside()) {
        Common::Nothing => Whose::Schema,
        Common::Service => Whose::Service(forward.service_id()),
        Common::Source(bits) => IpNet::new(source, bits as u8)
            .map_or(Whose::Schema, |network| Whose::Source(network.trunc())),
    }
}
