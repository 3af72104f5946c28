//! Connections that have run into a deadline: both sides are told, and seats stay free. And whose turn it
//! is to send something, by which deadlines of silence are told apart.

use lb_common::{
    addr::{Ip4, Ip6},
    flow::{Stage, flow_flag::EXPIRED, seats::release, slots::Slots},
    verdict::{Action, Reason},
};
use lb_datapath::memory::Family;
use lb_objects::IpFamily;
use lb_packet::tcp_flag::{ACK, FIN, RST};

use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side, mark},
    moving::scenes,
    scene::Scene,
    seats::{SERVICE, in_use, limited_tcp, of_service, open},
};

const DATA: &[u8] = b"hello";

/// An established connection that has run into a deadline.
fn expired<'a>(scene: &'a Scene, tables: &'a ProgrammedTables) -> Conversation<'a> {
    let mut talk = Conversation::established(scene, tables, 1);
    talk.send(Side::Client, ACK, DATA);
    talk.send(Side::Endpoint, ACK, DATA);
    mark(scene, tables, EXPIRED, EXPIRED);
    talk
}

#[test]
fn whoever_sends_is_reset() {
    for scene in scenes(2) {
        for first in Side::BOTH {
            for flags in [ACK, FIN | ACK] {
                let tables = scene.tables();
                let mut talk = expired(&scene, &tables);
                let there = talk.there.unwrap();
                for side in [first, first, first.other(), first] {
                    let from = match side {
                        Side::Client => scene.target(),
                        Side::Endpoint => there.0,
                    };
                    let told = talk.deliver(side, talk.segment(side, flags), DATA);
                    talk.there = Some(there);
                    assert_eq!(
                        (told.action, told.reason),
                        (Action::Answer, Reason::DeadlineExceeded)
                    );
                    let answer = told.read();
                    answer.assert_checksums();
                    assert_eq!(answer.from(), from);
                    assert_eq!(answer.payload()[13] & RST, RST);
                    // What the segment acknowledges is what its sender expects.
                    let sequence = u32::from_be_bytes(answer.payload()[4..8].try_into().unwrap());
                    assert_eq!(sequence, talk.next[side.other() as usize]);
                    assert_eq!(talk.stage(), Some(Stage::Closed));
                }
            }
        }
    }
}

#[test]
fn a_reset_is_passed_on() {
    for scene in scenes(2) {
        for (side, reason) in [
            (Side::Client, Reason::ToEndpoint),
            (Side::Endpoint, Reason::ToClient),
        ] {
            let tables = scene.tables();
            let mut talk = expired(&scene, &tables);
            let there = talk.there;
            // Not that of somebody who guesses.
            let mut blind = talk.segment(side, RST);
            blind.sequence = blind.sequence.wrapping_add(1 << 30);
            assert_ne!(talk.deliver(side, blind, b"").reason, reason);
            assert_eq!(talk.stage(), Some(Stage::Established));
            talk.there = there;
            assert_eq!(talk.send(side, RST | ACK, b"").reason, reason);
            assert_eq!(talk.stage(), Some(Stage::Closed));
        }
    }
}

/// A SYN from the same port finds the connection's place, once its sides have been told.
#[test]
fn the_port_may_be_used_again() {
    for scene in scenes(2) {
        let tables = scene.tables();
        let mut talk = expired(&scene, &tables);
        let there = talk.there;
        for side in Side::BOTH {
            talk.send(side, ACK, DATA);
            talk.there = there;
        }
        talk.next = talk.next.map(|next| next.wrapping_add(1 << 20));
        talk.shake_hands();
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert_eq!(
            talk.send(Side::Client, ACK, DATA).reason,
            Reason::ToEndpoint
        );
    }
}

/// Whoever holds a connection past its deadline must not get its seat again, by whatever segment.
#[test]
fn no_segment_takes_the_seat_again() {
    for scene in limited_tcp(of_service(1)) {
        let tables = scene.tables();
        let mut talk = expired(&scene, &tables);
        let there = talk.there;
        unseat(&scene, &tables);
        assert_eq!(in_use(&scene, &tables, SERVICE), 0);
        for side in [Side::Endpoint, Side::Client, Side::Endpoint] {
            for shift in [1 << 30, 1, 0] {
                // Nor by a reset that the endpoint does not obey.
                let by_client = (side == Side::Client).then_some(RST);
                for flags in [ACK, FIN | ACK].into_iter().chain(by_client) {
                    let mut segment = talk.segment(side, flags);
                    segment.sequence = segment.sequence.wrapping_add(shift);
                    talk.deliver(side, segment, DATA);
                    talk.there = there;
                    assert_eq!(in_use(&scene, &tables, SERVICE), 0, "{side:?}, {segment:?}");
                }
            }
        }
        assert_eq!(open(&scene, &tables, 2).reason, Reason::Opened);
        assert_eq!(tables.seats(SERVICE).recovered, 0);
    }
}

/// Takes the seats out of all flows, as the agent does.
fn unseat(scene: &Scene, tables: &ProgrammedTables) {
    fn unseat<A: Family>(tables: &ProgrammedTables) {
        let flows = tables.flows::<A>();
        for record in (0..=flows.mask()).filter_map(|index| flows.slot(index)) {
            release::<A, _>(&tables.tc(), record);
        }
    }
    match scene.family {
        IpFamily::V4 => unseat::<Ip4>(tables),
        IpFamily::V6 => unseat::<Ip6>(tables),
    }
}

#[test]
fn it_is_the_turn_of_the_side_that_the_other_waits_for() {
    for scene in scenes(2) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 1);
        assert!(!talk.awaits_endpoint(), "nobody has sent anything");
        for round in 0..3 {
            // Both in pieces, which the other side acknowledges.
            for side in Side::BOTH {
                for _ in 0..3 {
                    talk.send(side, ACK, DATA);
                    talk.send(side.other(), ACK, b"");
                    let asks = side == Side::Client;
                    assert_eq!(talk.awaits_endpoint(), asks, "{round}, {side:?}");
                    probe(&mut talk, Side::Client);
                    probe(&mut talk, Side::Endpoint);
                    assert_eq!(talk.awaits_endpoint(), asks, "after a probe");
                }
            }
        }
        // An endpoint may speak first, as SSH's does.
        let mut talk = Conversation::established(&scene, &tables, 2);
        talk.send(Side::Endpoint, ACK, DATA);
        assert!(!talk.awaits_endpoint());
        talk.send(Side::Client, ACK, DATA);
        assert!(talk.awaits_endpoint());
        // Segments that do not fit say nothing.
        let mut blind = talk.segment(Side::Endpoint, ACK);
        blind.sequence = blind.sequence.wrapping_add(1 << 30);
        let there = talk.there;
        talk.deliver(Side::Endpoint, blind, DATA);
        talk.there = there;
        assert!(talk.awaits_endpoint());
    }
}

/// A side asks whether the other is still there (RFC 9293, 3.8.4), and gets its answer.
fn probe(talk: &mut Conversation<'_>, side: Side) {
    let mut probe = talk.segment(side, ACK);
    probe.sequence = probe.sequence.wrapping_sub(1);
    talk.deliver(side, probe, b"");
    talk.send(side.other(), ACK, b"");
}
