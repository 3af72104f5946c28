//! What is shown: the kernel's numbers at one moment, and how fast they grew before it.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::flows::{Count, Whose};
use crate::{
    agent::{
        local_api::traffic::{EndpointTraffic, PortTraffic, ServiceEndpoints, Traffic},
        status::{ConnectionLimit, FlowTable, Map, PriorityLevel},
    },
    latency::Quantiles,
};

/// The numbers of one moment. Serialised, it is one object of `-o json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Frame {
    pub node: String,
    /// As in [`Traffic`].
    pub at_ms: u64,
    /// The time in which counters grew as `perSecond` says; absent if there was no moment before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    pub service_ports: Vec<Port>,
    pub connection_limits: Vec<ConnectionLimit>,
    pub priority_levels: Vec<PriorityLevel>,
    pub refused_packets: BTreeMap<String, Packets>,
    pub flow_tables: Option<[FlowTable; 2]>,
    pub maps: Vec<Map>,
}

/// A service port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    #[serde(flatten)]
    pub traffic: PortTraffic,
    pub per_second: PortRates,
    /// How soon endpoints have answered since the moment before; absent if none has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Quantiles>,
}

/// How fast a service port's counters grow; `None` if that is not known, because it is new or began
/// to count anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortRates {
    pub connections: Option<f64>,
    pub rejected: Option<f64>,
    pub dropped: Option<f64>,
    pub flow_table_full: Option<f64>,
    pub snat_ports_exhausted: Option<f64>,
    pub gave_way: Option<f64>,
    /// What TCP connections carry that have been open at both moments; see [`super::bytes`].
    pub bytes_from_clients: Option<f64>,
    pub bytes_to_clients: Option<f64>,
}

/// Packets that were refused or dropped for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Packets {
    /// So far.
    pub packets: u64,
    pub per_second: Option<f64>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    pub traffic: EndpointTraffic,
    pub connections_per_second: Option<f64>,
}

impl Frame {
    /// What an agent says, and by how much that is more than it, or another one, said before.
    pub fn new(traffic: &Traffic, before: Option<&Traffic>) -> Self {
        let span = Span::between(before.map(|before| before.at_ms), traffic.at_ms);
        let known = before.map_or(&[][..], |before| &before.service_ports);
        let known: HashMap<_, _> = known.iter().map(|port| (port_name(port), port)).collect();
        let ports = traffic.service_ports.iter().map(|port| {
            let known = known.get(&port_name(port)).copied();
            // With other numbers in the maps, it is another one of the same name.
            let known = known.filter(|known| known.ids == port.ids);
            let answered = known.map(|known| port.answered.since(&known.answered));
            Port {
                traffic: port.clone(),
                per_second: PortRates::new(port, known, span),
                latency: answered.and_then(|answered| answered.quantiles()),
            }
        });
        let packets = traffic.refused_packets.iter().map(|(reason, packets)| {
            let known = before.and_then(|before| before.refused_packets.get(reason));
            let packets = Packets {
                packets: *packets,
                per_second: span.rate(*packets, known.copied()),
            };
            (reason.clone(), packets)
        });
        Self {
            node: traffic.node.clone(),
            at_ms: traffic.at_ms,
            seconds: span.0,
            service_ports: ports.collect(),
            connection_limits: traffic.connection_limits.clone(),
            priority_levels: traffic.priority_levels.clone(),
            refused_packets: packets.collect(),
            flow_tables: traffic.flow_tables.clone(),
            maps: traffic.maps.clone(),
        }
    }

    /// Adds what flows have carried, which were counted by service.
    pub fn add_bytes(&mut self, count: &Count) {
        for Port {
            traffic,
            per_second,
            ..
        } in &mut self.service_ports
        {
            let ids = traffic.ids.iter();
            let crowds = ids.filter_map(|id| count.of(Whose::Service(*id)));
            [per_second.bytes_from_clients, per_second.bytes_to_clients] = count.rates(crowds);
        }
    }
}

impl PortRates {
    fn new(now: &PortTraffic, before: Option<&PortTraffic>, span: Span) -> Self {
        let rate = |counter: fn(&PortTraffic) -> u64| span.rate(counter(now), before.map(counter));
        Self {
            connections: rate(|port| port.connections),
            rejected: rate(|port| port.rejected),
            dropped: rate(|port| port.dropped),
            flow_table_full: rate(|port| port.flow_table_full),
            snat_ports_exhausted: rate(|port| port.snat_ports_exhausted),
            gave_way: rate(|port| port.gave_way),
            // See `Frame::add_bytes`.
            bytes_from_clients: None,
            bytes_to_clients: None,
        }
    }

    /// First packets refused or dropped.
    pub fn refused(&self) -> Option<f64> {
        Some(self.rejected? + self.dropped?)
    }
}

/// The endpoints of a Service, and by how much their numbers are more than before.
pub fn endpoints(now: &ServiceEndpoints, before: Option<&ServiceEndpoints>) -> Vec<Endpoint> {
    let span = Span::between(before.map(|before| before.at_ms), now.at_ms);
    let name = |endpoint: &EndpointTraffic| {
        let EndpointTraffic {
            service_port,
            protocol,
            address,
            ..
        } = endpoint;
        (service_port.clone(), protocol.clone(), *address)
    };
    let known = before.map_or(&[][..], |before| &before.endpoints);
    let known = known.iter();
    let known: HashMap<_, _> = known
        .map(|endpoint| (name(endpoint), endpoint.connections))
        .collect();
    let endpoints = now.endpoints.iter().map(|endpoint| Endpoint {
        connections_per_second: span
            .rate(endpoint.connections, known.get(&name(endpoint)).copied()),
        traffic: endpoint.clone(),
    });
    endpoints.collect()
}

/// What tells service ports apart.
fn port_name(port: &PortTraffic) -> (&str, &str) {
    (&port.service_port, &port.protocol)
}

/// The seconds between two moments; `None` if the first one is not known, or not before the other.
#[derive(Clone, Copy)]
struct Span(Option<f64>);

impl Span {
    fn between(before: Option<u64>, now: u64) -> Self {
        let milliseconds = before.and_then(|before| now.checked_sub(before));
        let milliseconds = milliseconds.filter(|milliseconds| *milliseconds > 0);
        Self(milliseconds.map(|milliseconds| milliseconds as f64 / 1e3))
    }

    /// How fast a counter has grown; `None` if it is not known, or has begun anew.
    fn rate(self, now: u64, before: Option<u64>) -> Option<f64> {
        Some(now.checked_sub(before?)? as f64 / self.0?)
    }
}
