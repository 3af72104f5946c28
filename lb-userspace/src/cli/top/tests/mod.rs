use std::collections::BTreeMap;

use super::{bytes as carried, flows, frame, screen, table, view};
use crate::agent::{
    local_api::traffic::{EndpointTraffic, PortTraffic, ServiceEndpoints, Traffic},
    status::{ConnectionLimit, FlowTable, Map},
};

mod bytes;
mod counting;
mod frames;
mod keys;
mod screens;

/// A port `namespace/name:http` with this number in the maps.
fn port(service: &str, id: u32, connections: u64) -> PortTraffic {
    PortTraffic {
        service: service.to_owned(),
        service_port: format!("{service}:http"),
        protocol: "TCP".to_owned(),
        ids: vec![id],
        open: connections / 2,
        half_open: 1,
        connections,
        rejected: connections / 4,
        dropped: connections / 8,
        ready: 2,
        terminating: 1,
        ..PortTraffic::default()
    }
}

/// What a node says at a moment of three Services: the busiest is `shop/web`, and `shop/cart` has a
/// limit.
fn traffic(at_ms: u64, connections: u64) -> Traffic {
    let limit = |service: Option<&str>, limit| ConnectionLimit {
        service: service.map(str::to_owned),
        limit,
        long_running: false,
        in_use: 7,
        highest: 8,
        refused: 2,
        slow_handshakes: 0,
        pressed: false,
    };
    Traffic {
        at_ms,
        node: "node-1".to_owned(),
        service_ports: vec![
            port("default/api", 1, 10),
            port("shop/cart", 2, connections / 10),
            port("shop/web", 3, connections),
        ],
        connection_limits: vec![limit(None, 100), limit(Some("shop/cart"), 10)],
        refused_packets: BTreeMap::from([
            ("no-endpoints".to_owned(), connections / 2),
            ("source-range".to_owned(), 0),
        ]),
        flow_tables: Some(["IPv4", "IPv6"].map(|family| FlowTable {
            family: family.to_owned(),
            flows: 10,
            records: 1000,
            occupied: 500,
            ..FlowTable::default()
        })),
        maps: vec![Map {
            name: "FRONTENDS4".to_owned(),
            entries: 3,
            capacity: 4,
            setting: None,
        }],
        ..Traffic::default()
    }
}

/// A ready endpoint of `shop/web:http` and a terminating one that is avoided.
fn endpoints(at_ms: u64, connections: u64) -> ServiceEndpoints {
    let endpoint = |address: &str, ready| EndpointTraffic {
        service_port: "shop/web:http".to_owned(),
        protocol: "TCP".to_owned(),
        address: address.parse().unwrap(),
        ready,
        connections,
        failures: if ready { 0 } else { 9 },
        avoided: !ready,
        latency_us: ready.then_some(1234.5),
    };
    ServiceEndpoints {
        at_ms,
        endpoints: vec![
            endpoint("10.1.0.1:8080", true),
            endpoint("10.1.0.2:8080", false),
        ],
    }
}
