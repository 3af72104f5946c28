//! What happens at limits: time to live, packet size, flow records, ports, routes.

use lb_common::verdict::Reason;
use lb_oracle::expected::{TIME_EXCEEDED, TOO_BIG, answer};
use lb_packet::{Packet, pseudo_header_sum};

use super::{
    conversations::{everywhere, first, packet},
    scene::{
        self, EXTERNAL, EXTERNAL_MAC, NARROW_MAC, NARROW_MTU, NARROW_PEER_MAC, PEER_MAC,
        ROUTER_MAC, Scene,
    },
    service::{ServiceSpec, TCP, UDP},
    world::{Action, At, Expected, SNAT_PORT, world},
};

#[test]
fn a_packet_at_the_end_of_its_life_is_answered() {
    world(|world| {
        everywhere(world, |world, scene, protocol, at| {
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            for ttl in [0, 1] {
                world.forget();
                let request = first(protocol, (scene.client, 40_000), frontend).ttl(ttl);
                let request = request.macs(EXTERNAL_MAC, ROUTER_MAC);
                let expected = Expected::transmits(
                    &answer(&request, scene.node, TIME_EXCEEDED, 0),
                    Reason::TimeExceeded,
                );
                world.check(
                    "traceroute sees the node",
                    at,
                    EXTERNAL,
                    &request,
                    expected.and_opens(),
                );
            }
        });
    });
}

#[test]
fn a_packet_that_goes_no_further_than_the_stack_keeps_its_life() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.host(scene.node, 8080));
            let request = first(TCP, (scene.client, 40_000), frontend).ttl(1);
            let there = request.clone().destination((scene.node, 8080));
            world.check(
                "only who forwards counts hops",
                At::Xdp,
                EXTERNAL,
                &request,
                Expected::passes(&there, Reason::Opened),
            );
        }
    });
}

#[test]
fn a_packet_too_big_for_the_next_link_is_answered_with_its_size() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                let frontend = (scene.node, 30_080);
                let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
                world.add(&spec.remote(scene.narrow, 8080));
                let (client, node) = ((scene.client, 40_000), (scene.node, SNAT_PORT));
                let empty = packet(protocol, client, frontend).payload(b"");
                let headers = empty.ip_bytes().len();
                let sized = |size: u16| {
                    let payload = vec![0xab; usize::from(size) - headers];
                    empty
                        .clone()
                        .payload(&payload)
                        .macs(EXTERNAL_MAC, ROUTER_MAC)
                };
                for at in At::INGRESS {
                    world.forget();
                    let fits = sized(NARROW_MTU);
                    let there = fits.clone().source(node).destination((scene.narrow, 8080));
                    let there = there.hop().macs(NARROW_PEER_MAC, NARROW_MAC);
                    world.check(
                        "what fits goes by the narrow link",
                        at,
                        EXTERNAL,
                        &fits,
                        Expected::redirects(&there, Reason::Opened),
                    );
                    let big = sized(NARROW_MTU + 1);
                    let too_big = answer(&big, scene.node, TOO_BIG, NARROW_MTU.into());
                    world.check(
                        "what does not is answered with the size that would",
                        at,
                        EXTERNAL,
                        &big,
                        Expected::transmits(&too_big, Reason::TooBig),
                    );
                }
            }
        }
    });
}

#[test]
fn a_packet_too_big_that_may_be_fragmented_is_the_stacks() {
    world(|world| {
        let scene = Scene::v4();
        for protocol in [TCP, UDP] {
            for at in At::INGRESS {
                world.forget();
                let (frontend, endpoint) = ((scene.node, 30_080), (scene.narrow, 8080));
                let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
                world.add(&spec.remote(endpoint.0, endpoint.1));
                let request = packet(protocol, (scene.client, 40_000), frontend);
                let request = request.may_be_fragmented().macs(EXTERNAL_MAC, ROUTER_MAC);
                let packets = |request: Packet| {
                    let fragments = request.clone().payload(&[0x77; 2000]);
                    let mut packets = fragments.fragments(0x4321, 1440);
                    packets.insert(0, request.payload(&[0xab; 1400]));
                    packets
                };
                let there = packets(request.clone().destination(endpoint));
                let reasons = [Reason::Opened, Reason::ToEndpoint, Reason::FollowedFragment];
                let sent = packets(request);
                for ((sent, there), reason) in sent.iter().zip(&there).zip(reasons) {
                    let expected = match at.is_xdp() {
                        true => Expected::passes(sent, Reason::LaterHook),
                        false => Expected::passes(there, reason),
                    };
                    let expected = match reason {
                        Reason::Opened => expected.and_opens(),
                        _ => expected,
                    };
                    world.check("with its new destination", at, EXTERNAL, sent, expected);
                }
            }
        }
    });
}

#[test]
fn what_a_device_will_segment_is_not_too_big() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                world.forget();
                let (client, frontend) = ((scene.client, 40_000), (scene.node, 30_080));
                let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
                world.add(&spec.remote(scene.narrow, 8080));
                let empty = packet(protocol, client, frontend).payload(b"");
                let segment = u32::from(NARROW_MTU) - empty.ip_bytes().len() as u32;
                let segments = empty.payload(&[0xab; 3000]).bytes();
                for (gso_size, reason) in [(segment, Reason::Opened), (segment + 1, Reason::TooBig)]
                {
                    let found = world.run_as(At::TcIngress, EXTERNAL, &segments, gso_size);
                    assert_eq!(found.action, Action::Redirect);
                    assert_eq!(found.counted.len(), 1);
                    let counted = found.counted[0].1;
                    assert_eq!(counted, reason, "{protocol}, {gso_size}: {found:?}");
                }
            }
        }
    });
}

#[test]
fn a_full_flow_table_takes_no_more_and_keeps_what_it_has() {
    world(|world| {
        for scene in Scene::both() {
            world.forget();
            world.configure(|config| {
                config.snat_count = 10_000;
                config.flow_mask4 = 31;
                config.flow_mask6 = 31;
            });
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            let request = |port| {
                let request = first(TCP, (scene.client, port), frontend);
                request.macs(EXTERNAL_MAC, ROUTER_MAC)
            };
            // The smallest table: 32 records are sixteen connections.
            for port in 40_000..40_016 {
                let found = world.run(At::Xdp, EXTERNAL, &request(port).bytes());
                assert_eq!(found.counted[0].1, Reason::Opened, "{port}");
            }
            for at in At::INGRESS {
                world.check(
                    "there is no room for another",
                    at,
                    EXTERNAL,
                    &request(40_016),
                    Expected::drops(Reason::FlowTableFull),
                );
                for port in 40_000..40_016 {
                    let found = world.run(at, EXTERNAL, &request(port).bytes());
                    assert_eq!(found.counted[0].1, Reason::ToEndpoint, "{port}");
                }
            }
        }
    });
}

#[test]
fn two_connections_cannot_share_a_port_to_an_endpoint() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(UDP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            let one = first(UDP, (scene.client, 40_000), frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            let two = first(UDP, (scene.client, 40_001), frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            let there = one.clone().source((scene.node, SNAT_PORT));
            let there = there.destination((scene.remote, 8080)).hop();
            let there = there.macs(PEER_MAC, EXTERNAL_MAC);
            for at in At::INGRESS {
                world.forget();
                world.check(
                    "the first has the only port",
                    at,
                    EXTERNAL,
                    &one,
                    Expected::transmits(&there, Reason::Opened),
                );
                world.check(
                    "the second has none",
                    at,
                    EXTERNAL,
                    &two,
                    Expected::drops(Reason::SnatPortsExhausted),
                );
                world.check(
                    "the first goes on",
                    at,
                    EXTERNAL,
                    &one,
                    Expected::transmits(&there, Reason::ToEndpoint),
                );
            }
        }
    });
}

#[test]
fn next_hops_are_kept_until_routes_change() {
    world(|world| {
        for (scene, peer) in [(Scene::v4(), "192.0.2.3"), (Scene::v6(), "2001:db8:1::3")] {
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            let request = first(TCP, (scene.client, 40_000), frontend);
            let request = request.macs(EXTERNAL_MAC, ROUTER_MAC);
            let there = request.clone().source((scene.node, SNAT_PORT));
            let there = there.destination((scene.remote, 8080)).hop();
            let old = there.clone().macs(PEER_MAC, EXTERNAL_MAC);
            let new = there.macs([0x02, 0, 0, 0, 9, 9], EXTERNAL_MAC);
            for (sentence, expected) in [
                (
                    "the next hop is looked up",
                    Expected::transmits(&old, Reason::Opened),
                ),
                (
                    "and kept though the neighbour is another now",
                    Expected::transmits(&old, Reason::ToEndpoint),
                ),
                (
                    "until the agent says so",
                    Expected::transmits(&new, Reason::ToEndpoint),
                ),
            ] {
                world.check(sentence, At::Xdp, EXTERNAL, &request, expected);
                if sentence.starts_with("and") {
                    world.next_hops_changed();
                } else {
                    scene::ip(&format!(
                        "neigh replace {peer} lladdr 02:00:00:00:09:09 dev ext0 nud permanent\n"
                    ));
                }
            }
        }
    });
}

#[test]
fn an_unknown_neighbour_is_left_to_the_kernel() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(scene.unresolved, 8080));
            let request = first(TCP, (scene.client, 40_000), frontend);
            let request = request.macs(EXTERNAL_MAC, ROUTER_MAC);
            world.check(
                "XDP cannot ask for the neighbour",
                At::Xdp,
                EXTERNAL,
                &request,
                Expected::passes(&request, Reason::LaterHook).and_opens(),
            );
            let there = request.clone().source((scene.node, SNAT_PORT));
            let there = there.destination((scene.unresolved, 8080)).hop();
            world.check(
                "TC has the kernel ask",
                At::TcIngress,
                EXTERNAL,
                &request,
                Expected::redirects(&there, Reason::ToEndpoint),
            );
            let late = request.ttl(1);
            world.check(
                "but not for a packet at the end of its life",
                At::TcIngress,
                EXTERNAL,
                &late,
                Expected::transmits(
                    &answer(&late, scene.node, TIME_EXCEEDED, 0),
                    Reason::TimeExceeded,
                ),
            );
        }
    });
}

#[test]
fn an_endpoint_without_route_gets_nothing() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(scene.unroutable, 8080));
            let request = first(TCP, (scene.client, 40_000), frontend);
            world.check(
                "XDP leaves it to TC",
                At::Xdp,
                EXTERNAL,
                &request,
                Expected::passes(&request, Reason::LaterHook).and_opens(),
            );
            world.check(
                "which drops it",
                At::TcIngress,
                EXTERNAL,
                &request,
                Expected::drops(Reason::NoRoute),
            );
        }
    });
}

#[test]
fn incomplete_checksums_are_left_to_tc_on_virtual_devices() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                world.forget();
                let frontend = (scene.node, 30_080);
                let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
                world.add(&spec.remote(scene.remote, 8080));
                let request = first(protocol, (scene.client, 40_000), frontend);
                let mut partial = request.bytes();
                let body = request.ip_bytes().len() - request.quote(0).len();
                // The pseudo header's sum, which a sender leaves for its device to complete.
                let sum = pseudo_header_sum(
                    request.source_address(),
                    request.destination_address(),
                    protocol,
                    body,
                );
                let at = partial.len() - body + if protocol == TCP { 16 } else { 6 };
                partial[at..at + 2].copy_from_slice(&sum.to_be_bytes());
                world.check(
                    "XDP cannot tell and passes it",
                    At::XdpVirtual,
                    EXTERNAL,
                    partial.clone(),
                    Expected::passes(partial.clone(), Reason::PartialChecksum).and_opens(),
                );
                let found = world.run(At::Xdp, EXTERNAL, &partial);
                let counted = found.counted[0].1;
                assert_eq!(counted, Reason::ToEndpoint, "a wire's checksum is complete");
            }
        }
    });
}
