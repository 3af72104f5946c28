//! How far SCTP associations have come, by packets that their sides could have sent, and by others that
//! nobody who sees the association would send.

use lb_common::{
    abi::config_flag,
    flow::{Stage, flow_flag},
    verdict::{Action, Reason},
};
use lb_objects::IpFamily;
use lb_packet::{
    Chunk, Header, SCTP,
    chunk::{
        ABORT, COOKIE_ACK, COOKIE_ECHO, DATA, HEARTBEAT, INIT, INIT_ACK, SACK, SHUTDOWN,
        SHUTDOWN_ACK, SHUTDOWN_COMPLETE,
    },
    icmp, icmp_number, sctp,
};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side, flows, half_open, mark},
    hooks::{Outcome, ingress},
    scene::{Place, Scene},
};

/// Seconds after which a direction whose tag does not fit is believed.
const PATIENCE: u32 = 16;
/// The tags that the client and the endpoint ask for.
const TAGS: [u32; 2] = [0x1234_5678, 0x9abc_def0];

fn scenes() -> impl Iterator<Item = Scene> {
    [IpFamily::V4, IpFamily::V6]
        .into_iter()
        .map(|family| Scene::new(family, SCTP))
}

/// An association from one of the client's ports.
struct Association<'a> {
    scene: &'a Scene,
    tables: &'a ProgrammedTables,
    port: u16,
    talk: Conversation<'a>,
}

impl<'a> Association<'a> {
    fn new(scene: &'a Scene, tables: &'a ProgrammedTables, port: u16) -> Self {
        Self {
            scene,
            tables,
            port,
            talk: Conversation::new(scene, tables, port),
        }
    }

    fn established(scene: &'a Scene, tables: &'a ProgrammedTables, port: u16) -> Self {
        let mut association = Self::new(scene, tables, port);
        association.shake_hands();
        assert_eq!(association.stage(), Some(Stage::Established));
        association
    }

    fn shake_hands(&mut self) {
        self.init();
        self.send(Side::Endpoint, Chunk::asking_for(INIT_ACK, TAGS[1]));
        self.send(Side::Client, Chunk::new(COOKIE_ECHO).with(&[5; 40]));
        self.send(Side::Endpoint, Chunk::new(COOKIE_ACK));
    }

    fn init(&mut self) -> Outcome {
        self.deliver(Side::Client, 0, &[Chunk::asking_for(INIT, TAGS[0])])
    }

    /// A packet of a side, with the tag that the other one has asked for.
    fn send(&mut self, side: Side, chunk: Chunk) -> Outcome {
        self.deliver(side, TAGS[side.other() as usize], &[chunk])
    }

    fn deliver(&mut self, side: Side, tag: u32, chunks: &[Chunk]) -> Outcome {
        let (from, to) = match side {
            Side::Client => (self.scene.client(self.port), self.scene.target()),
            Side::Endpoint => {
                let (source, endpoint) = self.talk.there.expect("the client sends first");
                (endpoint, source)
            }
        };
        let packet = sctp(from, to, tag, chunks);
        let outcome = ingress(
            self.tables,
            &Header::new(from.ip(), to.ip()).frame(SCTP, &packet),
        );
        if outcome.action == Action::Redirect {
            outcome.read().assert_checksums();
        }
        if side == Side::Client && outcome.action == Action::Redirect {
            self.talk.there = Some((outcome.read().from(), outcome.read().to()));
        }
        outcome
    }

    fn stage(&self) -> Option<Stage> {
        self.talk.stage()
    }
}

fn data() -> Chunk {
    Chunk::new(DATA).with(&[3; 30])
}

#[test]
fn an_association_stands_when_the_client_bears_the_endpoints_tag() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut association = Association::new(&scene, &tables, 4000);
        assert_eq!(association.init().reason, Reason::Opened);
        assert_eq!(association.stage(), Some(Stage::Unreplied));
        // Sent again, it is the same.
        assert_eq!(association.init().reason, Reason::ToEndpoint);
        assert_eq!(association.stage(), Some(Stage::Unreplied));
        let answer = Chunk::asking_for(INIT_ACK, TAGS[1]);
        let answered = association.send(Side::Endpoint, answer);
        assert_eq!(answered.reason, Reason::ToClient);
        assert_eq!(association.stage(), Some(Stage::Handshake));
        assert_eq!(tables.stats(1).half_open, 1);
        association.send(Side::Client, Chunk::new(COOKIE_ECHO).with(&[5; 40]));
        assert_eq!(association.stage(), Some(Stage::Established));
        assert_eq!(tables.stats(1).half_open, 0);
        for side in Side::BOTH {
            association.send(side, data());
            association.send(side, Chunk::new(HEARTBEAT).with(&[1; 8]));
        }
        assert_eq!(association.stage(), Some(Stage::Established));
    }
}

#[test]
fn who_does_not_know_the_tags_proves_nothing_and_ends_nothing() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut association = Association::new(&scene, &tables, 4000);
        association.init();
        // Not the endpoint: it would have seen the INIT.
        for tag in [0, 1, TAGS[0] ^ 1, TAGS[1]] {
            let answer = Chunk::asking_for(INIT_ACK, 77);
            association.deliver(Side::Endpoint, tag, &[answer]);
            association.deliver(Side::Endpoint, tag, &[Chunk::new(ABORT)]);
        }
        assert_eq!(association.stage(), Some(Stage::Unreplied));
        association.send(Side::Endpoint, Chunk::asking_for(INIT_ACK, TAGS[1]));
        for tag in [0, 1, TAGS[1] ^ 1, TAGS[0]] {
            for kind in [COOKIE_ECHO, DATA, SHUTDOWN, ABORT] {
                association.deliver(Side::Client, tag, &[Chunk::new(kind).with(&[0; 4])]);
            }
        }
        assert_eq!(association.stage(), Some(Stage::Handshake));
        association.send(Side::Client, Chunk::new(COOKIE_ECHO).with(&[5; 40]));
        for side in Side::BOTH {
            for tag in [0, 1, TAGS[0] ^ 1, TAGS[side as usize]] {
                for kind in [
                    SHUTDOWN,
                    SHUTDOWN_ACK,
                    SHUTDOWN_COMPLETE,
                    ABORT,
                    INIT,
                    INIT_ACK,
                ] {
                    let chunk = Chunk::asking_for(kind, 99);
                    association.deliver(side, tag, &[chunk]);
                }
            }
        }
        assert_eq!(association.stage(), Some(Stage::Established));
    }
}

/// An endpoint keeps nothing until its cookie comes back, so it asks for another tag each time.
#[test]
fn an_endpoint_that_answers_twice_may_be_believed_either_time() {
    for scene in scenes() {
        for taken in [TAGS[1], 0x5555_0000] {
            let tables = scene.tables();
            let mut association = Association::new(&scene, &tables, 4000);
            association.init();
            association.send(Side::Endpoint, Chunk::asking_for(INIT_ACK, TAGS[1]));
            association.init();
            association.send(Side::Endpoint, Chunk::asking_for(INIT_ACK, 0x5555_0000));
            let echo = Chunk::new(COOKIE_ECHO).with(&[5; 40]);
            association.deliver(Side::Client, taken, &[echo]);
            assert_eq!(association.stage(), Some(Stage::Established));
            // Only that one from now on.
            let other = TAGS[1] ^ 0x5555_0000 ^ taken;
            association.deliver(Side::Client, other, &[Chunk::new(ABORT)]);
            assert_eq!(association.stage(), Some(Stage::Established));
            association.deliver(Side::Client, taken, &[Chunk::new(ABORT)]);
            assert_eq!(association.stage(), Some(Stage::Closed));
        }
    }
}

#[test]
fn a_shutdown_takes_three_steps() {
    for scene in scenes() {
        for first in Side::BOTH {
            let tables = scene.tables();
            let mut association = Association::established(&scene, &tables, 4000);
            // Nobody has asked for it.
            association.send(first, Chunk::new(SHUTDOWN_COMPLETE));
            assert_eq!(association.stage(), Some(Stage::Established));
            // Behind what it acknowledges.
            let shutdown = [
                Chunk::new(SACK).with(&[0; 20]),
                Chunk::new(SHUTDOWN).with(&[0; 4]),
            ];
            association.deliver(first, TAGS[first.other() as usize], &shutdown);
            assert_eq!(association.stage(), Some(Stage::HalfClosed));
            association.send(first.other(), data());
            assert_eq!(association.stage(), Some(Stage::HalfClosed));
            // Its receiver has not acknowledged it yet.
            association.send(first, Chunk::new(SHUTDOWN_COMPLETE));
            assert_eq!(association.stage(), Some(Stage::HalfClosed));
            association.send(first.other(), Chunk::new(SHUTDOWN_ACK));
            assert_eq!(association.stage(), Some(Stage::HalfClosed));
            association.send(first, Chunk::new(SHUTDOWN_COMPLETE));
            assert_eq!(association.stage(), Some(Stage::Closed));
            // The port is free for another one.
            assert_eq!(association.init().reason, Reason::Opened);
            assert_eq!(flows(&tables, &scene), 1);
        }
    }
}

#[test]
fn both_sides_may_shut_down_at_once() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut association = Association::established(&scene, &tables, 4000);
        for kind in [SHUTDOWN, SHUTDOWN_ACK] {
            for side in Side::BOTH {
                association.send(side, Chunk::new(kind).with(&[0; 4]));
            }
        }
        assert_eq!(association.stage(), Some(Stage::Closed));
    }
}

/// A side that has lost its association sends back the tag of what it got.
#[test]
fn who_knows_no_association_any_more_aborts_it_with_the_tag_it_got() {
    for scene in scenes() {
        for side in Side::BOTH {
            let tables = scene.tables();
            let mut association = Association::established(&scene, &tables, 4000);
            let abort = || [Chunk::new(ABORT).reflecting()];
            association.deliver(side, TAGS[side.other() as usize], &abort());
            assert_eq!(association.stage(), Some(Stage::Established));
            association.deliver(side, TAGS[side as usize], &abort());
            assert_eq!(association.stage(), Some(Stage::Closed));
            // One that goes on did not do that.
            association.send(side, data());
            association.send(side.other(), data());
            assert_eq!(association.stage(), Some(Stage::Established));
        }
    }
}

#[test]
fn an_endpoint_that_refuses_is_left_for_another_one() {
    for scene in scenes() {
        let scene = Scene {
            endpoints: vec![Place::Remote, Place::Remote],
            ..scene
        };
        for unreachable in [false, true] {
            let mut tables = scene.tables();
            tables.config.flags |= config_flag::AVOID_FAILING;
            let mut association = Association::new(&scene, &tables, 4000);
            association.init();
            let (source, first) = association.talk.there.expect("an endpoint");
            let refused = match unreachable {
                false => association.send(Side::Endpoint, Chunk::new(ABORT)),
                true => {
                    let sent = sctp(source, first, 0, &[Chunk::asking_for(INIT, TAGS[0])]);
                    let quoted = Header::new(source.ip(), first.ip()).packet(SCTP, &sent);
                    let (from, to) = (first.ip(), source.ip());
                    let kind = if from.is_ipv4() { (3, 3) } else { (1, 4) };
                    let message = icmp(from, to, kind, 0, &quoted);
                    ingress(
                        &tables,
                        &Header::new(from, to).frame(icmp_number(from), &message),
                    )
                }
            };
            let seen = (refused.action, refused.reason);
            assert_eq!(
                seen,
                (Action::Drop, Reason::EndpointRefused),
                "{unreachable}"
            );
            // It asks again.
            assert_eq!(association.init().reason, Reason::Opened);
            let (_, second) = association.talk.there.expect("an endpoint");
            assert_ne!(first, second);
            assert_eq!(flows(&tables, &scene), 1);
        }
    }
}

#[test]
fn the_only_endpoints_refusal_reaches_the_client() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut association = Association::new(&scene, &tables, 4000);
        association.init();
        let refused = association.send(Side::Endpoint, Chunk::new(ABORT));
        assert_eq!(refused.reason, Reason::ToClient);
        assert_eq!(association.stage(), Some(Stage::Closed));
    }
}

#[test]
fn an_association_whose_record_was_lost_is_picked_up() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut association = Association::new(&scene, &tables, 4000);
        // What ends one opens nothing.
        for kind in [ABORT, SHUTDOWN_COMPLETE] {
            let stray = association.send(Side::Client, Chunk::new(kind));
            assert_eq!(stray.reason, Reason::StrayReset);
        }
        assert_eq!(
            association.send(Side::Client, data()).reason,
            Reason::Opened
        );
        assert_eq!(half_open(&tables, &scene), 1);
        association.send(Side::Endpoint, data());
        assert_eq!(association.stage(), Some(Stage::Established));
        association.send(Side::Client, data());
        for side in Side::BOTH {
            association.deliver(side, 1, &[Chunk::new(ABORT)]);
            assert_eq!(association.stage(), Some(Stage::Established));
        }
        association.send(Side::Endpoint, Chunk::new(ABORT));
        assert_eq!(association.stage(), Some(Stage::Closed));
    }
}

/// A side has restarted, and both have agreed on new tags.
#[test]
fn other_tags_are_believed_if_both_sides_have_them() {
    const OTHER: u32 = 0x1111;
    for scene in scenes() {
        for first in Side::BOTH {
            let tables = scene.tables();
            let mut association = Association::established(&scene, &tables, 4000);
            let abort = [Chunk::new(ABORT)];
            for side in [first, first.other()] {
                let passed = association.deliver(side, OTHER, &[data()]);
                assert_eq!(passed.action, Action::Redirect);
                association.deliver(side, OTHER, &abort);
                assert_eq!(association.stage(), Some(Stage::Established));
            }
            tables.set_seconds(PATIENCE);
            for side in [first, first.other()] {
                association.deliver(side, OTHER, &[data()]);
            }
            association.deliver(first, TAGS[first.other() as usize], &abort);
            assert_eq!(association.stage(), Some(Stage::Established));
            association.deliver(first, OTHER, &abort);
            assert_eq!(association.stage(), Some(Stage::Closed));
        }
    }
}

/// Who cannot see an association has time, and can speak for one side only.
#[test]
fn a_blind_attacker_is_never_believed() {
    for scene in scenes() {
        for side in Side::BOTH {
            let tables = scene.tables();
            let mut association = Association::established(&scene, &tables, 4000);
            for seconds in [0, PATIENCE, 2 * PATIENCE, 3 * PATIENCE] {
                tables.set_seconds(seconds);
                association.deliver(side, 0x1111, &[data()]);
                association.deliver(side, 0x1111, &[Chunk::new(ABORT)]);
                assert_eq!(association.stage(), Some(Stage::Established));
            }
            association.send(side, Chunk::new(ABORT));
            assert_eq!(association.stage(), Some(Stage::Closed));
        }
    }
}

#[test]
fn a_side_that_goes_on_past_a_deadline_is_told() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut association = Association::established(&scene, &tables, 4000);
        mark(&scene, &tables, flow_flag::EXPIRED, flow_flag::EXPIRED);
        for side in Side::BOTH {
            let sent = association.send(side, data());
            let seen = (sent.action, sent.reason);
            assert_eq!(seen, (Action::Answer, Reason::DeadlineExceeded), "{side:?}");
            let answer = sent.read();
            let tag = TAGS[side.other() as usize];
            let abort = [Chunk::new(ABORT).reflecting()];
            let expected = sctp(answer.from(), answer.to(), tag, &abort);
            assert_eq!(answer.payload(), expected);
        }
    }
}

/// Who sends with a client's address may choose the tag that the client asks for, but does not see the
/// endpoint's.
#[test]
fn a_spoofed_client_does_not_prove_itself_by_a_tag_of_its_own() {
    for scene in scenes() {
        let tables = scene.tables();
        let mut association = Association::new(&scene, &tables, 4000);
        association.init();
        let echo = || [Chunk::new(COOKIE_ECHO).with(&[5; 40])];
        for seconds in [0, PATIENCE, 2 * PATIENCE] {
            tables.set_seconds(seconds);
            association.deliver(Side::Client, 0x1111, &echo());
            assert_eq!(association.stage(), Some(Stage::Unreplied));
        }
        for _ in 0..2 {
            association.send(Side::Endpoint, Chunk::asking_for(INIT_ACK, TAGS[1]));
            association.deliver(Side::Client, 0x1111, &echo());
            assert_eq!(association.stage(), Some(Stage::Handshake));
        }
        tables.set_seconds(3 * PATIENCE);
        association.deliver(Side::Client, 0x1111, &echo());
        assert_eq!(association.stage(), Some(Stage::Handshake));
    }
}

#[test]
fn chunks_cut_short_do_no_harm() {
    for scene in scenes() {
        let tables = scene.tables();
        let (from, to) = (scene.client(4000), scene.target());
        let whole = sctp(from, to, 0, &[Chunk::asking_for(INIT, 5)]);
        for length in 0..whole.len() {
            let frame = Header::new(from.ip(), to.ip()).frame(SCTP, &whole[..length]);
            let outcome = ingress(&tables, &frame);
            match length {
                // Shorter than the header of a first chunk.
                ..16 => assert_eq!(outcome.action, Action::Pass, "{length}"),
                _ => assert_ne!(outcome.action, Action::Answer, "{length}"),
            }
        }
        // A chunk that says to be of no length, and one that says to be longer than the packet.
        for length in [0_u16, 3, 2000, u16::MAX] {
            let mut packet = sctp(from, to, 9, &[Chunk::new(SACK), data()]);
            packet[14..16].copy_from_slice(&length.to_be_bytes());
            let frame = Header::new(from.ip(), to.ip()).frame(SCTP, &packet);
            assert_ne!(ingress(&tables, &frame).action, Action::Answer, "{length}");
        }
    }
}
