//! Truncated packets, and packets of random bytes: they are passed or dropped.

use lb_common::verdict::{Action, Reason};
use lb_objects::IpFamily;
use lb_packet::{
    ETHERNET, Extension, Fragment, Header, Read, SCTP, TCP, UDP, icmp, icmp_number,
    tcp_flag::{ACK, SYN},
};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::{
    hooks::{egress, ingress, through},
    scene::{Place, Scene},
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..200)) {
        let scene = Scene::new(IpFamily::V4, TCP);
        let tables = scene.tables();
        through(&tables, &bytes);
        egress(&tables, &bytes);
    }

    #[test]
    fn random_bytes_behind_an_ethertype_do_no_harm(
        v6: bool,
        version: bool,
        bytes in vec(any::<u8>(), 0..200),
    ) {
        let scene = Scene::new(if v6 { IpFamily::V6 } else { IpFamily::V4 }, UDP);
        let mut frame = scene.opening(1)[..ETHERNET].to_vec();
        frame.extend(bytes);
        // Most random versions end the parsing at once.
        if version && let Some(first) = frame.get_mut(ETHERNET) {
            *first = *first & 0x0f | if v6 { 0x60 } else { 0x40 };
        }
        let tables = scene.tables();
        through(&tables, &frame);
        egress(&tables, &frame);
    }

    #[test]
    fn random_changes_to_valid_packets_do_no_harm(
        scene in Scene::any(),
        kind: Index,
        changes in vec((any::<Index>(), any::<u8>()), 1..8),
    ) {
        let tables = scene.tables();
        through(&tables, &scene.opening(4000));
        let mut frame = kind.get(&samples(&scene)).clone();
        for (index, value) in changes {
            let index = index.index(frame.len());
            frame[index] = value;
        }
        through(&tables, &frame);
        egress(&tables, &frame);
    }
}

#[test]
fn packets_may_end_anywhere() {
    for scene in Scene::each() {
        for frame in samples(&scene) {
            for length in 0..=frame.len() {
                let tables = scene.tables();
                through(&tables, &scene.opening(4000));
                let outcome = through(&tables, &frame[..length]);
                let untouched = outcome.frame == frame[..length];
                let answered_or_sent = matches!(
                    outcome.action,
                    Action::Redirect | Action::Resolve | Action::Answer
                );
                assert!(untouched != answered_or_sent, "{length} bytes: {outcome:?}");
            }
        }
    }
}

#[test]
fn packets_without_ports_are_malformed() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let frame = scene.opening(4000);
        let transport = Read::frame(&frame).transport + ETHERNET;
        let needed = transport + if scene.protocol == TCP { 14 } else { 4 };
        for length in ETHERNET..needed {
            let outcome = ingress(&tables, &frame[..length]);
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Pass, Reason::Malformed)
            );
        }
    }
}

#[test]
fn headers_that_contradict_themselves_are_malformed() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let frame = scene.opening(4000);
        let changed = |at: usize, bytes: &[u8]| {
            let mut frame = frame.clone();
            frame[ETHERNET + at..][..bytes.len()].copy_from_slice(bytes);
            frame
        };
        let malformed = match scene.family {
            IpFamily::V4 => vec![
                // Another version; a header shorter than the shortest; a packet shorter than that;
                // one that ends before the ports.
                changed(0, &[0x65]),
                changed(0, &[0x44]),
                changed(2, &19u16.to_be_bytes()),
                changed(2, &23u16.to_be_bytes()),
            ],
            IpFamily::V6 => vec![changed(0, &[0x40]), changed(4, &3u16.to_be_bytes())],
        };
        for frame in malformed {
            let outcome = ingress(&tables, &frame);
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Pass, Reason::Malformed)
            );
            assert_eq!(outcome.frame, frame);
        }
    }
}

#[test]
fn too_many_extension_headers_are_the_kernels() {
    for scene in Scene::each().filter(|scene| scene.family == IpFamily::V6) {
        let (from, to) = (scene.client(4000), scene.target());
        let extension = Extension {
            number: 60,
            body: vec![1, 4, 0, 0, 0, 0],
        };
        for (count, reason) in [(4, Reason::Opened), (5, Reason::OtherProtocol)] {
            let header = Header {
                extensions: vec![extension.clone(); count],
                ..Header::new(from.ip(), to.ip())
            };
            let frame = header.frame(scene.protocol, &scene.segment(from, to, SYN, b""));
            assert_eq!(
                ingress(&scene.tables(), &frame).reason,
                reason,
                "{count} headers"
            );
        }
    }
}

#[test]
fn a_packet_that_has_other_stops_first_is_the_kernels() {
    for scene in Scene::each().filter(|scene| scene.family == IpFamily::V6) {
        let (from, to) = (scene.client(4000), scene.target());
        for (segments_left, reason) in [(0, Reason::Opened), (1, Reason::OtherProtocol)] {
            let header = Header {
                extensions: vec![Extension {
                    number: 43,
                    body: vec![4, segments_left, 0, 0, 0, 0],
                }],
                ..Header::new(from.ip(), to.ip())
            };
            let frame = header.frame(scene.protocol, &scene.segment(from, to, SYN, b""));
            assert_eq!(ingress(&scene.tables(), &frame).reason, reason);
        }
    }
}

#[test]
fn other_frames_pass_untouched() {
    let scene = Scene::new(IpFamily::V4, TCP);
    let tables = scene.tables();
    let mut arp = scene.opening(1);
    arp[12..ETHERNET].copy_from_slice(&[0x08, 0x06]);
    let mut tagged = scene.opening(1);
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x64]);
    let (from, to) = (scene.client(1).ip(), scene.target().ip());
    let other = Header::new(from, to).frame(47, &[0x1f, 0x90, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0]);
    // A header without a chunk.
    let sctp = Header::new(from, to).frame(SCTP, &[0x1f, 0x90, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (frame, reason) in [
        (arp, Reason::NotIp),
        (tagged, Reason::NotIp),
        (other, Reason::OtherProtocol),
        (sctp, Reason::Malformed),
        (
            scene.frame(scene.client(1), scene.client(2), SYN, b""),
            Reason::NotService,
        ),
    ] {
        let outcome = through(&tables, &frame);
        assert_eq!((outcome.action, outcome.reason), (Action::Pass, reason));
        assert_eq!(outcome.frame, frame);
    }
}

/// Frames of every kind that the pipeline looks into.
fn samples(scene: &Scene) -> Vec<Vec<u8>> {
    let (from, to) = (scene.client(4000), scene.target());
    let segment = scene.segment(from, to, ACK, b"some data");
    let extended = Header {
        options: vec![1; 8],
        extensions: vec![Extension {
            number: 0,
            body: vec![1, 4, 0, 0, 0, 0],
        }],
        ..Header::new(from.ip(), to.ip())
    };
    let fragment = Fragment {
        id: 9,
        offset: 0,
        more: true,
    };
    let first = Header {
        fragment: Some(fragment),
        ..extended.clone()
    };
    let sent = ingress(&scene.tables(), &scene.opening(4000)).read();
    let message = icmp(sent.destination, sent.source, (3, 0), 0, &sent.bytes);
    let error = Header::new(sent.destination, sent.source);
    let mut samples = vec![
        scene.opening(4000),
        extended.frame(scene.protocol, &segment),
        error.frame(icmp_number(sent.source), &message),
    ];
    if scene.protocol != SCTP {
        samples.push(first.frame(scene.protocol, &segment));
    }
    samples
}

#[test]
fn samples_are_all_translated() {
    for scene in Scene::each() {
        let scene = Scene {
            endpoints: vec![Place::Remote],
            ..scene
        };
        let tables = scene.tables();
        through(&tables, &scene.opening(4000));
        for frame in samples(&scene) {
            assert_eq!(through(&tables, &frame).action, Action::Redirect);
        }
    }
}
