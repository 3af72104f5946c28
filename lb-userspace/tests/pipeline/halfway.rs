//! IPv4 packets that are too big for the next link and may be fragmented go through the host's stack,
//! with their new destination but their own source, and get their new source where they leave.

use std::net::{IpAddr, SocketAddr};

use lb_common::verdict::{Action, Reason};
use lb_datapath::memory::MemoryFrame;
use lb_objects::{IpFamily, TrafficPolicy};
use lb_packet::{Header, Read, TCP, UDP, tcp_flag::SYN};
use node_lb::plan::FrontendKind;

use crate::{
    fragments::{assert_reassembled, cut},
    hooks::{Outcome, across, egress, ingress},
    scene::{MTU, Place, Scene},
};

/// Bytes of each of the stack's fragments, behind the header.
const SIZE: usize = 1240;

#[test]
fn both_directions_arrive_whole_and_with_the_right_addresses() {
    for scene in scenes() {
        for stack in [fragmented, masqueraded] {
            let tables = scene.tables();
            let (client, target) = (scene.client(4000), scene.target());
            let sent = big(&scene, client, target);
            let (arrived, left) = across(&tables, &sent, stack);
            assert_enters(&arrived, Reason::Opened, client, scene.endpoint(0));
            assert_eq!(
                arrived.read().ttl,
                Read::frame(&sent).ttl,
                "the stack takes it off"
            );
            assert_left(&scene, &left, Reason::ToEndpoint);
            let seen = left[0].read();
            assert_eq!(seen.to(), scene.endpoint(0));
            match scene.source_nat(scene.endpoint(0).ip()) {
                true => assert_eq!(seen.source, scene.node()),
                false => assert_eq!(seen.from(), client),
            }

            let answer = big(&scene, scene.endpoint(0), seen.from());
            let (arrived, left) = across(&tables, &answer, stack);
            assert_enters(&arrived, Reason::ToClient, scene.endpoint(0), client);
            assert_left(&scene, &left, Reason::ToClient);
            assert_eq!(
                (left[0].read().from(), left[0].read().to()),
                (target, client)
            );
        }
    }
}

#[test]
fn what_fits_and_what_must_not_be_fragmented_goes_another_way() {
    for scene in Scene::each() {
        let (tables, client) = (scene.tables(), scene.client(4000));
        let segment = scene.segment(client, scene.target(), SYN, b"small");
        let outcome = ingress(
            &tables,
            &fragmentable(client, scene.target(), &scene, &segment),
        );
        assert_eq!(outcome.action, Action::Redirect);
        let sent = match scene.family {
            IpFamily::V4 => {
                let segment = big_segment(&scene, client, scene.target());
                Header::new(client.ip(), scene.target().ip()).frame(scene.protocol, &segment)
            }
            // Which only its sender may fragment.
            IpFamily::V6 => big(&scene, client, scene.target()),
        };
        let outcome = ingress(&tables, &sent);
        assert_eq!(
            (outcome.action, outcome.reason),
            (Action::Answer, Reason::TooBig)
        );
    }
}

#[test]
fn all_fragments_go_the_way_of_the_first() {
    for scene in scenes() {
        let (client, target) = (scene.client(4000), scene.target());
        let segment = [&big_segment(&scene, client, target)[..], &[7; 800]].concat();
        let sent = cut(
            (client.ip(), target.ip()),
            5,
            scene.protocol,
            &segment,
            1600,
        );
        assert_eq!(sent.len(), 2);
        let tables = scene.tables();
        for (frame, reason) in sent.iter().zip([Reason::Opened, Reason::FollowedFragment]) {
            let (arrived, left) = across(&tables, frame, |frame| vec![frame.to_vec()]);
            assert_eq!((arrived.action, arrived.reason), (Action::Pass, reason));
            let seen = arrived.read();
            assert_eq!(
                (seen.source, seen.destination),
                (client.ip(), scene.endpoint(0).ip())
            );
            assert_ne!(left[0].reason, Reason::NotService);
            left[0].read().assert_header_checksum();
            assert_eq!(left[0].read().destination, scene.endpoint(0).ip());
            let is_own = left[0].read().source == client.ip();
            assert_eq!(is_own, !scene.source_nat(scene.endpoint(0).ip()));
        }
        // The same by a hook that can give no token.
        let tables = scene.tables();
        for frame in &sent {
            let mut arrived = MemoryFrame::<false>::new(frame.clone(), 0);
            let verdict = tables.xdp().ingress(&mut arrived);
            assert_eq!(
                (verdict.action, verdict.reason),
                (Action::Pass, Reason::LaterHook)
            );
            assert_eq!(&arrived.into_bytes(), frame);
        }
    }
}

#[test]
fn a_token_is_of_no_use_to_other_packets() {
    let [scene, ..] = scenes();
    let tables = scene.tables();
    let (client, target) = (scene.client(4000), scene.target());
    let elsewhere = SocketAddr::from(([198, 51, 100, 77], scene.endpoint(0).port()));
    let other_port = SocketAddr::new(scene.endpoint(0).ip(), 1);
    for to in [elsewhere, other_port] {
        let other = big(&scene, client, to);
        let (arrived, left) = across(&tables, &big(&scene, client, target), |_| {
            vec![other.clone()]
        });
        assert_eq!(arrived.action, Action::Pass);
        assert_eq!(
            (left[0].action, left[0].reason),
            (Action::Pass, Reason::NotService)
        );
        assert_eq!(left[0].frame, other);
    }
    // Without a token nothing is translated where it leaves.
    let plain = big(&scene, client, scene.endpoint(0));
    assert_eq!(egress(&tables, &plain).frame, plain);
}

/// With source NAT, and with the client's own address.
fn scenes() -> [Scene; 4] {
    let nat = |protocol| Scene::new(IpFamily::V4, protocol);
    let local = |protocol| Scene {
        frontend: FrontendKind::LoadBalancerIp,
        external: TrafficPolicy::Local,
        endpoints: vec![Place::Local],
        ..nat(protocol)
    };
    [nat(UDP), nat(TCP), local(UDP), local(TCP)]
}

fn big_segment(scene: &Scene, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let data: Vec<u8> = (0..MTU).map(|byte| byte as u8).collect();
    scene.segment(from, to, 0, &data)
}

fn big(scene: &Scene, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    fragmentable(from, to, scene, &big_segment(scene, from, to))
}

fn fragmentable(from: SocketAddr, to: SocketAddr, scene: &Scene, segment: &[u8]) -> Vec<u8> {
    let header = Header {
        dont_fragment: false,
        ..Header::new(from.ip(), to.ip())
    };
    header.frame(scene.protocol, segment)
}

/// What the stack does with a packet that is too big.
fn fragmented(frame: &[u8]) -> Vec<Vec<u8>> {
    let read = Read::frame(frame);
    cut(
        (read.source, read.destination),
        9,
        read.protocol,
        read.payload(),
        SIZE,
    )
}

/// The same with a rule for source NAT, such as a CNI's.
fn masqueraded(frame: &[u8]) -> Vec<Vec<u8>> {
    let read = Read::frame(frame);
    let (from, to) = (SocketAddr::from(([192, 168, 0, 2], 50_000)), read.to());
    let segment = match read.protocol {
        TCP => lb_packet::tcp(from, to, 0, &read.payload()[20..]),
        _ => lb_packet::udp(from, to, &read.payload()[8..]),
    };
    let ips: (IpAddr, IpAddr) = (from.ip(), to.ip());
    cut(ips, 9, read.protocol, &segment, SIZE)
}

fn assert_enters(arrived: &Outcome, reason: Reason, from: SocketAddr, to: SocketAddr) {
    assert_eq!((arrived.action, arrived.reason), (Action::Pass, reason));
    let read = arrived.read();
    assert_eq!((read.from(), read.to()), (from, to));
    read.assert_checksums();
}

/// They are all of a packet's fragments, and its checksum is right.
fn assert_left(scene: &Scene, left: &[Outcome], first: Reason) {
    assert_eq!(left.len(), 2);
    for (part, reason) in left.iter().zip([first, Reason::FollowedFragment]) {
        assert_eq!((part.action, part.reason), (Action::Pass, reason));
        part.read().assert_header_checksum();
        let ips = |read: Read| (read.source, read.destination);
        assert_eq!(ips(part.read()), ips(left[0].read()));
    }
    assert_reassembled(scene, left);
}
