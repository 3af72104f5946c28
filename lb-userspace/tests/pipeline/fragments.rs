//! Later fragments follow the flow of their packet's first fragment.

use std::net::IpAddr;

use lb_common::verdict::{Action, Reason};
use lb_objects::TrafficPolicy;
use lb_packet::{
    Extension, Fragment, Header, Read, SCTP,
    tcp_flag::{ACK, SYN},
};
use node_lb::memory::ProgrammedTables;
use proptest::prelude::*;

use crate::{
    hooks::{Outcome, ingress, through},
    limits::kill_all,
    scene::{Client, Place, Scene},
};

proptest! {
    #[test]
    fn all_fragments_take_one_way(scene in divisible(), id in 1..=u32::from(u16::MAX), seed: u64) {
        let tables = scene.tables();
        tables.seed(seed);
        let sent = fragments(&scene, id, SYN);
        let out = pass_all(&tables, &sent, Reason::Opened);
        let endpoint = out[0].read().to();
        let source = out[0].read().from();
        for (before, after) in sent.iter().zip(&out) {
            let (before, after) = (Read::frame(before), after.read());
            prop_assert_eq!((after.source, after.destination), (source.ip(), endpoint.ip()));
            after.assert_header_checksum();
            prop_assert_eq!(before.transport, after.transport);
        }
        check_data(&sent, &out);
        assert_reassembled(&scene, &out);

        let answer = scene.segment(endpoint, source, SYN | ACK, &[9; 80]);
        let sent = cut((endpoint.ip(), source.ip()), id, scene.protocol, &answer, 32);
        let out = pass_all(&tables, &sent, Reason::ToClient);
        for after in &out {
            let after = after.read();
            prop_assert_eq!(after.source, scene.target().ip());
            prop_assert_eq!(after.destination, scene.client(4000).ip());
        }
        assert_reassembled(&scene, &out);
    }
}

/// SCTP's checksum depends on the length of the whole packet, which its first fragment does not tell.
fn is_divisible(scene: &Scene) -> bool {
    scene.protocol != SCTP
}

fn divisible() -> impl Strategy<Value = Scene> {
    Scene::any().prop_filter("a checksum that is a sum", is_divisible)
}

fn each_divisible() -> impl Iterator<Item = Scene> {
    Scene::each().filter(is_divisible)
}

#[test]
fn fragments_of_sctp_pass_if_their_ports_stay() {
    for scene in Scene::each().filter(|scene| !is_divisible(scene)) {
        let local = Scene {
            endpoints: vec![Place::Local],
            client: Client::Pod,
            ..scene.clone()
        };
        let same_port = Scene {
            port: local.endpoint(0).port(),
            ..local.clone()
        };
        let out = pass_all(
            &same_port.tables(),
            &fragments(&same_port, 5, SYN),
            Reason::Opened,
        );
        assert_reassembled(&same_port, &out);
        // Other ports, of the endpoint and of the client.
        for scene in [local, scene] {
            let tables = scene.tables();
            let sent = fragments(&scene, 5, SYN);
            let outcome = through(&tables, &sent[0]);
            let seen = (outcome.action, outcome.reason);
            assert_eq!(seen, (Action::Drop, Reason::NotWritable));
        }
    }
}

#[test]
fn fragments_before_their_first_are_left_alone() {
    for scene in each_divisible() {
        let tables = scene.tables();
        let sent = fragments(&scene, 5, SYN);
        for later in &sent[1..] {
            let outcome = through(&tables, later);
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Pass, Reason::UnknownFragment)
            );
            assert_eq!(&outcome.frame, later);
        }
        pass_all(&tables, &sent, Reason::Opened);
    }
}

#[test]
fn fragments_of_another_packet_are_left_alone() {
    for scene in each_divisible() {
        let tables = scene.tables();
        pass_all(&tables, &fragments(&scene, 5, SYN), Reason::Opened);
        let outcome = through(&tables, &fragments(&scene, 6, SYN)[1]);
        assert_eq!(outcome.reason, Reason::UnknownFragment);
    }
}

#[test]
fn fragments_of_a_flow_that_is_gone_are_left_alone() {
    for scene in each_divisible() {
        let tables = scene.tables();
        let sent = fragments(&scene, 5, SYN);
        pass_all(&tables, &sent, Reason::Opened);
        kill_all(&tables, &scene);
        let outcome = through(&tables, &sent[1]);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Pass, Reason::UnknownFragment)
        );
    }
}

#[test]
fn a_fragment_header_on_a_whole_packet_changes_nothing() {
    let scenes = Scene::each().filter(|scene| scene.client(1).is_ipv6());
    for scene in scenes {
        let (from, to) = (scene.client(4000), scene.target());
        let header = Header {
            fragment: Some(Fragment {
                id: 5,
                offset: 0,
                more: false,
            }),
            extensions: vec![Extension {
                number: 0,
                body: vec![1, 4, 0, 0, 0, 0],
            }],
            ..Header::new(from.ip(), to.ip())
        };
        let segment = scene.segment(from, to, SYN, b"whole");
        let outcome = ingress(&scene.tables(), &header.frame(scene.protocol, &segment));
        assert_eq!(outcome.reason, Reason::Opened);
        assert_eq!(outcome.read().to(), scene.endpoint(0));
    }
}

#[test]
fn fragments_across_the_stack_are_translated_on_both_sides() {
    for scene in each_divisible() {
        let scene = Scene {
            endpoints: vec![Place::Local],
            client: Client::Pod,
            bypass: false,
            external: TrafficPolicy::Local,
            ..scene
        };
        let tables = scene.tables();
        let out = pass_all(&tables, &fragments(&scene, 5, SYN), Reason::Opened);
        assert!(out.iter().all(|outcome| outcome.action == Action::Pass));
    }
}

/// The client's first segment in three fragments.
fn fragments(scene: &Scene, id: u32, flags: u8) -> Vec<Vec<u8>> {
    let (from, to) = (scene.client(4000), scene.target());
    let segment = scene.segment(from, to, flags, &[3; 80]);
    cut((from.ip(), to.ip()), id, scene.protocol, &segment, 32)
}

/// An IP payload in fragments of `size` bytes.
pub fn cut(
    (from, to): (IpAddr, IpAddr),
    id: u32,
    protocol: u8,
    segment: &[u8],
    size: usize,
) -> Vec<Vec<u8>> {
    let parts = Header::new(from, to).fragments(id, size, segment);
    let parts = parts.into_iter();
    parts
        .map(|(header, part)| header.frame(protocol, &part))
        .collect()
}

fn pass_all(tables: &ProgrammedTables, frames: &[Vec<u8>], first: Reason) -> Vec<Outcome> {
    let frames = frames.iter().enumerate();
    frames
        .map(|(index, frame)| {
            let outcome = through(tables, frame);
            let reason = if index == 0 {
                first
            } else {
                Reason::FollowedFragment
            };
            assert_eq!(outcome.reason, reason, "fragment {index}");
            outcome
        })
        .collect()
}

/// Later fragments have no ports: their data stays as it is.
fn check_data(sent: &[Vec<u8>], out: &[Outcome]) {
    for (before, after) in sent.iter().zip(out).skip(1) {
        assert_eq!(Read::frame(before).payload(), after.read().payload());
    }
}

/// Put together, the fragments are a segment with a valid checksum.
pub fn assert_reassembled(scene: &Scene, fragments: &[Outcome]) {
    let first = fragments[0].read();
    let segment: Vec<_> = fragments
        .iter()
        .flat_map(|part| part.read().payload().to_vec())
        .collect();
    let whole = Header::new(first.source, first.destination).packet(scene.protocol, &segment);
    Read::packet(&whole).assert_checksums();
}
