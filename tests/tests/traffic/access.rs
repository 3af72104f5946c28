//! Who may use which address, and how local pods are told from other clients.

use std::net::IpAddr;

use anyhow::Result;
use lb_tests::{Endpoint, FailureKind, Family, PodNetwork, Reply, Request, Topology, lab::Host};
use serde_json::json;

use crate::ground::{Frontend, Ground, Vips};

const VIPS: Vips = Vips(1);

#[test]
fn source_ranges_guard_load_balancer_ips_only() -> Result<()> {
    let ground = Ground::new()?;
    let lab = ground.lab();
    let (outside_only, pods_only) = (Vips(1), Vips(2));
    let pod = lab.pod("pod-1-1");
    for (vips, range) in [
        (outside_only, "172.29.77.0/24"),
        (pods_only, "10.244.0.0/16"),
    ] {
        let ranges = json!([range]);
        let endpoint = [Endpoint::ready(pod)];
        ground.publish(
            vips,
            |service| service.set("loadBalancerSourceRanges", ranges),
            endpoint,
        )?;
    }
    ground.settle()?;

    let other_pod = lab.pod("pod-1-2");
    for frontend in Frontend::ALL {
        let guarded = frontend == Frontend::LoadBalancerIp;
        for (client, in_range, out_of_range) in [
            (lab.client(), outside_only, pods_only),
            (other_pod.as_ref(), pods_only, outside_only),
        ] {
            let case = format!("{client} by {frontend:?}");
            reach(client, in_range, frontend, Family::V4, &ground).expect(&case);
            match guarded {
                true => silence(client, out_of_range, frontend, Family::V4, &ground),
                false => {
                    reach(client, out_of_range, frontend, Family::V4, &ground).expect(&case);
                }
            }
            // The lists contain no IPv6 networks, so IPv6 has no filter.
            reach(client, out_of_range, frontend, Family::V6, &ground).expect(&case);
        }
        let from_node = reach(lab.node(1), outside_only, frontend, Family::V4, &ground);
        assert_eq!(
            from_node.is_err(),
            guarded,
            "node by {frontend:?}: {from_node:?}"
        );
    }
    Ok(())
}

#[test]
fn node_ports_are_taken_on_the_primary_address() -> Result<()> {
    node_ports(&[], |secondary, _| !secondary)
}

#[test]
fn node_ports_are_taken_on_the_addresses_given() -> Result<()> {
    // A family without a network in the list accepts them on all addresses.
    node_ports(
        &["--nodeport-addresses=172.30.77.96/27"],
        |secondary, family| secondary || family == Family::V6,
    )
}

/// Which addresses accept node ports, by family and by whether they are secondary ones.
fn node_ports(arguments: &[&str], taken: fn(bool, Family) -> bool) -> Result<()> {
    const SECONDARY: [&str; 2] = ["172.30.77.111", "fd00:172:30:77::111"];
    let arguments = [&["--xdp-mode=native"], arguments].concat();
    let ground = Ground::prepared(Topology::default(), &arguments, |lab| {
        lab.node(1)
            .run(&format!("ip addr add {}/24 dev eth0", SECONDARY[0]))?;
        lab.node(1)
            .run(&format!("ip addr add {}/64 dev eth0 nodad", SECONDARY[1]))?;
        Ok(())
    })?;
    let lab = ground.lab();
    ground.publish(
        VIPS,
        |service| service,
        [Endpoint::ready(lab.pod("pod-1-1"))],
    )?;
    ground.settle()?;
    for (family, secondary) in Family::BOTH.into_iter().zip(SECONDARY) {
        let primary = lab.node(1).ip(family);
        for (ip, secondary) in [(primary, false), (secondary.parse::<IpAddr>()?, true)] {
            for client in [
                lab.client(),
                lab.node(1).as_ref(),
                lab.pod("pod-1-2").as_ref(),
            ] {
                let reply = Request::tcp((ip, VIPS.node_port()).into()).send(client);
                let got = reply.map(drop).map_err(|failure| failure.kind);
                // If no Service has the port, the node itself refuses.
                let expected = match taken(secondary, family) {
                    true => Ok(()),
                    false => Err(FailureKind::Refused),
                };
                assert_eq!(got, expected, "{client} to {ip}");
            }
        }
    }
    Ok(())
}

#[test]
fn pods_are_known_by_the_cluster_networks() -> Result<()> {
    detects(PodNetwork::Routed, &["--detect-local-mode=ClusterCIDR"])
}

#[test]
fn pods_are_known_by_the_nodes_networks() -> Result<()> {
    detects(PodNetwork::Routed, &["--detect-local-mode=NodeCIDR"])
}

#[test]
fn pods_are_known_by_their_device() -> Result<()> {
    detects(
        PodNetwork::Routed,
        &[
            "--detect-local-mode=InterfaceNamePrefix",
            "--pod-interface-name-prefix=veth",
        ],
    )
}

#[test]
fn pods_are_known_by_their_bridge() -> Result<()> {
    detects(
        PodNetwork::Bridge,
        &[
            "--detect-local-mode=BridgeInterface",
            "--pod-bridge-interface=cni0",
        ],
    )
}

/// Asserts that local pods keep their address and take the short way, and others do not.
fn detects(pod_network: PodNetwork, arguments: &[&str]) -> Result<()> {
    let topology = Topology {
        pod_network,
        ..Topology::default()
    };
    let ground = Ground::with(topology, arguments)?;
    let lab = ground.lab();
    let remote = [Endpoint::ready(lab.pod("pod-2-1"))];
    ground.publish(VIPS, |service| service.external_local(), remote)?;
    ground.settle()?;
    let (pod, node) = (lab.pod("pod-1-2"), lab.node(1));
    for family in Family::BOTH {
        let by = |client: &Host, frontend| reach(client, VIPS, frontend, family, &ground);
        let seen = |reply: Result<Reply, FailureKind>| reply.map(|reply| reply.peer.ip());
        assert_eq!(seen(by(pod, Frontend::ClusterIp)), Ok(pod.ip(family)));
        assert_eq!(seen(by(pod, Frontend::LoadBalancerIp)), Ok(pod.ip(family)));
        assert_eq!(
            seen(by(lab.client(), Frontend::ClusterIp)),
            Ok(node.ip(family))
        );
        assert_eq!(
            seen(by(lab.client(), Frontend::NodePort)),
            Err(FailureKind::Timeout)
        );
    }
    Ok(())
}

#[test]
fn without_detector_nobody_is_a_pod() -> Result<()> {
    let ground = Ground::with(Topology::default(), &["--detect-local-mode=none"])?;
    let lab = ground.lab();
    let (here, there) = (Vips(1), Vips(2));
    for (vips, pod) in [(here, "pod-1-1"), (there, "pod-2-1")] {
        let endpoint = [Endpoint::ready(lab.pod(pod))];
        ground.publish(vips, |service| service.external_local(), endpoint)?;
    }
    ground.settle()?;
    for family in Family::BOTH {
        let client = lab.client();
        let reply = reach(client, here, Frontend::ClusterIp, family, &ground);
        assert_eq!(reply.map(|reply| reply.peer.ip()), Ok(client.ip(family)));
        let pod = lab.pod("pod-1-2");
        silence(pod, there, Frontend::LoadBalancerIp, family, &ground);
    }
    Ok(())
}

#[test]
fn all_traffic_to_cluster_ips_is_masqueraded_on_demand() -> Result<()> {
    let ground = Ground::with(Topology::default(), &["--masquerade-all"])?;
    let lab = ground.lab();
    for (vips, server) in [(Vips(1), "pod-1-1"), (Vips(2), "pod-2-1")] {
        ground.publish(vips, |service| service, [Endpoint::ready(lab.pod(server))])?;
    }
    ground.settle()?;
    for family in Family::BOTH {
        for vips in [Vips(1), Vips(2)] {
            let reply = reach(
                lab.pod("pod-1-2"),
                vips,
                Frontend::ClusterIp,
                family,
                &ground,
            );
            let seen = reply.map(|reply| reply.peer.ip());
            assert_eq!(seen, Ok(lab.node(1).ip(family)), "{vips:?}");
        }
    }
    Ok(())
}

/// A request through node 1.
fn reach(
    client: &Host,
    vips: Vips,
    frontend: Frontend,
    family: Family,
    ground: &Ground,
) -> Result<Reply, FailureKind> {
    let request = Request::tcp(vips.at(frontend, family, ground.lab().node(1)));
    request.send(client).map_err(|failure| failure.kind)
}

/// A request through node 1 that gets no answer, not even a refusal.
#[track_caller]
fn silence(client: &Host, vips: Vips, frontend: Frontend, family: Family, ground: &Ground) {
    let request = Request::tcp(vips.at(frontend, family, ground.lab().node(1)));
    let outcome = request.in_vain().send(client);
    let failure = outcome.map_err(|failure| failure.kind).map(drop);
    assert_eq!(
        failure,
        Err(FailureKind::Timeout),
        "{client} by {frontend:?}"
    );
}
