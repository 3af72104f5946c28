//! What a flood cannot take from others: half-open places, source NAT ports, and records.

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use lb_common::{
    addr::Ip4,
    flow::{Stage, Timeouts, claim::GRACE},
    pipeline::WITHOUT_RING,
    verdict::Reason,
};
use lb_objects::IpFamily;
use lb_packet::{
    TCP, Tcp, UDP,
    tcp_flag::{ACK, FIN, RST, SYN},
};
use node_lb::{config::PortRange, memory::ProgrammedTables};

use crate::{
    conversation::{Conversation, Side, half_open},
    hooks::ingress,
    scene::Scene,
};

/// Places for a service's half-open flows: the free ones, and the ring in memory.
const PLACES: usize = WITHOUT_RING as usize + RING;
const RING: usize = 256;

fn scenes() -> impl Iterator<Item = Scene> {
    [IpFamily::V4, IpFamily::V6]
        .into_iter()
        .map(|family| Scene {
            flow_records: 1 << 16,
            ..Scene::new(family, TCP)
        })
}

#[test]
fn in_a_flood_the_oldest_handshake_gives_way() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut opened = Vec::new();
        for port in 1..=2000 {
            let mut talk = Conversation::new(&scene, &tables, port);
            // Answered or not, the flow has not proved itself.
            assert_eq!(talk.send(Side::Client, SYN, b"").reason, Reason::Opened);
            if port % 2 == 0 {
                talk.send(Side::Endpoint, SYN | ACK, b"");
            }
            opened.push(talk);
        }
        assert_eq!(half_open(&tables, &scene), PLACES);
        assert_eq!(tables.stats(1).half_open as usize, PLACES);
        assert_eq!(tables.stats(1).gave_way as usize, 2000 - PLACES);
        let kept: Vec<_> = opened.iter().map(|talk| talk.stage().is_some()).collect();
        assert!(kept[..WITHOUT_RING as usize].iter().all(|kept| *kept));
        assert!(kept[2000 - RING..].iter().all(|kept| *kept), "the newest");
        assert!(!kept[WITHOUT_RING as usize..2000 - RING].contains(&true));
    }
}

#[test]
fn who_finishes_the_handshake_stays_whatever_comes_after() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut flood = 20_000u16..;
        let mut spoof = |count| {
            for port in flood.by_ref().take(count) {
                ingress(&tables, &scene.opening(port));
            }
        };
        spoof(500);
        let mut good = Vec::new();
        for port in 1..=50 {
            let mut talk = Conversation::new(&scene, &tables, port);
            talk.send(Side::Client, SYN, b"");
            // During a round trip, a part of the ring goes to other flows.
            spoof(RING / 2);
            talk.send(Side::Endpoint, SYN | ACK, b"");
            spoof(RING / 4);
            talk.send(Side::Client, ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::Established));
            good.push(talk);
        }
        spoof(3 * RING);
        for talk in &mut good {
            assert_eq!(talk.stage(), Some(Stage::Established));
            assert_eq!(
                talk.send(Side::Client, ACK, b"x").reason,
                Reason::ToEndpoint
            );
        }
        assert_eq!(
            tables.stats(1).half_open as usize,
            half_open(&tables, &scene)
        );
    }
}

#[test]
fn unreplied_datagrams_give_way_too() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene {
            flow_records: 1 << 14,
            ..Scene::new(family, UDP)
        };
        let tables = scene.tables();
        let first = ingress(&tables, &scene.opening(9)).read();
        ingress(
            &tables,
            &scene.frame(first.to(), first.from(), 0, b"answer"),
        );
        ingress(&tables, &scene.opening(9));
        for port in 1000..3000 {
            ingress(&tables, &scene.opening(port));
        }
        assert_eq!(half_open(&tables, &scene), PLACES);
        let again = ingress(&tables, &scene.opening(9));
        assert_eq!(again.reason, Reason::ToEndpoint, "who was answered stays");
        assert_eq!(again.read().from(), first.from());
    }
}

#[test]
fn segments_of_no_connection_open_nothing_while_a_service_is_pressed() {
    for scene in scenes() {
        let tables = scene.tables();
        for port in 1..=WITHOUT_RING as u16 {
            let stray = scene.frame(scene.client(port), scene.target(), ACK, b"");
            assert_eq!(ingress(&tables, &stray).reason, Reason::Opened);
        }
        let stray = scene.frame(scene.client(5000), scene.target(), ACK, b"");
        assert_eq!(ingress(&tables, &stray).reason, Reason::StraySegment);
        assert_eq!(half_open(&tables, &scene), WITHOUT_RING as usize);
        assert_eq!(
            ingress(&tables, &scene.opening(5000)).reason,
            Reason::Opened
        );
    }
}

/// Ports are handed out in turn: one that was just used comes last.
#[test]
fn ports_are_used_in_turn() {
    for scene in scenes() {
        let ports = PortRange {
            first: 40_000,
            last: 40_031,
        };
        let scene = Scene { ports, ..scene };
        let tables = scene.tables();
        let mut used = Vec::new();
        for port in 1..=32 {
            let mut talk = Conversation::established(&scene, &tables, port);
            used.push(talk.there.unwrap().0.port());
            talk.close(Side::Client);
        }
        let distinct: HashSet<_> = used.iter().collect();
        assert_eq!(distinct.len(), 32, "each port once before any comes again");
        // The endpoint has forgotten all of them, because the client closed first.
        for (port, expected) in (100..132).zip(used) {
            let talk = Conversation::established(&scene, &tables, port);
            assert_eq!(talk.there.unwrap().0.port(), expected);
        }
    }
}

/// Each Service counts on its own, but the ports towards an endpoint that they share are one set.
#[test]
fn services_that_share_an_endpoint_find_ports_that_the_others_have_not_taken() {
    for scene in scenes() {
        let ports = PortRange {
            first: 40_000,
            last: 40_999,
        };
        let scene = Scene { ports, ..scene };
        let (tables, targets) = services_of_one_endpoint(&scene, [80, 81, 82]);
        for target in targets {
            for port in 1..=200 {
                let syn = scene.frame(scene.client(port), target, SYN, b"");
                assert_eq!(ingress(&tables, &syn).reason, Reason::Opened, "{target}");
            }
        }
    }
}

/// No connection that has proved itself gives way. So a Service may have its share of the table. If
/// it opens more, it is refused, while others have room.
#[test]
fn a_service_that_has_its_share_of_the_table_is_refused_alone() {
    for scene in scenes() {
        let (mut tables, [greedy, other]) = services_of_one_endpoint(&scene, [80, 81]);
        assert_eq!(greedy, scene.target());
        let records = scene.flow_records;
        tables.shares = [(FLOWS * 2 * (1 << 16) / records) as u16; 2];
        let established = |port| {
            let mut talk = Conversation::new(&scene, &tables, port);
            assert_eq!(talk.send(Side::Client, SYN, b"").reason, Reason::Opened);
            talk.send(Side::Endpoint, SYN | ACK, b"");
            talk.send(Side::Client, ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::Established));
            talk
        };
        let mut talks: Vec<_> = (1..=FLOWS as u16).map(established).collect();
        let open = |target, port| {
            let syn = scene.frame(scene.client(port), target, SYN, b"");
            ingress(&tables, &syn).reason
        };
        assert_eq!(open(greedy, 1000), Reason::FlowTableFull);
        assert_eq!(open(greedy, 1), Reason::ToEndpoint, "its flow is known");
        for port in 2000..2000 + FLOWS as u16 {
            assert_eq!(open(other, port), Reason::Opened);
        }
        let services = 1..=3;
        let refused = services
            .clone()
            .map(|service| tables.shortages(service).flow_table_full);
        assert_eq!(refused.sum::<u64>(), 1);
        let counted = services.map(|service| tables.flow_count(service));
        assert_eq!(counted.sum::<i32>(), 2 * FLOWS as i32);

        // What ends makes room.
        talks[0].send(Side::Client, RST, b"");
        assert_eq!(
            open(greedy, 1),
            Reason::FlowTableFull,
            "its own has just made way"
        );
        assert_eq!(open(greedy, 1), Reason::Opened);
    }
}

/// Half-open flows have a budget in which the oldest gives way. However small the share is, none of
/// them causes the refusal of a real client.
#[test]
fn half_open_flows_are_not_counted_towards_a_share() {
    for scene in scenes() {
        let mut tables = scene.tables();
        tables.shares = [(FLOWS * 2 * (1 << 16) / scene.flow_records) as u16; 2];
        for port in 1..=2000 {
            let mut talk = Conversation::new(&scene, &tables, port);
            assert_eq!(talk.send(Side::Client, SYN, b"").reason, Reason::Opened);
        }
        assert_eq!(half_open(&tables, &scene), PLACES);
    }
}

/// The number of flows in a Service's share.
const FLOWS: u32 = 32;

/// Two Services with one endpoint have budgets for more half-open flows than the endpoint has
/// ports. But an attack on both takes no port from others for long: neither from their own clients,
/// nor from those of a third Service.
#[test]
fn half_open_flows_of_attacked_services_give_ports_up() {
    for scene in scenes() {
        let ports = PortRange {
            first: 40_000,
            last: 40_599,
        };
        let scene = Scene { ports, ..scene };
        let (tables, [first, second, third]) = services_of_one_endpoint(&scene, [80, 81, 82]);
        let open = |target, port| {
            let syn = scene.frame(scene.client(port), target, SYN, b"");
            ingress(&tables, &syn).reason
        };
        // Flows of a Service that is not attacked keep their ports.
        for port in 1..=20 {
            assert_eq!(open(third, port), Reason::Opened);
        }
        // The attack takes all other ports in one moment, several times over.
        for port in 1..=600 {
            assert_eq!(open(first, port), Reason::Opened, "{port}");
            assert_eq!(open(second, port), Reason::Opened, "{port}");
        }
        assert_eq!(open(third, 100), Reason::Opened);
        for round in 1..20 {
            tables.set_seconds(2 * u32::from(round));
            for port in 0..50 {
                let port = 1000 + round * 50 + port;
                assert_eq!(open(first, port), Reason::Opened, "{port}");
                assert_eq!(open(second, port), Reason::Opened, "{port}");
            }
            assert_eq!(open(third, 100 + round), Reason::Opened);
            // Where others have been silent for longer, flows that were just opened keep theirs.
            for port in 0..50 {
                let port = 1000 + round * 50 + port;
                assert_eq!(open(first, port), Reason::ToEndpoint, "{port}");
                assert_eq!(open(second, port), Reason::ToEndpoint, "{port}");
            }
        }
        let stats = (1..=4).map(|service| tables.stats(service));
        let found: Vec<_> = stats
            .map(|stats| (stats.half_open, stats.gave_way))
            .collect();
        assert!(found.contains(&(20 + 1 + 19, 0)), "{found:?}");
    }
}

/// If the endpoint closed first, it remembers the port (TIME-WAIT). A SYN that it takes even so
/// gets the port; another SYN does not.
#[test]
fn a_port_that_the_endpoint_remembers_goes_to_a_syn_that_it_takes() {
    let newer = |at: u32| at.wrapping_add(10);
    let older = |at: u32| at.wrapping_sub(10);
    const STAMP: u32 = u32::MAX - 5;
    for scene in scenes() {
        let ports = PortRange {
            first: 40_000,
            last: 40_000,
        };
        let scene = Scene { ports, ..scene };
        for (stamps, sequence, stamp, opens) in [
            // By timestamps, if both have them, whatever the sequence numbers are.
            (true, older as fn(u32) -> u32, Some(newer(STAMP)), true),
            (true, newer, Some(older(STAMP)), false),
            (true, newer, Some(STAMP), false),
            // Else by sequence number.
            (true, newer, None, true),
            (true, older, None, false),
            (false, newer, Some(older(STAMP)), true),
            (false, older, Some(newer(STAMP)), false),
        ] {
            let tables = scene.tables();
            let mut talk = Conversation::new(&scene, &tables, 4000);
            talk.stamps = [stamps.then_some(STAMP); 2];
            talk.shake_hands();
            talk.close(Side::Endpoint);
            assert_eq!(talk.stage(), Some(Stage::Closed));
            let syn = Tcp {
                stamp,
                ..Tcp::new(sequence(talk.next[0]), 0, SYN)
            };
            let mut other = Conversation::new(&scene, &tables, 4001);
            let reason = other.deliver(Side::Client, syn, b"").reason;
            let expected = match opens {
                true => Reason::Opened,
                false => Reason::SnatPortsExhausted,
            };
            assert_eq!(reason, expected, "{stamps} {syn:?}");
            assert_eq!(talk.stage().is_none(), opens, "its port went to the other");
        }
    }
}

#[test]
fn a_port_in_use_is_never_taken() {
    for scene in scenes() {
        let ports = PortRange {
            first: 40_000,
            last: 40_000,
        };
        let scene = Scene { ports, ..scene };
        for last in [ACK, FIN | ACK] {
            let tables = scene.tables();
            let mut talk = Conversation::established(&scene, &tables, 4000);
            talk.send(Side::Endpoint, last, b"");
            let refused = ingress(&tables, &scene.opening(4001)).reason;
            assert_eq!(refused, Reason::SnatPortsExhausted);
            assert!(talk.stage().is_some());
            // A reset ends it for both sides.
            talk.send(Side::Endpoint, RST, b"");
            assert_eq!(
                ingress(&tables, &scene.opening(4001)).reason,
                Reason::Opened
            );
        }
    }
}

/// There is no sweeper here: flows that are over make room for new ones.
#[test]
fn room_comes_back_without_an_agent() {
    for scene in scenes() {
        let scene = Scene {
            flow_records: 256,
            ..scene
        };
        let mut tables = scene.tables();
        tables.timeouts = timeouts();
        let mut seconds = 0;
        let mut port = 0;
        for round in 0..40 {
            let mut opened = 0;
            for _ in 0..100 {
                port += 1;
                let mut talk = Conversation::new(&scene, &tables, port);
                if talk.send(Side::Client, SYN, b"").reason == Reason::Opened {
                    talk.send(Side::Endpoint, SYN | ACK, b"");
                    talk.send(Side::Client, ACK, b"");
                    talk.close(Side::Client);
                    opened += 1;
                }
                seconds += 1;
                tables.set_seconds(seconds);
            }
            assert!(opened >= 95, "round {round}: {opened}");
        }
        assert_eq!(
            tables.stats(1).half_open as usize,
            half_open(&tables, &scene)
        );
    }
}

#[test]
fn a_dead_record_is_left_alone_for_the_grace() {
    let scene = Scene {
        flow_records: 32,
        ..Scene::new(IpFamily::V4, TCP)
    };
    let mut tables = scene.tables();
    tables.timeouts = timeouts();
    fill(&scene, &tables);
    // All are over now, and end when a search passes over them. No flow has room yet.
    tables.set_seconds(100);
    for port in 1000..1040 {
        let reason = ingress(&tables, &scene.opening(port)).reason;
        assert_eq!(reason, Reason::FlowTableFull);
    }
    let dead = 32 - tables.flows::<Ip4>().live().count();
    assert!(dead >= 16, "{dead}");
    tables.set_seconds(100 + GRACE as u32);
    assert_eq!(
        ingress(&tables, &scene.opening(2000)).reason,
        Reason::FlowTableFull
    );
    tables.set_seconds(100 + GRACE as u32 + 1);
    assert_eq!(
        ingress(&tables, &scene.opening(2000)).reason,
        Reason::Opened
    );
}

#[test]
fn what_lives_does_not_make_room() {
    let scene = Scene {
        flow_records: 32,
        ..Scene::new(IpFamily::V4, TCP)
    };
    let mut tables = scene.tables();
    tables.timeouts = timeouts();
    let mut live = Vec::new();
    for port in 1..=40 {
        let mut talk = Conversation::new(&scene, &tables, port);
        if talk.send(Side::Client, SYN, b"").reason == Reason::Opened {
            talk.send(Side::Endpoint, SYN | ACK, b"");
            talk.send(Side::Client, ACK, b"");
            live.push(talk);
        }
    }
    for seconds in [50, 500, 900] {
        tables.set_seconds(seconds);
        for port in 1000..1100 {
            ingress(&tables, &scene.opening(port));
        }
        assert!(
            live.iter()
                .all(|talk| talk.stage() == Some(Stage::Established))
        );
    }
}

/// Opens flows until there is no room left for any.
fn fill(scene: &Scene, tables: &ProgrammedTables) {
    for port in 1..=200 {
        ingress(tables, &scene.opening(port));
    }
    assert_eq!(tables.flows::<Ip4>().live().count(), 32);
}

fn timeouts() -> Timeouts {
    Timeouts {
        tcp: [5, 5, 1000, 100, 2],
        udp: [5; 5],
        port_held: 5,
        shortest: 0,
    }
    .with_shortest()
}

/// The scene's Service and more like it: their addresses at these ports.
fn services_of_one_endpoint<const N: usize>(
    scene: &Scene,
    ports: [u16; N],
) -> (ProgrammedTables, [SocketAddr; N]) {
    let mut tables = scene.tables();
    let plans = ports.map(|port| {
        let mut plan = scene.plan();
        Arc::make_mut(&mut plan.name).port = port.to_string().into();
        for frontend in Arc::make_mut(&mut plan.frontends) {
            frontend.address.set_port(port);
        }
        plan
    });
    tables.program(&plans);
    let ip = scene.target().ip();
    (tables, ports.map(|port| SocketAddr::new(ip, port)))
}
