//! Limits of connections: who is let in, who is refused and how, and when a seat comes back.

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{
        Stage,
        limit::{NODE, Seats},
    },
    pipeline::Copied,
    verdict::{Action, Reason},
};
use lb_datapath::memory::Family;
use lb_objects::IpFamily;
use lb_packet::{
    Chunk, SCTP, TCP, Tcp, UDP, chunk, sctp,
    tcp_flag::{ACK, FIN, RST, SYN},
};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side, flows, half_open},
    hooks::{Outcome, ingress, ingress_of_before},
    scene::{Limits, Place, Scene},
};

/// Index of the Service's limit.
pub const SERVICE: u32 = 1;

/// Scenes of both families and protocols with these limits.
fn limited(limits: Limits) -> impl Iterator<Item = Scene> {
    Scene::each().map(move |scene| Scene { limits, ..scene })
}

/// Those of TCP.
pub fn limited_tcp(limits: Limits) -> impl Iterator<Item = Scene> {
    limited(limits).filter(|scene| scene.protocol == TCP)
}

/// A limit of the Service alone.
pub fn of_service(most: u32) -> Limits {
    Limits {
        service: most,
        ..Limits::default()
    }
}

/// The seats in use, after a check that flows hold them.
pub fn in_use(scene: &Scene, tables: &ProgrammedTables, index: u32) -> u32 {
    fn held<A: Family>(tables: &ProgrammedTables, index: u32) -> usize {
        let former = tables.former_flows::<A>().into_iter();
        let live = former
            .chain([tables.flows::<A>()])
            .flat_map(|flows| flows.live());
        let holds = |place: lb_common::flow::place::Place| match index {
            NODE => place.has_node(),
            _ => place.service() == index,
        };
        live.filter(|flow| holds(flow.place())).count()
    }
    let held = match scene.family {
        IpFamily::V4 => held::<Ip4>(tables, index),
        IpFamily::V6 => held::<Ip6>(tables, index),
    };
    let used = tables.seats(index).used();
    assert_eq!(usize::try_from(used), Ok(held), "limit {index}");
    held as u32
}

pub fn open(scene: &Scene, tables: &ProgrammedTables, port: u16) -> Outcome {
    ingress(tables, &scene.opening(port))
}

pub fn assert_refused(scene: &Scene, outcome: &Outcome) {
    assert_eq!(
        (outcome.action, outcome.reason),
        (Action::Answer, Reason::ConcurrencyLimit)
    );
    let answer = outcome.read();
    answer.assert_checksums();
    assert_eq!(answer.source, scene.target().ip());
    if scene.protocol == TCP {
        assert_eq!(answer.from(), scene.target());
        let header = &answer.payload()[..20];
        let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        let sent = Conversation::first_of(&scene.opening(1));
        // The SYN and five bytes of data.
        assert_eq!((number(4), number(8)), (0, sent.wrapping_add(6)));
        assert_eq!(header[13], RST | ACK);
    } else if scene.protocol == SCTP {
        // With the tag that the INIT asks for.
        let expected = sctp(
            scene.target(),
            scene.client(answer.to().port()),
            7,
            &[Chunk::new(chunk::ABORT)],
        );
        assert_eq!(answer.payload(), expected);
    } else {
        let kind = match scene.family {
            IpFamily::V4 => (3, 3),
            IpFamily::V6 => (1, 4),
        };
        assert_eq!(answer.icmp_kind(), kind);
    }
}

#[test]
fn without_a_limit_no_seat_is_taken() {
    for scene in limited(Limits::default()) {
        let tables = scene.tables();
        for port in 1..=3 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        assert_eq!(tables.seats(NODE), Seats::default());
        assert_eq!(tables.seats(SERVICE), Seats::default());
    }
}

#[test]
fn beyond_a_limit_connections_are_refused_at_once() {
    let of_node = Limits {
        node: 2,
        ..Limits::default()
    };
    for (limits, index) in [(of_service(2), SERVICE), (of_node, NODE)] {
        for scene in limited(limits) {
            let tables = scene.tables();
            for port in 1..=2 {
                assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
            }
            for port in 3..=5 {
                assert_refused(&scene, &open(&scene, &tables, port));
            }
            assert_eq!(
                (flows(&tables, &scene), in_use(&scene, &tables, index)),
                (2, 2)
            );
            let seats = tables.seats(index);
            assert_eq!((seats.refused, seats.highest, seats.taken()), (3, 2, 2));
            assert_eq!(tables.stats(1).rejected, 3);
            // Those that are open go on.
            assert_eq!(open(&scene, &tables, 1).reason, Reason::ToEndpoint);
        }
    }
}

#[test]
fn seats_of_the_node_and_of_the_service_are_taken_both_or_neither() {
    let limits = |node, service| Limits {
        node,
        service,
        ..Limits::default()
    };
    for (limits, refusing) in [(limits(2, 9), NODE), (limits(9, 2), SERVICE)] {
        for scene in limited(limits) {
            let tables = scene.tables();
            (1..=5).for_each(|port| drop(open(&scene, &tables, port)));
            assert_eq!(in_use(&scene, &tables, NODE), 2);
            assert_eq!(in_use(&scene, &tables, SERVICE), 2);
            for index in [NODE, SERVICE] {
                let refused = if index == refusing { 3 } else { 0 };
                assert_eq!(tables.seats(index).refused, refused);
            }
        }
    }
}

#[test]
fn a_connection_without_room_leaves_its_seat() {
    for scene in limited(of_service(1000)) {
        let scene = Scene {
            flow_records: 64,
            ..scene
        };
        let tables = scene.tables();
        let outcomes = (1..=100).map(|port| open(&scene, &tables, port).reason);
        let full = outcomes.filter(|reason| *reason == Reason::FlowTableFull);
        assert!(full.count() > 0);
        let open = flows(&tables, &scene) as u32;
        assert_eq!(in_use(&scene, &tables, SERVICE), open);
    }
}

#[test]
fn a_connection_that_both_sides_have_closed_gives_its_seat_back() {
    for scene in limited_tcp(of_service(1)) {
        for first in Side::BOTH {
            let tables = scene.tables();
            let mut talk = Conversation::established(&scene, &tables, 4000);
            talk.send(first, FIN | ACK, b"");
            assert_eq!(in_use(&scene, &tables, SERVICE), 1, "half of it is open");
            talk.send(first.other(), FIN | ACK, b"");
            assert_eq!(in_use(&scene, &tables, SERVICE), 1, "perhaps it was lost");
            talk.send(first, ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::Closed));
            assert_eq!(in_use(&scene, &tables, SERVICE), 0);
            assert_eq!(open(&scene, &tables, 5).reason, Reason::Opened);
        }
    }
}

#[test]
fn a_syn_on_a_closed_connection_takes_a_seat_of_its_own() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 4000);
        talk.close(Side::Client);
        assert_eq!(open(&scene, &tables, 4000).reason, Reason::Opened);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
        assert_eq!(flows(&tables, &scene), 1);
        assert_refused(&scene, &open(&scene, &tables, 5));
    }
}

#[test]
fn an_endpoint_that_refuses_or_resets_gives_the_seat_back_at_once() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        assert_eq!(in_use(&scene, &tables, SERVICE), 1, "a handshake counts");
        talk.next[Side::Endpoint as usize] = 0;
        talk.send(Side::Endpoint, RST | ACK, b"");
        assert_eq!(in_use(&scene, &tables, SERVICE), 0);

        let mut talk = Conversation::established(&scene, &tables, 4001);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
        let forged = Tcp::new(0x1234_5678, 0x1234_5678, RST);
        talk.deliver(Side::Endpoint, forged, b"");
        assert_eq!(in_use(&scene, &tables, SERVICE), 1, "out of the window");
        talk.send(Side::Endpoint, RST | ACK, b"");
        assert_eq!(in_use(&scene, &tables, SERVICE), 0);
        talk.send(Side::Endpoint, RST | ACK, b"");
        assert_eq!(in_use(&scene, &tables, SERVICE), 0, "once");
    }
}

#[test]
fn a_clients_reset_buys_no_seat_back() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 4000);
        talk.send(Side::Client, RST | ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Closed));
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
        assert_refused(&scene, &open(&scene, &tables, 5));
        talk.send(Side::Endpoint, ACK, b"it goes on");
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
        // Its own SYN ends it.
        talk.send(Side::Client, RST | ACK, b"");
        assert_eq!(open(&scene, &tables, 4000).reason, Reason::Opened);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
    }
}

#[test]
fn an_endpoint_that_goes_on_after_its_reset_has_its_seat_again() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 4000);
        let reset = talk.segment(Side::Endpoint, RST | ACK);
        talk.deliver(Side::Endpoint, reset, b"");
        assert_eq!(in_use(&scene, &tables, SERVICE), 0);
        assert_eq!(open(&scene, &tables, 5).reason, Reason::Opened);
        // Nobody has obeyed it.
        talk.send(Side::Client, ACK, b"data");
        assert_eq!(talk.stage(), Some(Stage::Established));
        talk.send(Side::Endpoint, ACK, b"data");
        assert_eq!(in_use(&scene, &tables, SERVICE), 2, "above the limit");
        assert_eq!(tables.seats(SERVICE).recovered, 1);
    }
}

#[test]
fn a_half_open_flow_that_gives_way_gives_its_seat_back() {
    for scene in limited(of_service(100_000)) {
        let scene = Scene {
            flow_records: 8192,
            ..scene
        };
        let tables = scene.tables();
        for port in 1..=2000 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        let open = half_open(&tables, &scene) as u32;
        assert!(open < 600, "{open}");
        assert_eq!(in_use(&scene, &tables, SERVICE), open);
    }
}

#[test]
fn a_connection_in_progress_is_let_in_above_the_limit() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        open(&scene, &tables, 1);
        let mut talk = Conversation::new(&scene, &tables, 4000);
        assert_eq!(talk.send(Side::Client, ACK, b"data").reason, Reason::Opened);
        assert_eq!(in_use(&scene, &tables, SERVICE), 2);
        assert_eq!(tables.seats(SERVICE).recovered, 1);
        talk.send(Side::Endpoint, ACK, b"data");
        talk.close(Side::Endpoint);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
    }
}

#[test]
fn a_bare_acknowledgement_is_no_way_around_the_limit() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        open(&scene, &tables, 1);
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, ACK, b"");
        assert_eq!(in_use(&scene, &tables, SERVICE), 2);
        assert_refused(&scene, &open(&scene, &tables, 4000));
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
    }
}

#[test]
fn a_client_whose_endpoint_is_silent_moves_on_at_the_limit() {
    for scene in limited_tcp(of_service(1)) {
        let scene = Scene {
            endpoints: vec![Place::Remote; 3],
            ..scene
        };
        let tables = scene.tables();
        let first = open(&scene, &tables, 4000).read().to();
        tables.set_seconds(4);
        let next = open(&scene, &tables, 4000);
        assert_eq!(next.reason, Reason::Opened);
        assert_ne!(next.read().to(), first);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
    }
}

#[test]
fn long_running_connections_skip_the_nodes_limit_and_are_counted() {
    let limits = Limits {
        node: 1,
        long_running: true,
        ..Limits::default()
    };
    for scene in limited(limits) {
        let tables = scene.tables();
        for port in 1..=3 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        assert_eq!(in_use(&scene, &tables, NODE), 0);
        assert_eq!(in_use(&scene, &tables, SERVICE), 3);
    }
}

#[test]
fn what_the_cluster_depends_on_is_let_in_above_the_limit() {
    let limits = Limits {
        node: 2,
        essential: true,
        ..Limits::default()
    };
    for scene in limited(limits) {
        let tables = scene.tables();
        for port in 1..=5 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        assert_eq!(in_use(&scene, &tables, NODE), 2, "those with room");
        let seats = tables.seats(NODE);
        assert_eq!((seats.exempted, seats.refused), (3, 0));
    }
}

#[test]
fn a_limit_below_what_is_in_use_drains() {
    for scene in limited_tcp(of_service(3)) {
        let tables = scene.tables();
        let ports = 4000..4003;
        let talks = ports.map(|port| Conversation::established(&scene, &tables, port));
        let mut talks: Vec<_> = talks.collect();
        let lowered = Seats {
            limit: 2,
            ..tables.seats(SERVICE)
        };
        tables.set_seats(SERVICE, &lowered);
        for (talk, after) in talks.iter_mut().zip([false, true]) {
            assert_refused(&scene, &open(&scene, &tables, 5));
            assert_eq!(
                talk.send(Side::Client, ACK, b"data").reason,
                Reason::ToEndpoint
            );
            talk.close(Side::Client);
            let opened = open(&scene, &tables, 5).reason == Reason::Opened;
            assert_eq!(opened, after);
        }
    }
}

#[test]
fn a_flow_that_moves_to_another_table_keeps_its_seat_once() {
    for scene in limited_tcp(of_service(2)) {
        let mut tables = scene.tables();
        let talk = Conversation::established(&scene, &tables, 4000);
        let (there, next) = (talk.there, talk.next);
        open(&scene, &tables, 1);
        assert_eq!(in_use(&scene, &tables, SERVICE), 2);
        tables.begin_resize(4096);
        let mut talk = Conversation::new(&scene, &tables, 4000);
        (talk.there, talk.next) = (there, next);
        assert_eq!(
            talk.send(Side::Client, ACK, b"data").reason,
            Reason::ToEndpoint
        );
        assert_eq!(in_use(&scene, &tables, SERVICE), 2, "one has moved");
        assert_refused(&scene, &open(&scene, &tables, 5));
        let refused = ingress_of_before(&tables, &scene.opening(6));
        assert_refused(&scene, &refused);
        talk.close(Side::Client);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
        assert!(tables.copy_flows().contains(&Copied::Copied));
        tables.end_resize();
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
        assert_eq!(open(&scene, &tables, 5).reason, Reason::Opened);
    }
}

#[test]
fn a_dns_answer_gives_the_seat_back() {
    for scene in limited(of_service(1)).filter(|scene| scene.protocol == UDP) {
        for port in [53, 80] {
            let scene = Scene {
                port,
                ..scene.clone()
            };
            let tables = scene.tables();
            let sent = open(&scene, &tables, 4000).read();
            assert_eq!(in_use(&scene, &tables, SERVICE), 1);
            ingress(&tables, &scene.frame(sent.to(), sent.from(), 0, b"answer"));
            let held = if port == 53 { 0 } else { 1 };
            assert_eq!(in_use(&scene, &tables, SERVICE), held);
            // Answers do not take it again.
            ingress(&tables, &scene.frame(sent.to(), sent.from(), 0, b"answer"));
            assert_eq!(in_use(&scene, &tables, SERVICE), held);
        }
    }
}

#[test]
fn a_flow_that_is_over_and_in_the_way_gives_its_seat_back() {
    for scene in limited(of_service(1000)) {
        let scene = Scene {
            flow_records: 64,
            ..scene
        };
        let mut tables = scene.tables();
        tables.timeouts = lb_common::flow::Timeouts {
            tcp: [10; 5],
            udp: [10; 5],
            ..tables.timeouts
        }
        .with_shortest();
        for port in 1..=100 {
            open(&scene, &tables, port);
        }
        tables.set_seconds(60);
        for port in 200..=300 {
            open(&scene, &tables, port);
        }
        let open = flows(&tables, &scene) as u32;
        assert_eq!(in_use(&scene, &tables, SERVICE), open);
    }
}
