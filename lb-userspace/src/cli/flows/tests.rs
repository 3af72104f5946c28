use std::sync::atomic::AtomicU32;

use lb_common::flow::{
    flow_flag::{self, FIN, SEEN},
    tag,
};
use serde_json::json;

use super::*;
use crate::flows::Records;

/// One tick is a second.
const RATE: TickRate = TickRate { hz: 1, shift: 0 };

/// A client's flow to 10.96.0.1:80 with source NAT, its answers, and half of another flow.
pub struct ThreeRecords([Flow<Ip4>; 3], [AtomicU32; 3]);

impl ThreeRecords {
    pub fn new() -> Self {
        let [client, frontend, node, endpoint] = [
            [192, 0, 2, 7],
            [10, 96, 0, 1],
            [192, 168, 0, 2],
            [10, 0, 1, 5],
        ]
        .map(|octets| Ip4 { octets });
        let mut forward = Flow {
            tag: tag::LIVE,
            ..Flow::<Ip4>::default()
        };
        forward.flags = flow_flag::SOURCE_NAT | flow_flag::FORWARD;
        (forward.source, forward.source_port) = (client, 50_000);
        (forward.destination, forward.destination_port) = (frontend, 80);
        (forward.rewrite.source, forward.rewrite.source_port) = (node, 12_345);
        (
            forward.rewrite.destination,
            forward.rewrite.destination_port,
        ) = (endpoint, 8080);
        forward.service = 3;
        forward.flags |= SEEN;
        forward.last_seen = 100;

        let mut reply = forward;
        reply.flags |= flow_flag::REPLY | FIN;
        reply.last_seen = 900;
        (forward.peer, reply.peer) = (1, 0);
        let half = Flow { peer: 2, ..forward };
        let records = [forward, reply, half];
        Self(records, records.map(|record| AtomicU32::new(record.tag)))
    }

    fn report(&self, names: &Names) -> Vec<FlowReport> {
        let mut flows: Vec<_> = FlowReport::all(self, RATE, 1000).collect();
        for flow in &mut flows {
            flow.service = names.get(&flow.key()).map(|(_, port)| port.clone());
        }
        flows
    }
}

impl Records<Ip4> for ThreeRecords {
    fn len(&self) -> u32 {
        3
    }

    fn word(&self, index: u32, offset: usize) -> &AtomicU32 {
        assert_eq!(offset, 0, "record {index} is only looked at");
        &self.1[index as usize]
    }

    fn read(&self, index: u32) -> Flow<Ip4> {
        self.0[index as usize]
    }
}

fn web() -> Names {
    let frontend = ("10.96.0.1:80".parse().unwrap(), Protocol::Tcp);
    let service = object_name("shop/web").unwrap();
    Names::from([(frontend, (service, "shop/web:http".to_owned()))])
}

#[test]
fn one_line_per_flow() {
    let flows = ThreeRecords::new().report(&web());
    let expected = concat!(
        "PROTOCOL  CLIENT           FRONTEND      ENDPOINT       SOURCE NAT         ",
        "STAGE        IDLE    MODE     SERVICE\n",
        "TCP       192.0.2.7:50000  10.96.0.1:80  10.0.1.5:8080  192.168.0.2:12345  ",
        "half-closed  1m 40s  forward  shop/web:http\n",
    );
    assert_eq!(table::render(&flows, 1), expected);
    assert_eq!(table::render(&flows, 4), format!("{expected}and 3 more\n"));
    assert_eq!(table::render(&[], 0), "No flows.\n");
}

#[test]
fn one_object_per_flow() {
    let flows = ThreeRecords::new().report(&Names::new());
    let expected = json!([{
        "protocol": "TCP",
        "client": "192.0.2.7:50000",
        "frontend": "10.96.0.1:80",
        "service": null,
        "endpoint": "10.0.1.5:8080",
        "sourceNat": "192.168.0.2:12345",
        "stage": "half-closed",
        "idleSeconds": 100,
        "mode": "forward",
    }]);
    assert_eq!(serde_json::to_value(&flows).unwrap(), expected);
}

#[test]
fn services_are_named_with_their_namespace() {
    assert_eq!(object_name("shop/web").unwrap().to_string(), "shop/web");
    for wrong in ["web", "/web", "shop/", ""] {
        assert!(object_name(wrong).is_err(), "{wrong:?}");
    }
}
