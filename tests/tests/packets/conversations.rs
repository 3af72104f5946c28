//! Connections from their first packet to the next one: client → node → endpoint → node → client.

use std::net::IpAddr;

use lb_common::{
    abi::{FrontendKind, config_flag},
    verdict::Reason,
};
use lb_packet::{Packet, tcp_flag};

use super::{
    scene::{EXTERNAL, EXTERNAL_MAC, PEER_MAC, POD, POD_MAC, POD_SIDE_MAC, ROUTER_MAC, Scene},
    service::{ServiceSpec, TCP, UDP},
    world::{At, Expected, SNAT_PORT, World, world},
};

type Address = (IpAddr, u16);

/// A packet in the middle of a connection.
pub fn packet(protocol: u8, from: Address, to: Address) -> Packet {
    match protocol {
        UDP => Packet::udp(from, to),
        _ => Packet::tcp(from, to, tcp_flag::ACK | tcp_flag::PSH),
    }
}

/// The first packet of a connection.
pub fn first(protocol: u8, from: Address, to: Address) -> Packet {
    match protocol {
        UDP => Packet::udp(from, to),
        _ => Packet::tcp(from, to, tcp_flag::SYN).payload(b""),
    }
}

/// Runs a test for both families, both protocols and all programs at ingress.
pub fn everywhere(world: &mut World, mut test: impl FnMut(&mut World, Scene, u8, At)) {
    for scene in Scene::both() {
        for protocol in [TCP, UDP] {
            for at in At::INGRESS {
                world.forget();
                test(world, scene, protocol, at);
            }
        }
    }
}

/// A service with all kinds of frontends.
fn all_kinds(scene: Scene, protocol: u8) -> (ServiceSpec, [Address; 4]) {
    let addresses = [
        (scene.cluster_ip, 80),
        (scene.node, 30_080),
        (scene.load_balancer, 80),
        (scene.external_ip, 80),
    ];
    let kinds = [
        FrontendKind::ClusterIp,
        FrontendKind::NodePort,
        FrontendKind::LoadBalancerIp,
        FrontendKind::ExternalIp,
    ];
    let spec = kinds.into_iter().zip(addresses).fold(
        ServiceSpec::new(protocol),
        |spec, (kind, (address, port))| spec.frontend(kind, address, port),
    );
    (spec, addresses)
}

#[test]
fn a_client_outside_reaches_a_pod_of_another_node_by_every_frontend() {
    world(|world| {
        everywhere(world, |world, scene, protocol, at| {
            let (spec, frontends) = all_kinds(scene, protocol);
            let endpoint = (scene.remote, 8080);
            world.add(&spec.remote(endpoint.0, endpoint.1));
            let client = (scene.client, 40_000);
            let node = (scene.node, SNAT_PORT);
            for frontend in frontends {
                world.forget();
                let request = first(protocol, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
                let forward = |packet: &Packet| {
                    let packet = packet.clone().source(node).destination(endpoint);
                    packet.hop().macs(PEER_MAC, EXTERNAL_MAC)
                };
                world.check(
                    "the first packet goes to the endpoint with the node's address",
                    at,
                    EXTERNAL,
                    &request,
                    Expected::transmits(&forward(&request), Reason::Opened),
                );
                let reply = packet(protocol, endpoint, node).macs(EXTERNAL_MAC, PEER_MAC);
                let back = reply.clone().source(frontend).destination(client);
                world.check(
                    "the answer goes back to the client from the frontend",
                    at,
                    EXTERNAL,
                    &reply,
                    Expected::transmits(
                        &back.hop().macs(ROUTER_MAC, EXTERNAL_MAC),
                        Reason::ToClient,
                    ),
                );
                let more = packet(protocol, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
                world.check(
                    "what follows takes the same way",
                    at,
                    EXTERNAL,
                    &more,
                    Expected::transmits(&forward(&more), Reason::ToEndpoint),
                );
            }
        });
    });
}

#[test]
fn a_client_outside_reaches_a_local_pod_with_its_own_address() {
    world(|world| {
        everywhere(world, |world, scene, protocol, at| {
            let (frontend, endpoint) = ((scene.load_balancer, 443), (scene.local, 8443));
            let spec = ServiceSpec::new(protocol).load_balancer(frontend.0, frontend.1);
            world.add(&spec.local(endpoint.0, endpoint.1).external_local());
            let client = (scene.client, 40_000);
            let request = first(protocol, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            world.check(
                "the first packet crosses the stack with the endpoint's address",
                at,
                EXTERNAL,
                &request,
                Expected::passes(&request.clone().destination(endpoint), Reason::Opened),
            );
            let reply = packet(protocol, endpoint, client).macs(POD_SIDE_MAC, POD_MAC);
            world.check(
                "the answer crosses the stack untouched",
                At::TcIngress,
                POD,
                &reply,
                Expected::passes(&reply, Reason::ReplyToStack),
            );
            let reply = reply.hop().macs(ROUTER_MAC, EXTERNAL_MAC);
            world.check(
                "and gets the frontend's address where it leaves the node",
                At::TcEgress,
                EXTERNAL,
                &reply,
                Expected::passes(&reply.clone().source(frontend), Reason::ToClient),
            );
            let more = packet(protocol, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            world.check(
                "what follows takes the same way",
                at,
                EXTERNAL,
                &more,
                Expected::passes(&more.clone().destination(endpoint), Reason::ToEndpoint),
            );
        });
    });
}

#[test]
fn bypassing_the_stack_sends_to_the_local_pod_and_back_at_once() {
    world(|world| {
        world.configure(|config| config.flags |= config_flag::BYPASS);
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                world.forget();
                let (frontend, endpoint) = ((scene.load_balancer, 443), (scene.local, 8443));
                let spec = ServiceSpec::new(protocol).load_balancer(frontend.0, frontend.1);
                world.add(&spec.local(endpoint.0, endpoint.1).external_local());
                let client = (scene.client, 40_000);
                let request = first(protocol, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
                world.check(
                    "XDP cannot reach the pod's device and leaves the packet to TC",
                    At::Xdp,
                    EXTERNAL,
                    &request,
                    Expected::passes(&request, Reason::LaterHook).and_opens(),
                );
                let there = request.clone().destination(endpoint).hop();
                world.check(
                    "TC sends it to the pod",
                    At::TcIngress,
                    EXTERNAL,
                    &request,
                    Expected::redirects(&there.macs(POD_MAC, POD_SIDE_MAC), Reason::ToEndpoint),
                );
                let reply = packet(protocol, endpoint, client).macs(POD_SIDE_MAC, POD_MAC);
                let back = reply.clone().source(frontend).hop();
                world.check(
                    "and the answer to the client's router",
                    At::TcIngress,
                    POD,
                    &reply,
                    Expected::redirects(&back.macs(ROUTER_MAC, EXTERNAL_MAC), Reason::ToClient),
                );
            }
        }
    });
}

#[test]
fn a_local_pod_reaches_a_pod_of_another_node_with_its_own_address() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                world.forget();
                let (frontend, endpoint) = ((scene.cluster_ip, 80), (scene.remote, 8080));
                let spec = ServiceSpec::new(protocol).cluster_ip(frontend.0, frontend.1);
                world.add(&spec.remote(endpoint.0, endpoint.1));
                let client = (scene.local, 40_000);
                let request = first(protocol, client, frontend).macs(POD_SIDE_MAC, POD_MAC);
                world.check(
                    "the first packet crosses the stack with the endpoint's address",
                    At::TcIngress,
                    POD,
                    &request,
                    Expected::passes(&request.clone().destination(endpoint), Reason::Opened),
                );
                let reply = packet(protocol, endpoint, client).macs(EXTERNAL_MAC, PEER_MAC);
                for at in At::INGRESS {
                    world.check(
                        "the answer crosses the stack untouched",
                        at,
                        EXTERNAL,
                        &reply,
                        Expected::passes(&reply, Reason::ReplyToStack),
                    );
                }
                let reply = reply.hop().macs(POD_MAC, POD_SIDE_MAC);
                world.check(
                    "and gets the frontend's address where it reaches the pod",
                    At::TcEgress,
                    POD,
                    &reply,
                    Expected::passes(&reply.clone().source(frontend), Reason::ToClient),
                );
            }
        }
    });
}

#[test]
fn a_pod_that_reaches_itself_sees_the_node() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                world.forget();
                let (frontend, endpoint) = ((scene.cluster_ip, 80), (scene.local, 8080));
                let spec = ServiceSpec::new(protocol).cluster_ip(frontend.0, frontend.1);
                world.add(&spec.local(endpoint.0, endpoint.1));
                let (client, node) = ((scene.local, 40_000), (scene.node, SNAT_PORT));
                let request = first(protocol, client, frontend).macs(POD_SIDE_MAC, POD_MAC);
                let there = request.clone().source(node).destination(endpoint).hop();
                world.check(
                    "the first packet returns to the pod with the node's address",
                    At::TcIngress,
                    POD,
                    &request,
                    Expected::redirects(&there.macs(POD_MAC, POD_SIDE_MAC), Reason::Opened),
                );
                let reply = packet(protocol, endpoint, node).macs(POD_SIDE_MAC, POD_MAC);
                let back = reply.clone().source(frontend).destination(client).hop();
                world.check(
                    "and so does the answer, with the frontend's",
                    At::TcIngress,
                    POD,
                    &reply,
                    Expected::redirects(&back.macs(POD_MAC, POD_SIDE_MAC), Reason::ToClient),
                );
            }
        }
    });
}

#[test]
fn a_host_network_pod_gets_packets_through_the_stack_and_never_the_nodes_address() {
    world(|world| {
        everywhere(world, |world, scene, protocol, at| {
            let (frontend, endpoint) = ((scene.node, 30_443), (scene.node, 8443));
            let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
            world.add(&spec.host(endpoint.0, endpoint.1));
            let client = (scene.client, 40_000);
            let request = first(protocol, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            world.check(
                "the first packet gets another port",
                at,
                EXTERNAL,
                &request,
                Expected::passes(&request.clone().destination(endpoint), Reason::Opened),
            );
            let reply = packet(protocol, endpoint, client).macs(ROUTER_MAC, EXTERNAL_MAC);
            world.check(
                "the answer gets it back where it leaves",
                At::TcEgress,
                EXTERNAL,
                &reply,
                Expected::passes(&reply.clone().source(frontend), Reason::ToClient),
            );
        });
    });
}

#[test]
fn datagrams_without_checksum_stay_without() {
    world(|world| {
        let scene = Scene::v4();
        for at in At::INGRESS {
            world.forget();
            let (frontend, endpoint) = ((scene.node, 30_053), (scene.remote, 53));
            let spec = ServiceSpec::new(UDP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(endpoint.0, endpoint.1));
            let (client, node) = ((scene.client, 40_000), (scene.node, SNAT_PORT));
            let request = Packet::udp(client, frontend).without_checksum();
            let request = request.macs(EXTERNAL_MAC, ROUTER_MAC);
            let there = request.clone().source(node).destination(endpoint).hop();
            world.check(
                "zero stays zero",
                at,
                EXTERNAL,
                &request,
                Expected::transmits(&there.macs(PEER_MAC, EXTERNAL_MAC), Reason::Opened),
            );
        }
    });
}

#[test]
fn a_computed_checksum_of_zero_is_sent_as_all_ones() {
    world(|world| {
        for scene in Scene::both() {
            let (frontend, endpoint) = ((scene.node, 30_053), (scene.remote, 53));
            let spec = ServiceSpec::new(UDP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(endpoint.0, endpoint.1));
            let (client, node) = ((scene.client, 40_000), (scene.node, SNAT_PORT));
            let request = Packet::udp(client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            let translated = |packet: &Packet| packet.clone().source(node).destination(endpoint);
            // The payload with which the translation makes the checksum zero.
            let payload = (0..=u16::MAX)
                .map(u16::to_be_bytes)
                .find(|payload| {
                    let packet = translated(&request.clone().payload(payload)).ip_bytes();
                    packet[packet.len() - 4..packet.len() - 2] == [0xff, 0xff]
                })
                .unwrap();
            let request = request.payload(&payload);
            for at in At::INGRESS {
                world.forget();
                let there = translated(&request).hop().macs(PEER_MAC, EXTERNAL_MAC);
                world.check(
                    "all ones",
                    at,
                    EXTERNAL,
                    &request,
                    Expected::transmits(&there, Reason::Opened),
                );
            }
        }
    });
}

#[test]
fn a_syn_reopens_a_closed_connection_only() {
    world(|world| {
        for scene in Scene::both() {
            let (frontend, endpoint) = ((scene.node, 30_080), (scene.remote, 8080));
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(endpoint.0, endpoint.1));
            let (client, node) = ((scene.client, 40_000), (scene.node, SNAT_PORT));
            let from_client = |flags, sequence, acknowledged| {
                let packet = Packet::tcp(client, frontend, flags).payload(b"");
                let packet = packet.numbers(sequence, acknowledged);
                packet.macs(EXTERNAL_MAC, ROUTER_MAC)
            };
            let there = |packet: &Packet| {
                let packet = packet.clone().source(node).destination(endpoint);
                packet.hop().macs(PEER_MAC, EXTERNAL_MAC)
            };
            let send = |world: &mut World, sentence: &str, packet: Packet, reason| {
                let expected = Expected::transmits(&there(&packet), reason);
                world.check(sentence, At::Xdp, EXTERNAL, &packet, expected);
            };
            let syn = || from_client(tcp_flag::SYN, 1000, 0);
            let answer = |world: &mut World, flags, sequence, acknowledged| {
                let reply = Packet::tcp(endpoint, node, flags).payload(b"");
                let reply = reply.numbers(sequence, acknowledged);
                let reply = reply.macs(EXTERNAL_MAC, PEER_MAC);
                let back = reply.clone().source(frontend).destination(client);
                let back = back.hop().macs(ROUTER_MAC, EXTERNAL_MAC);
                let expected = Expected::transmits(&back, Reason::ToClient);
                world.check("the endpoint answers", At::Xdp, EXTERNAL, &reply, expected);
            };
            for resets in [false, true] {
                world.forget();
                send(world, "a SYN opens", syn(), Reason::Opened);
                let again = "a SYN sent again is of the same connection";
                send(world, again, syn(), Reason::ToEndpoint);
                answer(world, tcp_flag::SYN | tcp_flag::ACK, 5000, 1001);
                let acknowledgement = from_client(tcp_flag::ACK, 1001, 5001);
                send(
                    world,
                    "the client has it",
                    acknowledgement,
                    Reason::ToEndpoint,
                );
                let stray = "a SYN in an established connection goes its way";
                send(world, stray, syn(), Reason::ToEndpoint);
                for (blind, flags) in [
                    ("FIN", tcp_flag::FIN | tcp_flag::ACK),
                    ("RST", tcp_flag::RST),
                ] {
                    let blind = format!("so does a blind {blind}");
                    let packet = from_client(flags, 0x4000_0000, 0x5000_0000);
                    send(world, &blind, packet, Reason::ToEndpoint);
                }
                send(world, "and the connection lives", syn(), Reason::ToEndpoint);
                if resets {
                    let reset = from_client(tcp_flag::RST, 1001, 0);
                    send(world, "a RST closes it", reset, Reason::ToEndpoint);
                } else {
                    let end = from_client(tcp_flag::FIN | tcp_flag::ACK, 1001, 5001);
                    send(world, "the client ends", end, Reason::ToEndpoint);
                    answer(world, tcp_flag::FIN | tcp_flag::ACK, 5001, 1002);
                    send(world, "that was one side", syn(), Reason::ToEndpoint);
                    let last = from_client(tcp_flag::ACK, 1002, 5002);
                    send(world, "now it is closed", last, Reason::ToEndpoint);
                }
                send(world, "and a SYN opens", syn(), Reason::Opened);
            }
        }
    });
}

#[test]
fn a_closed_flow_leaves_its_port_to_a_connection_that_other_rules_translate() {
    world(|world| {
        for scene in Scene::both() {
            let (frontend, endpoint) = ((scene.node, 30_080), (scene.remote, 8080));
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(endpoint.0, endpoint.1));
            let (client, node) = ((scene.client, 40_000), (scene.node, SNAT_PORT));
            for at in At::INGRESS {
                world.forget();
                for (sentence, flags, sequence, reason) in [
                    ("a SYN opens", tcp_flag::SYN, 1000, Reason::Opened),
                    ("a RST closes", tcp_flag::RST, 1001, Reason::ToEndpoint),
                ] {
                    let packet = Packet::tcp(client, frontend, flags).payload(b"");
                    let packet = packet.numbers(sequence, 0);
                    let packet = packet.macs(EXTERNAL_MAC, ROUTER_MAC);
                    let there = packet.clone().source(node).destination(endpoint).hop();
                    let expected = Expected::transmits(&there.macs(PEER_MAC, EXTERNAL_MAC), reason);
                    world.check(sentence, at, EXTERNAL, &packet, expected);
                }
                let masqueraded = first(TCP, node, endpoint).macs(PEER_MAC, EXTERNAL_MAC);
                let expected = Expected::passes(&masqueraded, Reason::NotService);
                let sentence = "the SYN that other rules gave the port goes its way";
                world.check(sentence, At::TcEgress, EXTERNAL, &masqueraded, expected);
                let flags = tcp_flag::SYN | tcp_flag::ACK;
                let answer = Packet::tcp(endpoint, node, flags).macs(EXTERNAL_MAC, PEER_MAC);
                let expected = Expected::passes(&answer, Reason::NotService);
                world.check("and so does its answer", at, EXTERNAL, &answer, expected);
            }
        }
    });
}
