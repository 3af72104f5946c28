//! What programs log of the packets that somebody traces.

use std::{net::IpAddr, time::Duration};

use lb_common::{
    addr::Family,
    trace::{Filter, family_number},
    verdict::Reason,
};
use lb_packet::{Packet, tcp_flag};

use super::{
    conversations::{first, packet},
    scene::{EXTERNAL, EXTERNAL_MAC, PEER_MAC, ROUTER_MAC, Scene, index},
    service::{ServiceSpec, TCP},
    world::{At, SNAT_PORT, World, world},
};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

/// The lines of the packets logged since the last call, without what no test foretells: each line's
/// number of the packet, the time, and flags.
fn steps(world: &mut World) -> Vec<String> {
    let lines = world.lines();
    lines.iter().map(|line| step(line)).collect()
}

fn step(line: &str) -> String {
    let words: Vec<_> = line.split(' ').skip(1).collect();
    let kept = match words[0] {
        "hook" => 3,
        "flow" => 2,
        _ => words.len(),
    };
    words[..kept].join(" ")
}

fn number(reason: Reason) -> String {
    format!("reason {}", reason as u32)
}

#[test]
fn each_step_of_a_connection_is_logged() {
    world(|world| {
        for scene in Scene::both() {
            world.forget();
            world.trace(Filter::default(), 100, LONG);
            let (frontend, endpoint) = ((scene.node, 30_080), (scene.remote, 8080));
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            let service = world.add(&spec.remote(endpoint.0, endpoint.1));
            let (client, node) = ((scene.client, 40_000), (scene.node, SNAT_PORT));
            let (device, to_client) = (index(EXTERNAL), index(EXTERNAL));
            let address = |place: u32, (address, port): (IpAddr, u16)| {
                format!("address {place} {address} {port}")
            };

            let syn = first(TCP, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            let on_its_way = |flags: u8, flow: u32, reason: Reason| {
                vec![
                    format!("hook 0 {device}"),
                    format!("parse 6 {flags}"),
                    address(0, client),
                    address(1, frontend),
                    format!("flow {flow}"),
                    format!("service {service}"),
                    address(2, endpoint),
                    address(3, node),
                    address(4, endpoint),
                    format!("way 1 {device}"),
                    number(reason),
                ]
            };
            world.run(At::Xdp, EXTERNAL, &syn.bytes());
            let opened = on_its_way(tcp_flag::SYN, 2, Reason::Opened);
            assert_eq!(steps(world), opened, "the first packet opens a flow");

            let answer = Packet::tcp(endpoint, node, tcp_flag::SYN | tcp_flag::ACK);
            let answer = answer.payload(b"").macs(EXTERNAL_MAC, PEER_MAC);
            world.run(At::Xdp, EXTERNAL, &answer.bytes());
            let answered = vec![
                format!("hook 0 {device}"),
                format!("parse 6 {}", tcp_flag::SYN | tcp_flag::ACK),
                address(0, endpoint),
                address(1, node),
                "flow 1".to_owned(),
                format!("service {service}"),
                address(2, endpoint),
                address(3, frontend),
                address(4, client),
                format!("way 1 {to_client}"),
                number(Reason::ToClient),
            ];
            assert_eq!(steps(world), answered, "the answer is of the same flow");

            let data = packet(TCP, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
            world.run(At::Xdp, EXTERNAL, &data.bytes());
            let flags = tcp_flag::ACK | tcp_flag::PSH;
            let later = on_its_way(flags, 1, Reason::ToEndpoint);
            assert_eq!(steps(world), later, "a later packet finds the flow");

            let forwarded = data.clone().source(node).destination(endpoint).hop();
            let kind = match scene.node.is_ipv4() {
                true => (3, 3),
                false => (1, 4),
            };
            let error = Packet::icmp(endpoint.0, node.0, kind, 0, forwarded.quote(64));
            let error = error.macs(EXTERNAL_MAC, PEER_MAC);
            world.run(At::TcIngress, EXTERNAL, &error.bytes());
            let about = steps(world);
            assert_eq!(about[0], format!("hook 1 {device}"), "{about:?}");
            assert!(about.contains(&"flow 1".to_owned()), "{about:?}");
            assert!(about.contains(&format!("service {service}")), "{about:?}");
            assert_eq!(about.last(), Some(&number(Reason::IcmpError)), "{about:?}");

            let bare = (scene.cluster_ip, 81);
            let service = world.add(&ServiceSpec::new(TCP).cluster_ip(bare.0, bare.1));
            let refused = first(TCP, client, bare).macs(EXTERNAL_MAC, ROUTER_MAC);
            world.run(At::Xdp, EXTERNAL, &refused.bytes());
            let nobody = [
                format!("hook 0 {device}"),
                format!("parse 6 {}", tcp_flag::SYN),
                address(0, client),
                address(1, bare),
                "flow 0".to_owned(),
                format!("service {service}"),
                "way 3 0".to_owned(),
                number(Reason::NoEndpoints),
            ];
            assert_eq!(steps(world), nobody, "a service without endpoints");

            let foreign = first(TCP, client, (scene.node, 22)).macs(EXTERNAL_MAC, ROUTER_MAC);
            world.run(At::TcIngress, EXTERNAL, &foreign.bytes());
            let steps = steps(world);
            let passed = ["flow 0", "way 0 0", &number(Reason::NotService)];
            assert_eq!(steps[4..], passed, "what is to no Service");
        }
    });
}

#[test]
fn the_filter_is_applied_in_the_kernel_and_matches_both_directions() {
    world(|world| {
        let scene = Scene::v4();
        let (frontend, endpoint) = ((scene.node, 30_080), (scene.remote, 8080));
        let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
        let service = world.add(&spec.remote(endpoint.0, endpoint.1));
        let syn = first(TCP, (scene.client, 40_000), frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
        let answer = Packet::tcp(
            endpoint,
            (scene.node, SNAT_PORT),
            tcp_flag::SYN | tcp_flag::ACK,
        );
        let answer = answer.macs(EXTERNAL_MAC, PEER_MAC);
        let others = first(TCP, (scene.client, 41_000), (scene.node, 22));
        let others = others.macs(EXTERNAL_MAC, ROUTER_MAC);
        let v4 = family_number(Family::V4);
        let to = |address: IpAddr, to_port| Filter {
            to: address.into(),
            to_prefix: 32,
            to_port,
            family: v4,
            ..Filter::default()
        };
        let mut of_service = Filter::default();
        of_service.services[3] = service;
        let mut of_another = Filter::default();
        of_another.services[0] = service + 1;
        // Of the SYN, the answer, and the packet to no Service, which are logged.
        let cases = [
            (Filter::default(), [true, true, true]),
            (to(frontend.0, 30_080), [true, true, false]),
            (to(endpoint.0, 0), [true, true, false]),
            (to(frontend.0, 22), [false, false, true]),
            (to(scene.local, 0), [false, false, false]),
            (of_service, [true, true, false]),
            (of_another, [false, false, false]),
            (
                Filter {
                    from: scene.client.into(),
                    from_prefix: 24,
                    family: v4,
                    ..Filter::default()
                },
                [true, true, true],
            ),
            (
                Filter {
                    from_port: 40_000,
                    ..Filter::default()
                },
                [true, true, false],
            ),
            (
                Filter {
                    reason: Reason::NotService as u32 + 1,
                    ..Filter::default()
                },
                [false, false, true],
            ),
            (
                Filter {
                    protocol: 17,
                    ..Filter::default()
                },
                [false, false, false],
            ),
        ];
        for (filter, expected) in cases {
            world.forget();
            world.trace(filter, 100, LONG);
            let logged = [&syn, &answer, &others].map(|packet| {
                world.run(At::TcIngress, EXTERNAL, &packet.bytes());
                !steps(world).is_empty()
            });
            assert_eq!(logged, expected, "{filter:?}");
            assert_eq!(world.traced().seen, 3);
        }
    });
}

#[test]
fn no_more_packets_are_logged_than_asked_for_nor_for_longer() {
    world(|world| {
        let scene = Scene::v4();
        let packet = first(TCP, (scene.client, 41_000), (scene.node, 22));
        let packet = packet.macs(EXTERNAL_MAC, ROUTER_MAC).bytes();
        world.trace(Filter::default(), 3, LONG);
        for _ in 0..10 {
            world.run(At::Xdp, EXTERNAL, &packet);
        }
        let lines = world.lines();
        let reasons = lines.iter().filter(|line| line.contains(" reason "));
        let numbers: Vec<_> = reasons
            .map(|line| line.split(' ').next().unwrap())
            .collect();
        assert_eq!(numbers, ["1", "2", "3"]);
        assert_eq!(world.traced().lines, lines.len() as u64);
        assert_eq!(world.traced().seen, 10);

        world.trace(Filter::default(), 3, Duration::ZERO);
        world.run(At::Xdp, EXTERNAL, &packet);
        assert_eq!(world.lines(), Vec::<String>::new());
        assert_eq!(world.traced().seen, 0, "they do not even look");
    });
}
