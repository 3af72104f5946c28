//! How far connections have come, by segments that their sides could have sent, and by others that
//! nobody who sees the connection would send.

use lb_common::{
    flow::{Stage, Timeouts},
    verdict::Reason,
};
use lb_objects::IpFamily;
use lb_packet::{
    TCP, Tcp, UDP,
    tcp_flag::{ACK, FIN, RST, SYN},
};
use node_lb::memory::ProgrammedTables;
use proptest::{collection::vec, prelude::*};

use crate::{
    conversation::{Conversation, Side, flows, half_open},
    hooks::ingress,
    scene::{Client, Place, Scene},
};

/// Seconds after which a direction that does not fit is believed.
const PATIENCE: u32 = 16;

fn scenes() -> impl Iterator<Item = Scene> {
    [IpFamily::V4, IpFamily::V6]
        .into_iter()
        .map(|family| Scene::new(family, TCP))
}

#[test]
fn a_handshake_is_done_when_the_client_acknowledges_the_endpoints_number() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        assert_eq!(talk.stage(), Some(Stage::Unreplied));
        // Sent again, it is the same.
        talk.deliver(Side::Client, Tcp::new(u32::MAX - 7, 0, SYN), b"");
        assert_eq!(talk.stage(), Some(Stage::Unreplied));
        talk.send(Side::Endpoint, SYN | ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Handshake));
        assert_eq!(tables.stats(1).half_open, 1);
        talk.send(Side::Client, ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Established));
        assert_eq!(tables.stats(1).half_open, 0);
    }
}

#[test]
fn who_does_not_know_the_endpoints_number_proves_nothing() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        talk.send(Side::Endpoint, SYN | ACK, b"");
        let right = talk.segment(Side::Client, ACK);
        for off in [1, 2, 1 << 10, 1 << 20, 1 << 31, u32::MAX, u32::MAX << 10] {
            let wrong = Tcp {
                acknowledged: right.acknowledged.wrapping_add(off),
                ..right
            };
            for flags in [ACK, ACK | FIN] {
                talk.deliver(Side::Client, Tcp { flags, ..wrong }, b"data");
                assert_eq!(talk.stage(), Some(Stage::Handshake), "{off:x} {flags:x}");
            }
        }
        talk.deliver(Side::Client, right, b"");
        assert_eq!(talk.stage(), Some(Stage::Established));
    }
}

#[test]
fn data_that_comes_with_the_handshake_does_not_get_in_its_way() {
    for scene in scenes() {
        for (takes, answers_early) in [(false, false), (true, false), (true, true)] {
            let tables = scene.tables();
            let mut talk = Conversation::new(&scene, &tables, 4000);
            talk.send(Side::Client, SYN, b"early data");
            if !takes {
                // The endpoint acknowledges the SYN alone: the data comes again.
                talk.next[0] = talk.next[0].wrapping_sub(10);
            }
            talk.send(Side::Endpoint, SYN | ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::Handshake));
            let first = talk.segment(Side::Client, ACK);
            if answers_early {
                talk.send(Side::Endpoint, ACK, b"early answer");
            }
            talk.deliver(Side::Client, first, b"");
            assert_eq!(
                talk.stage(),
                Some(Stage::Established),
                "{takes} {answers_early}"
            );
        }
    }
}

#[test]
fn an_answer_to_another_syn_is_none() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        let right = talk.segment(Side::Endpoint, SYN | ACK);
        for acknowledged in [right.acknowledged.wrapping_add(1), 0x1234_5678] {
            talk.deliver(
                Side::Endpoint,
                Tcp {
                    acknowledged,
                    ..right
                },
                b"",
            );
            assert_eq!(talk.stage(), Some(Stage::Unreplied));
        }
    }
}

#[test]
fn a_connection_is_closed_when_both_ends_are_acknowledged() {
    for scene in scenes() {
        for first in Side::BOTH {
            let tables = scene.tables();
            let mut talk = Conversation::established(&scene, &tables, 4000);
            talk.send(first, ACK, b"the last data");
            talk.send(first, FIN | ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::HalfClosed));
            talk.send(first.other(), ACK, b"more");
            talk.send(first.other(), ACK, b"and more");
            talk.send(first, ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::HalfClosed));
            talk.send(first.other(), FIN | ACK, b"with the end");
            assert_eq!(talk.stage(), Some(Stage::HalfClosed), "perhaps it was lost");
            talk.send(first, ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::Closed));
        }
    }
}

#[test]
fn both_sides_may_end_at_once_and_again() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 4000);
        let ends = Side::BOTH.map(|side| talk.segment(side, FIN | ACK));
        for _ in 0..2 {
            talk.deliver(Side::Client, ends[0], b"");
            talk.deliver(Side::Endpoint, ends[1], b"");
        }
        assert_eq!(talk.stage(), Some(Stage::HalfClosed));
        talk.next = talk.next.map(|next| next.wrapping_add(1));
        talk.send(Side::Client, ACK, b"");
        talk.send(Side::Endpoint, ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

/// Every hook that a packet passes sees it. The second look must not count again.
#[test]
fn segments_that_are_seen_twice_count_once() {
    for family in [IpFamily::V4, IpFamily::V6] {
        for first in Side::BOTH {
            let scene = Scene::new(family, TCP);
            let tables = scene.tables();
            let mut talk = Conversation::new(&scene, &tables, 4000);
            let twice = |talk: &mut Conversation<'_>, side, flags| {
                let segment = talk.segment(side, flags);
                talk.deliver(side, segment, b"");
                talk.send(side, flags, b"");
            };
            twice(&mut talk, Side::Client, SYN);
            twice(&mut talk, Side::Endpoint, SYN | ACK);
            assert_eq!(talk.stage(), Some(Stage::Handshake));
            twice(&mut talk, Side::Client, ACK);
            assert_eq!(talk.stage(), Some(Stage::Established));
            twice(&mut talk, first, FIN | ACK);
            twice(&mut talk, first.other(), FIN | ACK);
            assert_eq!(talk.stage(), Some(Stage::HalfClosed));
            twice(&mut talk, first, ACK);
            assert_eq!(talk.stage(), Some(Stage::Closed));
            assert_eq!(tables.stats(1).connections, 1);
            assert_eq!(tables.stats(1).half_open, 0);
        }
    }
}

/// What answers a SYN by a RST crosses both hooks where the answer passes the host's stack.
#[test]
fn a_refusal_reaches_the_client_past_both_hooks() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene {
            endpoints: vec![Place::Local],
            client: Client::Pod,
            bypass: false,
            ..Scene::new(family, TCP)
        };
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        let refusal = talk.frame(Side::Endpoint, talk.segment(Side::Endpoint, RST | ACK), b"");
        let answer = crate::hooks::through(&tables, &refusal);
        assert_eq!(answer.reason, Reason::ToClient);
        assert_eq!(answer.read().from(), scene.target());
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

#[test]
fn a_reset_counts_with_a_number_in_the_window() {
    for scene in scenes() {
        for side in Side::BOTH {
            let tables = scene.tables();
            let mut talk = Conversation::established(&scene, &tables, 4000);
            let right = talk.segment(side, RST);
            for off in [u32::MAX, 1 << 31, 0x2002, 1 << 20, u32::MAX << 20] {
                let sequence = right.sequence.wrapping_add(off);
                talk.deliver(side, Tcp { sequence, ..right }, b"");
                assert_eq!(talk.stage(), Some(Stage::Established), "{side:?} {off:x}");
            }
            talk.deliver(side, right, b"");
            assert_eq!(talk.stage(), Some(Stage::Closed));
        }
    }
}

#[test]
fn a_scaled_window_is_as_large_as_it_says() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.scale = Some(7);
        talk.shake_hands();
        let right = talk.segment(Side::Client, RST);
        let beyond = right.sequence.wrapping_add((0x2000 << 7) + 2);
        talk.deliver(
            Side::Client,
            Tcp {
                sequence: beyond,
                ..right
            },
            b"",
        );
        assert_eq!(talk.stage(), Some(Stage::Established));
        let within = right.sequence.wrapping_add(0x1fff << 7);
        talk.deliver(
            Side::Client,
            Tcp {
                sequence: within,
                ..right
            },
            b"",
        );
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

/// The endpoint answers a guess that falls into the window, but did not obey it (RFC 5961, 3.2):
/// the connection is still there.
#[test]
fn a_reset_that_the_other_side_did_not_obey_is_taken_back() {
    for scene in scenes() {
        for side in Side::BOTH {
            let tables = scene.tables();
            let mut talk = Conversation::established(&scene, &tables, 4000);
            let right = talk.segment(side, RST);
            let guess = right.sequence.wrapping_add(100);
            talk.deliver(
                side,
                Tcp {
                    sequence: guess,
                    ..right
                },
                b"",
            );
            assert_eq!(talk.stage(), Some(Stage::Closed));
            talk.send(side.other(), ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::Established));
            talk.send(side, RST, b"");
            assert_eq!(talk.stage(), Some(Stage::Closed));
        }
    }
}

#[test]
fn a_reset_answers_a_syn_with_its_number_only() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        let right = Tcp::new(0, talk.next[0], RST | ACK);
        for wrong in [
            Tcp {
                acknowledged: 77,
                ..right
            },
            Tcp {
                flags: RST,
                ..right
            },
            Tcp {
                flags: RST,
                acknowledged: 0,
                ..right
            },
        ] {
            talk.deliver(Side::Endpoint, wrong, b"");
            assert_eq!(talk.stage(), Some(Stage::Unreplied), "{wrong:?}");
        }
        talk.deliver(Side::Endpoint, right, b"");
        assert_eq!(talk.stage(), Some(Stage::Closed));
        // The client may try again at once, and gets a flow of its own.
        let again = ingress(&tables, &talk.frame(Side::Client, Tcp::new(9, 0, SYN), b""));
        assert_eq!(again.reason, Reason::Opened);
        assert_eq!(talk.stage(), Some(Stage::Unreplied));
        assert_eq!(half_open(&tables, &scene) as i32, tables.stats(1).half_open);
    }
}

#[test]
fn a_client_takes_its_syn_back_with_its_number_only() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        talk.deliver(
            Side::Client,
            Tcp::new(talk.next[0].wrapping_add(5), 0, RST),
            b"",
        );
        assert_eq!(talk.stage(), Some(Stage::Unreplied));
        talk.deliver(Side::Client, Tcp::new(talk.next[0], 0, RST), b"");
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

#[test]
fn a_syn_changes_nothing_on_a_connection_that_lives() {
    for scene in scenes() {
        for seconds in [0, 100] {
            let tables = scene.tables();
            let mut talk = Conversation::established(&scene, &tables, 4000);
            tables.set_seconds(seconds);
            for sequence in [1, talk.next[0], 0x8765_4321] {
                let outcome = talk.deliver(Side::Client, Tcp::new(sequence, 0, SYN), b"");
                assert_eq!(outcome.reason, Reason::ToEndpoint);
                assert_eq!(talk.stage(), Some(Stage::Established));
            }
            talk.close(Side::Client);
            assert_eq!(talk.stage(), Some(Stage::Closed), "nor to its numbers");
        }
    }
}

#[test]
fn what_was_missed_is_made_up_for() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 4000);
        talk.next = talk.next.map(|next| next.wrapping_add(1 << 30));
        talk.send(Side::Client, ACK, b"");
        talk.send(Side::Endpoint, ACK, b"");
        talk.send(Side::Client, FIN | ACK, b"");
        assert_eq!(
            talk.stage(),
            Some(Stage::Established),
            "that was not it yet"
        );
        tables.set_seconds(PATIENCE);
        talk.send(Side::Client, ACK, b"");
        talk.send(Side::Endpoint, ACK, b"");
        talk.close(Side::Endpoint);
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

/// The receiver of a forged segment answers what it has, so everything is as it was.
#[test]
fn patience_does_not_help_an_attacker() {
    for scene in scenes() {
        for side in Side::BOTH {
            let tables = scene.tables();
            let mut talk = Conversation::established(&scene, &tables, 4000);
            for seconds in 0..3 * PATIENCE {
                tables.set_seconds(seconds);
                talk.deliver(side, Tcp::new(0x4000_0000, 0x5000_0000, ACK), b"data");
                talk.send(side.other(), ACK, b"");
            }
            let forged = Tcp::new(0x5000_0000, 0x4000_0000, RST);
            talk.deliver(side.other(), forged, b"");
            assert_eq!(talk.stage(), Some(Stage::Established));
            talk.close(side);
            assert_eq!(talk.stage(), Some(Stage::Closed));
        }
    }
}

/// Where the mark of what did not fit was, is a number of the endpoint once it answers.
#[test]
fn nor_does_the_answer_to_a_repeated_syn() {
    for scene in scenes() {
        for first in [0, PATIENCE, 1 << 15, u32::MAX] {
            let tables = scene.tables();
            let mut talk = Conversation::new(&scene, &tables, 4000);
            talk.next[1] = first;
            talk.send(Side::Client, SYN, b"");
            let answer = talk.segment(Side::Endpoint, SYN | ACK);
            talk.send(Side::Endpoint, SYN | ACK, b"");
            for _ in 0..2 {
                let forged = Tcp::new(0x4000_0000, 0x5000_0000, ACK);
                talk.deliver(Side::Client, forged, b"data");
                talk.deliver(Side::Endpoint, answer, b"");
            }
            let forged = Tcp::new(0x5000_0000, 0x4000_0000, RST);
            talk.deliver(Side::Endpoint, forged, b"");
            assert_ne!(talk.stage(), Some(Stage::Closed), "first number {first}");
            talk.send(Side::Client, ACK, b"");
            assert_eq!(talk.stage(), Some(Stage::Established));
        }
    }
}

proptest! {
    /// An attacker who does not see the connection cannot change its stage, idle or busy.
    #[test]
    fn blind_segments_change_nothing(
        segments in vec((any::<(u32, u32)>(), any::<bool>(), 0..0x40u8), 1..40),
        busy: bool,
    ) {
        let scene = Scene::new(IpFamily::V4, TCP);
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 4000);
        let mut seconds = 0;
        for ((sequence, acknowledged), side, flags) in segments {
            // One in 65,536 guesses comes near. The random seed must not find that one.
            let near = |a: u32, b: u32| a.wrapping_sub(b).wrapping_add(1 << 23) < 1 << 24;
            let side = Side::BOTH[usize::from(side)];
            prop_assume!(!near(sequence, talk.next[side as usize]));
            talk.deliver(side, Tcp::new(sequence, acknowledged, flags), b"");
            seconds += 1;
            tables.set_seconds(seconds);
            if busy {
                talk.send(Side::Client, ACK, b"request");
                talk.send(Side::Endpoint, ACK, b"answer");
            }
            prop_assert_eq!(talk.stage(), Some(Stage::Established));
        }
    }

    /// However connections go, the programs' counts equal the number of flows.
    #[test]
    fn flows_are_counted_right(steps in vec((0..600u16, 0..9u8, 0..3u32), 1..1500)) {
        let scene = Scene { flow_records: 4096, ..Scene::new(IpFamily::V4, TCP) };
        let mut tables = scene.tables();
        tables.timeouts = short_timeouts();
        let mut seconds = 0;
        for (port, step, pause) in steps {
            seconds += pause / 2;
            tables.set_seconds(seconds);
            one_step(&scene, &tables, 1000 + port, step);
            prop_assert_eq!(half_open(&tables, &scene) as i32, tables.stats(1).half_open);
            prop_assert_eq!(flows(&tables, &scene) as i32, tables.flow_count(1));
        }
    }
}

fn one_step(scene: &Scene, tables: &ProgrammedTables, port: u16, step: u8) {
    let mut talk = Conversation::new(scene, tables, port);
    talk.send(Side::Client, SYN, b"");
    if step == 0
        || talk
            .there
            .is_none_or(|(from, _)| from == scene.client(port))
    {
        return;
    }
    talk.send(Side::Endpoint, SYN | ACK, b"");
    match step {
        1 => {}
        2 => _ = talk.send(Side::Endpoint, RST | ACK, b""),
        3 => _ = talk.send(Side::Client, RST, b""),
        _ => _ = talk.send(Side::Client, ACK, b""),
    }
    match step {
        4 => talk.close(Side::Client),
        5 => talk.close(Side::Endpoint),
        6 => _ = talk.send(Side::Client, RST, b""),
        _ => {}
    }
}

fn short_timeouts() -> Timeouts {
    Timeouts {
        tcp: [3, 3, 50, 10, 1],
        udp: [3; 5],
        port_held: 6,
        shortest: 0,
    }
    .with_shortest()
}

#[test]
fn a_datagram_flow_proves_itself_when_the_client_sends_again_after_an_answer() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let scene = Scene::new(family, UDP);
        let tables = scene.tables();
        let first = ingress(&tables, &scene.opening(4000)).read();
        let answer = scene.frame(first.to(), first.from(), 0, b"answer");
        ingress(&tables, &scene.opening(4000));
        assert_eq!(tables.stats(1).half_open, 1, "nobody has answered");
        ingress(&tables, &answer);
        ingress(&tables, &answer);
        assert_eq!(tables.stats(1).half_open, 1, "the client may be anybody");
        ingress(&tables, &scene.opening(4000));
        assert_eq!(tables.stats(1).half_open, 0);
        assert_eq!(half_open(&tables, &scene), 0);
    }
}
