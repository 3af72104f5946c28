//! Large transfers, links of different sizes, fragments, and the ICMP errors about them.

use anyhow::Result;
use lb_tests::{
    Endpoint, FailureKind, Family, PATIENCE, PodNetwork, Request, SILENCE, Serve, Topology, Tunnel,
    eventually,
    lab::{Host, Pod},
    patient,
    traffic::Protocol,
};

use crate::ground::{Frontend, Ground, PORT, Vips, harsh};

/// A Service with an endpoint on node 1, and one with an endpoint on node 2.
const BOTH: [(Vips, &str); 2] = [(Vips(1), "pod-1-1"), (Vips(2), "pod-2-1")];
/// The same with externalTrafficPolicy Local.
const LOCAL: Vips = Vips(3);

#[test]
fn large_bodies_in_both_directions() -> Result<()> {
    large_bodies(Topology::default(), "--xdp-mode=native", 10 << 20)
}

#[test]
fn large_bodies_among_other_rules() -> Result<()> {
    large_bodies(harsh(PodNetwork::Routed), "--xdp-mode=native", 1 << 20)
}

/// Super-packets, and packets with incomplete checksums, at each kind of hook.
#[test]
fn large_bodies_with_offloads() -> Result<()> {
    let topology = Topology {
        wire_checksums: false,
        ..Topology::default()
    };
    for mode in ["--xdp-mode=off", "--xdp-mode=generic", "--xdp-mode=native"] {
        large_bodies(topology, mode, 1 << 20)?;
    }
    Ok(())
}

fn large_bodies(topology: Topology, mode: &str, bytes: usize) -> Result<()> {
    let ground = ground(topology, &[mode])?;
    for (client, vips, family) in cases(&ground) {
        let target = vips.cluster(family, PORT + 1);
        let request = Request::http(target).payload(bytes);
        let reply = request.deadline(patient(PATIENCE)).send(client);
        reply.unwrap_or_else(|e| panic!("{mode}: {client} to {target}: {e}"));
    }
    Ok(())
}

#[test]
fn links_to_pods_may_be_smaller() -> Result<()> {
    narrow(Topology {
        pod_mtu: 1300,
        ..Topology::default()
    })
}

#[test]
fn links_between_nodes_may_be_smaller() -> Result<()> {
    narrow(Topology {
        wire_mtu: 1300,
        ..Topology::default()
    })
}

#[test]
fn links_may_be_smaller_among_other_rules() -> Result<()> {
    narrow(Topology {
        wire_mtu: 1300,
        ..harsh(PodNetwork::Bridge)
    })
}

/// A tunnel leaves less of the wire.
#[test]
fn tunnels_between_nodes_leave_less() -> Result<()> {
    for tunnel in [Tunnel::Vxlan, Tunnel::WireGuard] {
        narrow(Topology {
            tunnel: Some(tunnel),
            ..Topology::default()
        })?;
    }
    Ok(())
}

/// VXLAN leaves a sum of what it has unpacked (CHECKSUM_COMPLETE). A pod gets it with packets that go
/// past the host's stack: answers of another node's pod by the node's address.
#[test]
fn sums_that_a_tunnel_has_made_stay_right() -> Result<()> {
    let topology = Topology {
        tunnel: Some(Tunnel::Vxlan),
        // So nothing is too big for the tunnel.
        pod_mtu: 1400,
        ..Topology::default()
    };
    let ground = ground(topology, &["--xdp-mode=native"])?;
    let pod = ground.lab().pod("pod-1-2");
    for family in Family::BOTH {
        let target = BOTH[1]
            .0
            .at(Frontend::NodePort, family, ground.lab().node(1));
        for (protocol, payload) in [
            // Short ones are summed up anew; the last is answered in fragments.
            (Protocol::Udp, 0),
            (Protocol::Udp, 100),
            (Protocol::Udp, 1000),
            (Protocol::Udp, 4000),
            (Protocol::Tcp, 1 << 17),
        ] {
            let reply = Request::new(protocol, target).payload(payload).send(pod);
            reply.unwrap_or_else(|e| panic!("{protocol:?} {payload} to {target}: {e}"));
        }
    }
    let wrong = pod.run("nstat -asz UdpInCsumErrors Udp6InCsumErrors TcpInCsumErrors")?;
    let counters = wrong.lines().filter(|line| line.contains("CsumErrors"));
    let counted: Vec<_> = counters
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    assert_eq!(counted, ["0"; 3], "{wrong}");
    Ok(())
}

fn narrow(topology: Topology) -> Result<()> {
    let ground = ground(topology, &["--xdp-mode=native"])?;
    let node = ground.lab().node(1);
    for (client, vips, family) in cases(&ground) {
        for frontend in [Frontend::ClusterIp, Frontend::NodePort] {
            let target = vips.at(frontend, family, node);
            let tcp = Request::tcp(target)
                .payload(1 << 20)
                .deadline(patient(PATIENCE));
            tcp.send(client)
                .unwrap_or_else(|e| panic!("TCP from {client} to {target}: {e}"));
            // The first datagrams may be lost while the path's MTU is learnt, in each direction.
            let udp = Request::udp(target)
                .payload(1400)
                .deadline(patient(SILENCE));
            eventually(|| {
                let reply = udp.send(client);
                reply.map_err(|failure| format!("UDP from {client} to {target}: {failure}"))
            });
        }
    }
    Ok(())
}

/// Hosts that do not look for the path's MTU send without the don't-fragment bit, and do not listen to
/// errors about sizes: routers have to fragment what is too big.
#[test]
fn packets_that_may_be_fragmented_arrive_whole() -> Result<()> {
    let narrow_pods = Topology {
        pod_mtu: 1300,
        strict_rp_filter: true,
        masquerade: true,
        ..Topology::default()
    };
    let narrow_wires = Topology {
        wire_mtu: 1300,
        strict_rp_filter: true,
        masquerade: true,
        ..Topology::default()
    };
    let narrow_tunnel = |tunnel| Topology {
        tunnel: Some(tunnel),
        ..Topology::default()
    };
    for (topology, mode) in [
        (narrow_pods, "--xdp-mode=native"),
        (narrow_pods, "--xdp-mode=off"),
        (
            Topology {
                pod_network: PodNetwork::Bridge,
                ..narrow_pods
            },
            "--xdp-mode=generic",
        ),
        (
            Topology {
                firewall: true,
                ..narrow_pods
            },
            "--xdp-mode=native",
        ),
        (narrow_wires, "--xdp-mode=native"),
        (narrow_wires, "--xdp-mode=off"),
        (narrow_tunnel(Tunnel::Vxlan), "--xdp-mode=native"),
        (narrow_tunnel(Tunnel::WireGuard), "--xdp-mode=native"),
    ] {
        may_be_fragmented(topology, mode)?;
    }
    Ok(())
}

fn may_be_fragmented(topology: Topology, mode: &str) -> Result<()> {
    const LINES: u16 = 9191;
    let ground = Ground::with(topology, &[mode])?;
    let lab = ground.lab();
    let hosts = lab.pods().iter().map(AsRef::as_ref).chain([lab.client()]);
    hosts
        .into_iter()
        .try_for_each(|host: &Host| host.set_sysctl("net/ipv4/ip_no_pmtu_disc", "1"))?;
    if topology.firewall {
        // It sees what node-lb leaves to the stack.
        let client = lab.client().ip(Family::V4);
        let rule = format!("add rule inet firewall forward index 1 ip saddr {client} accept");
        lab.node(1).feed("nft -f -", &rule)?;
    }
    // The setting is for new sockets.
    let start = |pod: &Pod| Serve::new(pod.name()).tcp(LINES).udp(LINES).start(pod);
    let _servers: Vec<_> = lab.pods().iter().map(start).collect::<Result<_>>()?;
    for (vips, pod) in BOTH.into_iter().chain([(LOCAL, "pod-1-1")]) {
        let service = vips.service(lab.manifests());
        match vips {
            LOCAL => service.external_local().apply()?,
            _ => service.apply()?,
        }
        let slices = lab.endpoints(&vips.name());
        let slices = slices.tcp("lines", LINES).udp("datagrams", LINES);
        slices.with(Endpoint::ready(lab.pod(pod))).apply()?;
    }
    ground.settle()?;
    for client in [lab.client(), lab.pod("pod-1-2").as_ref()] {
        for vips in [BOTH[0].0, BOTH[1].0, LOCAL] {
            for frontend in [Frontend::ClusterIp, Frontend::NodePort] {
                let target = vips.at(frontend, Family::V4, lab.node(1));
                for (protocol, payload) in [
                    // In one packet, in fragments, and in many.
                    (Protocol::Udp, 1280),
                    (Protocol::Udp, 1400),
                    (Protocol::Udp, 4000),
                    (Protocol::Udp, 20_000),
                    (Protocol::Tcp, 1 << 17),
                ] {
                    let reply = Request::new(protocol, target).payload(payload).send(client);
                    reply.unwrap_or_else(|e| {
                        panic!(
                            "{mode}, {topology:?}: {protocol:?} {payload} {client} to {target}: {e}"
                        )
                    });
                }
            }
        }
    }
    Ok(())
}

#[test]
fn fragments_of_datagrams_follow_the_first() -> Result<()> {
    for (topology, mode) in [
        (Topology::default(), "--xdp-mode=native"),
        (Topology::default(), "--xdp-mode=off"),
        (harsh(PodNetwork::Routed), "--xdp-mode=native"),
        (harsh(PodNetwork::Bridge), "--xdp-mode=native"),
    ] {
        let ground = ground(topology, &[mode])?;
        let node = ground.lab().node(1);
        for (client, vips, family) in cases(&ground) {
            for frontend in [Frontend::ClusterIp, Frontend::NodePort] {
                let target = vips.at(frontend, family, node);
                for protocol in [Protocol::Udp, Protocol::UdpUnconnected] {
                    let reply = Request::new(protocol, target).payload(4000).send(client);
                    reply.unwrap_or_else(|e| {
                        panic!("{mode}, {topology:?}: {protocol:?} {client} to {target}: {e}")
                    });
                }
            }
        }
    }
    Ok(())
}

#[test]
fn closed_ports_of_endpoints_refuse() -> Result<()> {
    let behind_tunnel = |tunnel| Topology {
        tunnel: Some(tunnel),
        ..Topology::default()
    };
    for topology in [
        Topology::default(),
        harsh(PodNetwork::Routed),
        behind_tunnel(Tunnel::Vxlan),
        behind_tunnel(Tunnel::WireGuard),
    ] {
        let ground = Ground::with(topology, &["--xdp-mode=native"])?;
        let lab = ground.lab();
        for (vips, pod) in BOTH {
            vips.service(lab.manifests()).apply()?;
            let slices = lab
                .endpoints(&vips.name())
                .tcp("lines", 9)
                .udp("datagrams", 9);
            slices.with(Endpoint::ready(lab.pod(pod))).apply()?;
        }
        ground.settle()?;
        for (client, vips, family) in cases(&ground) {
            if vips == LOCAL {
                continue;
            }
            for frontend in [Frontend::ClusterIp, Frontend::NodePort] {
                for protocol in [Protocol::Tcp, Protocol::Udp] {
                    let target = vips.at(frontend, family, lab.node(1));
                    let refused = Request::new(protocol, target).send(client);
                    let kind = refused.map(drop).map_err(|failure| failure.kind);
                    assert_eq!(
                        kind,
                        Err(FailureKind::Refused),
                        "{protocol:?} {client} to {target}"
                    );
                }
            }
        }
    }
    Ok(())
}

fn ground(topology: Topology, arguments: &[&str]) -> Result<Ground> {
    let ground = Ground::with(topology, arguments)?;
    let lab = ground.lab();
    for (vips, pod) in BOTH {
        ground.publish(vips, |service| service, [Endpoint::ready(lab.pod(pod))])?;
    }
    let endpoint = [Endpoint::ready(lab.pod("pod-1-1"))];
    ground.publish(LOCAL, |service| service.external_local(), endpoint)?;
    ground.settle()?;
    Ok(ground)
}

/// Each kind of client with each Service, over each family.
fn cases(ground: &Ground) -> Vec<(&Host, Vips, Family)> {
    let lab = ground.lab();
    let clients: [&Host; 3] = [
        lab.client(),
        lab.pod("pod-1-2").as_ref(),
        lab.node(1).as_ref(),
    ];
    let mut cases = Vec::new();
    for client in clients {
        for vips in [BOTH[0].0, BOTH[1].0, LOCAL] {
            cases.extend(Family::BOTH.map(|family| (client, vips, family)));
        }
    }
    cases
}
