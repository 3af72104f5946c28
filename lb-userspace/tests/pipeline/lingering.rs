//! Seats that stay taken for a while after the end of their connection.

use lb_common::{
    flow::{Stage, limit::LEVELS},
    parse::UDP,
    socket::Call,
    verdict::Reason,
};
use lb_packet::{
    TCP,
    tcp_flag::{ACK, RST, SYN},
};
use node_lb::{config::AdmissionMode::Enforce, memory::ProgrammedTables};

use crate::{
    conversation::{Conversation, Side},
    levels::{REJECT, admit, for_all, index, level, open, tables},
    scene::{Limits, Scene},
    seats::SERVICE,
    sockets::AskingSocket,
};

/// Seconds of the clock here after which seats still linger, and after which they do not: it is slower than the
/// kernel's, by whose rate the agent has written the time.
const BEFORE: u32 = 5;
const AFTER: u32 = 9;

/// Each connection takes three seats, which linger for a second.
fn objects() -> String {
    for_all(REJECT, "  seats: 3\n  linger: 1s\n")
}

/// A node with seats for one connection.
fn node(scene: &Scene) -> ProgrammedTables {
    tables(scene, &objects(), Enforce, 5)
}

/// Seats of the level that are in use, and those of them that linger.
fn counted(scene: &Scene, tables: &ProgrammedTables) -> (i32, u32) {
    let lingering = tables.lingering(index(tables, "tenant") - LEVELS);
    (level(scene, tables, "tenant").used(), lingering)
}

fn tcp() -> impl Iterator<Item = Scene> {
    Scene::each().filter(|scene| scene.protocol == TCP)
}

#[test]
fn the_seats_of_a_connection_that_has_ended_stay_taken_for_a_while() {
    for scene in tcp() {
        for side in [Side::Client, Side::Endpoint] {
            let tables = node(&scene);
            let mut talk = Conversation::established(&scene, &tables, 1);
            assert_eq!(counted(&scene, &tables), (3, 0));
            talk.close(side);
            assert_eq!(counted(&scene, &tables), (3, 3));
            for (seconds, reason) in [
                (0, Reason::ConcurrencyLimit),
                (BEFORE, Reason::ConcurrencyLimit),
                (AFTER, Reason::Opened),
            ] {
                tables.set_seconds(seconds);
                assert_eq!(open(&scene, &tables, 2).reason, reason, "{seconds}");
            }
            assert_eq!(counted(&scene, &tables), (3, 0));
        }
    }
}

#[test]
fn an_endpoints_reset_ends_a_connection_as_well() {
    for scene in tcp() {
        let tables = node(&scene);
        let mut talk = Conversation::established(&scene, &tables, 1);
        talk.send(Side::Endpoint, RST, b"");
        assert_eq!(talk.stage(), Some(Stage::Closed));
        assert_eq!(counted(&scene, &tables), (3, 3));
    }
}

/// Whoever forges clients could fill the level otherwise.
#[test]
fn a_connection_that_was_never_made_leaves_nothing_behind() {
    for scene in tcp() {
        let tables = node(&scene);
        let mut talk = Conversation::new(&scene, &tables, 1);
        talk.send(Side::Client, SYN, b"");
        assert_eq!(counted(&scene, &tables), (3, 0));
        talk.send(Side::Endpoint, RST | ACK, b"");
        assert_eq!(counted(&scene, &tables), (0, 0));
    }
}

#[test]
fn the_client_may_come_back_from_the_same_port_when_there_are_seats() {
    for scene in tcp() {
        let tables = tables(&scene, &objects(), Enforce, 8);
        let mut talk = Conversation::established(&scene, &tables, 1);
        talk.close(Side::Client);
        let mut again = Conversation::new(&scene, &tables, 1);
        let outcome = again.send(Side::Client, SYN, b"");
        assert_eq!(outcome.reason, Reason::Opened);
        assert_eq!(counted(&scene, &tables), (6, 3), "both");
    }
}

#[test]
fn a_schema_may_change_its_mind() {
    for scene in tcp() {
        let mut tables = tables(&scene, &objects(), Enforce, 20);
        let mut talks: Vec<_> = (1..=3)
            .map(|port| Conversation::established(&scene, &tables, port))
            .collect();
        talks.pop().unwrap().close(Side::Client);
        assert_eq!(counted(&scene, &tables), (9, 3));
        drop(talks);
        admit(&mut tables, &for_all(REJECT, ""), Enforce, 20);
        let mut talk = Conversation::established(&scene, &tables, 9);
        talk.close(Side::Client);
        assert_eq!(counted(&scene, &tables), (9, 3));
    }
}

#[test]
fn the_seat_of_a_service_comes_back_at_once() {
    let limits = Limits {
        service: 1,
        ..Limits::default()
    };
    for scene in tcp().map(|scene| Scene { limits, ..scene }) {
        let tables = node(&scene);
        let mut talk = Conversation::established(&scene, &tables, 1);
        talk.close(Side::Client);
        assert_eq!(tables.seats(SERVICE).used(), 0);
        assert_eq!(counted(&scene, &tables), (3, 3));
    }
}

#[test]
fn sockets_linger_as_flows_do() {
    for scene in Scene::each() {
        let call = match scene.protocol {
            UDP => Call::SendMsg,
            _ => Call::Connect,
        };
        let tables = node(&scene);
        let [first, second] = [1, 2].map(|cookie| AskingSocket::new(&tables, cookie));
        assert!(first.ask(&scene, call).is_ok());
        first.close();
        assert_eq!(counted(&scene, &tables).1, 3);
        tables.set_seconds(BEFORE);
        assert_eq!(second.ask(&scene, call), Err(Reason::ConcurrencyLimit));
        tables.set_seconds(AFTER);
        assert!(second.ask(&scene, call).is_ok());
        assert_eq!(tables.seats(index(&tables, "tenant")).used(), 3);
    }
}
