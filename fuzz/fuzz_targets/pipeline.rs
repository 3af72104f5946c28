//! Any frames through the whole pipeline, at every hook, with and without open flows. Every input
//! starts with the same tables, so that it can be repeated.
#![no_main]

use std::cell::RefCell;

use lb_common::{
    abi::config_flag,
    checksum,
    flow::{Ethernet, Hop},
    verdict::{Action, Reason, Verdict},
};
use lb_datapath::memory::{MemoryFrame, Route};
use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, Node, ObjectName, Protocol, RemovedEndpoints,
    Service, ServicePort, ServiceType, SharedName, TrafficPolicy, Weights,
};
use libfuzzer_sys::fuzz_target;
use node_lb::{
    config::PortRange,
    map_writer::{NodeFacts, Settings},
    memory::ProgrammedTables,
    plan::{LocalDetector, LocalNode, PlanOptions, plan},
};

/// Records in each flow table: few, so that inputs fill it and it is quickly forgotten.
const FLOW_RECORDS: u32 = 1 << 6;

const ETHERNET: usize = 14;

thread_local! {
    static TABLES: RefCell<ProgrammedTables> = RefCell::new(tables());
}

fuzz_target!(|input: &[u8]| {
    TABLES.with_borrow_mut(|tables| {
        tables.forget();
        send(tables, input);
    });
});

/// Sends the frames of an input one after the other. Each follows its length in two bytes.
fn send(tables: &ProgrammedTables, input: &[u8]) {
    let mut rest = input;
    while let Some((length, after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(after.len().min(u16::from_be_bytes(*length).into()));
        rest = after;
        for run in [
            |tables: &ProgrammedTables, frame: &mut MemoryFrame| tables.xdp().ingress(frame),
            |tables: &ProgrammedTables, frame: &mut MemoryFrame| tables.tc().ingress(frame),
            |tables: &ProgrammedTables, frame: &mut MemoryFrame| tables.tc().egress(frame),
        ] {
            let mut frame = MemoryFrame::new(bytes.to_vec(), 0);
            let verdict = run(tables, &mut frame);
            check(verdict, bytes, &frame.into_bytes());
        }
    }
}

/// Checks what holds for every frame that leaves the pipeline.
fn check(verdict: Verdict, before: &[u8], after: &[u8]) {
    if verdict.action == Action::Answer {
        assert!(has_valid_checksum(after) != Some(false), "{verdict:?}");
        return;
    }
    assert_eq!(after.len(), before.len(), "only answers change it");
    if !translates(verdict) {
        assert!(after == before, "{verdict:?} changed the frame");
    }
    if has_valid_checksum(before) == Some(true) {
        assert_eq!(has_valid_checksum(after), Some(true), "{verdict:?}");
    }
}

/// Whether a frame with this verdict may have been rewritten.
fn translates(verdict: Verdict) -> bool {
    matches!(
        verdict.reason,
        Reason::Opened
            | Reason::ToEndpoint
            | Reason::ToClient
            | Reason::FollowedFragment
            | Reason::IcmpError
            | Reason::NotWritable
    )
}

/// Whether the checksum of an IPv4 header is right; `None` for other frames.
fn has_valid_checksum(frame: &[u8]) -> Option<bool> {
    let packet = frame.get(ETHERNET..)?;
    let is_ipv4 = frame[12..ETHERNET] == [0x08, 0x00] && packet.first()? >> 4 == 4;
    let header = packet.get(..usize::from(packet.first()? & 0xf) * 4)?;
    let words = header.chunks_exact(2);
    let sum = words.map(|word| u64::from(u16::from_be_bytes([word[0], word[1]])));
    is_ipv4.then(|| checksum::fold(sum.sum()) == 0xffff)
}

/// Services on TCP, UDP and SCTP, 172.30.0.1:80 and fd00:30::1, with two endpoints each.
fn tables() -> ProgrammedTables {
    let addresses = ["192.168.0.2", "2001:db8::2"].map(|ip| ip.parse().expect("an address"));
    let node = Node {
        name: "node-1".into(),
        addresses: addresses.to_vec(),
        ..Node::default()
    };
    let local = LocalNode::new(&node, &addresses, &PlanOptions::default());
    let settings = Settings {
        node: &local,
        detector: &LocalDetector::None,
        flags: config_flag::MASQUERADE_ALL | config_flag::BYPASS | config_flag::SCTP,
        ports: PortRange {
            first: 10_000,
            last: 29_999,
        },
    };
    let facts = NodeFacts {
        local_addresses: addresses.into(),
        ..NodeFacts::default()
    };
    let mut tables = ProgrammedTables::new(&settings, facts, FLOW_RECORDS);
    let slices = [["10.0.0.1", "10.0.1.1"], ["fd00:10::1", "fd00:10::2"]].map(slice);
    let plans = plan(&service(), &slices.iter().collect::<Vec<_>>(), &local);
    tables.program(&plans.ports);
    let hop = Hop {
        ifindex: 1,
        ethernet: Ethernet::default(),
        mtu: 1500,
        ..Hop::default()
    };
    for everywhere in ["0.0.0.0/0", "::/0"] {
        tables.add_route(everywhere.parse().expect("a network"), Route::To(hop));
    }
    tables
}

fn service() -> Service {
    Service {
        name: name("web"),
        uid: None,
        created: 0,
        service_type: ServiceType::NodePort,
        cluster_ips: ["172.30.0.1", "fd00:30::1"]
            .map(|ip| ip.parse().expect("an address"))
            .into(),
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        ports: [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(|protocol| ServicePort {
                name: SharedName::default(),
                protocol,
                port: 80,
                node_port: 30_080,
            })
            .into(),
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Local,
        load_balancer_source_ranges: Vec::new(),
        health_check_node_port: 0,
        session_affinity: None,
        algorithm: Algorithm::Random,
        weights: Weights::default(),
        slow_start: None,
        removed_endpoints: RemovedEndpoints::Keep,
        max_connections: 0,
        hash_balance_factor: 0,
        max_connections_per_endpoint: 0,
        long_running: false,
    }
}

/// The first endpoint is on this node.
fn slice(addresses: [&str; 2]) -> EndpointSlice {
    let endpoints = addresses.into_iter().zip(["node-1", "node-2"]);
    EndpointSlice {
        name: name(addresses[0]),
        service: "web".into(),
        weight: 1,
        ports: [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(|protocol| EndpointPort {
                name: SharedName::default(),
                protocol,
                port: 8080,
            })
            .into(),
        endpoints: endpoints
            .map(|(address, node)| Endpoint {
                address: address.parse().expect("an address"),
                ready: true,
                serving: true,
                terminating: false,
                node_name: Some(node.into()),
                zone_hints: Box::default(),
                node_hints: Box::default(),
            })
            .collect(),
    }
}

fn name(name: &str) -> ObjectName {
    ObjectName::new("shop", name)
}
