//! ICMP errors about translated packets are translated back to what their receiver sent.

use std::net::IpAddr;

use lb_common::verdict::{Action, Reason};
use lb_objects::IpFamily;
use lb_packet::{
    ETHERNET, Header, Read, TCP, icmp, icmp_number,
    tcp_flag::{ACK, SYN},
};
use proptest::prelude::*;

use crate::{
    hooks::{Outcome, ingress, through},
    scene::{Client, Place, Scene},
};

proptest! {
    #[test]
    fn errors_about_packets_to_endpoints_reach_the_client(
        scene in Scene::any(),
        error in Error::any(),
    ) {
        let tables = scene.tables();
        let opening = scene.opening(4000);
        let out = through(&tables, &opening);
        let told = error.about(&scene, &out, out.read().destination);

        let outcome = through(&tables, &told);
        prop_assert_eq!(outcome.reason, Reason::IcmpError);
        let received = check(&told, &outcome);
        prop_assert_eq!(received.destination, scene.client(4000).ip());
        let quoted = received.quoted();
        prop_assert_eq!((quoted.from(), quoted.to()), (scene.client(4000), scene.target()));
        match error.from {
            From::Receiver => prop_assert_eq!(received.source, scene.target().ip()),
            From::Router => prop_assert_eq!(received.source, router(&scene)),
        }
    }

    #[test]
    fn errors_about_answers_reach_the_endpoint(scene in Scene::any(), error in Error::any()) {
        let tables = scene.tables();
        let out = through(&tables, &scene.opening(4000));
        let (endpoint, client) = (out.read().to(), out.read().from());
        let answered = scene.frame(endpoint, client, SYN | ACK, b"answer");
        let answer = through(&tables, &answered);
        let told = error.about(&scene, &answer, scene.client(4000).ip());

        let outcome = through(&tables, &told);
        prop_assert_eq!(outcome.reason, Reason::IcmpError);
        let received = check(&told, &outcome);
        prop_assert_eq!(received.destination, endpoint.ip());
        let quoted = received.quoted();
        prop_assert_eq!((quoted.from(), quoted.to()), (endpoint, client));
        match error.from {
            From::Receiver => prop_assert_eq!(received.source, client.ip()),
            From::Router => prop_assert_eq!(received.source, router(&scene)),
        }
    }
}

#[test]
fn every_error_type_is_translated_and_nothing_else() {
    for scene in Scene::each() {
        let errors: &[u8] = match scene.family {
            IpFamily::V4 => &[3, 11, 12],
            IpFamily::V6 => &[1, 2, 3, 4],
        };
        for kind in 0..=u8::MAX {
            let tables = scene.tables();
            let out = through(&tables, &scene.opening(4000));
            let error = Error {
                kind: (kind, 0),
                word: 0,
                quote: 1 << 16,
                from: From::Router,
            };
            let told = error.about(&scene, &out, out.read().destination);
            let outcome = through(&tables, &told);
            match errors.contains(&kind) {
                true => assert_eq!(outcome.reason, Reason::IcmpError, "type {kind}"),
                false => assert_eq!((outcome.action, outcome.frame), (Action::Pass, told)),
            }
        }
    }
}

#[test]
fn errors_about_no_flow_are_the_kernels() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let never_sent = Outcome {
            action: Action::Pass,
            reason: Reason::Opened,
            frame: scene.frame(scene.endpoint(0), scene.client(4000), ACK, b""),
        };
        let error = Error {
            kind: kinds(&scene)[0],
            word: 0,
            quote: 1 << 16,
            from: From::Router,
        };
        let told = error.about(&scene, &never_sent, scene.client(4000).ip());
        let outcome = through(&tables, &told);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Pass, Reason::NotService)
        );
        assert_eq!(outcome.frame, told);
    }
}

#[test]
fn errors_that_quote_too_little_are_the_kernels() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let out = through(&tables, &scene.opening(4000));
        let ports = out.read().transport + 4;
        for quote in 0..out.read().bytes.len() {
            let error = Error {
                kind: kinds(&scene)[0],
                word: 0,
                quote,
                from: From::Router,
            };
            let told = error.about(&scene, &out, out.read().destination);
            let outcome = through(&tables, &told);
            let translated = outcome.reason == Reason::IcmpError;
            assert_eq!(translated, quote >= ports, "{quote} bytes quoted");
            match translated {
                true => outcome.read().assert_checksums(),
                false => assert_eq!((outcome.action, outcome.frame), (Action::Pass, told)),
            }
        }
    }
}

#[test]
fn no_error_is_sent_about_an_expired_error() {
    for scene in Scene::each() {
        let tables = scene.tables();
        let out = through(&tables, &scene.opening(4000));
        let error = Error {
            kind: kinds(&scene)[0],
            word: 0,
            quote: 1 << 16,
            from: From::Router,
        };
        let mut told = error.about(&scene, &out, out.read().destination);
        let ttl = ETHERNET + if scene.family == IpFamily::V4 { 8 } else { 7 };
        told[ttl] = 1;
        let outcome = ingress(&tables, &told);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Drop, Reason::TimeExceeded)
        );
    }
}

#[test]
fn pings_are_the_kernels() {
    for scene in Scene::each() {
        let (client, service) = (scene.client(1).ip(), scene.target().ip());
        let kind = if scene.family == IpFamily::V4 {
            (8, 0)
        } else {
            (128, 0)
        };
        let echo = icmp(client, service, kind, 1, b"ping");
        let frame = Header::new(client, service).frame(icmp_number(client), &echo);
        let outcome = through(&scene.tables(), &frame);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Pass, Reason::OtherProtocol)
        );
        assert_eq!(outcome.frame, frame);
    }
}

#[test]
fn errors_across_the_stack_are_translated_where_they_leave() {
    for scene in Scene::each() {
        let scene = Scene {
            endpoints: vec![Place::Local],
            client: Client::Pod,
            bypass: false,
            ..scene
        };
        let tables = scene.tables();
        let out = through(&tables, &scene.opening(4000));
        let error = Error {
            kind: kinds(&scene)[0],
            word: 0,
            quote: 1 << 16,
            from: From::Receiver,
        };
        let told = error.about(&scene, &out, out.read().destination);
        let arrived = ingress(&tables, &told);
        assert_eq!(
            (arrived.action, arrived.reason),
            (Action::Pass, Reason::ReplyToStack)
        );
        assert_eq!(arrived.frame, told);
        assert_eq!(through(&tables, &told).reason, Reason::IcmpError);
    }
}

/// The description of an ICMP error.
#[derive(Clone, Copy, Debug)]
struct Error {
    kind: (u8, u8),
    word: u32,
    /// The most bytes that it quotes.
    quote: usize,
    from: From,
}

#[derive(Clone, Copy, Debug)]
enum From {
    /// The host that the packet was sent to.
    Receiver,
    Router,
}

impl Error {
    fn any() -> impl Strategy<Value = Self> {
        let from = prop_oneof![Just(From::Receiver), Just(From::Router)];
        (any::<u8>(), any::<u32>(), 0..200usize, from).prop_map(|(code, word, more, from)| Self {
            // An error in either family.
            kind: (3, code),
            word,
            quote: 68 + more,
            from,
        })
    }

    /// The error's frame, about a packet that was on its way to `receiver`.
    fn about(&self, scene: &Scene, sent: &Outcome, receiver: IpAddr) -> Vec<u8> {
        let sent = sent.read();
        let from = match self.from {
            From::Receiver => receiver,
            From::Router => router(scene),
        };
        let quote = &sent.bytes[..self.quote.min(sent.bytes.len())];
        let message = icmp(from, sent.source, self.kind, self.word, quote);
        Header::new(from, sent.source).frame(icmp_number(from), &message)
    }
}

/// Only addresses, ports, time to live and checksums differ, and all checksums are right.
fn check(told: &[u8], outcome: &Outcome) -> Read {
    let (before, after) = (Read::frame(told), outcome.read());
    before.assert_checksums();
    after.assert_checksums();
    assert_eq!(before.icmp_kind(), after.icmp_kind());
    assert_eq!(before.payload()[4..8], after.payload()[4..8]);
    let (before, after) = (before.quoted(), after.quoted());
    after.assert_header_checksum();
    assert_eq!(before.bytes.len(), after.bytes.len());
    let checksum = before.transport + if before.protocol == TCP { 16 } else { 6 };
    for at in before.transport + 4..before.bytes.len() {
        if !(checksum..checksum + 2).contains(&at) {
            assert_eq!(before.bytes[at], after.bytes[at], "quoted byte {at}");
        }
    }
    assert_eq!(before.sum_if_checked(), after.sum_if_checked());
    assert_eq!(before.ttl, after.ttl);
    assert_eq!(before.bytes[..7], after.bytes[..7]);
    outcome.read()
}

fn router(scene: &Scene) -> IpAddr {
    match scene.family {
        IpFamily::V4 => [198, 18, 0, 1].into(),
        IpFamily::V6 => [0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1].into(),
    }
}

fn kinds(scene: &Scene) -> [(u8, u8); 1] {
    match scene.family {
        IpFamily::V4 => [(11, 0)],
        IpFamily::V6 => [(3, 0)],
    }
}
