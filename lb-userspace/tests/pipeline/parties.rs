//! Parties: how many connections one client may have of its flow schema.

use std::{
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::Barrier,
    thread,
};

use lb_common::{
    pipeline::Copied,
    verdict::{Action, Reason},
};
use lb_objects::IpFamily;
use lb_packet::{
    TCP, UDP,
    tcp_flag::{ACK, RST, SYN},
};
use node_lb::{
    config::AdmissionMode::{self, Audit, Enforce},
    memory::ProgrammedTables,
};

use crate::{
    conversation::{Conversation, Side},
    hooks::{Outcome, ingress},
    levels::{self, index, level},
    pressed::press,
    scene::{Client, Scene},
};

/// A level with room for all, whose flow schema tells parties apart in this way, each of which may have
/// so many connections.
fn objects(distinguisher: &str, most: u32) -> String {
    levels::for_all(
        &format!("limitResponse: {{type: Reject}}, connections: {{maxConnectionsPerFlow: {most}}}"),
        &format!("  distinguisherMethod: {distinguisher}\n"),
    )
}

const CPUS: Range<u16> = 0..8;

const BY_SOURCE: &str = "{type: BySourceIP}";

fn tables(scene: &Scene, objects: &str, mode: AdmissionMode) -> ProgrammedTables {
    levels::tables(scene, objects, mode, 100)
}

/// A client outside the cluster, beside that of the scene: the last octet of its address, or what
/// follows its /48.
fn other(scene: &Scene, number: u8) -> IpAddr {
    match scene.family {
        IpFamily::V4 => IpAddr::from([203, 0, 113, number]),
        IpFamily::V6 => format!("2001:db8:c:{number}::1").parse().unwrap(),
    }
}

fn open_from(scene: &Scene, tables: &ProgrammedTables, from: IpAddr, port: u16) -> Outcome {
    let from = SocketAddr::new(from, port);
    ingress(tables, &scene.frame(from, scene.target(), SYN, b"hello"))
}

fn is_refused(outcome: &Outcome) -> bool {
    let is_refused = outcome.reason == Reason::FlowLimit;
    assert!(!is_refused || outcome.action == Action::Answer);
    is_refused
}

/// Connections refused because a party had as many as it may have.
fn refused(tables: &ProgrammedTables) -> u64 {
    let known = tables.numbered().known();
    let mut schemas = known.schemas.iter();
    let schema = schemas.find(|known| known.name == "tenant").unwrap();
    tables.flow_schema(schema.number).refused_parties
}

#[test]
fn each_client_has_its_own_limit() {
    for scene in Scene::each() {
        let tables = tables(&scene, &objects(BY_SOURCE, 2), Enforce);
        for client in [1, 2] {
            let from = other(&scene, client);
            for port in 1..=2 {
                let outcome = open_from(&scene, &tables, from, port);
                assert_eq!(outcome.reason, Reason::Opened, "{scene:?}");
            }
            for port in 3..=4 {
                assert!(is_refused(&open_from(&scene, &tables, from, port)));
            }
            // The same packet again is the same connection.
            let again = open_from(&scene, &tables, from, 1);
            assert_eq!(again.reason, Reason::ToEndpoint);
        }
        assert_eq!(tables.parties(), [2, 2]);
        let (admitted, over, without_seat) = levels::counted(&tables, "tenant");
        assert_eq!((admitted, over, without_seat), (4, 0, 0));
        assert_eq!(refused(&tables), 4);
        let seats = level(&scene, &tables, "tenant");
        assert_eq!((seats.used(), seats.refused), (4, 0));
    }
}

#[test]
fn a_connection_that_ends_leaves_its_party() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let tables = tables(&scene, &objects(BY_SOURCE, 1), Enforce);
        for port in 1..=3 {
            let mut talk = Conversation::established(&scene, &tables, port);
            assert_eq!(tables.parties(), [1], "{scene:?}");
            let second = ingress(&tables, &scene.opening(1000));
            assert!(is_refused(&second));
            talk.close(Side::Client);
            assert!(tables.parties().is_empty());
        }
        // A client that begins again with the same port replaces its flow.
        Conversation::established(&scene, &tables, 3);
        assert_eq!(tables.parties(), [1]);
    }
}

#[test]
fn flows_of_one_source_are_told_apart_by_prefix_and_service() {
    for scene in Scene::each() {
        let by_prefix = "{type: BySourcePrefix, sourcePrefix: {ipv4: 24, ipv6: 56}}";
        let reasons = |distinguisher: &str| {
            let tables = tables(&scene, &objects(distinguisher, 1), Enforce);
            [1, 2].map(|client| open_from(&scene, &tables, other(&scene, client), 1).reason)
        };
        assert_eq!(reasons(by_prefix), [Reason::Opened, Reason::FlowLimit]);
        let by_service = reasons("{type: ByDestinationService}");
        assert_eq!(by_service, [Reason::Opened, Reason::FlowLimit]);
        // All connections of the schema are one flow.
        assert_eq!(reasons("null"), [Reason::Opened, Reason::FlowLimit]);
        assert_eq!(reasons(BY_SOURCE), [Reason::Opened; 2]);
    }
}

/// A client outside the cluster has a /64, a pod its address.
#[test]
fn ipv6_pods_are_told_apart_by_their_whole_addresses() {
    for (client, expected) in [
        (Client::Outside, Reason::FlowLimit),
        (Client::Pod, Reason::Opened),
    ] {
        let scene = Scene {
            client,
            ..Scene::new(IpFamily::V6, TCP)
        };
        let tables = tables(&scene, &objects(BY_SOURCE, 1), Enforce);
        let reasons = [101, 102].map(|last| {
            let IpAddr::V6(address) = scene.client(1).ip() else {
                panic!("{scene:?}");
            };
            let mut octets = address.octets();
            octets[15] = last;
            open_from(&scene, &tables, octets.into(), 1).reason
        });
        assert_eq!(reasons, [Reason::Opened, expected], "{client:?}");
    }
}

#[test]
fn an_audited_level_lets_in_and_counts() {
    for scene in Scene::each() {
        let tables = tables(&scene, &objects(BY_SOURCE, 1), Audit);
        for port in 1..=3 {
            let outcome = ingress(&tables, &scene.opening(port));
            assert_eq!(outcome.reason, Reason::Opened);
        }
        assert_eq!(tables.parties(), [3]);
        assert_eq!(
            (refused(&tables), levels::counted(&tables, "tenant").1),
            (0, 2)
        );
    }
}

#[test]
fn handshakes_are_in_no_party_while_the_level_is_pressed() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let tables = tables(&scene, &objects(BY_SOURCE, 1), Enforce);
        press(&tables, index(&tables, "tenant"), true);
        // The same client as below, as far as its address tells.
        for port in 1..=10 {
            let spoofed = ingress(&tables, &scene.opening(port));
            assert_eq!(spoofed.reason, Reason::Opened);
        }
        assert!(tables.parties().is_empty());
        Conversation::established(&scene, &tables, 4000);
        assert_eq!(tables.parties(), [1]);
        let outcome = Conversation::new(&scene, &tables, 4001).shake_hands();
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Answer, Reason::ConcurrencyLimit)
        );
        assert_eq!((tables.parties(), refused(&tables)), (vec![1], 1));
        assert_eq!(level(&scene, &tables, "tenant").used(), 1);
    }
}

/// Somebody forges the address of a client.
#[test]
fn a_pressed_party_counts_whoever_completes_the_handshake() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let tables = tables(&scene, &objects(BY_SOURCE, 2), Enforce);
        let opening = ingress(&tables, &scene.opening(1));
        assert_eq!(opening.reason, Reason::Opened);
        tables.press_parties();
        for port in 2..=10 {
            let spoofed = ingress(&tables, &scene.opening(port));
            assert_eq!(spoofed.reason, Reason::Opened);
        }
        assert_eq!(tables.parties(), [1]);
        Conversation::established(&scene, &tables, 4000);
        assert_eq!((members(&scene, &tables), tables.parties()), (2, vec![2]));
        assert!(is_refused(&ingress(&tables, &scene.opening(11))));
        // Others have nothing to do with it.
        let from = other(&scene, 77);
        assert_eq!(open_from(&scene, &tables, from, 1).reason, Reason::Opened);
        assert_eq!(members(&scene, &tables), 3);
    }
}

#[test]
fn a_datagram_belongs_to_a_party_as_well() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene::new(family, UDP);
        let tables = tables(&scene, &objects(BY_SOURCE, 1), Enforce);
        assert_eq!(ingress(&tables, &scene.opening(1)).reason, Reason::Opened);
        assert!(is_refused(&ingress(&tables, &scene.opening(2))));
        assert_eq!(tables.parties(), [1]);
    }
}

/// The connections of all parties, after a check that they are those that hold the level's seats.
fn members(scene: &Scene, tables: &ProgrammedTables) -> u32 {
    let members = tables.parties().iter().sum();
    let used = level(scene, tables, "tenant").used();
    assert_eq!(i64::from(used), i64::from(members), "{scene:?}");
    members
}

#[test]
fn whoever_ends_a_flow_counts_its_party_less() {
    for scene in Scene::each().filter(|scene| scene.protocol == TCP) {
        let mut tables = tables(&scene, &objects(BY_SOURCE, 9), Enforce);
        // Its endpoint refuses one, and resets another, which goes on.
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        assert_eq!(members(&scene, &tables), 1);
        talk.next[Side::Endpoint as usize] = 0;
        talk.send(Side::Endpoint, RST | ACK, b"");
        assert_eq!(members(&scene, &tables), 0);
        let mut talk = Conversation::established(&scene, &tables, 4001);
        let reset = talk.segment(Side::Endpoint, RST | ACK);
        talk.deliver(Side::Endpoint, reset, b"");
        assert_eq!(members(&scene, &tables), 0);
        talk.send(Side::Client, ACK, b"data");
        talk.send(Side::Endpoint, ACK, b"data");
        assert_eq!(members(&scene, &tables), 1, "it goes on");

        // A SYN replaces a flow that is over.
        talk.close(Side::Client);
        let again = ingress(&tables, &scene.opening(4001));
        assert_eq!(
            (again.reason, members(&scene, &tables)),
            (Reason::Opened, 1)
        );

        // In another table, it is the same flow.
        let talk = Conversation::established(&scene, &tables, 4002);
        let (there, next) = (talk.there, talk.next);
        tables.begin_resize(4096);
        let mut talk = Conversation::new(&scene, &tables, 4002);
        (talk.there, talk.next) = (there, next);
        talk.send(Side::Client, ACK, b"data");
        assert_eq!(members(&scene, &tables), 2);
        talk.close(Side::Client);
        assert_eq!(members(&scene, &tables), 1);
        assert!(tables.copy_flows().contains(&Copied::Copied));
        tables.end_resize();
        assert_eq!(members(&scene, &tables), 1);
    }
}

#[test]
fn handshakes_that_give_way_leave_their_party() {
    for scene in Scene::each() {
        let scene = Scene {
            flow_records: 8192,
            ..scene
        };
        let tables = levels::tables(&scene, &objects(BY_SOURCE, 100_000), Enforce, 100_000);
        for port in 1..=2000 {
            let outcome = ingress(&tables, &scene.opening(port));
            assert_eq!(outcome.reason, Reason::Opened);
        }
        let members = members(&scene, &tables);
        assert!(members < 600, "{members}");
    }
}

#[test]
fn on_many_cpus_a_party_has_no_more_than_its_limit() {
    const MOST: u32 = 30;
    for scene in Scene::each() {
        let scene = Scene {
            flow_records: 1 << 12,
            ..scene
        };
        let tables = levels::tables(&scene, &objects(BY_SOURCE, MOST), Enforce, 1000);
        let start = Barrier::new(CPUS.len());
        let opened: u32 = thread::scope(|scope| {
            let run = |cpu: u16| {
                let (scene, tables, start) = (&scene, &tables, &start);
                scope.spawn(move || {
                    start.wait();
                    let outcomes = (1..=40).map(|port| {
                        // Now and then, two find the same free element.
                        let from = other(scene, (port / 10) as u8);
                        open_from(scene, tables, from, port * CPUS.end + cpu)
                    });
                    let opened = outcomes.filter(|outcome| outcome.reason == Reason::Opened);
                    opened.count() as u32
                })
            };
            let cpus: Vec<_> = CPUS.map(run).collect();
            let opened = cpus.into_iter().map(|cpu| cpu.join().unwrap());
            opened.sum()
        });
        assert_eq!(members(&scene, &tables), opened);
        let mut parties = tables.parties();
        parties.sort_unstable();
        assert_eq!(parties, [8, MOST, MOST, MOST, MOST]);
    }
}
