//! Limits of connections that are translated at the socket: what a socket holds, and when it is refused.

use lb_common::{
    abi::SocketSeats,
    flow::limit::{LEVELS, NODE, Seats},
    parse::UDP,
    socket::Call,
    verdict::Reason,
};
use node_lb::{
    config::AdmissionMode::{self, Audit, Enforce},
    memory::ProgrammedTables,
};

use crate::{
    hooks::ingress,
    levels,
    scene::{Limits, Scene},
    seats::SERVICE,
    sockets::AskingSocket,
};

/// The ways in which a socket of a scene may ask.
fn calls(scene: &Scene) -> &'static [Call] {
    match scene.protocol {
        UDP => &[Call::Connect, Call::SendMsg],
        _ => &[Call::Connect],
    }
}

fn sockets(tables: &ProgrammedTables, number: u64) -> Vec<AskingSocket<'_>> {
    let socket = |cookie| AskingSocket::new(tables, 1 + cookie);
    (0..number).map(socket).collect()
}

#[test]
fn sockets_keep_to_the_limits_of_their_service_and_of_the_node() {
    for (service, node) in [(3, 0), (0, 3), (3, 4)] {
        let limits = Limits {
            service,
            node,
            ..Limits::default()
        };
        for scene in Scene::each().map(|scene| Scene { limits, ..scene }) {
            for call in calls(&scene) {
                let tables = scene.tables();
                let used = || [SERVICE, NODE].map(|index| tables.seats(index).used());
                let expected = |number| [(service, number), (node, number)].map(in_force);
                let sockets = sockets(&tables, 4);
                for (socket, number) in sockets.iter().zip(1..=3) {
                    assert!(socket.ask(&scene, *call).is_ok());
                    assert_eq!(used(), expected(number));
                }
                let refused = Err(Reason::ConcurrencyLimit);
                for _ in 0..3 {
                    assert_eq!(sockets[3].ask(&scene, *call), refused);
                }
                assert!(sockets[3].held().place().is_none());
                let packet = ingress(&tables, &scene.opening(1));
                assert_eq!(
                    packet.reason,
                    Reason::ConcurrencyLimit,
                    "flows count as well"
                );
                sockets[0].close();
                assert_eq!(used(), expected(2));
                assert!(sockets[3].ask(&scene, *call).is_ok());
                for socket in &sockets {
                    socket.close();
                    socket.close();
                }
                assert_eq!((used(), tables.seats(0).recovered), ([0, 0], 0));
            }
        }
    }
}

/// A number of connections as a limit counts it: not at all if there is none.
fn in_force((limit, number): (u32, i32)) -> i32 {
    match limit {
        0 => 0,
        _ => number,
    }
}

#[test]
fn a_socket_counts_once_wherever_it_goes() {
    let limits = Limits {
        service: 1,
        ..Limits::default()
    };
    for scene in Scene::each().map(|scene| Scene { limits, ..scene }) {
        let tables = scene.tables();
        let socket = AskingSocket::new(&tables, 1);
        for _ in 0..5 {
            assert!(socket.ask(&scene, Call::Connect).is_ok());
            assert_eq!(tables.seats(SERVICE).used(), 1);
        }
        if scene.protocol == UDP {
            assert_eq!(
                socket.ask(&scene, Call::SendMsg).map(|(_, known)| known),
                Ok(false)
            );
            assert_eq!(
                socket.ask(&scene, Call::SendMsg).map(|(_, known)| known),
                Ok(true)
            );
        }
        assert_eq!(tables.seats(SERVICE).used(), 1);
        socket.close();
        assert_eq!(socket.held(), SocketSeats::default());
    }
}

#[test]
fn a_full_endpoint_is_passed_over() {
    let limits = Limits {
        endpoint: 2,
        ..Limits::default()
    };
    for scene in Scene::each() {
        let scene = Scene {
            limits,
            endpoints: vec![crate::scene::Place::Remote; 3],
            ..scene
        };
        for call in calls(&scene) {
            let tables = scene.tables();
            let sockets = sockets(&tables, 7);
            let (last, first) = sockets.split_last().unwrap();
            let mut reached: Vec<_> = first
                .iter()
                .map(|socket| socket.ask(&scene, *call).unwrap().0)
                .collect();
            reached.sort_unstable();
            let mut all: Vec<_> = (0..3)
                .flat_map(|index| [scene.endpoint(index); 2])
                .collect();
            all.sort_unstable();
            assert_eq!(reached, all);
            assert_eq!(last.ask(&scene, *call), Err(Reason::EndpointLimit));
            let freed = first[0].ask(&scene, *call).unwrap().0;
            first[0].close();
            assert_eq!(last.ask(&scene, *call).map(|(to, _)| to), Ok(freed));
            if *call == Call::SendMsg {
                assert_eq!(last.ask(&scene, *call), Ok((freed, true)));
            }
            for socket in &sockets {
                socket.close();
            }
            let open = |index| tables.endpoint(index).map(|found| tables.open_at(found.id));
            assert_eq!([0, 1, 2].map(open), [Some(0); 3]);
        }
    }
}

#[test]
fn who_needs_an_essential_service_is_let_in() {
    let limits = Limits {
        service: 1,
        essential: true,
        ..Limits::default()
    };
    for scene in Scene::each().map(|scene| Scene { limits, ..scene }) {
        let tables = scene.tables();
        let sockets = sockets(&tables, 3);
        for socket in &sockets {
            assert!(socket.ask(&scene, Call::Connect).is_ok());
        }
        let seats = tables.seats(SERVICE);
        assert_eq!((seats.used(), seats.exempted), (1, 2));
        for socket in &sockets {
            socket.close();
        }
        assert_eq!(tables.seats(SERVICE).used(), 0);
    }
}

/// A level with room for four, of whose flow schema each party may have two; its connections may wait.
fn level_tables(scene: &Scene, mode: AdmissionMode) -> ProgrammedTables {
    let limited = "borrowingLimitPercent: 0, limitResponse: {type: Queue, queuing: {queues: 4, handSize: 2, \
                   queueLengthLimit: 5}}, connections: {maxConnectionsPerFlow: 2}";
    let text = levels::for_all(limited, "");
    levels::tables(scene, &text, mode, 4)
}

#[test]
fn sockets_keep_to_their_part_of_a_level() {
    for scene in Scene::each() {
        for call in calls(&scene) {
            let tables = level_tables(&scene, Enforce);
            let index = levels::index(&tables, "tenant");
            let schema = || {
                let known = tables.numbered().known();
                let mut schemas = known.schemas.iter();
                let schema = schemas.find(|known| known.name == "tenant").unwrap();
                tables.flow_schema(schema.number)
            };
            let sockets = sockets(&tables, 3);
            for socket in &sockets[..2] {
                assert!(socket.ask(&scene, *call).is_ok());
            }
            assert_eq!(sockets[2].ask(&scene, *call), Err(Reason::FlowLimit));
            assert_eq!((schema().admitted, schema().refused_parties), (2, 1));
            assert_eq!(tables.seats(index).used(), 2);
            assert_eq!((in_party(&tables), charged(&tables, index)), (2, 2));
            sockets[0].close();
            assert_eq!((in_party(&tables), charged(&tables, index)), (1, 1));
            assert!(sockets[2].ask(&scene, *call).is_ok());
            for socket in &sockets {
                socket.close();
            }
            assert_eq!((in_party(&tables), charged(&tables, index)), (0, 0));
            assert_eq!(tables.seats(index).used(), 0);
        }
    }
}

#[test]
fn a_socket_takes_as_many_seats_as_its_schema_says() {
    for scene in Scene::each() {
        for call in calls(&scene) {
            let limited = "limitResponse: {type: Queue, queuing: {queues: 8, handSize: 2, queueLengthLimit: 5}}";
            let text = levels::for_all(
                limited,
                "  seats: 3\n  distinguisherMethod: {type: BySourceIP}\n",
            );
            let tables = levels::tables(&scene, &text, Enforce, 20);
            let index = levels::index(&tables, "tenant");
            let counted = || (tables.seats(index).used(), charged(&tables, index));
            let sockets = sockets(&tables, 7);
            for socket in &sockets[..6] {
                assert!(socket.ask(&scene, *call).is_ok());
            }
            assert_eq!(sockets[6].ask(&scene, *call), Err(Reason::ConcurrencyLimit));
            assert_eq!((counted(), in_party(&tables)), ((18, 18), 6));
            sockets[0].close();
            assert_eq!((counted(), in_party(&tables)), ((15, 15), 5));
            for socket in &sockets[1..] {
                socket.close();
            }
            assert_eq!((counted(), in_party(&tables)), ((0, 0), 0));
        }
    }
}

/// Connections that are counted in parties, of which there is only one.
fn in_party(tables: &ProgrammedTables) -> i32 {
    tables.parties().into_iter().sum::<u32>() as i32
}

/// Seats that are charged to the queues of a level.
fn charged(tables: &ProgrammedTables, index: u32) -> i32 {
    let of = tables.level_queues().read(index - LEVELS);
    let words = (of.first..of.first + of.number).map(|index| tables.queue(index).word);
    let seats = words.map(|word| Seats {
        word,
        ..Seats::default()
    });
    seats.map(|seats| seats.used()).sum()
}

#[test]
fn an_audit_lets_sockets_in() {
    for scene in Scene::each() {
        let tables = level_tables(&scene, Audit);
        let index = levels::index(&tables, "tenant");
        let sockets = sockets(&tables, 6);
        for socket in &sockets {
            assert!(socket.ask(&scene, Call::Connect).is_ok());
        }
        assert_eq!(tables.seats(index).used(), 6);
        for socket in &sockets {
            socket.close();
        }
        assert_eq!(tables.seats(index).used(), 0);
    }
}

#[test]
fn without_limits_a_socket_holds_nothing() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let socket = AskingSocket::new(&tables, 1);
        assert!(socket.ask(&scene, Call::Connect).is_ok());
        assert_eq!(socket.held(), SocketSeats::default());
    }
}
