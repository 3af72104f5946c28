//! The node's own processes, servers on nodes, and connections that look the same.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::Result;
use lb_tests::{
    Endpoint, FailureKind, Family, Load, PodNetwork, Request, Serve, Topology, lab::Host,
    traffic::Protocol,
};

use crate::ground::{Frontend, Ground, LINES, PORT, Vips, harsh};

const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::UdpUnconnected];

#[test]
fn servers_on_a_nodes_own_network_are_reached_from_everywhere() -> Result<()> {
    for topology in [Topology::default(), harsh(PodNetwork::Bridge)] {
        let ground = Ground::with(topology, &["--xdp-mode=native"])?;
        let lab = ground.lab();
        let (here, there) = (Vips(1), Vips(2));
        let mut servers = Vec::new();
        for (vips, node) in [(here, lab.node(1)), (there, lab.node(2))] {
            for family in Family::BOTH {
                // Bound to its address, because answers over UDP would otherwise come from the
                // nearest one.
                let server = Serve::new(node.name()).address(node.ip(family));
                servers.push(server.tcp(LINES).udp(LINES).start(node)?);
            }
            ground.publish(vips, |service| service, [Endpoint::on_node(node)])?;
        }
        ground.settle()?;
        let clients: [&Host; 3] = [
            lab.client(),
            lab.pod("pod-1-1").as_ref(),
            lab.node(1).as_ref(),
        ];
        for (vips, server) in [(here, "node-1"), (there, "node-2")] {
            for (client, frontend, family, protocol) in requests(&clients) {
                let case = format!("{client} to {server} by {frontend:?} {family:?} {protocol:?}");
                let target = vips.at(frontend, family, lab.node(1));
                let reply = Request::new(protocol, target).send(client);
                let reply = reply.unwrap_or_else(|e| panic!("{case}: {e}"));
                assert_eq!(reply.server, server, "{case}");
                assert_eq!(reply.from, target, "{case}");
            }
        }
    }
    Ok(())
}

#[test]
fn another_nodes_port_is_that_nodes_business() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let vips = Vips(1);
    let endpoint = [Endpoint::ready(lab.pod("pod-1-1"))];
    ground.publish(vips, |service| service.external_local(), endpoint)?;
    ground.settle()?;
    let clients: [&Host; 2] = [lab.node(1).as_ref(), lab.node(2).as_ref()];
    for (family, protocol) in [(Family::V4, Protocol::Tcp), (Family::V6, Protocol::Udp)] {
        let ask = |client: &Host, node| {
            let request = Request::new(protocol, vips.at(Frontend::NodePort, family, node));
            request
                .send(client)
                .map(|reply| reply.server)
                .map_err(|failure| failure.kind)
        };
        for client in clients {
            let own = ask(
                client,
                if client.name() == "node-1" {
                    lab.node(1)
                } else {
                    lab.node(2)
                },
            );
            assert_eq!(own.as_deref(), Ok("pod-1-1"), "{client} on its own port");
        }
        assert_eq!(ask(clients[1], lab.node(1)).as_deref(), Ok("pod-1-1"));
        let elsewhere = vips.at(Frontend::NodePort, family, lab.node(2));
        let unanswered = Request::new(protocol, elsewhere).in_vain().send(clients[0]);
        let failure = unanswered.map(drop).map_err(|failure| failure.kind);
        assert_eq!(failure, Err(FailureKind::Timeout));
    }
    Ok(())
}

#[test]
fn sockets_can_be_left_to_the_packet_hooks() -> Result<()> {
    let ground = Ground::with(Topology::default(), &["--socket-lb=off"])?;
    let lab = ground.lab();
    let vips = Vips(1);
    ground.publish(
        vips,
        |service| service,
        [Endpoint::ready(lab.pod("pod-2-1"))],
    )?;
    ground.settle()?;
    let outside: [&Host; 2] = [lab.client(), lab.pod("pod-1-1").as_ref()];
    for (client, frontend, family, protocol) in requests(&outside) {
        let request = Request::new(protocol, vips.at(frontend, family, lab.node(1)));
        request
            .send(client)
            .unwrap_or_else(|e| panic!("{client} by {frontend:?}: {e}"));
    }
    Ok(())
}

#[test]
fn two_services_with_one_backend_take_the_same_client_port() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let (one, two) = (Vips(1), Vips(2));
    for vips in [one, two] {
        let endpoint = [Endpoint::ready(lab.pod("pod-1-1"))];
        ground.publish(vips, |service| service.external_local(), endpoint)?;
    }
    ground.settle()?;
    let clients: [&Host; 2] = [lab.client(), lab.pod("pod-1-2").as_ref()];
    for (client, frontend, family, protocol) in requests(&clients) {
        if protocol == Protocol::UdpUnconnected {
            continue; // Two such sockets cannot share a port.
        }
        let targets = [one, two].map(|vips| vips.at(frontend, family, lab.node(1)));
        let under_way = targets.map(|target: SocketAddr| {
            let request = Request::new(protocol, target).held_for(Duration::from_millis(200));
            match protocol {
                // Connected UDP sockets cannot share a port, but their flows outlive them.
                Protocol::Udp => request.held_for(Duration::ZERO),
                _ => request,
            }
            .from_port(42_000)
        });
        let case = format!("{client} by {frontend:?} {family:?} {protocol:?}");
        let answered = |reply: Result<_, _>| {
            let reply: lb_tests::Reply =
                reply.unwrap_or_else(|e: lb_tests::Failure| panic!("{case}: {e}"));
            assert_eq!(reply.server, "pod-1-1", "{case}");
            reply.from
        };
        let from = match protocol {
            Protocol::Udp => under_way.map(|request| answered(request.send(client))),
            _ => {
                let started = under_way.map(|request| request.start(client));
                started.map(|request| answered(request.and_then(|request| request.reply())))
            }
        };
        assert_eq!(from, targets, "{case}");
    }
    Ok(())
}

#[test]
fn ports_without_a_service_are_left_alone() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let vips = Vips(1);
    ground.publish(
        vips,
        |service| service,
        [Endpoint::ready(lab.pod("pod-1-1"))],
    )?;
    ground.settle()?;
    let _server = Serve::new("on the node").tcp(PORT).start(lab.node(1))?;
    for family in Family::BOTH {
        let reply = Request::tcp(lab.node(1).at(family, PORT)).send(lab.client())?;
        assert_eq!(
            (reply.server.as_str(), reply.peer.ip()),
            ("on the node", lab.client().ip(family))
        );
        let direct = Request::tcp(lab.pod("pod-1-1").at(family, LINES)).send(lab.client())?;
        assert_eq!(direct.peer.ip(), lab.client().ip(family));
    }
    Ok(())
}

/// As with connection tracking, which kube-proxy has: a protocol over datagrams may have state.
#[test]
fn an_unconnected_socket_of_the_node_stays_with_its_endpoint() -> Result<()> {
    const SOCKETS: usize = 12;
    let ground = Ground::new()?;
    let lab = ground.lab();
    let vips = Vips(1);
    let pods = lab.pods().iter().map(Endpoint::ready);
    ground.publish(vips, |service| service, pods)?;
    ground.settle()?;
    for frontend in Frontend::ALL {
        for family in Family::BOTH {
            let target = vips.at(frontend, family, lab.node(1));
            let socket = Load::new(Request::udp_unconnected(target)).workers(1);
            let socket = socket.persistent().at_least(50);
            let sockets = (0..SOCKETS).map(|_| socket.start(lab.node(1)));
            let sockets: Vec<_> = sockets.collect::<Result<_>>()?;
            let mut servers = BTreeSet::new();
            for socket in sockets {
                let report = socket.stop()?;
                let case = format!("{frontend:?} {family:?}: {report}");
                assert_eq!((report.failed, report.servers.len()), (0, 1), "{case}");
                servers.extend(report.servers.into_keys());
            }
            assert!(servers.len() > 1, "{frontend:?} {family:?}: {servers:?}");
        }
    }
    Ok(())
}

/// Only the node's own processes have that loopback device, and those of them that are bound there talk to
/// each other.
#[test]
fn node_ports_are_served_at_localhost_where_it_is_named() -> Result<()> {
    const NAMED: &str = "--nodeport-addresses=0.0.0.0/0,::/0,127.0.0.0/8,::1/128";
    for sockets in ["--socket-lb=host", "--socket-lb=all"] {
        let ground = Ground::with(Topology::default(), &[NAMED, sockets])?;
        let lab = ground.lab();
        for (vips, pod) in [(Vips(1), "pod-1-1"), (Vips(2), "pod-2-1")] {
            ground.publish(vips, |service| service, [Endpoint::ready(lab.pod(pod))])?;
        }
        ground.settle()?;
        for family in Family::BOTH {
            let localhost = match family {
                Family::V4 => IpAddr::from(Ipv4Addr::LOCALHOST),
                Family::V6 => IpAddr::from(Ipv6Addr::LOCALHOST),
            };
            let port = Vips(1).node_port();
            let own = Serve::new("on the node").address(localhost);
            let _own = own.tcp(port).udp(port).start(lab.node(1))?;
            for protocol in PROTOCOLS {
                let case = format!("{sockets} {family:?} {protocol:?}");
                let ask = |client: &Host, request: Request| {
                    let reply = request.send(client);
                    let reply = reply.map(|reply| (reply.server, reply.from));
                    reply.map_err(|failure| failure.kind)
                };
                for (vips, pod) in [(Vips(1), "pod-1-1"), (Vips(2), "pod-2-1")] {
                    let target = SocketAddr::new(localhost, vips.node_port());
                    let reply = ask(lab.node(1), Request::new(protocol, target));
                    assert_eq!(reply, Ok((pod.to_owned(), target)), "{case}");
                }
                let target = SocketAddr::new(localhost, port);
                let bound = Request::new(protocol, target).from_ip(localhost);
                let reply = ask(lab.node(1), bound);
                assert_eq!(reply, Ok(("on the node".to_owned(), target)), "{case}");
                // A pod's localhost is its own.
                let in_vain = Request::new(protocol, target).in_vain();
                assert!(ask(lab.pod("pod-1-2"), in_vain).is_err(), "{case}");
            }
        }
    }
    Ok(())
}

fn requests<'a>(
    clients: &'a [&'a Host],
) -> impl Iterator<Item = (&'a Host, Frontend, Family, Protocol)> {
    clients.iter().flat_map(|client| {
        Frontend::ALL.into_iter().flat_map(move |frontend| {
            Family::BOTH.into_iter().flat_map(move |family| {
                PROTOCOLS
                    .into_iter()
                    .map(move |protocol| (*client, frontend, family, protocol))
            })
        })
    })
}
