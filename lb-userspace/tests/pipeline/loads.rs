//! The connections that endpoints have open: which endpoint gets the next one, and who is refused where
//! each may have so many.

use std::{collections::BTreeMap, net::SocketAddr};

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{flow_flag, slots::Slots as _},
    verdict::{Action, Reason},
};
use lb_datapath::memory::Family;
use lb_objects::{Algorithm, IpFamily};
use lb_packet::{
    TCP,
    tcp_flag::{ACK, FIN, RST, SYN},
};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side},
    scene::{Limits, Place, Scene},
    seats::{SERVICE, in_use, open},
};

/// Scenes of both families and protocols with so many endpoints, remote and local ones in turn.
fn crowded(endpoints: usize, algorithm: Algorithm, most: u32) -> impl Iterator<Item = Scene> {
    Scene::each().map(move |scene| Scene {
        endpoints: (0..endpoints)
            .map(|number| [Place::Local, Place::Remote][number % 2])
            .collect(),
        algorithm,
        limits: Limits {
            endpoint: most,
            ..Limits::default()
        },
        ..scene
    })
}

/// The connections that each endpoint has open, as programs count them, after a check that so many flows
/// are counted there.
fn loads(scene: &Scene, tables: &ProgrammedTables) -> Vec<u32> {
    fn held<A: Family>(tables: &ProgrammedTables) -> BTreeMap<u32, i32> {
        let flows = tables.flows::<A>();
        let mut held = BTreeMap::new();
        for reply in flows.live().filter(|flow| flow.has(flow_flag::REPLY)) {
            if reply.place().counts_at_endpoint() {
                let forward = flows.slot(reply.peer).expect("the other direction");
                // SAFETY: only this thread uses the tables.
                *held.entry(unsafe { forward.as_ref() }.detail).or_default() += 1;
            }
        }
        held
    }
    let held = match scene.family {
        IpFamily::V4 => held::<Ip4>(tables),
        IpFamily::V6 => held::<Ip6>(tables),
    };
    let first = tables.plan(1).expect("the Service's plan").first;
    let endpoints = first..first + scene.endpoints.len() as u32;
    let ids = endpoints.map(|index| tables.endpoint(index).expect("an endpoint").id);
    ids.map(|id| {
        let counted = tables.open_at(id);
        assert_eq!(
            counted,
            held.get(&id).copied().unwrap_or(0),
            "endpoint {id}"
        );
        counted as u32
    })
    .collect()
}

fn assert_refused(scene: &Scene, tables: &ProgrammedTables, port: u16) {
    let outcome = open(scene, tables, port);
    let refused = (Action::Answer, Reason::EndpointLimit);
    assert_eq!((outcome.action, outcome.reason), refused, "port {port}");
    let answer = outcome.read();
    answer.assert_checksums();
    if scene.protocol == TCP {
        assert_eq!(answer.from(), scene.target());
        assert_eq!(answer.payload()[13], RST | ACK);
    }
}

#[test]
fn of_two_endpoints_the_one_with_fewer_connections_gets_the_next() {
    for scene in crowded(2, Algorithm::LeastConnections, 0) {
        let tables = scene.tables();
        for port in 1..=40 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
            let [one, other] = loads(&scene, &tables)[..] else {
                panic!("two endpoints");
            };
            assert!(one.abs_diff(other) <= 1, "{one} and {other}");
        }
        assert_eq!(in_use(&scene, &tables, SERVICE), 40);
    }
}

#[test]
fn with_many_endpoints_none_has_many_more_than_another() {
    let most = |algorithm, family| {
        let scene = crowded(20, algorithm, 0).find(|scene| scene.family == family);
        let scene = Scene {
            flow_records: 4096,
            ..scene.unwrap()
        };
        let tables = scene.tables();
        let mut servers = BTreeMap::<SocketAddr, u32>::new();
        for port in 1..=400 {
            Conversation::established(&scene, &tables, port);
            let to = open(&scene, &tables, port).read().to();
            *servers.entry(to).or_default() += 1;
        }
        *servers.values().max().unwrap()
    };
    for family in [IpFamily::V4, IpFamily::V6] {
        let (random, least) = (
            most(Algorithm::Random, family),
            most(Algorithm::LeastConnections, family),
        );
        assert!(least <= 23, "20 each would be even, one has {least}");
        assert!(random > least, "at random one has {random}");
    }
}

#[test]
fn an_endpoint_whose_connections_end_gets_the_next_ones() {
    for scene in crowded(2, Algorithm::LeastConnections, 0).filter(|scene| scene.protocol == TCP) {
        let tables = scene.tables();
        let mut talks: Vec<_> = (1..=20)
            .map(|port| Conversation::established(&scene, &tables, port))
            .collect();
        assert_eq!(loads(&scene, &tables), [10, 10]);
        let first = talks[0].there.unwrap().1;
        for talk in talks
            .iter_mut()
            .filter(|talk| talk.there.unwrap().1 == first)
        {
            talk.close(Side::Client);
        }
        let mut left = loads(&scene, &tables);
        left.sort_unstable();
        assert_eq!(left, [0, 10]);
        for port in 101..=110 {
            let talk = Conversation::established(&scene, &tables, port);
            assert_eq!(talk.there.unwrap().1, first);
        }
        assert_eq!(loads(&scene, &tables), [10, 10]);
    }
}

#[test]
fn without_a_wish_for_it_endpoints_connections_are_not_counted() {
    for scene in crowded(2, Algorithm::Random, 0) {
        let tables = scene.tables();
        for port in 1..=4 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        assert_eq!(loads(&scene, &tables), [0, 0]);
    }
}

#[test]
fn a_full_endpoint_is_passed_over_and_when_all_are_full_clients_are_refused() {
    for algorithm in [
        Algorithm::Random,
        Algorithm::Maglev,
        Algorithm::LeastConnections,
    ] {
        for scene in crowded(5, algorithm, 3) {
            let tables = scene.tables();
            for port in 1..=15 {
                assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
            }
            assert_eq!(loads(&scene, &tables), [3; 5]);
            for port in 16..=18 {
                assert_refused(&scene, &tables, port);
            }
            assert_eq!(tables.stats(1).rejected, 3);
            // Those that are open go on.
            assert_eq!(open(&scene, &tables, 1).reason, Reason::ToEndpoint);
            assert_eq!(loads(&scene, &tables), [3; 5]);
        }
    }
}

#[test]
fn a_client_with_affinity_goes_elsewhere_when_its_endpoint_is_full() {
    for scene in crowded(3, Algorithm::Random, 2) {
        let scene = Scene {
            affinity: Some(std::time::Duration::from_secs(100)),
            ..scene
        };
        let tables = scene.tables();
        let mut servers = BTreeMap::<SocketAddr, u32>::new();
        for port in 1..=6 {
            let to = open(&scene, &tables, port).read().to();
            *servers.entry(to).or_default() += 1;
        }
        assert_eq!(servers.into_values().collect::<Vec<_>>(), [2; 3]);
        assert_refused(&scene, &tables, 7);
    }
}

#[test]
fn whatever_ends_a_connection_makes_room_at_its_endpoint() {
    for scene in crowded(1, Algorithm::Random, 1).filter(|scene| scene.protocol == TCP) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 1);
        assert_refused(&scene, &tables, 2);
        talk.send(Side::Client, RST | ACK, b"");
        assert_refused(&scene, &tables, 2);
        talk.send(Side::Endpoint, RST | ACK, b"");
        assert_eq!(loads(&scene, &tables), [0]);

        let mut talk = Conversation::established(&scene, &tables, 3);
        let reset = talk.segment(Side::Endpoint, RST | ACK);
        talk.deliver(Side::Endpoint, reset, b"");
        assert_eq!(loads(&scene, &tables), [0]);
        // Nobody has obeyed it, and meanwhile somebody else came.
        let mut other = Conversation::new(&scene, &tables, 4);
        let again = other.segment(Side::Client, SYN);
        assert_eq!(other.send(Side::Client, SYN, b"").reason, Reason::Opened);
        talk.send(Side::Client, ACK, b"data");
        talk.send(Side::Endpoint, ACK, b"data");
        assert_eq!(loads(&scene, &tables), [2], "above the limit");
        talk.close(Side::Endpoint);
        assert_eq!(loads(&scene, &tables), [1]);
        assert_refused(&scene, &tables, 5);

        // A SYN that comes again is no connection more; one on a refused connection is.
        assert_eq!(
            other.deliver(Side::Client, again, b"").reason,
            Reason::ToEndpoint
        );
        assert_eq!(loads(&scene, &tables), [1]);
        other.next[Side::Endpoint as usize] = 0;
        other.send(Side::Endpoint, RST | ACK, b"");
        assert_eq!(loads(&scene, &tables), [0]);
        assert_eq!(open(&scene, &tables, 4).reason, Reason::Opened);
        assert_eq!(loads(&scene, &tables), [1]);
    }
}

#[test]
fn a_connection_in_progress_is_let_in_at_a_full_endpoint() {
    for scene in crowded(1, Algorithm::Random, 1).filter(|scene| scene.protocol == TCP) {
        let tables = scene.tables();
        open(&scene, &tables, 1);
        let mut talk = Conversation::new(&scene, &tables, 2);
        assert_eq!(talk.send(Side::Client, ACK, b"data").reason, Reason::Opened);
        assert_eq!(loads(&scene, &tables), [2]);
    }
}

#[test]
fn half_open_connections_that_give_way_leave_their_endpoint() {
    for scene in crowded(3, Algorithm::LeastConnections, 100_000) {
        let scene = Scene {
            flow_records: 8192,
            ..scene
        };
        let tables = scene.tables();
        for port in 1..=2000 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        let open: u32 = loads(&scene, &tables).iter().sum();
        assert!(open < 600, "{open}");
        assert_eq!(in_use(&scene, &tables, SERVICE), open);
    }
}

#[test]
fn a_connection_without_room_in_the_flow_table_is_counted_at_no_endpoint() {
    for scene in crowded(3, Algorithm::LeastConnections, 100_000) {
        let scene = Scene {
            flow_records: 64,
            ..scene
        };
        let tables = scene.tables();
        let outcomes = (1..=100).map(|port| open(&scene, &tables, port).reason);
        let full = outcomes.filter(|reason| *reason == Reason::FlowTableFull);
        assert!(full.count() > 0);
        let open: u32 = loads(&scene, &tables).iter().sum();
        assert_eq!(in_use(&scene, &tables, SERVICE), open);
    }
}

#[test]
fn while_handshakes_hold_no_seats_an_endpoint_is_full_at_their_end() {
    for scene in crowded(1, Algorithm::Random, 2).filter(|scene| scene.protocol == TCP) {
        let tables = scene.tables();
        let pressed = lb_common::flow::Seats {
            pressed: 1,
            ..tables.seats(SERVICE)
        };
        tables.set_seats(SERVICE, &pressed);
        let mut talks: Vec<_> = (1..=3)
            .map(|port| {
                let mut talk = Conversation::new(&scene, &tables, port);
                talk.send(Side::Client, SYN, b"");
                talk.send(Side::Endpoint, SYN | ACK, b"");
                talk
            })
            .collect();
        assert_eq!(loads(&scene, &tables), [0], "nobody has proved itself");
        let reasons = talks
            .iter_mut()
            .map(|talk| talk.send(Side::Client, ACK, b"data").reason);
        let refused = reasons.filter(|reason| *reason != Reason::ToEndpoint);
        assert_eq!(refused.count(), 1);
        assert_eq!(loads(&scene, &tables), [2]);
        talks[0].send(Side::Client, FIN | ACK, b"");
        assert_eq!(loads(&scene, &tables), [2], "half of it is open");
    }
}
