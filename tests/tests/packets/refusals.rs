//! Connections that get no endpoint: they are rejected, dropped, or not node-lb's.

use lb_common::{
    abi::{config_flag, service_range_flag},
    flow::limit::NODE,
    verdict::Reason,
};
use lb_oracle::expected::{PORT_UNREACHABLE, answer, refusal};
use lb_packet::{Packet, Read, tcp_flag};

use super::{
    conversations::{everywhere, first, packet},
    scene::{EXTERNAL, EXTERNAL_MAC, POD, POD_MAC, POD_SIDE_MAC, ROUTER_MAC, Scene},
    service::{Class, ServiceSpec, TCP, UDP},
    world::{At, Expected, World, world},
};

#[test]
fn a_service_without_endpoints_answers_port_unreachable() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                let frontend = (scene.cluster_ip, 80);
                world.add(&ServiceSpec::new(protocol).cluster_ip(frontend.0, frontend.1));
                let request = first(protocol, (scene.client, 40_000), frontend);
                let from_outside = request.macs(EXTERNAL_MAC, ROUTER_MAC);
                for at in At::INGRESS {
                    world.check(
                        "the client is told, in the name of the frontend",
                        at,
                        EXTERNAL,
                        &from_outside,
                        Expected::transmits(
                            &answer(&from_outside, frontend.0, PORT_UNREACHABLE, 0),
                            Reason::NoEndpoints,
                        ),
                    );
                }
                let padded = from_outside.clone().payload(b"").padding(12);
                world.check(
                    "what pads the frame is not quoted",
                    At::Xdp,
                    EXTERNAL,
                    &padded,
                    Expected::transmits(
                        &answer(&padded, frontend.0, PORT_UNREACHABLE, 0),
                        Reason::NoEndpoints,
                    ),
                );
                let from_pod = first(protocol, (scene.local, 40_000), frontend);
                let from_pod = from_pod.macs(POD_SIDE_MAC, POD_MAC);
                world.check(
                    "pods are told as well",
                    At::TcIngress,
                    POD,
                    &from_pod,
                    Expected::transmits(
                        &answer(&from_pod, frontend.0, PORT_UNREACHABLE, 0),
                        Reason::NoEndpoints,
                    ),
                );
            }
        }
    });
}

#[test]
fn a_cluster_ip_refuses_what_is_to_none_of_its_ports() {
    world(|world| {
        world.configure(|config| config.flags |= config_flag::REFUSE_UNKNOWN);
        for scene in Scene::both() {
            let ip = scene.cluster_ip;
            world.add(&ServiceSpec::new(TCP).cluster_ip(ip, 80));
            world.add_cluster_ip(ip, service_range_flag::USED);
            let echo = if ip.is_ipv6() { (128, 0) } else { (8, 0) };
            let ping = Packet::icmp(scene.client, ip, echo, 0, b"ping".to_vec());
            let other = Packet::raw(scene.client, ip, 47, vec![0; 16]);
            for (packet, is_ported) in [
                (first(TCP, (scene.client, 40_000), (ip, 81)), true),
                (first(UDP, (scene.client, 40_000), (ip, 80)), true),
                (ping, false),
                (other, false),
            ] {
                let packet = packet.macs(EXTERNAL_MAC, ROUTER_MAC);
                let refused = Expected::transmits(
                    &answer(&packet, ip, PORT_UNREACHABLE, 0),
                    Reason::UnknownPort,
                );
                for at in At::INGRESS {
                    let expected = match is_ported {
                        true => refused.clone(),
                        false => Expected::passes(&packet, Reason::OtherProtocol),
                    };
                    world.check("where it comes in", at, EXTERNAL, &packet, expected);
                }
                let what = "where it leaves";
                world.check(what, At::TcEgress, EXTERNAL, &packet, refused);
            }
            world.add_cluster_ip(
                ip,
                service_range_flag::USED | service_range_flag::SERVICE_CIDR,
            );
            world.remove_cluster_ip(ip);
            let unused = first(TCP, (scene.client, 40_000), (ip, 81));
            let unused = unused.macs(EXTERNAL_MAC, ROUTER_MAC);
            for at in At::INGRESS {
                let passes = Expected::passes(&unused, Reason::NotService);
                world.check("others may have it", at, EXTERNAL, &unused, passes);
            }
            world.check(
                "nobody has it",
                At::TcEgress,
                EXTERNAL,
                &unused,
                Expected::drops(Reason::NoSuchService),
            );
        }
    });
}

#[test]
fn beyond_a_limit_of_connections_clients_are_told_at_once() {
    world(|world| {
        world.configure(|config| config.flags |= config_flag::CONNECTION_LIMIT);
        third_is_refused(world, Reason::ConcurrencyLimit, |world, when| match when {
            When::Before => world.limit_connections(NODE, 2),
            When::After => {
                let counts = world.limit_counts(NODE);
                assert_eq!((counts.used(), counts.highest, counts.refused), (2, 2, 2));
            }
        });
    });
}

#[test]
fn both_sides_of_a_connection_past_its_deadline_are_reset() {
    world(|world| {
        world.configure(|config| config.snat_count = 100);
        for scene in Scene::both() {
            let (client, frontend) = ((scene.client, 40_000), (scene.node, 30_080));
            let endpoint = (scene.remote, 8080);
            let spec = ServiceSpec::new(TCP).node_port(frontend.0, frontend.1);
            world.add(&spec.remote(endpoint.0, endpoint.1));
            for at in At::INGRESS {
                world.forget();
                let syn = first(TCP, client, frontend).macs(EXTERNAL_MAC, ROUTER_MAC);
                let opened = world.run(at, EXTERNAL, &syn.bytes());
                assert_eq!(opened.counted[0].1, Reason::Opened, "{opened:?}");
                let there = Read::frame(&opened.frame);
                world.expire_flows();
                let sides = [
                    (client, frontend),
                    (endpoint, (there.from().ip(), there.from().port())),
                ];
                for (from, to) in sides.into_iter().chain(sides) {
                    let segment = packet(TCP, from, to).macs(EXTERNAL_MAC, ROUTER_MAC);
                    let told = world.run(at, EXTERNAL, &segment.bytes());
                    assert_eq!(told.counted[0].1, Reason::DeadlineExceeded, "{told:?}");
                    let answer = Read::frame(&told.frame);
                    answer.assert_checksums();
                    let ways = (answer.from(), answer.to(), answer.payload()[13]);
                    assert_eq!(ways, (to.into(), from.into(), tcp_flag::RST));
                }
            }
        }
    });
}

#[test]
fn a_client_with_as_many_connections_as_it_may_have_is_told_at_once() {
    world(|world| {
        third_is_refused(world, Reason::FlowLimit, |world, when| match when {
            When::Before => world.admit_parties(2),
            When::After => assert_eq!(world.parties(), [2]),
        });
    });
}

#[test]
fn a_connection_of_several_seats_is_told_at_once_if_too_few_are_free() {
    world(|world| {
        third_is_refused(world, Reason::ConcurrencyLimit, |world, when| match when {
            When::Before => world.admit_wide(23, 9),
            When::After => {
                let level = world.level_counts();
                assert_eq!((level.used(), level.highest, level.refused), (18, 18, 2));
            }
        });
    });
}

/// When [`third_is_refused`] has something done.
#[derive(Clone, Copy)]
enum When {
    /// Before any packet.
    Before,
    After,
}

/// Asserts that of a client's connections two are let in, and the third is refused for a reason.
fn third_is_refused(world: &mut World, reason: Reason, at_times: impl Fn(&mut World, When)) {
    world.configure(|config| config.snat_count = 100);
    everywhere(world, |world, scene, protocol, at| {
        let frontend = (scene.node, 30_080);
        let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
        world.add(&spec.remote(scene.remote, 8080));
        at_times(world, When::Before);
        let request = |port| {
            let request = first(protocol, (scene.client, port), frontend);
            request.macs(EXTERNAL_MAC, ROUTER_MAC)
        };
        for port in [40_000, 40_001] {
            let found = world.run(at, EXTERNAL, &request(port).bytes());
            assert_eq!(found.counted[0].1, Reason::Opened, "{found:?}");
        }
        let third = request(40_002);
        // The number after the SYN.
        let next = 0x1122_3345;
        let client = (scene.client, 40_002);
        for _ in 0..2 {
            world.check(
                "the third one is refused, in the name of the frontend",
                at,
                EXTERNAL,
                &third,
                Expected::transmits(&refusal(&third, frontend, client, next), reason),
            );
        }
        let found = world.run(at, EXTERNAL, &request(40_000).bytes());
        assert_eq!(found.counted[0].1, Reason::ToEndpoint, "{found:?}");
        at_times(world, When::After);
    });
}

#[test]
fn an_answer_quotes_options_and_extensions() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.cluster_ip, 80);
            world.add(&ServiceSpec::new(TCP).cluster_ip(frontend.0, frontend.1));
            let request = first(TCP, (scene.client, 40_000), frontend);
            let request = request.macs(EXTERNAL_MAC, ROUTER_MAC);
            let request = match scene.node.is_ipv4() {
                true => request.options(&[0x94, 4, 0, 0, 1, 1, 1, 1]),
                false => request.extension(0, 8).extension(60, 16),
            };
            for at in At::INGRESS {
                world.check(
                    "all headers are quoted",
                    at,
                    EXTERNAL,
                    &request,
                    Expected::transmits(
                        &answer(&request, frontend.0, PORT_UNREACHABLE, 0),
                        Reason::NoEndpoints,
                    ),
                );
            }
        }
    });
}

#[test]
fn answers_are_limited() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                world.forget();
                world.configure(|config| config.reject_rate = 0);
                let frontend = (scene.cluster_ip, 80);
                world.add(&ServiceSpec::new(protocol).cluster_ip(frontend.0, frontend.1));
                let request = first(protocol, (scene.client, 40_000), frontend);
                for at in At::INGRESS {
                    world.check(
                        "beyond the limit packets are dropped, and counted so",
                        at,
                        EXTERNAL,
                        &request,
                        Expected::drops(Reason::AnswerRateLimited),
                    );
                }
            }
        }
    });
}

#[test]
fn policy_local_without_local_endpoints_drops() {
    world(|world| {
        for scene in Scene::both() {
            for protocol in [TCP, UDP] {
                let frontend = (scene.node, 30_080);
                let spec = ServiceSpec::new(protocol).node_port(frontend.0, frontend.1);
                world.add(&spec.remote(scene.remote, 8080).external_local());
                let request = first(protocol, (scene.client, 40_000), frontend);
                for at in At::INGRESS {
                    world.check(
                        "dropped, so that load balancers go elsewhere",
                        at,
                        EXTERNAL,
                        &request,
                        Expected::drops(Reason::NoLocalEndpoints),
                    );
                }
                world.check(
                    "nor may it leave the node instead",
                    At::TcEgress,
                    EXTERNAL,
                    &request,
                    Expected::drops(Reason::NoLocalEndpoints),
                );
                let from_pod = first(protocol, (scene.local, 40_000), frontend);
                let from_pod = from_pod.macs(POD_SIDE_MAC, POD_MAC);
                let there = from_pod.clone().destination((scene.remote, 8080));
                world.check(
                    "local pods may use the whole cluster's endpoints",
                    At::TcIngress,
                    POD,
                    &from_pod,
                    Expected::passes(&there, Reason::Opened),
                );
            }
        }
    });
}

#[test]
fn policy_local_falls_back_to_terminating_endpoints() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.node, 30_080);
            let spec = ServiceSpec::new(TCP)
                .node_port(frontend.0, frontend.1)
                .remote(scene.remote, 8080)
                .endpoint(Class::LocalTerminating, scene.local, 8080)
                .external_local();
            world.add(&spec);
            let request = first(TCP, (scene.client, 40_000), frontend);
            world.check(
                "the local one that still serves gets it",
                At::Xdp,
                EXTERNAL,
                &request,
                Expected::passes(
                    &request.clone().destination((scene.local, 8080)),
                    Reason::Opened,
                ),
            );
        }
    });
}

#[test]
fn load_balancers_are_open_to_their_source_ranges_only() {
    world(|world| {
        for (scene, allowed, prefix) in [
            (Scene::v4(), "198.51.100.0", 24),
            (Scene::v6(), "2001:db8:c::", 64),
        ] {
            let frontend = (scene.load_balancer, 80);
            let spec = ServiceSpec::new(TCP)
                .load_balancer(frontend.0, frontend.1)
                .cluster_ip(scene.cluster_ip, 80)
                .local(scene.local, 8080)
                .external_local()
                .source_range(allowed.parse().unwrap(), prefix);
            world.add(&spec);
            let inside = first(TCP, (scene.client, 40_000), frontend);
            let outside = first(TCP, (scene.remote, 40_000), frontend);
            for at in At::INGRESS {
                world.forget();
                world.check(
                    "who is not in them is dropped",
                    at,
                    EXTERNAL,
                    &outside,
                    Expected::drops(Reason::SourceRange),
                );
                let there = inside.clone().destination((scene.local, 8080));
                world.check(
                    "who is in them gets through",
                    at,
                    EXTERNAL,
                    &inside,
                    Expected::passes(&there, Reason::Opened),
                );
            }
            let elsewhere = first(TCP, (scene.local, 40_001), (scene.cluster_ip, 80));
            let checked = world.run(At::TcIngress, POD, &elsewhere.bytes());
            assert_eq!(
                checked.counted.len(),
                1,
                "ClusterIPs have no source ranges: {checked:?}"
            );
            assert_eq!(checked.counted[0].1, Reason::Opened);
        }
    });
}

#[test]
fn a_service_that_is_not_programmed_yet_drops() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.cluster_ip, 80);
            let spec = ServiceSpec::new(TCP).cluster_ip(frontend.0, frontend.1);
            let service = world.add(&spec.remote(scene.remote, 8080));
            world.unpublish(service);
            let request = first(TCP, (scene.client, 40_000), frontend);
            for at in At::INGRESS {
                world.check(
                    "a retry will find it",
                    at,
                    EXTERNAL,
                    &request,
                    Expected::drops(Reason::NotProgrammed),
                );
            }
        }
    });
}

#[test]
fn a_node_without_address_cannot_replace_the_clients() {
    world(|world| {
        for scene in Scene::both() {
            world.configure(|config| {
                config.node4 = Default::default();
                config.node6 = Default::default();
            });
            let frontend = (scene.load_balancer, 80);
            let spec = ServiceSpec::new(TCP).load_balancer(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            let request = first(TCP, (scene.client, 40_000), frontend);
            for at in At::INGRESS {
                world.check(
                    "dropped with its own reason",
                    at,
                    EXTERNAL,
                    &request,
                    Expected::drops(Reason::NoNodeAddress),
                );
            }
        }
    });
}

#[test]
fn a_reset_opens_nothing() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.cluster_ip, 80);
            let spec = ServiceSpec::new(TCP).cluster_ip(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            let reset = Packet::tcp(
                (scene.client, 40_000),
                frontend,
                tcp_flag::RST | tcp_flag::ACK,
            );
            for at in At::INGRESS {
                world.check(
                    "a reset of no flow passes",
                    at,
                    EXTERNAL,
                    &reset,
                    Expected::passes(&reset, Reason::StrayReset),
                );
            }
        }
    });
}

#[test]
fn what_is_not_for_a_service_passes_untouched() {
    world(|world| {
        for scene in Scene::both() {
            let frontend = (scene.cluster_ip, 80);
            let spec = ServiceSpec::new(TCP).cluster_ip(frontend.0, frontend.1);
            world.add(&spec.remote(scene.remote, 8080));
            for (sentence, packet) in [
                (
                    "another port of a frontend",
                    first(TCP, (scene.client, 40_000), (scene.cluster_ip, 81)),
                ),
                (
                    "another protocol on a frontend's port",
                    first(UDP, (scene.client, 40_000), (scene.cluster_ip, 80)),
                ),
                (
                    "a pod's own address",
                    first(TCP, (scene.client, 40_000), (scene.remote, 8080)),
                ),
            ] {
                for at in At::ALL {
                    world.check(
                        sentence,
                        at,
                        EXTERNAL,
                        &packet,
                        Expected::passes(&packet, Reason::NotService),
                    );
                }
            }
        }
    });
}
