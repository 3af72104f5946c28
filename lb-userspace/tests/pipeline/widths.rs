//! Connections that take several seats of their level.

use lb_common::{
    flow::{Stage, limit::NODE},
    pipeline::Copied,
    verdict::Reason,
};
use lb_packet::{
    TCP,
    tcp_flag::{ACK, SYN},
};
use node_lb::{
    config::AdmissionMode::{self, Audit, Enforce},
    memory::ProgrammedTables,
};

use crate::{
    conversation::{Conversation, Side},
    levels::{REJECT, admit, counted, for_all, index, level, open, tables},
    pressed::{press, unseat_all},
    scene::{Limits, Scene},
    seats::SERVICE,
};

/// Each connection takes so many seats of its level, and is refused where there are not so many.
fn objects(seats: u32) -> String {
    for_all(REJECT, &format!("  seats: {seats}\n"))
}

/// Tables of a node whose level has so many seats.
fn node(scene: &Scene, mode: AdmissionMode, seats: u32, level: u32) -> ProgrammedTables {
    tables(scene, &objects(seats), mode, level)
}

/// Seats of the level that are in use.
fn in_use(scene: &Scene, tables: &ProgrammedTables) -> i32 {
    level(scene, tables, "tenant").used()
}

fn tcp() -> impl Iterator<Item = Scene> {
    Scene::each().filter(|scene| scene.protocol == TCP)
}

#[test]
fn each_connection_takes_as_many_seats_as_its_schema_says() {
    for scene in Scene::each() {
        for seats in 1..=10 {
            let tables = node(&scene, Enforce, seats, 20);
            let room = 20 / seats as u16;
            for port in 1..=room {
                assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
            }
            let refused = open(&scene, &tables, room + 1);
            assert_eq!(refused.reason, Reason::ConcurrencyLimit);
            let used = u32::from(room) * seats;
            let level = level(&scene, &tables, "tenant");
            assert_eq!(
                (level.used(), level.taken(), level.highest),
                (used as i32, used, used)
            );
            assert_eq!(counted(&tables, "tenant"), (room.into(), 0, 1));
        }
    }
}

#[test]
fn a_connection_that_ends_gives_all_its_seats_back() {
    for scene in tcp() {
        let tables = node(&scene, Enforce, 7, 13);
        for side in [Side::Client, Side::Endpoint] {
            let mut talk = Conversation::established(&scene, &tables, 1);
            assert_eq!(in_use(&scene, &tables), 7);
            assert_eq!(
                open(&scene, &tables, 2).reason,
                Reason::ConcurrencyLimit,
                "six are free"
            );
            talk.close(side);
            assert_eq!(in_use(&scene, &tables), 0);
        }
    }
}

#[test]
fn one_that_is_wider_than_its_level_is_let_in_alone() {
    for scene in tcp() {
        let tables = node(&scene, Enforce, 10, 4);
        let mut talk = Conversation::established(&scene, &tables, 1);
        assert_eq!(open(&scene, &tables, 2).reason, Reason::ConcurrencyLimit);
        assert_eq!(in_use(&scene, &tables), 10);
        talk.close(Side::Client);
        assert_eq!(open(&scene, &tables, 2).reason, Reason::Opened);
    }
}

#[test]
fn an_audit_counts_seats_and_connections() {
    for scene in Scene::each() {
        let tables = node(&scene, Audit, 3, 4);
        for port in 1..=3 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        let level = level(&scene, &tables, "tenant");
        assert_eq!((level.used(), level.highest, level.over), (9, 9, 2));
        assert_eq!(counted(&tables, "tenant"), (3, 2, 0));
    }
}

#[test]
fn of_its_service_it_is_one_connection() {
    let limits = Limits {
        service: 2,
        ..Limits::default()
    };
    for scene in Scene::each().map(|scene| Scene { limits, ..scene }) {
        let tables = node(&scene, Enforce, 4, 100);
        for port in 1..=2 {
            assert_eq!(open(&scene, &tables, port).reason, Reason::Opened);
        }
        assert_eq!(open(&scene, &tables, 3).reason, Reason::ConcurrencyLimit);
        let of = |limit| tables.seats(limit).used();
        assert_eq!((of(SERVICE), in_use(&scene, &tables), of(NODE)), (2, 8, 0));
    }
}

#[test]
fn connections_keep_the_seats_that_they_began_with() {
    for scene in tcp() {
        let mut tables = node(&scene, Enforce, 3, 20);
        let mut port = 0;
        for (seats, used) in [(3, 3), (10, 13), (1, 14), (5, 19)] {
            admit(&mut tables, &objects(seats), Enforce, 20);
            port += 1;
            Conversation::established(&scene, &tables, port);
            assert_eq!(in_use(&scene, &tables), used);
        }
        // In a table of another size, too.
        tables.begin_resize(scene.flow_records * 2);
        while tables.copy_flows().contains(&Copied::Copied) {}
        tables.end_resize();
        assert_eq!(in_use(&scene, &tables), 19);
    }
}

#[test]
fn under_pressure_they_are_taken_at_the_end_of_the_handshake() {
    for scene in tcp() {
        let tables = node(&scene, Enforce, 6, 13);
        press(&tables, index(&tables, "tenant"), true);
        for used in [6, 12] {
            let mut talk = Conversation::new(&scene, &tables, used as u16);
            talk.send(Side::Client, SYN, b"");
            talk.send(Side::Endpoint, SYN | ACK, b"");
            assert_eq!(in_use(&scene, &tables), used - 6, "not yet");
            talk.send(Side::Client, ACK, b"");
            assert_eq!(in_use(&scene, &tables), used);
        }
        assert_eq!(open(&scene, &tables, 40).reason, Reason::ConcurrencyLimit);
    }
}

#[test]
fn one_that_had_lost_them_takes_all_of_them_again() {
    for scene in tcp() {
        let tables = node(&scene, Enforce, 9, 10);
        let mut talk = Conversation::new(&scene, &tables, 1);
        talk.send(Side::Client, ACK, b"data");
        assert_eq!(in_use(&scene, &tables), 9);
        unseat_all(&scene, &tables);
        assert_eq!(in_use(&scene, &tables), 0);
        talk.send(Side::Endpoint, ACK, b"data");
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert_eq!(in_use(&scene, &tables), 9);
    }
}
