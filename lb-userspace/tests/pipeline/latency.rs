//! How soon endpoints answer: what is counted of it, and which endpoint gets the next connection.

use lb_common::{
    abi::Latencies,
    flow::{
        Stage,
        latency::{UNIT, bucket},
    },
    verdict::Reason,
};
use lb_objects::Algorithm;
use lb_packet::{
    TCP, UDP,
    tcp_flag::{ACK, RST, SYN},
};
use node_lb::memory::ProgrammedTables;

use crate::{
    conversation::{Conversation, Side},
    hooks::ingress,
    moving::{endpoint_of, first_syn, scenes},
    resize::{Progress, SIZES},
    scene::Scene,
};

/// Seconds after which an endpoint's latency is old.
const OLD: u32 = 40;

/// The flows that were answered after so many seconds each.
fn after(seconds: impl IntoIterator<Item = u32>) -> Latencies {
    let mut latencies = Latencies::default();
    for seconds in seconds {
        let units = u64::from(seconds) * 1_000_000_000 / u64::from(UNIT);
        latencies.buckets[bucket(units as u32)] += 1;
    }
    latencies
}

#[test]
fn the_first_answer_counts_from_the_first_syn() {
    for scene in scenes(1) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 1);
        tables.set_seconds(100);
        talk.deliver(Side::Client, first_syn(), b"");
        tables.set_seconds(101);
        talk.send(Side::Client, SYN, b"");
        assert_eq!(tables.latencies(1), Latencies::default());
        tables.set_seconds(102);
        let answer = talk.segment(Side::Endpoint, SYN | ACK);
        talk.deliver(Side::Endpoint, answer, b"");
        assert_eq!(tables.latencies(1), after([2]));
        tables.set_seconds(103);
        talk.send(Side::Endpoint, SYN | ACK, b"");
        talk.send(Side::Client, ACK, b"");
        talk.send(Side::Endpoint, ACK, b"data");
        assert_eq!(tables.latencies(1), after([2]), "one answer is the first");
        assert_eq!(talk.stage(), Some(Stage::Established));
    }
}

#[test]
fn a_refusal_is_no_answer_and_a_connection_in_progress_has_no_beginning() {
    for scene in scenes(1) {
        let tables = scene.tables();
        let mut talk = Conversation::new(&scene, &tables, 1);
        tables.set_seconds(100);
        talk.send(Side::Client, SYN, b"");
        tables.set_seconds(101);
        talk.send(Side::Endpoint, RST | ACK, b"");

        let mut lost = Conversation::new(&scene, &tables, 2);
        assert_eq!(lost.send(Side::Client, ACK, b"data").reason, Reason::Opened);
        tables.set_seconds(102);
        lost.send(Side::Endpoint, ACK, b"data");
        assert_eq!(lost.stage(), Some(Stage::Established));
        assert_eq!(tables.latencies(1), Latencies::default());
    }
}

#[test]
fn answers_to_datagrams_count_as_well() {
    for scene in Scene::each().filter(|scene| scene.protocol == UDP) {
        let tables = scene.tables();
        tables.set_seconds(100);
        let there = ingress(&tables, &scene.opening(1)).read();
        tables.set_seconds(103);
        let answer = scene.frame(there.to(), there.from(), 0, b"answer");
        for _ in 0..2 {
            assert_eq!(ingress(&tables, &answer).reason, Reason::ToClient);
        }
        assert_eq!(tables.latencies(1), after([3]));
    }
}

#[test]
fn a_flow_that_moves_to_another_table_keeps_its_beginning_and_proves_itself() {
    for (scene, size) in scenes(1).flat_map(|scene| SIZES.map(|size| (scene.clone(), size))) {
        let mut tables = scene.tables();
        tables.set_seconds(100);
        let before = {
            let mut talk = Conversation::new(&scene, &tables, crate::resize::PORT);
            talk.send(Side::Client, SYN, b"");
            Progress::of(&talk)
        };
        tables.begin_resize(size);
        let mut talk = before.go_on(&scene, &tables);
        tables.set_seconds(102);
        talk.send(Side::Endpoint, SYN | ACK, b"");
        assert_eq!(tables.latencies(1), after([2]));
        talk.send(Side::Client, ACK, b"");
        assert_eq!(talk.stage(), Some(Stage::Established));
    }
}

/// The endpoint of a connection that is answered after so many seconds and then ends.
fn served(
    scene: &Scene,
    tables: &ProgrammedTables,
    (port, now): (u16, u32),
    delay: impl Fn(std::net::SocketAddr) -> u32,
) -> std::net::SocketAddr {
    let mut talk = Conversation::new(scene, tables, port);
    tables.set_seconds(now);
    talk.send(Side::Client, SYN, b"");
    let endpoint = endpoint_of(&talk);
    tables.set_seconds(now + delay(endpoint));
    talk.send(Side::Endpoint, SYN | ACK, b"");
    talk.send(Side::Client, ACK, b"");
    talk.close(Side::Client);
    endpoint
}

#[test]
fn the_endpoint_that_answers_sooner_gets_the_next_one_and_the_other_is_tried_again() {
    for scene in scenes(2).filter(|scene| scene.protocol == TCP) {
        let scene = Scene {
            algorithm: Algorithm::LeastLatency,
            ..scene
        };
        let tables = scene.tables();
        let slow = served(&scene, &tables, (1, 1000), |_| 2);
        let is_slow = |endpoint| u32::from(endpoint == slow) * 2;
        // Until the other one is known, too.
        let known = (2..100).find(|port| served(&scene, &tables, (*port, 1004), is_slow) != slow);
        let known = known.expect("another endpoint");
        for port in 100..200 {
            let endpoint = served(&scene, &tables, (port, 1010), is_slow);
            assert_ne!(endpoint, slow, "{known}");
        }
        let tried = (200..300)
            .filter(|port| served(&scene, &tables, (*port, 1010 + OLD), is_slow) == slow)
            .count();
        assert_eq!(tried, 1, "by one connection");
        let tried = (300..400)
            .filter(|port| served(&scene, &tables, (*port, 1020 + 2 * OLD), |_| 0) == slow)
            .count();
        assert!(tried > 10, "it is as good as the other: {tried}");
    }
}
