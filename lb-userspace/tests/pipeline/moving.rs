//! Clients of an endpoint that is gone or silent get another one. Clients with a live connection do
//! not.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use lb_common::{flow::Stage, verdict::Reason};
use lb_objects::{Algorithm, IpFamily};
use lb_packet::{
    TCP, Tcp,
    tcp_flag::{self, ACK, SYN},
};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side},
    hooks::ingress,
    scene::{Place, Scene},
};

/// Seconds after which an endpoint counts as silent.
const SILENCE: u32 = 3;

pub fn scenes(endpoints: usize) -> impl Iterator<Item = Scene> {
    [IpFamily::V4, IpFamily::V6]
        .into_iter()
        .map(move |family| Scene {
            endpoints: vec![Place::Remote; endpoints],
            ..Scene::new(family, TCP)
        })
}

#[test]
fn a_syn_repeated_to_a_silent_endpoint_goes_to_another() {
    for endpoints in [2, 3, 5] {
        for scene in scenes(endpoints) {
            let tables = scene.tables();
            for port in 1..=60 {
                let mut talk = Conversation::new(&scene, &tables, port);
                tables.set_seconds(0);
                talk.send(Side::Client, SYN, b"");
                let mut before = endpoint_of(&talk);
                for attempt in 1..=3 {
                    tables.set_seconds(attempt * SILENCE);
                    let again = talk.deliver(Side::Client, first_syn(), b"");
                    assert_eq!(again.reason, Reason::Opened);
                    assert_ne!(endpoint_of(&talk), before);
                    before = endpoint_of(&talk);
                    // Other hooks see the same packet, and change nothing.
                    let twice = talk.deliver(Side::Client, first_syn(), b"");
                    assert_eq!(twice.reason, Reason::ToEndpoint);
                    assert_eq!(endpoint_of(&talk), before);
                }
            }
            assert_eq!(tables.stats(1).half_open, 60);
        }
    }
}

#[test]
fn a_lost_answer_does_not_move_a_client() {
    for scene in scenes(4) {
        let tables = scene.tables();
        for port in 1..=20 {
            tables.set_seconds(0);
            let mut talk = Conversation::new(&scene, &tables, port);
            talk.send(Side::Client, SYN, b"");
            talk.send(Side::Endpoint, SYN | ACK, b"");
            let before = endpoint_of(&talk);
            for attempt in 1..=3 {
                tables.set_seconds(attempt * SILENCE);
                let again = talk.deliver(Side::Client, first_syn(), b"");
                assert_eq!(again.reason, Reason::ToEndpoint);
                assert_eq!(endpoint_of(&talk), before);
            }
        }
    }
}

#[test]
fn the_only_endpoint_is_asked_again() {
    for scene in scenes(1) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        let before = endpoint_of(&talk);
        tables.set_seconds(SILENCE);
        talk.deliver(Side::Client, first_syn(), b"");
        assert_eq!(endpoint_of(&talk), before);
        assert_eq!(tables.stats(1).half_open, 1);
    }
}

#[test]
fn affinity_follows_a_client_away_from_a_silent_endpoint() {
    for scene in scenes(5) {
        let scene = Scene {
            affinity: Some(Duration::from_secs(1000)),
            ..scene
        };
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, SYN, b"");
        let silent = endpoint_of(&talk);
        tables.set_seconds(SILENCE);
        talk.deliver(Side::Client, first_syn(), b"");
        let next = endpoint_of(&talk);
        assert_ne!(next, silent);
        for port in 5000..5020 {
            let other = ingress(&tables, &scene.opening(port)).read();
            assert_eq!(other.to(), next);
        }
    }
}

#[test]
fn a_lookup_table_does_not_lead_back_to_a_silent_endpoint() {
    for scene in scenes(5) {
        let scene = Scene {
            algorithm: Algorithm::Maglev,
            ..scene
        };
        let tables = scene.tables();
        for port in 1..=20 {
            tables.set_seconds(0);
            let mut talk = Conversation::new(&scene, &tables, port);
            talk.send(Side::Client, SYN, b"");
            let silent = endpoint_of(&talk);
            tables.set_seconds(SILENCE);
            talk.deliver(Side::Client, first_syn(), b"");
            assert_ne!(endpoint_of(&talk), silent);
        }
    }
}

#[test]
fn a_new_connection_does_not_follow_its_ports_last_one_to_an_endpoint_that_is_gone() {
    for scene in scenes(3) {
        for answered in 0..=2 {
            let mut tables = scene.tables();
            let there = {
                let mut talk = Conversation::new(&scene, &tables, 4000);
                talk.send(Side::Client, SYN, b"");
                if answered >= 1 {
                    talk.send(Side::Endpoint, SYN | ACK, b"");
                }
                if answered == 2 {
                    talk.send(Side::Client, ACK, b"");
                }
                talk.there.unwrap().1
            };
            program_without(&scene, &mut tables, there);

            // A connection that still drains goes on.
            let mut talk = Conversation::new(&scene, &tables, 4000);
            if answered == 2 {
                talk.next = talk.next.map(|next| next.wrapping_add(1));
                talk.send(Side::Client, ACK, b"more");
                assert_eq!(endpoint_of(&talk), there);
            }
            tables.set_seconds(SILENCE);
            let outcome = talk.deliver(Side::Client, Tcp::new(77, 0, SYN), b"");
            assert_eq!(outcome.reason, Reason::Opened, "{answered}");
            assert_ne!(endpoint_of(&talk), there);
            assert_eq!(talk.stage(), Some(Stage::Unreplied));
            assert_eq!(tables.stats(1).half_open, 1);
        }
    }
}

#[test]
fn a_new_connection_to_a_service_that_lost_all_endpoints_is_refused() {
    for scene in scenes(1) {
        let mut tables = scene.tables();
        Conversation::established(&scene, &tables, 4000);
        let gone = Scene {
            endpoints: Vec::new(),
            ..scene.clone()
        };
        tables.program(&[gone.plan()]);
        tables.set_seconds(SILENCE);
        let refused = ingress(&tables, &scene.opening(4000));
        assert_eq!(refused.reason, Reason::NoEndpoints);
    }
}

#[test]
fn a_lost_record_leads_to_the_same_endpoint_again() {
    for scene in scenes(7) {
        let mut tables = scene.tables();
        let mut seen = HashSet::new();
        for port in 1..=60 {
            let stray = |tables: &ProgrammedTables| {
                let frame = scene.frame(scene.client(port), scene.target(), ACK, b"data");
                let outcome = ingress(tables, &frame);
                assert_eq!(outcome.reason, Reason::Opened);
                outcome.read().to()
            };
            let first = stray(&tables);
            tables.forget();
            // Whatever endpoint has been chosen meanwhile.
            ingress(&tables, &scene.opening(port + 1000));
            assert_eq!(stray(&tables), first);
            tables.forget();
            seen.insert(first);
        }
        assert!(seen.len() > 4, "all endpoints have their part");
    }
}

#[test]
fn a_connection_that_was_picked_up_lives_when_the_endpoint_talks_on() {
    for scene in scenes(3) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, ACK, b"from the middle");
        assert_eq!(talk.stage(), Some(Stage::Unreplied));
        talk.send(Side::Client, ACK, b"and more");
        assert_eq!(
            talk.stage(),
            Some(Stage::Unreplied),
            "anybody can send that"
        );
        talk.send(Side::Endpoint, ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Established));
        talk.close(Side::Client);
        assert_eq!(talk.stage(), Some(Stage::Closed));
        assert_eq!(tables.stats(1).half_open, 0);
    }
}

#[test]
fn an_endpoint_that_knows_nothing_of_a_connection_ends_what_was_picked_up() {
    for scene in scenes(3) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.send(Side::Client, ACK, b"from the middle");
        let refusal = Tcp::new(talk.next[1], 0, tcp_flag::RST);
        talk.deliver(Side::Endpoint, refusal, b"");
        assert_eq!(talk.stage(), Some(Stage::Closed));
    }
}

/// Otherwise a stray segment followed by a SYN would make a flow that any acknowledgement proves.
#[test]
fn a_syn_on_a_flow_that_was_picked_up_begins_a_connection() {
    for scene in scenes(3) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 4000);
        talk.deliver(Side::Client, Tcp::new(0, 0, ACK), b"");
        talk.send(Side::Client, SYN, b"");
        talk.send(Side::Endpoint, SYN | ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Handshake));
        let right = talk.segment(Side::Client, ACK);
        let guess = Tcp {
            acknowledged: right.acknowledged.wrapping_add(1000),
            ..right
        };
        talk.deliver(Side::Client, guess, b"");
        assert_eq!(talk.stage(), Some(Stage::Handshake));
        talk.deliver(Side::Client, right, b"");
        assert_eq!(talk.stage(), Some(Stage::Established));
    }
}

/// No endpoint has been silent yet: session affinity and lookup tables are followed.
#[test]
fn a_syn_after_a_stray_segment_goes_where_its_client_belongs() {
    for scene in scenes(5) {
        let sticky = Scene {
            affinity: Some(Duration::from_secs(1000)),
            ..scene.clone()
        };
        let by_table = Scene {
            algorithm: Algorithm::Maglev,
            ..scene
        };
        for scene in [sticky, by_table] {
            let tables = scene.tables();
            for port in 1..=20 {
                let mut talk = Conversation::new(&scene, &tables, port);
                talk.deliver(Side::Client, Tcp::new(0, 0, ACK), b"");
                let endpoint = endpoint_of(&talk);
                let begins = talk.deliver(Side::Client, first_syn(), b"");
                assert_eq!(begins.reason, Reason::Opened);
                assert_eq!(endpoint_of(&talk), endpoint);
            }
        }
    }
}

pub fn endpoint_of(talk: &Conversation<'_>) -> SocketAddr {
    talk.there.expect("sent").1
}

/// The SYN that starts a conversation, repeated.
pub fn first_syn() -> Tcp {
    Tcp::new(u32::MAX - 7, 0, SYN)
}

/// Programs the scene's Service without one of its endpoints.
pub fn program_without(scene: &Scene, tables: &mut ProgrammedTables, gone: SocketAddr) {
    let index = (0..scene.endpoints.len()).find(|index| scene.endpoint(*index) == gone);
    let other = Scene {
        absent: index,
        ..scene.clone()
    };
    tables.program(&[other.plan()]);
}
