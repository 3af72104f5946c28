//! Devices without Ethernet headers: what a packet meets there is what a frame meets elsewhere.

use std::net::IpAddr;

use lb_common::{
    abi::TunnelSource,
    parse::ETHERNET,
    verdict::{Action, Reason},
};
use lb_datapath::memory::{MemoryFrame, Route};
use lb_objects::IpFamily;
use lb_packet::tcp_flag::{ACK, SYN};
use node_lb::memory::ProgrammedTables;
use proptest::prelude::*;

use crate::{
    hooks::{Outcome, ingress, through},
    scene::{Place, SNAT, Scene, hop},
};

proptest! {
    #[test]
    fn verdicts_and_packets_are_those_with_a_header(
        scene in Scene::any(),
        resolved: bool,
        seed: u64,
    ) {
        let [framed, bare] = [(); 2].map(|()| {
            let mut tables = scene.tables();
            if !resolved {
                for everywhere in ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"] {
                    tables.add_route(everywhere.parse().unwrap(), Route::Unresolved(DEVICE));
                }
            }
            tables.seed(seed);
            tables
        });
        let opening = scene.opening(4000);
        let out = alike(&framed, &bare, &opening);
        prop_assert_eq!(out.reason, Reason::Opened);
        let (source, endpoint) = (out.read().from(), out.read().to());
        let answer = scene.frame(endpoint, source, SYN | ACK, b"hello");
        alike(&framed, &bare, &answer);
        let more = scene.frame(scene.client(4000), scene.target(), ACK, b"more");
        let more = alike(&framed, &bare, &more);
        prop_assert_eq!(more.reason, Reason::ToEndpoint);
    }
}

#[test]
fn answers_are_those_with_a_header() {
    for scene in Scene::each() {
        let refusing = Scene {
            absent: Some(0),
            ..scene
        };
        let [framed, bare] = [(); 2].map(|()| refusing.tables());
        let out = alike(&framed, &bare, &refusing.opening(4000));
        assert_eq!(out.action, Action::Answer);
        let answer = out.read();
        answer.assert_checksums();
        assert_eq!(answer.to().ip(), refusing.client(4000).ip());
    }
}

#[test]
fn what_is_no_ip_packet_passes() {
    let tables = Scene::new(IpFamily::V4, lb_packet::TCP).tables();
    for first in [0x00, 0x15, 0x50, 0x75, 0xf0] {
        let mut frame = bare_frame(vec![first; 60]);
        let verdict = tables.tc().ingress(&mut frame);
        assert_eq!(
            (verdict.action, verdict.reason),
            (Action::Pass, Reason::NotIp)
        );
        assert_eq!(frame.into_bytes(), [first; 60]);
    }
    let verdict = tables.tc().ingress(&mut bare_frame(Vec::new()));
    assert_eq!(verdict.reason, Reason::NotIp);
}

#[test]
fn source_nat_towards_an_endpoint_behind_a_tunnel_uses_the_tunnels_address() {
    for scene in Scene::each() {
        let tables = with_tunnel(&scene, true);
        let sent = through(&tables, &scene.opening(4000)).read();
        assert_eq!(sent.from().ip(), tunnel_address(&scene));
        assert!((SNAT.first..=SNAT.last).contains(&sent.from().port()));
        assert_eq!(sent.to(), scene.endpoint(0));
        sent.assert_checksums();

        let answer = scene.frame(sent.to(), sent.from(), SYN | ACK, b"");
        let answer = through(&tables, &answer);
        assert_eq!(answer.reason, Reason::ToClient);
        let found = (answer.read().from(), answer.read().to());
        assert_eq!(found, (scene.target(), scene.client(4000)));
    }
}

#[test]
fn a_tunnel_without_an_address_of_the_family_leaves_the_nodes() {
    for scene in Scene::each() {
        let tables = with_tunnel(&scene, false);
        let sent = through(&tables, &scene.opening(4000)).read();
        assert_eq!(sent.from().ip(), scene.node());
    }
}

#[test]
fn endpoints_elsewhere_see_the_nodes_address() {
    for scene in Scene::each() {
        let scene = Scene {
            endpoints: vec![Place::Local],
            ..scene
        };
        let mut tables = with_tunnel(&scene, true);
        let device = tables.add_device("veth", 0);
        tables.add_route(scene.endpoint(0).ip().into(), Route::To(hop(device)));
        let sent = through(&tables, &scene.opening(4000)).read();
        assert_eq!(sent.from().ip(), scene.node());
    }
}

/// The device after the scene's own.
const DEVICE: u32 = 2;

/// The tables of a node that reaches the endpoints by a tunnel, on which it has an address of the
/// scene's family, or only of the other one.
fn with_tunnel(scene: &Scene, own_family: bool) -> ProgrammedTables {
    let mut tables = scene.tables();
    assert_eq!(tables.add_device("wg0", 0), DEVICE);
    let mut source = TunnelSource::default();
    match tunnel_address(scene) {
        IpAddr::V4(ip) if own_family => source.v4 = ip.into(),
        IpAddr::V6(ip) if own_family => source.v6 = ip.into(),
        IpAddr::V4(_) => source.v6 = "fd00:10::ff".parse::<std::net::Ipv6Addr>().unwrap().into(),
        IpAddr::V6(_) => source.v4 = std::net::Ipv4Addr::new(10, 0, 0, 255).into(),
    }
    tables.set_tunnel_source(DEVICE, source);
    tables.add_route(scene.endpoint(0).ip().into(), Route::To(hop(DEVICE)));
    tables
}

fn tunnel_address(scene: &Scene) -> IpAddr {
    match scene.family {
        IpFamily::V4 => "10.0.0.255".parse().unwrap(),
        IpFamily::V6 => "fd00:10::ff".parse().unwrap(),
    }
}

fn bare_frame(packet: Vec<u8>) -> MemoryFrame<false, true> {
    MemoryFrame::new(packet, 0)
}

/// Sends a frame through one node's tables, and its packet without the header through another's.
/// Asserts that the same becomes of both.
fn alike(framed: &ProgrammedTables, bare: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let expected = ingress(framed, frame);
    let mut packet = bare_frame(frame[ETHERNET..].to_vec());
    let verdict = bare.tc().ingress(&mut packet);
    let found = (verdict.action, verdict.reason);
    assert_eq!(found, (expected.action, expected.reason));
    // What another device sends has a header, the kernel fills in the addresses that are unknown.
    let from = match verdict.action {
        Action::Redirect => 0,
        Action::Resolve => 12,
        _ => ETHERNET,
    };
    let packet = packet.into_bytes();
    match verdict.action {
        Action::Redirect | Action::Resolve => assert_eq!(packet[from..], expected.frame[from..]),
        _ => assert_eq!(packet, expected.frame[from..]),
    }
    expected
}
