//! Unusual but valid packets: options, extension headers, fragments, tags, other protocols.

use lb_common::verdict::Reason;
use lb_packet::Packet;

use super::{
    conversations::{first, packet},
    scene::{EXTERNAL, EXTERNAL_MAC, PEER_MAC, ROUTER_MAC, Scene},
    service::{ServiceSpec, TCP, UDP},
    world::{At, Expected, SNAT_PORT, World, world},
};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION_OPTIONS: u8 = 60;
const AUTHENTICATION: u8 = 51;

/// A Service for a client outside, with one endpoint on another node.
struct Forwarded {
    scene: Scene,
    client: (std::net::IpAddr, u16),
    frontend: (std::net::IpAddr, u16),
    endpoint: (std::net::IpAddr, u16),
    node: (std::net::IpAddr, u16),
}

impl Forwarded {
    fn new(world: &mut World, scene: Scene, protocol: u8) -> Self {
        world.forget();
        let (frontend, endpoint) = ((scene.node, 30_080), (scene.remote, 8080));
        let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
        world.add(&spec.remote(endpoint.0, endpoint.1));
        Self {
            scene,
            client: (scene.client, 40_000),
            frontend,
            endpoint,
            node: (scene.node, SNAT_PORT),
        }
    }

    fn request(&self, protocol: u8) -> Packet {
        packet(protocol, self.client, self.frontend).macs(EXTERNAL_MAC, ROUTER_MAC)
    }

    fn there(&self, packet: &Packet) -> Packet {
        let packet = packet.clone().source(self.node).destination(self.endpoint);
        packet.hop().macs(PEER_MAC, EXTERNAL_MAC)
    }
}

#[test]
fn nothing_but_addresses_ports_checksums_and_life_changes() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                for at in At::INGRESS {
                    let forwarded = Forwarded::new(world, scene, protocol);
                    let odd = forwarded.request(protocol).traffic_class(0xb9).id(0xbeef);
                    let odd = odd
                        .may_be_fragmented()
                        .payload(&[0x5a; 777])
                        .ttl(2)
                        .padding(9);
                    world.check(
                        "DSCP, ECN, flow label, identification, payload and padding stay",
                        at,
                        EXTERNAL,
                        &odd,
                        Expected::transmits(&forwarded.there(&odd), Reason::Opened),
                    );
                }
            }
        }
    });
}

#[test]
fn ipv4_options_are_kept() {
    world(|world| {
        for protocol in [TCP, UDP] {
            for words in 1..=10 {
                for at in At::INGRESS {
                    let forwarded = Forwarded::new(world, Scene::v4(), protocol);
                    let request = forwarded.request(protocol).options(&vec![1; words * 4]);
                    world.check(
                        &format!("{words} words of options"),
                        at,
                        EXTERNAL,
                        &request,
                        Expected::transmits(&forwarded.there(&request), Reason::Opened),
                    );
                }
            }
        }
    });
}

#[test]
fn ipv6_extension_headers_are_walked() {
    world(|world| {
        for protocol in [TCP, UDP] {
            for extensions in [
                vec![(HOP_BY_HOP, 8)],
                vec![(ROUTING, 24)],
                vec![(DESTINATION_OPTIONS, 64)],
                vec![(AUTHENTICATION, 24)],
                vec![(HOP_BY_HOP, 8), (DESTINATION_OPTIONS, 16), (ROUTING, 24)],
                vec![
                    (HOP_BY_HOP, 8),
                    (DESTINATION_OPTIONS, 16),
                    (ROUTING, 24),
                    (DESTINATION_OPTIONS, 8),
                ],
            ] {
                for at in At::INGRESS {
                    let forwarded = Forwarded::new(world, Scene::v6(), protocol);
                    let request = extend(forwarded.request(protocol), &extensions);
                    world.check(
                        &format!("extension headers {extensions:?}"),
                        at,
                        EXTERNAL,
                        &request,
                        Expected::transmits(&forwarded.there(&request), Reason::Opened),
                    );
                }
            }
            let many = [(DESTINATION_OPTIONS, 8); 5];
            let long = [(DESTINATION_OPTIONS, 240); 2];
            for (extensions, reason) in [
                (&many[..], Reason::OtherProtocol),
                (&long[..], Reason::Malformed),
            ] {
                let forwarded = Forwarded::new(world, Scene::v6(), protocol);
                let request = extend(forwarded.request(protocol), extensions);
                for at in At::ALL {
                    world.check(
                        "what is too long to walk is the kernel's",
                        at,
                        EXTERNAL,
                        &request,
                        Expected::passes(&request, reason),
                    );
                }
            }
        }
    });
}

#[test]
fn a_packet_that_has_other_stops_first_is_the_kernels() {
    world(|world| {
        for protocol in [TCP, UDP] {
            for at in At::ALL {
                let forwarded = Forwarded::new(world, Scene::v6(), protocol);
                let request = forwarded.request(protocol).unfinished_route(1);
                world.check(
                    "a routing header with a segment left",
                    at,
                    EXTERNAL,
                    &request,
                    Expected::passes(&request, Reason::OtherProtocol),
                );
            }
        }
    });
}

fn extend(packet: Packet, extensions: &[(u8, usize)]) -> Packet {
    extensions.iter().fold(packet, |packet, (number, length)| {
        packet.extension(*number, *length)
    })
}

#[test]
fn fragments_follow_their_first() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                for at in At::INGRESS {
                    let forwarded = Forwarded::new(world, scene, protocol);
                    let whole = forwarded.request(protocol).payload(&[0x77; 2000]);
                    let fragments = |packet: Packet| packet.fragments(0x4321, 800);
                    let sent = fragments(whole.clone());
                    let expected = fragments(forwarded.there(&whole));
                    let later = &sent[1];
                    world.check(
                        "a later fragment before its first is unknown",
                        at,
                        EXTERNAL,
                        later,
                        Expected::passes(later, Reason::UnknownFragment),
                    );
                    for (index, (sent, expected)) in sent.iter().zip(&expected).enumerate() {
                        let reason = match index {
                            0 => Reason::Opened,
                            _ => Reason::FollowedFragment,
                        };
                        world.check(
                            &format!("fragment {index}"),
                            at,
                            EXTERNAL,
                            sent,
                            Expected::transmits(expected, reason),
                        );
                    }
                    let other = whole.fragments(0x4322, 800).remove(1);
                    world.check(
                        "a fragment of another packet is unknown",
                        at,
                        EXTERNAL,
                        &other,
                        Expected::passes(&other, Reason::UnknownFragment),
                    );
                }
            }
        }
    });
}

#[test]
fn answers_in_fragments_are_translated_where_they_leave() {
    world(|world| {
        for scene in Scene::both() {
            world.forget();
            let (frontend, endpoint) = ((scene.load_balancer, 53), (scene.local, 53));
            let spec = ServiceSpec::new(UDP).load_balancer(frontend.0, frontend.1);
            world.add(&spec.local(endpoint.0, endpoint.1).external_local());
            let client = (scene.client, 40_000);
            world.run(At::Xdp, EXTERNAL, &first(UDP, client, frontend).bytes());
            let reply = packet(UDP, endpoint, client).payload(&[0x77; 3000]);
            let sent = reply.clone().fragments(0x99, 1200);
            let expected = reply.source(frontend).fragments(0x99, 1200);
            for (index, (sent, expected)) in sent.iter().zip(&expected).enumerate() {
                let reason = match index {
                    0 => Reason::ToClient,
                    _ => Reason::FollowedFragment,
                };
                world.check(
                    &format!("fragment {index}"),
                    At::TcEgress,
                    EXTERNAL,
                    sent,
                    Expected::passes(expected, reason),
                );
            }
        }
    });
}

#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    world(|world| {
        for at in At::INGRESS {
            let forwarded = Forwarded::new(world, Scene::v6(), UDP);
            let request = forwarded.request(UDP);
            // A fragment header on a complete packet (RFC 6946).
            let sent = request.clone().fragments(7, 8000).remove(0);
            let expected = forwarded.there(&request).fragments(7, 8000).remove(0);
            world.check(
                "it has its ports and nothing follows it",
                at,
                EXTERNAL,
                &sent,
                Expected::transmits(&expected, Reason::Opened),
            );
        }
    });
}

#[test]
fn what_node_lb_does_not_translate_passes_untouched() {
    world(|world| {
        for scene in Scene::both() {
            let forwarded = Forwarded::new(world, scene, TCP);
            let request = forwarded.request(TCP);
            let sctp = [30_080_u16.to_be_bytes(); 6].concat();
            let sctp = Packet::raw(forwarded.scene.client, scene.node, 132, sctp);
            let esp = Packet::raw(scene.client, scene.node, 50, vec![0; 40]);
            for (sentence, frame, reason) in [
                (
                    "a frame with a VLAN tag is the VLAN device's",
                    request.clone().vlan(42).bytes(),
                    Reason::NotIp,
                ),
                ("ARP", arp(), Reason::NotIp),
                ("SCTP", sctp.bytes(), Reason::OtherProtocol),
                ("ESP", esp.bytes(), Reason::OtherProtocol),
            ] {
                for at in At::ALL {
                    world.check(
                        sentence,
                        at,
                        EXTERNAL,
                        frame.clone(),
                        Expected::passes(frame.clone(), reason),
                    );
                }
            }
        }
    });
}

/// A VLAN's packets may look like those of a connection in another network.
#[test]
fn tagged_frames_pass_even_where_the_connection_is_known() {
    const CUSTOMER: u16 = 0x8100; // IEEE 802.1Q
    const SERVICE: u16 = 0x88a8; // IEEE 802.1ad
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                let forwarded = Forwarded::new(world, scene, protocol);
                let request = forwarded.request(protocol);
                world.run(At::Xdp, EXTERNAL, &request.bytes());
                for tags in [
                    &[(CUSTOMER, 42)][..],
                    &[(SERVICE, 42)],
                    &[(SERVICE, 42), (CUSTOMER, 7)],
                    &[(CUSTOMER, 0)],
                ] {
                    let frame = tagged(&request, tags);
                    for at in At::ALL {
                        world.check(
                            &format!("tags {tags:x?}"),
                            at,
                            EXTERNAL,
                            frame.clone(),
                            Expected::passes(frame.clone(), Reason::NotIp),
                        );
                    }
                }
            }
        }
    });
}

/// A packet's frame with VLAN tags, the outer first: protocol and VLAN.
fn tagged(packet: &Packet, tags: &[(u16, u16)]) -> Vec<u8> {
    let mut frame = packet.bytes();
    let tags = tags.iter().flat_map(|(protocol, vlan)| [*protocol, *vlan]);
    let tags: Vec<u8> = tags.flat_map(u16::to_be_bytes).collect();
    frame.splice(12..12, tags);
    frame
}

/// An ARP request: who has 192.0.2.2, tell 192.0.2.1 (RFC 826).
fn arp() -> Vec<u8> {
    let mut frame = [[0xff; 6], ROUTER_MAC].concat();
    frame.extend([0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1]);
    frame.extend(ROUTER_MAC);
    frame.extend([192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2]);
    frame
}
