//! ICMP errors about translated packets reach the sender of the packet, and quote the packet that
//! it sent.

use std::net::IpAddr;

use lb_common::verdict::Reason;
use lb_packet::Packet;

use super::{
    conversations::{first, packet},
    scene::{EXTERNAL, EXTERNAL_MAC, PEER_MAC, POD, POD_MAC, POD_SIDE_MAC, ROUTER_MAC, Scene},
    service::{ServiceSpec, TCP, UDP},
    world::{At, Expected, SNAT_PORT, World, world},
};

/// Kinds of errors with the word after the checksum, for IPv4 and IPv6.
const ERRORS: [[((u8, u8), u32); 4]; 2] = [
    // Port unreachable, fragmentation needed, time exceeded, parameter problem.
    [
        ((3, 3), 0),
        ((3, 4), 1280),
        ((11, 0), 0),
        ((12, 0), 0x1400_0000),
    ],
    // Port unreachable, packet too big, time exceeded, parameter problem.
    [((1, 4), 0), ((2, 0), 1280), ((3, 0), 0), ((4, 1), 6)],
];

/// Errors as a router or endpoint sends them about `about`, as they saw it, with a long or a short
/// quote.
fn errors(from: IpAddr, about: &Packet) -> Vec<(Packet, usize)> {
    let kinds = ERRORS[usize::from(from.is_ipv6())];
    let lengths = [8, 20, 64];
    kinds
        .into_iter()
        .flat_map(|(kind, word)| lengths.map(|length| (kind, word, length)))
        .map(|(kind, word, length)| {
            let quote = about.quote(length);
            let error = Packet::icmp(from, about.source_address(), kind, word, quote);
            (error, length)
        })
        .collect()
}

#[test]
fn errors_reach_the_client_and_the_endpoint_of_a_forwarded_connection() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                let (frontend, endpoint) = ((scene.node, 30_080), (scene.remote, 8080));
                let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
                world.add(&spec.remote(endpoint.0, endpoint.1));
                let (client, node) = ((scene.client, 40_000), (scene.node, SNAT_PORT));
                world.forget();
                let request = first(protocol, client, frontend).payload(&[0xab; 100]);
                let request = request.macs(EXTERNAL_MAC, ROUTER_MAC);
                world.run(At::Xdp, EXTERNAL, &request.bytes());
                let forwarded = request.clone().source(node).destination(endpoint).hop();
                let reply = packet(protocol, endpoint, node).payload(&[0xcd; 100]);
                let replied = reply.clone().source(frontend).destination(client).hop();

                for at in At::INGRESS {
                    about(
                        world,
                        at,
                        "an error of the endpoint reaches the client in the frontend's name",
                        errors(endpoint.0, &forwarded),
                        &request.clone().ttl(63),
                        (frontend.0, client.0),
                        (PEER_MAC, ROUTER_MAC),
                    );
                    let router: IpAddr = match scene.node.is_ipv4() {
                        true => "192.0.2.77".parse().unwrap(),
                        false => "2001:db8:77::1".parse().unwrap(),
                    };
                    about(
                        world,
                        at,
                        "an error of a router reaches the client in the router's name",
                        errors(router, &forwarded),
                        &request.clone().ttl(63),
                        (router, client.0),
                        (PEER_MAC, ROUTER_MAC),
                    );
                    about(
                        world,
                        at,
                        "an error of the client reaches the endpoint in the node's name",
                        errors(client.0, &replied),
                        &reply.clone().ttl(63),
                        (node.0, endpoint.0),
                        (ROUTER_MAC, PEER_MAC),
                    );
                }
            }
        }
    });
}

/// Sends errors and expects them to quote `quoted`, between `addresses`.
fn about(
    world: &mut World,
    at: At,
    sentence: &str,
    errors: Vec<(Packet, usize)>,
    quoted: &Packet,
    addresses: (IpAddr, IpAddr),
    macs: ([u8; 6], [u8; 6]),
) {
    for (error, length) in errors {
        let error = error.macs(EXTERNAL_MAC, macs.0);
        let quote = quoted.quote(length);
        let translated = error
            .clone()
            .payload(&quote)
            .addresses(addresses.0, addresses.1);
        let translated = translated.hop().macs(macs.1, EXTERNAL_MAC);
        world.check(
            &format!("{sentence}; quoting {length} bytes"),
            at,
            EXTERNAL,
            &error,
            Expected::transmits(&translated, Reason::IcmpError),
        );
    }
}

#[test]
fn errors_of_a_local_pod_are_translated_where_they_leave_the_node() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                world.forget();
                let (frontend, endpoint) = ((scene.load_balancer, 80), (scene.local, 8080));
                let spec = ServiceSpec::new(protocol).load_balancer(frontend.0, frontend.1);
                world.add(&spec.local(endpoint.0, endpoint.1).external_local());
                let request = first(protocol, (scene.client, 40_000), frontend);
                world.run(At::Xdp, EXTERNAL, &request.bytes());
                let seen = request.clone().destination(endpoint);
                for (error, length) in errors(endpoint.0, &seen) {
                    let error = error.macs(POD_SIDE_MAC, POD_MAC);
                    world.check(
                        "the stack sees the pod's error as it is",
                        At::TcIngress,
                        POD,
                        &error,
                        Expected::passes(&error, Reason::ReplyToStack),
                    );
                    let error = error.hop().macs(ROUTER_MAC, EXTERNAL_MAC);
                    let quote = request.quote(length);
                    let translated = error.clone().payload(&quote);
                    let translated = translated.addresses(frontend.0, scene.client);
                    world.check(
                        "and the client sees the frontend's",
                        At::TcEgress,
                        EXTERNAL,
                        &error,
                        Expected::passes(&translated, Reason::IcmpError),
                    );
                }
            }
        }
    });
}

#[test]
fn errors_for_a_local_pod_cross_the_stack_translated() {
    world(|world| {
        for scene in Scene::both() {
            world.forget();
            let (frontend, endpoint) = ((scene.load_balancer, 80), (scene.local, 8080));
            let spec = ServiceSpec::new(TCP).load_balancer(frontend.0, frontend.1);
            world.add(&spec.local(endpoint.0, endpoint.1).external_local());
            let client = (scene.client, 40_000);
            world.run(At::Xdp, EXTERNAL, &first(TCP, client, frontend).bytes());
            let reply = packet(TCP, endpoint, client);
            let replied = reply.clone().source(frontend);
            for at in At::INGRESS {
                for (error, length) in errors(client.0, &replied) {
                    let quote = reply.quote(length);
                    let translated = error.clone().payload(&quote);
                    world.check(
                        "path MTU discovery of the pod works",
                        at,
                        EXTERNAL,
                        &error,
                        Expected::passes(
                            &translated.addresses(client.0, endpoint.0),
                            Reason::IcmpError,
                        ),
                    );
                }
            }
        }
    });
}

#[test]
fn other_icmp_passes_untouched() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.cluster_ip, 80);
            let spec = ServiceSpec::new(TCP).cluster_ip(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            let v6 = scene.node.is_ipv6();
            let echo = if v6 { (128, 0) } else { (8, 0) };
            let unreachable = if v6 { (1, 4) } else { (3, 3) };
            let stranger = first(TCP, (scene.client, 1), (scene.remote, 2));
            let nested = Packet::icmp(scene.client, scene.remote, unreachable, 0, vec![0; 40]);
            let icmp = |kind, rest| Packet::icmp(scene.client, scene.cluster_ip, kind, 0, rest);
            for (sentence, packet, reason) in [
                (
                    "an echo request to a frontend",
                    icmp(echo, b"ping".to_vec()),
                    Reason::OtherProtocol,
                ),
                (
                    "an error about a packet of no flow",
                    icmp(unreachable, stranger.quote(8)),
                    Reason::NotService,
                ),
                (
                    "an error about ICMP",
                    icmp(unreachable, nested.quote(8)),
                    Reason::OtherProtocol,
                ),
                (
                    "an error that quotes nothing",
                    icmp(unreachable, Vec::new()),
                    Reason::OtherProtocol,
                ),
                (
                    "an error that quotes no ports",
                    icmp(unreachable, stranger.quote(2)),
                    Reason::OtherProtocol,
                ),
            ] {
                for at in At::ALL {
                    let expected = Expected::passes(&packet, reason);
                    world.check(sentence, at, EXTERNAL, &packet, expected);
                }
            }
        }
    });
}

#[test]
fn an_error_at_the_end_of_its_life_is_dropped() {
    world(|world| {
        for scene in Scene::both() {
            let (frontend, endpoint) = ((scene.node, 30_080), (scene.remote, 8080));
            let spec = ServiceSpec::new(UDP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(endpoint.0, endpoint.1));
            let request = first(UDP, (scene.client, 40_000), frontend);
            world.run(At::Xdp, EXTERNAL, &request.bytes());
            let forwarded = request
                .source((scene.node, SNAT_PORT))
                .destination(endpoint);
            for (error, _) in errors(endpoint.0, &forwarded) {
                for at in At::INGRESS {
                    world.check(
                        "nobody answers an error",
                        at,
                        EXTERNAL,
                        &error.clone().ttl(1),
                        Expected::drops(Reason::TimeExceeded),
                    );
                }
            }
        }
    });
}
