//! Source NAT ports and flow records are unique, limited, and reused after some time.

use std::{collections::HashSet, net::SocketAddr};

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{Flow, record::kill, slots::Slots, table},
    parse::Tuple,
    verdict::{Action, Reason},
};
use lb_datapath::memory::Family;
use lb_objects::{IpFamily, TrafficPolicy};
use lb_packet::{
    TCP, UDP,
    tcp_flag::{ACK, FIN, RST, SYN},
};
use node_lb::{config::PortRange, memory::ProgrammedTables, plan::FrontendKind};

use crate::{
    conversation::{Conversation, Side},
    hooks::{Outcome, egress, ingress, through},
    scene::{Client, Place, Scene},
};

#[test]
fn no_two_clients_share_a_port_towards_an_endpoint() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let sources: Vec<_> = (1..=200)
            .map(|port| ingress(&tables, &scene.opening(port)).read().from())
            .collect();
        let distinct: HashSet<_> = sources.iter().collect();
        assert_eq!(distinct.len(), sources.len());
        assert!(sources.iter().all(|source| source.ip() == scene.node()));
        assert_flows(&scene, &tables, 200);
    }
}

#[test]
fn a_connection_without_a_free_port_is_dropped() {
    for scene in Scene::each() {
        let ports = PortRange {
            first: 40_000,
            last: 40_003,
        };
        let scene = Scene { ports, ..scene };
        let mut tables = scene.tables();
        let reasons: Vec<_> = (1..=40)
            .map(|port| ingress(&tables, &scene.opening(port)).reason)
            .collect();
        let opened = reasons
            .iter()
            .filter(|reason| **reason == Reason::Opened)
            .count();
        let exhausted = reasons
            .iter()
            .filter(|r| **r == Reason::SnatPortsExhausted)
            .count();
        assert_eq!((opened, exhausted), (4, 36));
        assert_flows(&scene, &tables, 4);
        assert_eq!(tables.stats(1).connections, 4);
        assert_eq!(tables.stats(1).dropped, 36);
        let shortages = tables.shortages(1);
        assert_eq!(shortages.snat_ports_exhausted, 36);
        assert_eq!(shortages.flow_table_full, 0);

        // Refused clients have left nothing behind.
        kill_all(&tables, &scene);
        tables.bury_dead_flows();
        let refused = reasons
            .iter()
            .zip(1..)
            .filter(|(r, _)| **r == Reason::SnatPortsExhausted);
        for (_, port) in refused.take(4) {
            assert_eq!(
                ingress(&tables, &scene.opening(port)).reason,
                Reason::Opened
            );
        }

        // No other ports are tried if the client keeps its address.
        let scene = Scene {
            endpoints: vec![Place::Local],
            external: TrafficPolicy::Local,
            frontend: FrontendKind::NodePort,
            ..scene
        };
        let tables = scene.tables();
        for port in 1..=40 {
            assert_eq!(
                ingress(&tables, &scene.opening(port)).read().from(),
                scene.client(port)
            );
        }
    }
}

#[test]
fn a_client_that_meets_itself_at_the_endpoint_gets_another_port() {
    for scene in Scene::each() {
        let by_cluster_ip = Scene {
            client: Client::Pod,
            ..scene
        };
        let by_external_ip = Scene {
            frontend: FrontendKind::ExternalIp,
            external: TrafficPolicy::Local,
            ..by_cluster_ip.clone()
        };
        let tables = by_external_ip.tables();
        let first = through(&tables, &by_cluster_ip.opening(4000)).read();
        let second = through(&tables, &by_external_ip.opening(4000)).read();
        assert_eq!(first.from(), by_cluster_ip.client(4000));
        assert_eq!(second.source, first.source, "its address stays");
        assert_ne!(second.from(), first.from());
        for (scene, sent) in [(&by_cluster_ip, first), (&by_external_ip, second)] {
            let answer = through(
                &tables,
                &scene.frame(sent.to(), sent.from(), SYN | ACK, b""),
            );
            let answer = answer.read();
            assert_eq!(
                (answer.from(), answer.to()),
                (scene.target(), scene.client(4000))
            );
        }
    }
}

#[test]
fn a_full_table_refuses_new_flows_and_keeps_the_old() {
    for scene in Scene::each() {
        let scene = Scene {
            flow_records: 64,
            ..scene
        };
        let tables = scene.tables();
        let outcomes: Vec<_> = (1..=200)
            .map(|port| (port, ingress(&tables, &scene.opening(port))))
            .collect();
        let (opened, refused): (Vec<_>, Vec<_>) = outcomes
            .iter()
            .partition(|(_, outcome)| outcome.reason == Reason::Opened);
        assert!(opened.len() > 16, "{}", opened.len());
        assert_flows(&scene, &tables, opened.len());
        for (_, outcome) in &refused {
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Drop, Reason::FlowTableFull)
            );
        }
        let shortages = tables.shortages(1);
        assert_eq!(shortages.flow_table_full, refused.len() as u64);
        assert_eq!(shortages.snat_ports_exhausted, 0);
        for (port, first) in opened {
            let frame = scene.frame(scene.client(*port), scene.target(), ACK, b"");
            let later = ingress(&tables, &frame);
            assert_eq!(later.reason, Reason::ToEndpoint);
            assert_eq!(later.read().from(), first.read().from());
        }
    }
}

#[test]
fn room_comes_back_when_flows_end() {
    for scene in Scene::each() {
        let scene = Scene {
            flow_records: 32,
            ..scene
        };
        let mut tables = scene.tables();
        for round in 0..50 {
            let reason = (1..=100)
                .map(|port| ingress(&tables, &scene.opening(round * 100 + port)).reason)
                .find(|reason| *reason != Reason::Opened);
            assert_eq!(reason, Some(Reason::FlowTableFull));
            kill_all(&tables, &scene);
            tables.bury_dead_flows();
        }
    }
}

#[test]
fn a_syn_reopens_a_closed_connection_only() {
    use Side::{Client, Endpoint};
    const SHAKEN: [(Side, u8); 2] = [(Endpoint, SYN | ACK), (Client, ACK)];
    let of = |more: &[(Side, u8)]| [&SHAKEN[..], more].concat();
    for (history, reopens) in [
        (vec![], false),
        (of(&[]), false),
        (of(&[(Client, FIN | ACK)]), false),
        (of(&[(Endpoint, FIN | ACK)]), false),
        (of(&[(Client, FIN | ACK), (Endpoint, ACK)]), false),
        (of(&[(Client, FIN | ACK), (Endpoint, FIN | ACK)]), false),
        (
            of(&[(Client, FIN | ACK), (Endpoint, FIN | ACK), (Client, ACK)]),
            true,
        ),
        (
            of(&[(Endpoint, FIN | ACK), (Client, FIN | ACK), (Endpoint, ACK)]),
            true,
        ),
        (vec![(Endpoint, RST | ACK)], true),
        (vec![(Client, RST)], true),
        (of(&[(Endpoint, RST)]), true),
        (of(&[(Client, RST)]), true),
    ] {
        for family in [IpFamily::V4, IpFamily::V6] {
            let scene = Scene::new(family, TCP);
            let tables = scene.tables();
            let mut talk = Conversation::new(&scene, &tables, 4000);
            talk.send(Client, SYN, b"");
            for (side, flags) in &history {
                talk.send(*side, *flags, b"");
            }

            let reason = ingress(&tables, &scene.opening(4000)).reason;
            let expected = if reopens {
                Reason::Opened
            } else {
                Reason::ToEndpoint
            };
            assert_eq!(reason, expected, "{history:x?}");
            assert_flows(&scene, &tables, 1);
            assert_eq!(tables.stats(1).connections, 1 + u64::from(reopens));
        }
    }
}

#[test]
fn a_closed_flow_does_not_translate_answers_of_a_connection_past_its_service() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene {
            endpoints: vec![Place::Local],
            client: Client::Pod,
            ..Scene::new(family, TCP)
        };
        assert_makes_way(&scene, scene.client(4000), ingress);
    }
}

/// Another service proxy, or any rule for source NAT, may take a port that node-lb has used.
#[test]
fn a_closed_flow_does_not_translate_answers_to_a_port_that_another_rule_has_taken() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene {
            endpoints: vec![Place::Remote],
            ..Scene::new(family, TCP)
        };
        let first = ingress(&scene.tables(), &scene.opening(4000)).read().from();
        assert_eq!(first.ip(), scene.node());
        assert_makes_way(&scene, first, egress);
    }
}

/// Once a flow is closed, and not before, a SYN from `source`, by which its endpoint knows it, has
/// the answers left alone. The SYN itself always is.
#[track_caller]
fn assert_makes_way(
    scene: &Scene,
    source: SocketAddr,
    hook: fn(&ProgrammedTables, &[u8]) -> Outcome,
) {
    for (last, closed) in [(ACK, false), (FIN | ACK, false), (RST, true)] {
        let tables = scene.tables();
        let endpoint = scene.endpoint(0);
        let mut talk = Conversation::established(scene, &tables, 4000);
        talk.send(Side::Client, last, b"");
        assert_eq!(talk.there, Some((source, endpoint)));

        let past = scene.frame(source, endpoint, SYN, b"");
        assert_eq!(hook(&tables, &past).frame, past);
        let answer = scene.frame(endpoint, source, SYN | ACK, b"answer");
        let untouched = ingress(&tables, &answer).frame == answer;
        assert_eq!(untouched, closed, "after flags {last:x}");
    }
}

#[test]
fn datagrams_never_reopen() {
    let scene = Scene::new(IpFamily::V4, UDP);
    let tables = scene.tables();
    let reasons = [0; 3].map(|_| ingress(&tables, &scene.opening(4000)).reason);
    assert_eq!(
        reasons,
        [Reason::Opened, Reason::ToEndpoint, Reason::ToEndpoint]
    );
}

#[test]
fn established_flows_outlive_their_endpoint() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        let before = ingress(&tables, &scene.opening(4000)).read();
        let other = Scene {
            endpoints: vec![Place::Host, Place::Remote],
            ..scene.clone()
        };
        tables.program(&[Scene {
            endpoints: other.endpoints[1..].to_vec(),
            ..other.clone()
        }
        .plan()]);
        let frame = scene.frame(scene.client(4000), scene.target(), ACK, b"");
        assert_eq!(ingress(&tables, &frame).read().to(), before.to());

        tables.program(&[Scene {
            endpoints: Vec::new(),
            ..other
        }
        .plan()]);
        assert_eq!(ingress(&tables, &frame).read().to(), before.to());
        assert_eq!(
            ingress(&tables, &scene.opening(4001)).reason,
            Reason::NoEndpoints
        );
    }
}

#[test]
fn a_node_without_address_cannot_translate_sources() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        tables.config.node4 = Ip4::default();
        tables.config.node6 = Ip6::default();
        let outcome = ingress(&tables, &scene.opening(4000));
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Drop, Reason::NoNodeAddress)
        );
        assert_flows(&scene, &tables, 0);
    }
}

/// Ends every flow.
pub fn kill_all(tables: &ProgrammedTables, scene: &Scene) {
    match scene.family {
        IpFamily::V4 => kill_all_of::<Ip4>(tables),
        IpFamily::V6 => kill_all_of::<Ip6>(tables),
    }
}

fn kill_all_of<A: Family>(tables: &ProgrammedTables) {
    let flows = tables.flows::<A>();
    for record in (0..=flows.mask()).filter_map(|index| flows.slot(index)) {
        kill(record, 0);
    }
}

/// Asserts that every flow has two live records, each naming the other.
fn assert_flows(scene: &Scene, tables: &ProgrammedTables, count: usize) {
    match scene.family {
        IpFamily::V4 => assert_flows_of::<Ip4>(tables, count),
        IpFamily::V6 => assert_flows_of::<Ip6>(tables, count),
    }
}

fn assert_flows_of<A: Family + std::fmt::Debug>(tables: &ProgrammedTables, count: usize) {
    let flows = tables.flows::<A>();
    let live: Vec<_> = flows.live().collect();
    assert_eq!(live.len(), 2 * count);
    for flow in &live {
        let found = table::find(flows, &flow.tuple()).expect("live records are found");
        let peer = live.iter().find(|peer| opposite(flow) == peer.tuple());
        assert!(peer.is_some(), "{flow:?}");
        assert_eq!(flows.slot(peer.unwrap().peer), Some(found));
    }
}

/// The tuple of packets of a flow's other direction.
fn opposite<A: Family>(flow: &Flow<A>) -> Tuple<A> {
    Tuple {
        source: flow.rewrite.destination,
        destination: flow.rewrite.source,
        source_port: flow.rewrite.destination_port,
        destination_port: flow.rewrite.source_port,
        ..flow.tuple()
    }
}
