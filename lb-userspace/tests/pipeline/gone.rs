//! Clients of endpoints that are gone are told. Clients of endpoints that answer are left alone.

use std::net::SocketAddr;

use lb_common::{
    flow::{Stage, flow_flag},
    verdict::{Action, Reason},
};
use lb_packet::{
    ETHERNET,
    tcp_flag::{ACK, RST, SYN},
    transport_sum,
};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side, mark},
    hooks::Outcome,
    moving::{program_without, scenes},
    scene::Scene,
};

/// Seconds without an answer to data, after which the endpoint counts as gone.
const PATIENCE: u32 = 24;
const DATA: &[u8] = b"are you there?";

/// Repeats the client's data, without a note of it in `talk`.
fn ask(talk: &mut Conversation<'_>) -> Outcome {
    let segment = talk.segment(Side::Client, ACK);
    talk.deliver(Side::Client, segment, DATA)
}

#[test]
fn a_client_that_nobody_answers_is_told() {
    for scene in scenes(2) {
        let mut tables = scene.tables();
        let there = Conversation::established(&scene, &tables, 1).there.unwrap();
        program_without(&scene, &mut tables, there.1);
        let mut talk = resumed(&scene, &tables, there);
        // It has been silent for long, as the connection has.
        tables.set_seconds(1000);
        assert_eq!(ask(&mut talk).reason, Reason::ToEndpoint);
        for second in [1001, 1003, 1007, 1000 + PATIENCE] {
            tables.set_seconds(second);
            assert_eq!(ask(&mut talk).reason, Reason::ToEndpoint);
        }
        tables.set_seconds(1001 + PATIENCE);
        let told = ask(&mut talk);
        assert_told(&scene, &talk, &told);
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

#[test]
fn a_client_whose_endpoint_answers_is_left_alone() {
    for scene in scenes(2) {
        let mut tables = scene.tables();
        let there = Conversation::established(&scene, &tables, 1).there.unwrap();
        program_without(&scene, &mut tables, there.1);
        let mut talk = resumed(&scene, &tables, there);
        for round in 1..20 {
            tables.set_seconds(round * 1000);
            ask(&mut talk);
            tables.set_seconds(round * 1000 + 1);
            ask(&mut talk);
            // Slow, but there.
            tables.set_seconds(round * 1000 + PATIENCE);
            talk.send(Side::Endpoint, ACK, b"");
            tables.set_seconds(round * 1000 + PATIENCE + 1);
            assert_eq!(ask(&mut talk).reason, Reason::ToEndpoint);
            // What comes twice is acknowledged twice.
            talk.send(Side::Endpoint, ACK, b"");
        }
    }
}

#[test]
fn a_client_of_an_endpoint_that_serves_is_left_alone() {
    for scene in scenes(2) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 1);
        for second in 0..100 {
            tables.set_seconds(second);
            assert_eq!(ask(&mut talk).reason, Reason::ToEndpoint);
        }
    }
}

/// During a handshake, the endpoint's first number is stored in the place that later holds the time
/// since when a client repeats itself.
#[test]
fn a_client_that_repeats_itself_in_its_handshake_may_complete_it() {
    for scene in scenes(2) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 1);
        talk.send(Side::Client, SYN, b"");
        talk.send(Side::Endpoint, SYN | ACK, b"");
        // It acknowledges less than the endpoint's SYN, so it proves nothing.
        let mut early = talk.segment(Side::Client, ACK);
        early.acknowledged = early.acknowledged.wrapping_sub(1);
        for second in [1, 2, 3] {
            tables.set_seconds(second);
            talk.deliver(Side::Client, early, DATA);
            assert_eq!(talk.stage(), Some(Stage::Handshake));
        }
        talk.send(Side::Client, ACK, DATA);
        assert_eq!(talk.stage(), Some(Stage::Established));
    }
}

/// If a Service asks for it, the agent marks flows to endpoints that have left.
#[test]
fn a_client_of_an_endpoint_that_has_left_is_told_at_once_if_its_service_wants_it() {
    for scene in scenes(2) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 1);
        talk.send(Side::Client, ACK, DATA);
        mark(&scene, &tables, flow_flag::GONE, 0);
        let there = talk.there;
        // What the endpoint still had to send reaches the client.
        let answer = talk.send(Side::Endpoint, ACK, DATA);
        assert_eq!(answer.reason, Reason::ToClient);
        for _ in 0..2 {
            let told = ask(&mut talk);
            assert_told(&scene, &talk, &told);
        }
        assert_eq!(talk.stage(), Some(Stage::Closed));
        // The answer was not the endpoint's.
        talk.there = there;
        // If the endpoint goes on, it gets the client's reset.
        let more = talk.send(Side::Endpoint, ACK, DATA);
        assert_eq!(more.reason, Reason::ToClient);
        let mut reset = talk.segment(Side::Client, RST);
        reset.sequence = reset.sequence.wrapping_add(DATA.len() as u32);
        let passed = talk.deliver(Side::Client, reset, b"");
        assert_eq!(passed.reason, Reason::ToEndpoint);
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

#[test]
fn a_blind_reset_does_not_reach_an_endpoint_that_has_left() {
    for scene in scenes(2) {
        let tables = scene.tables();
        let mut talk = Conversation::established(&scene, &tables, 1);
        mark(&scene, &tables, flow_flag::GONE, 0);
        let mut reset = talk.segment(Side::Client, RST);
        reset.sequence = reset.sequence.wrapping_add(1 << 30);
        let outcome = talk.deliver(Side::Client, reset, b"");
        assert_ne!(outcome.reason, Reason::ToEndpoint);
        assert_eq!(ask(&mut talk).reason, Reason::EndpointGone);
    }
}

/// An established conversation, continued after a change of the tables.
fn resumed<'a>(
    scene: &'a Scene,
    tables: &'a ProgrammedTables,
    there: (SocketAddr, SocketAddr),
) -> Conversation<'a> {
    let mut talk = Conversation::new(scene, tables, 1);
    talk.next = talk.next.map(|next| next.wrapping_add(1));
    talk.there = Some(there);
    talk
}

/// Asserts that the answer is a RST from the Service's address, with the number that the client
/// expects next.
fn assert_told(scene: &Scene, talk: &Conversation<'_>, told: &Outcome) {
    let found = (told.action, told.reason);
    assert_eq!(found, (Action::Answer, Reason::EndpointGone));
    let (from, to) = (scene.target(), scene.client(1));
    let header = if from.is_ipv4() { 20 } else { 40 };
    let segment = &told.frame[ETHERNET + header..];
    assert_eq!(segment.len(), 20);
    let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
    assert_eq!(word(0), u32::from(from.port()) << 16 | u32::from(to.port()));
    assert_eq!(word(4), talk.next[Side::Endpoint as usize]);
    assert_eq!(segment[13], RST);
    assert_eq!(transport_sum(from.ip(), to.ip(), 6, segment), 0xffff);
}
