//! Limits under pressure: while many handshakes stay open, they hold no seats, and a connection takes
//! its seats when its handshake is complete.

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{
        Stage, flow_flag,
        limit::{NODE, Seats},
        record::{flags, set},
        seats,
        slots::Slots,
    },
    verdict::{Action, Reason},
};
use lb_datapath::memory::Family;
use lb_objects::IpFamily;
use lb_packet::tcp_flag::{ACK, FIN, RST, SYN};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side, flows},
    hooks::ingress,
    scene::{Limits, Scene},
    seats::{SERVICE, assert_refused, in_use, limited_tcp, of_service, open},
};

/// Connections that are in their handshakes.
const HANDSHAKES: u16 = 50;

pub fn press(tables: &ProgrammedTables, index: u32, is_pressed: bool) {
    let seats = Seats {
        pressed: is_pressed.into(),
        ..tables.seats(index)
    };
    tables.set_seats(index, &seats);
}

/// Tables with a pressed limit, and clients that never answer.
fn flooded(scene: &Scene, index: u32) -> ProgrammedTables {
    let tables = scene.tables();
    press(&tables, index, true);
    for port in 1..=HANDSHAKES {
        assert_eq!(open(scene, &tables, port).reason, Reason::Opened);
    }
    tables
}

#[test]
fn handshakes_hold_no_seats_and_connections_do() {
    for scene in limited_tcp(of_service(2)) {
        let tables = flooded(&scene, SERVICE);
        assert_eq!(in_use(&scene, &tables, SERVICE), 0);
        for (port, used) in [(4000, 1), (4001, 2)] {
            let mut talk = Conversation::new(&scene, &tables, port);
            talk.send(Side::Client, SYN, b"");
            talk.send(Side::Endpoint, SYN | ACK, b"");
            assert_eq!(in_use(&scene, &tables, SERVICE), used - 1, "not yet");
            talk.send(Side::Client, ACK, b"");
            assert_eq!(in_use(&scene, &tables, SERVICE), used);
            talk.send(Side::Endpoint, ACK, b"data");
            talk.send(Side::Client, ACK, b"data");
            assert_eq!(in_use(&scene, &tables, SERVICE), used, "once");
        }
        assert_refused(&scene, &open(&scene, &tables, 5000));
        assert_eq!(tables.seats(SERVICE).recovered, 0);
    }
}

#[test]
fn seats_of_all_limits_are_taken_at_the_end_of_the_handshake() {
    let limits = Limits {
        node: 9,
        service: 9,
        ..Limits::default()
    };
    for scene in limited_tcp(limits) {
        for index in [NODE, SERVICE] {
            let tables = flooded(&scene, index);
            Conversation::established(&scene, &tables, 4000);
            for index in [NODE, SERVICE] {
                assert_eq!(in_use(&scene, &tables, index), 1);
            }
        }
    }
}

#[test]
fn a_handshake_that_is_complete_too_late_is_reset() {
    for scene in limited_tcp(of_service(1)) {
        let tables = flooded(&scene, SERVICE);
        let begin = |port| {
            let mut talk = Conversation::new(&scene, &tables, port);
            talk.send(Side::Client, SYN, b"");
            talk.send(Side::Endpoint, SYN | ACK, b"");
            talk
        };
        let (mut first, mut second) = (begin(4000), begin(4001));
        assert_eq!(
            first.send(Side::Client, ACK, b"").reason,
            Reason::ToEndpoint
        );
        let there = second.there;
        for _ in 0..2 {
            let outcome = second.send(Side::Client, ACK, b"");
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Answer, Reason::ConcurrencyLimit)
            );
            let answer = outcome.read();
            answer.assert_checksums();
            assert_eq!(answer.from(), scene.target());
            assert_eq!(answer.payload()[13] & RST, RST);
        }
        assert_eq!(tables.seats(SERVICE).refused, 1);
        assert_eq!(second.stage(), Some(Stage::Closed));
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);

        second.there = there;
        // What the endpoint still sends makes the client reset it.
        let again = second.segment(Side::Endpoint, SYN | ACK);
        assert_eq!(
            second.deliver(Side::Endpoint, again, b"").reason,
            Reason::ToClient
        );
        let reset = second.segment(Side::Client, RST);
        assert_eq!(
            second.deliver(Side::Client, reset, b"").reason,
            Reason::ToEndpoint
        );

        // The seat that comes back is another connection's.
        first.close(Side::Client);
        assert_eq!(in_use(&scene, &tables, SERVICE), 0);
        Conversation::established(&scene, &tables, 4001);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
    }
}

#[test]
fn what_the_cluster_depends_on_goes_on_without_a_seat() {
    let limits = Limits {
        node: 1,
        essential: true,
        ..Limits::default()
    };
    for scene in limited_tcp(limits) {
        let tables = flooded(&scene, NODE);
        for port in 4000..4003 {
            let mut talk = Conversation::established(&scene, &tables, port);
            assert_eq!(talk.stage(), Some(Stage::Established));
            let outcome = talk.send(Side::Client, ACK, b"data");
            assert_eq!(outcome.reason, Reason::ToEndpoint);
        }
        assert_eq!(in_use(&scene, &tables, NODE), 1);
        assert_eq!(tables.seats(NODE).exempted, 2);
    }
}

#[test]
fn pressure_may_begin_and_end_during_a_handshake() {
    for scene in limited_tcp(of_service(9)) {
        for begins_pressed in [true, false] {
            let tables = scene.tables();
            press(&tables, SERVICE, begins_pressed);
            let mut talk = Conversation::new(&scene, &tables, 4000);
            talk.send(Side::Client, SYN, b"");
            let held = u32::from(!begins_pressed);
            assert_eq!(in_use(&scene, &tables, SERVICE), held);
            press(&tables, SERVICE, !begins_pressed);
            talk.send(Side::Endpoint, SYN | ACK, b"");
            talk.send(Side::Client, ACK, b"");
            assert_eq!(in_use(&scene, &tables, SERVICE), 1);
            talk.send(Side::Client, FIN | ACK, b"");
            talk.send(Side::Endpoint, FIN | ACK, b"");
            talk.send(Side::Client, ACK, b"");
            assert_eq!(in_use(&scene, &tables, SERVICE), 0);
            assert_eq!(tables.seats(SERVICE).taken(), 1);
        }
    }
}

#[test]
fn a_segment_in_progress_is_no_way_around_a_pressed_limit() {
    for scene in limited_tcp(of_service(1)) {
        let tables = flooded(&scene, SERVICE);
        let mut talk = Conversation::new(&scene, &tables, 4000);
        assert_eq!(talk.send(Side::Client, ACK, b"data").reason, Reason::Opened);
        assert_eq!(in_use(&scene, &tables, SERVICE), 1, "it counts at once");
        assert_refused(&scene, &ingress(&tables, &scene.opening(5000)));
        assert_eq!(flows(&tables, &scene), usize::from(HANDSHAKES) + 1);
    }
}

/// The agent takes the seats of what has not proved itself, and nobody may cut a connection in progress.
#[test]
fn a_connection_in_progress_that_has_lost_its_seat_takes_it_again_above_the_limit() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, ACK, b"data");
        assert_eq!(in_use(&scene, &tables, SERVICE), 1);
        unseat_all(&scene, &tables);
        assert_eq!(in_use(&scene, &tables, SERVICE), 0);
        assert_eq!(open(&scene, &tables, 5000).reason, Reason::Opened);
        talk.send(Side::Endpoint, ACK, b"data");
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert_eq!(in_use(&scene, &tables, SERVICE), 2);
        let outcome = talk.send(Side::Client, ACK, b"data");
        assert_eq!(outcome.reason, Reason::ToEndpoint);
    }
}

/// Takes the seats of all flows away, as the agent does with those in their handshakes.
pub fn unseat_all(scene: &Scene, tables: &ProgrammedTables) {
    fn unseat<A: Family>(tables: &ProgrammedTables) {
        let hook = tables.tc();
        let mask = Slots::<A>::mask(&hook);
        for record in (0..=mask).filter_map(|index| Slots::<A>::slot(&hook, index)) {
            match flags(record) & flow_flag::REPLY {
                0 => set(record, flow_flag::LATE),
                _ => seats::release(&hook, record),
            }
        }
    }
    match scene.family {
        IpFamily::V4 => unseat::<Ip4>(tables),
        IpFamily::V6 => unseat::<Ip6>(tables),
    }
}
