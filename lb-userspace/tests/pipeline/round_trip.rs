//! From client to endpoint and back: reverse translation is the inverse of translation, and nothing
//! else in a packet changes.

use std::net::SocketAddr;

use lb_common::verdict::{Action, Reason};
use lb_datapath::memory::MemoryFrame;
use lb_packet::{
    ARRIVED, Extension, Header, Read, UDP,
    tcp_flag::{ACK, SYN},
};
use proptest::{collection::vec, prelude::*, sample::select};

use crate::{
    hooks::{Outcome, through},
    scene::{LEFT, Scene},
};

proptest! {
    #[test]
    fn addresses_come_back(
        scene in Scene::any(),
        port in 1..=u16::MAX,
        seed: u64,
        there in Shape::any(),
        back in Shape::any(),
    ) {
        let tables = scene.tables();
        tables.seed(seed);
        let (client, target) = (scene.client(port), scene.target());

        let sent = there.frame(&scene, client, target, SYN);
        let out = through(&tables, &sent);
        let endpoint = out.read().to();
        prop_assert!(scene.candidates().contains(&endpoint), "{endpoint}");
        prop_assert_eq!(out.reason, Reason::Opened);
        check_translated(&sent, &out);
        let source = out.read().from();
        if scene.source_nat(endpoint.ip()) {
            prop_assert_eq!(source.ip(), scene.node());
            prop_assert!((scene.ports.first..=scene.ports.last).contains(&source.port()));
        } else {
            prop_assert_eq!(source, client);
        }

        let answered = back.frame(&scene, endpoint, source, SYN | ACK);
        let answer = through(&tables, &answered);
        prop_assert_eq!(answer.reason, Reason::ToClient);
        prop_assert_eq!((answer.read().from(), answer.read().to()), (target, client));
        check_translated(&answered, &answer);

        let more = through(&tables, &there.frame(&scene, client, target, ACK));
        prop_assert_eq!(more.reason, Reason::ToEndpoint);
        prop_assert_eq!((more.read().from(), more.read().to()), (source, endpoint));
    }

    #[test]
    fn xdp_and_tc_rewrite_alike(scene in Scene::any(), seed: u64, shape in Shape::any()) {
        let sent = shape.frame(&scene, scene.client(4000), scene.target(), SYN);
        let [xdp, tc] = [true, false].map(|xdp| {
            let tables = scene.tables();
            tables.seed(seed);
            let mut frame = MemoryFrame::<false>::new(sent.clone(), 0);
            let verdict = match xdp {
                true => tables.xdp().ingress(&mut frame),
                false => tables.tc().ingress(&mut frame),
            };
            (verdict, frame.into_bytes())
        });
        prop_assert_eq!(xdp, tc);
    }
}

#[test]
fn a_udp_checksum_that_comes_to_zero_is_sent_as_all_ones() {
    for scene in Scene::each().filter(|scene| scene.protocol == UDP) {
        let tables = scene.tables();
        let (client, target) = (scene.client(4000), scene.target());
        let out = through(&tables, &scene.frame(client, target, 0, &[0, 0])).read();
        // What is missing to a sum of all ones, whose complement is zero.
        let data = [out.payload()[6], out.payload()[7]];
        let out = through(&tables, &scene.frame(client, target, 0, &data)).read();
        assert_eq!(out.payload()[6..8], [0xff, 0xff]);
        out.assert_checksums();
    }
}

/// Asserts that the outgoing packet differs from the incoming one only in addresses, ports,
/// checksums and time to live, and that all checksums are right.
fn check_translated(sent: &[u8], out: &Outcome) {
    let (before, after) = (Read::frame(sent), out.read());
    before.assert_checksums();
    after.assert_checksums();
    assert_eq!(before.unchanging(), after.unchanging());
    match out.action {
        Action::Redirect => {
            assert_eq!(after.ttl, before.ttl - 1);
            assert_eq!(out.frame[..12], [LEFT.to, LEFT.from].concat());
        }
        Action::Pass => {
            assert_eq!(after.ttl, before.ttl);
            assert_eq!(out.frame[..12], ARRIVED);
        }
        action => panic!("{action:?}"),
    }
    let zero = |read: &Read| read.protocol == UDP && read.payload()[6..8] == [0, 0];
    assert_eq!(
        zero(&before),
        zero(&after),
        "no UDP checksum stays none, and only that"
    );
}

/// The parts of a packet that translation does not look at.
#[derive(Clone, Debug)]
struct Shape {
    ttl: u8,
    options: Vec<u8>,
    extensions: Vec<Extension>,
    data: Vec<u8>,
    checksum: bool,
}

impl Shape {
    fn any() -> impl Strategy<Value = Self> {
        let options = (0..=10usize).prop_flat_map(|words| vec(any::<u8>(), words * 4));
        // Hop-by-hop options come first, if at all (RFC 8200, 4.1).
        let extension = (select(vec![60, 43]), extension_body());
        let extensions = (proptest::option::of(extension_body()), vec(extension, 0..3)).prop_map(
            |(hop_by_hop, others)| {
                let first = hop_by_hop.map(|body| (0, body));
                let headers = first.into_iter().chain(others);
                headers
                    .map(|(number, body)| Extension { number, body })
                    .collect()
            },
        );
        let data = vec(any::<u8>(), 0..300);
        (2..=u8::MAX, options, extensions, data, any::<bool>()).prop_map(
            |(ttl, options, extensions, data, checksum)| Self {
                ttl,
                options,
                extensions,
                data,
                checksum,
            },
        )
    }

    fn frame(&self, scene: &Scene, from: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
        let mut segment = scene.segment(from, to, flags, &self.data);
        if scene.protocol == UDP && from.is_ipv4() && !self.checksum {
            segment[6..8].fill(0);
        }
        let header = Header {
            ttl: self.ttl,
            options: self.options.clone(),
            extensions: self.extensions.clone(),
            ..Header::new(from.ip(), to.ip())
        };
        header.frame(scene.protocol, &segment)
    }
}

/// A routing header of any type with no segments left, or options that are skipped.
fn extension_body() -> impl Strategy<Value = Vec<u8>> {
    (0..=4usize, any::<u8>()).prop_map(|(units, kind)| {
        let mut body = vec![kind, 0];
        body.resize(6 + units * 8, 0);
        body
    })
}
