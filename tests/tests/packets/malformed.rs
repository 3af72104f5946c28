//! Packets that make no sense: each passes or is dropped and moves one counter, and no program
//! fails.

use lb_common::verdict::Reason;
use lb_packet::Packet;

use super::{
    conversations::{first, packet},
    scene::{EXTERNAL, EXTERNAL_MAC, ROUTER_MAC, Scene},
    service::{ServiceSpec, TCP, UDP},
    world::{Action, At, Expected, World, world},
};

/// Length of an Ethernet header.
const ETHERNET: usize = 14;

/// A frontend with an endpoint on another node, one without, and packets to them.
fn packets(world: &mut World, scene: Scene, protocol: u8) -> Vec<Packet> {
    let (served, empty) = ((scene.node, 30_080), (scene.cluster_ip, 80));
    let spec = ServiceSpec::new(protocol).node_port(served.0, served.1);
    world.add(&spec.remote(scene.remote, 8080));
    world.add(&ServiceSpec::new(protocol).cluster_ip(empty.0, empty.1));
    let client = (scene.client, 40_000);
    let plain = first(protocol, client, served);
    let long = match scene.node.is_ipv4() {
        true => plain.clone().options(&[1; 12]),
        false => plain.clone().extension(0, 8).extension(60, 16),
    };
    let unreachable = if scene.node.is_ipv4() { (3, 3) } else { (1, 4) };
    let quote = packet(protocol, served, client).quote(64);
    vec![
        plain.clone(),
        long,
        plain.clone().fragments(9, 8).remove(0),
        first(protocol, client, empty),
        Packet::icmp(scene.client, scene.node, unreachable, 0, quote),
    ]
    .into_iter()
    .map(|packet| packet.macs(EXTERNAL_MAC, ROUTER_MAC))
    .collect()
}

#[test]
fn packets_of_every_length_are_survived() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                for packet in packets(world, scene, protocol) {
                    let whole = packet.bytes();
                    for at in At::ALL {
                        // For TC, the kernel itself accepts no test without an IP header.
                        let shortest = match (at.is_xdp(), scene.node.is_ipv4()) {
                            (true, _) => ETHERNET,
                            (false, true) => ETHERNET + 20,
                            (false, false) => ETHERNET + 40,
                        };
                        for length in shortest..whole.len() {
                            survives(world, at, &whole[..length]);
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn every_byte_of_the_headers_may_lie() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                for packet in packets(world, scene, protocol) {
                    let whole = packet.bytes();
                    for at in At::ALL {
                        for byte in ETHERNET..whole.len().min(100) {
                            for value in [0x00, 0xff, !whole[byte]] {
                                let mut frame = whole.clone();
                                frame[byte] = value;
                                survives(world, at, &frame);
                            }
                        }
                    }
                }
            }
        }
    });
}

/// Asserts that one counter moves, and that packets which pass untranslated are unchanged.
fn survives(world: &mut World, at: At, frame: &[u8]) {
    let found = world.run(at, EXTERNAL, frame);
    assert_eq!(found.counted.len(), 1, "{at:?} {frame:02x?}: {found:?}");
    let (_, reason, times) = found.counted[0];
    assert_eq!(times, 1, "{at:?} {frame:02x?}");
    if found.stats[0] > 0 {
        world.forget_flows();
    }
    let passed_by = matches!(
        reason,
        Reason::NotIp
            | Reason::OtherProtocol
            | Reason::Malformed
            | Reason::NotService
            | Reason::StrayReset
            | Reason::UnknownFragment
            | Reason::ReplyToStack
            | Reason::LaterHook
            | Reason::PartialChecksum
    );
    if passed_by {
        assert_eq!(found.action, Action::Pass, "{at:?} {reason:?} {frame:02x?}");
        assert_eq!(found.frame, frame, "{at:?} {reason:?} {frame:02x?}");
    }
}

#[test]
fn headers_that_cannot_be_pass_as_malformed() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                let whole = packets(world, scene, protocol)[0].bytes();
                let v4 = scene.node.is_ipv4();
                let version = if v4 { 0x55 } else { 0x45 };
                let mut lies = vec![("another version", ETHERNET, vec![version])];
                if v4 {
                    let length = ETHERNET + 2;
                    lies.extend([
                        ("a header of 16 bytes", ETHERNET, vec![0x44]),
                        ("less in all than its header", length, vec![0, 19]),
                        ("no room for the transport header", length, vec![0, 20]),
                        ("no room for the ports' checksum", length, vec![0, 26]),
                    ]);
                } else {
                    let length = ETHERNET + 4;
                    lies.push(("no room for the transport header", length, vec![0, 6]));
                }
                for (lie, offset, bytes) in lies {
                    let mut frame = whole.clone();
                    frame[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    for at in At::ALL {
                        world.check(
                            lie,
                            at,
                            EXTERNAL,
                            frame.clone(),
                            Expected::passes(frame.clone(), Reason::Malformed),
                        );
                    }
                }
            }
        }
    });
}
