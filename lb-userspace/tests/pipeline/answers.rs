//! ICMP and ICMPv6 answers: which addresses they have, what they quote, and when there is none.

use lb_common::verdict::{Action, Reason};
use lb_datapath::memory::Route;
use lb_objects::{IpFamily, TrafficPolicy};
use lb_packet::{
    ARRIVED, ETHERNET, Extension, Fragment, Header, Read, SCTP, TCP, UDP,
    tcp_flag::{RST, SYN},
};
use node_lb::memory::ProgrammedTables;

use crate::{
    hooks::{Outcome, ingress, through},
    scene::{Client, MTU, Place, Scene},
};

#[test]
fn a_service_without_endpoints_is_a_closed_port() {
    for scene in without_endpoints() {
        let tables = scene.tables();
        let sent = scene.opening(4000);
        let outcome = ingress(&tables, &sent);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Answer, Reason::NoEndpoints)
        );
        let answer = check_answer(&scene, &sent, &outcome);
        assert_eq!(
            answer.source,
            scene.target().ip(),
            "the Service itself answers"
        );
        assert_eq!(answer.icmp_kind(), kind(&scene, (3, 3), (1, 4)));
        assert_eq!(tables.stats(1).rejected, 1);
    }
}

#[test]
fn options_and_extension_headers_are_quoted_too() {
    for scene in without_endpoints() {
        let (from, to) = (scene.client(4000), scene.target());
        let header = Header {
            options: vec![1; 12],
            extensions: vec![Extension {
                number: 60,
                body: vec![1, 4, 0, 0, 0, 0],
            }],
            ..Header::new(from.ip(), to.ip())
        };
        let sent = header.frame(scene.protocol, &scene.segment(from, to, SYN, b"hello"));
        check_answer(&scene, &sent, &ingress(&scene.tables(), &sent));
    }
}

#[test]
fn a_quote_that_would_be_too_long_is_a_drop() {
    let scene = Scene {
        endpoints: Vec::new(),
        ..Scene::new(IpFamily::V6, TCP)
    };
    let (from, to) = (scene.client(4000), scene.target());
    let header = Header {
        extensions: vec![Extension {
            number: 60,
            body: vec![0; 62],
        }],
        ..Header::new(from.ip(), to.ip())
    };
    let outcome = ingress(
        &scene.tables(),
        &header.frame(TCP, &scene.segment(from, to, SYN, b"")),
    );
    assert_eq!(
        (outcome.action, outcome.reason),
        (Action::Drop, Reason::NoEndpoints)
    );
}

#[test]
fn answers_are_limited() {
    for scene in without_endpoints() {
        let tables = scene.tables();
        tables.set_answers_left(2);
        let reasons: Vec<_> = (1..=3)
            .map(|port| ingress(&tables, &scene.opening(port)).reason)
            .collect();
        assert_eq!(
            reasons,
            [
                Reason::NoEndpoints,
                Reason::NoEndpoints,
                Reason::AnswerRateLimited
            ]
        );
        assert_eq!(tables.stats(1).rejected, 3);
    }
}

#[test]
fn no_local_endpoint_is_silence() {
    for scene in Scene::each() {
        let scene = Scene {
            internal: TrafficPolicy::Local,
            ..scene
        };
        let tables = scene.tables();
        let outcome = ingress(&tables, &scene.opening(4000));
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Drop, Reason::NoLocalEndpoints)
        );
        assert_eq!(tables.stats(1).dropped, 1);
    }
}

#[test]
fn an_expired_packet_is_answered_by_the_node() {
    for scene in Scene::each() {
        for ttl in [0, 1] {
            let tables = scene.tables();
            let sent = with_ttl(&scene, ttl);
            let outcome = ingress(&tables, &sent);
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Answer, Reason::TimeExceeded)
            );
            let answer = check_answer(&scene, &sent, &outcome);
            assert_eq!(answer.source, scene.node());
            assert_eq!(answer.icmp_kind(), kind(&scene, (11, 0), (3, 0)));
        }
    }
}

#[test]
fn a_packet_expires_before_an_unresolved_neighbour_too() {
    for scene in Scene::each() {
        let mut tables = scene.tables();
        unresolve(&mut tables, &scene);
        let outcome = ingress(&tables, &with_ttl(&scene, 2));
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Resolve, Reason::Opened)
        );
        assert_eq!(outcome.read().ttl, 1);
        outcome.read().assert_checksums();
        for ttl in [0, 1] {
            let outcome = ingress(&tables, &with_ttl(&scene, ttl));
            assert_eq!(
                (outcome.action, outcome.reason),
                (Action::Answer, Reason::TimeExceeded)
            );
        }
    }
}

#[test]
fn a_packet_too_big_for_the_next_link_is_answered_with_its_mtu() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let (from, to) = (scene.client(4000), scene.target());
        let fits = data_of(&scene, usize::from(MTU));
        assert_eq!(
            ingress(&tables, &scene.frame(from, to, SYN, &fits)).reason,
            Reason::Opened
        );

        let sent = scene.frame(from, to, 0, &[&fits[..], &[0; 8]].concat());
        let outcome = ingress(&tables, &sent);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Answer, Reason::TooBig)
        );
        let answer = check_answer(&scene, &sent, &outcome);
        assert_eq!(answer.source, scene.node());
        assert_eq!(answer.icmp_kind(), kind(&scene, (3, 4), (2, 0)));
        assert_eq!(answer.payload()[4..8], u32::from(MTU).to_be_bytes());
    }
}

#[test]
fn a_node_without_address_does_not_answer_in_its_name() {
    for scene in Scene::each() {
        // Clients of a local endpoint keep their address, so the flow opens even so.
        let scene = Scene {
            endpoints: vec![Place::Local],
            client: Client::Pod,
            ..scene
        };
        let mut tables = scene.tables();
        tables.config.node4 = Default::default();
        tables.config.node6 = Default::default();
        let outcome = ingress(&tables, &with_ttl(&scene, 1));
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Drop, Reason::TimeExceeded)
        );
    }
}

#[test]
fn later_fragments_get_no_answer() {
    for scene in Scene::each().filter(|scene| scene.protocol != SCTP) {
        let tables = scene.tables();
        let (from, to) = (scene.client(4000), scene.target());
        let segment = scene.segment(from, to, SYN, &[7; 64]);
        let part = |ttl, offset: usize, more| {
            let header = Header {
                ttl,
                fragment: Some(Fragment {
                    id: 5,
                    offset: offset as u16 / 8,
                    more,
                }),
                ..Header::new(from.ip(), to.ip())
            };
            let end = if more { offset + 40 } else { segment.len() };
            header.frame(scene.protocol, &segment[offset..end])
        };
        assert_eq!(ingress(&tables, &part(64, 0, true)).reason, Reason::Opened);
        let outcome = ingress(&tables, &part(1, 40, false));
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Drop, Reason::TimeExceeded)
        );
    }
}

#[test]
fn a_reset_opens_nothing_and_stays_unanswered() {
    let scene = Scene::new(IpFamily::V4, TCP);
    let tables = scene.tables();
    let frame = scene.frame(scene.client(4000), scene.target(), RST, b"");
    let outcome = through(&tables, &frame);
    assert_eq!(
        (outcome.action, outcome.reason),
        (Action::Pass, Reason::StrayReset)
    );
    assert_eq!(outcome.frame, frame);
}

/// Checks an answer against the frame that caused it, and returns it.
fn check_answer(scene: &Scene, sent: &[u8], outcome: &Outcome) -> Read {
    let (asked, answer) = (Read::frame(sent), outcome.read());
    answer.assert_checksums();
    assert_eq!(
        outcome.frame[..12],
        [&ARRIVED[6..], &ARRIVED[..6]].concat(),
        "back it goes"
    );
    assert_eq!(answer.destination, asked.source);
    assert_eq!(outcome.frame.len(), ETHERNET + answer.bytes.len());
    let quote = &answer.payload()[8..];
    assert_eq!(quote, &asked.bytes[..quote.len()]);
    let headers = if scene.protocol == UDP { 8 } else { 20 };
    assert_eq!(
        quote.len(),
        asked.transport + headers,
        "all headers, no data"
    );
    answer
}

fn without_endpoints() -> impl Iterator<Item = Scene> {
    Scene::each().map(|scene| Scene {
        endpoints: Vec::new(),
        ..scene
    })
}

fn kind(scene: &Scene, v4: (u8, u8), v6: (u8, u8)) -> (u8, u8) {
    match scene.family {
        IpFamily::V4 => v4,
        IpFamily::V6 => v6,
    }
}

fn with_ttl(scene: &Scene, ttl: u8) -> Vec<u8> {
    let (from, to) = (scene.client(4000), scene.target());
    let header = Header {
        ttl,
        ..Header::new(from.ip(), to.ip())
    };
    header.frame(scene.protocol, &scene.segment(from, to, SYN, b""))
}

/// As much data as makes an IP packet of `length` bytes.
fn data_of(scene: &Scene, length: usize) -> Vec<u8> {
    let empty = scene.frame(scene.client(1), scene.target(), SYN, b"").len() - ETHERNET;
    vec![0; length - empty]
}

fn unresolve(tables: &mut ProgrammedTables, scene: &Scene) {
    let endpoint = scene.endpoint(0).ip();
    tables.add_route(endpoint.into(), Route::Unresolved(3));
}
