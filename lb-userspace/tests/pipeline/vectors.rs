//! kube-proxy's behaviour vectors as packets: every first packet of the scenarios, from many ports.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use lb_common::{
    abi::config_flag,
    verdict::{Action, Reason},
};
use lb_datapath::memory::Route;
use lb_packet::{Header, Read, TCP, tcp_flag::SYN};
use lb_vectors::{Fixture, Packet, Scenario, Vectors};
use node_lb::{
    map_writer::{NodeFacts, Settings},
    memory::ProgrammedTables,
    plan::{ServicePlan, plan},
};

use crate::{
    hooks::{self, Outcome},
    scene::{self, SNAT},
};

/// Enough connections that every endpoint of a set is chosen.
const CONNECTIONS: u16 = 200;

#[test]
fn first_packets_are_treated_as_by_kube_proxy() {
    let Vectors { flows, .. } = Vectors::load();
    for scenario in &flows.scenarios {
        for packet in &scenario.packets {
            // If connections shared ports with those of another packet, they would change each
            // other's ports.
            let tables = tables(scenario, &flows.fixture);
            let what = format!("{} {}", scenario.id, packet.name);
            let outcomes = connections(&tables, packet);
            let (verdict, endpoints, source_nat) = observed(&outcomes, packet.source);
            assert_eq!(verdict, packet.expect.verdict, "{what}");
            assert_eq!(endpoints, expected_endpoints(packet), "{what}");
            if let Some(expected) = packet.expect.source_nat {
                assert_eq!(source_nat, BTreeSet::from([expected]), "{what}");
            }
        }
    }
}

fn tables(scenario: &Scenario, fixture: &Fixture) -> ProgrammedTables {
    let node = scenario.local_node(fixture);
    let masquerade_all = match scenario.masquerade_all() {
        true => config_flag::MASQUERADE_ALL,
        false => 0,
    };
    let settings = Settings {
        node: &node,
        detector: &scenario.detector(fixture),
        flags: config_flag::BYPASS | masquerade_all,
        ports: SNAT,
    };
    let facts = NodeFacts {
        local_addresses: fixture.local_addresses().into_iter().collect(),
        ..NodeFacts::default()
    };
    let mut tables = ProgrammedTables::new(&settings, facts, 1 << 14);
    let services = scenario.services();
    let plans: Vec<ServicePlan> = services
        .iter()
        .map(|(service, slices)| plan(service, &slices.iter().collect::<Vec<_>>(), &node))
        .collect();
    tables.program(plans.iter().flat_map(|service| &service.ports));
    for everywhere in ["0.0.0.0/0", "::/0"] {
        tables.add_route(everywhere.parse().unwrap(), Route::To(scene::hop(1)));
    }
    tables
}

fn connections(tables: &ProgrammedTables, packet: &Packet) -> Vec<Outcome> {
    let to = SocketAddr::new(packet.destination, packet.port);
    (0..CONNECTIONS)
        .map(|connection| {
            let from = SocketAddr::new(packet.source, 1024 + connection);
            let segment = lb_packet::tcp(from, to, SYN, b"");
            let frame = Header::new(from.ip(), to.ip()).frame(TCP, &segment);
            hooks::ingress(tables, &frame)
        })
        .collect()
}

/// The common verdict on a packet's connections, where they went, and whether with source NAT.
fn observed(
    outcomes: &[Outcome],
    source: IpAddr,
) -> (&'static str, BTreeSet<SocketAddr>, BTreeSet<bool>) {
    let verdicts: BTreeSet<_> = outcomes.iter().map(verdict).collect();
    let forwarded = outcomes
        .iter()
        .filter(|outcome| outcome.reason == Reason::Opened);
    let packets: Vec<_> = forwarded.map(Outcome::read).collect();
    let source_nat = packets
        .iter()
        .map(|read| (SNAT.first..=SNAT.last).contains(&read.from().port()))
        .collect();
    assert!(
        source_nat == BTreeSet::from([true]) || packets.iter().all(|read| read.source == source)
    );
    let endpoints = packets.iter().map(Read::to).collect();
    assert_eq!(verdicts.len(), 1, "{verdicts:?}");
    (verdicts.into_iter().next().unwrap(), endpoints, source_nat)
}

fn verdict(outcome: &Outcome) -> &'static str {
    match (outcome.action, outcome.reason) {
        (Action::Redirect | Action::Pass, Reason::Opened) => "forward",
        (Action::Answer, Reason::NoEndpoints) => "reject",
        (Action::Drop, Reason::NoLocalEndpoints | Reason::SourceRange) => "drop",
        (Action::Pass, Reason::NotService) => "pass",
        other => panic!("{other:?}"),
    }
}

fn expected_endpoints(packet: &Packet) -> BTreeSet<SocketAddr> {
    let endpoints = packet.expect.endpoints.iter();
    endpoints
        .map(|endpoint| endpoint.parse().unwrap())
        .collect()
}
