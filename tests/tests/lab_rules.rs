//! Checks that the labs' foreign rules on nodes do what the data plane must cope with.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use lb_tests::{
    FailureKind, Family, Grace, Host, Lab, Node, PodNetwork, Request, Serve, Topology, eventually,
};
use socket2::{Domain, Socket, Type};

#[test]
fn the_firewall_forwards_nothing_new() -> Result<()> {
    let lab = Lab::up(Topology {
        firewall: true,
        ..Topology::default()
    })?;
    let pod = lab.pod("pod-1-1");
    let _server = Serve::new("pod").tcp(1000).tcp(1001).udp(1002).start(pod)?;
    for family in Family::BOTH {
        for client in [lab.client(), lab.pod("pod-1-2"), lab.pod("pod-2-1")] {
            for request in [
                Request::tcp(pod.at(family, 1000)),
                Request::udp(pod.at(family, 1002)),
            ] {
                let failure = request.in_vain().send(client).unwrap_err();
                assert_eq!(failure.kind, FailureKind::Timeout, "{client} {request:?}");
            }
        }
    }
    // The other node's pod did not get past its own node.
    assert!(counter(lab.node(1), "unsolicited")? >= 8);
    assert!(counter(lab.node(2), "unsolicited")? >= 4);
    assert_eq!(counter(lab.node(1), "invalid")?, 0);

    // Packets that are let in are answered: established connections pass both ways.
    for node in lab.nodes() {
        node.run("nft insert rule inet firewall forward tcp dport 1001 accept")?;
    }
    for family in Family::BOTH {
        Request::tcp(pod.at(family, 1001))
            .payload(50_000)
            .send(lab.client())?;
    }
    // INPUT is open, and the node's own pods are reached from the node itself.
    let _on_node = Serve::new("node").tcp(1000).start(lab.node(1))?;
    Request::tcp(lab.node(1).at(Family::V4, 1000)).send(lab.client())?;
    Request::tcp(pod.at(Family::V4, 1000)).send(lab.node(1))?;
    lab.down()
}

#[test]
fn the_firewall_drops_what_conntrack_calls_invalid() -> Result<()> {
    let lab = Lab::up(Topology {
        firewall: true,
        ..Topology::default()
    })?;
    let node = lab.node(1);
    for (count, target) in [lab.pod("pod-1-1"), node.as_ref()].into_iter().enumerate() {
        for family in Family::BOTH {
            send_unsolicited_syn_ack(lab.client(), target.at(family, 1000))?;
        }
        let wanted = 2 * (count as u64 + 1);
        let counted = eventually(|| {
            let counted = counter(node, "invalid")?;
            ensure!(counted >= wanted, "{target}: {counted} of {wanted}");
            Ok(counted)
        });
        assert_eq!(counted, wanted, "{target}");
    }
    lab.down()
}

#[test]
fn without_the_firewall_there_is_no_rule() -> Result<()> {
    let lab = Lab::up(Topology::default())?;
    assert_eq!(lab.node(1).run("nft list ruleset")?, "");
    lab.down()
}

#[test]
fn masquerade_hides_pods_outside_the_pod_networks_only() -> Result<()> {
    for pod_network in [PodNetwork::Routed, PodNetwork::Bridge] {
        let lab = Lab::up(Topology {
            masquerade: true,
            pod_network,
            ..Topology::default()
        })?;
        let pod = lab.pod("pod-1-1");
        let outside = [lab.client(), lab.node(2)];
        let inside = [lab.pod("pod-1-2"), lab.pod("pod-2-1")];
        let _servers = [outside[0], outside[1], inside[0], inside[1]]
            .map(|host| Serve::new(host.name()).tcp(1000).start(host));
        for family in Family::BOTH {
            let seen_by = |server: &Host| -> Result<IpAddr> {
                Ok(Request::tcp(server.at(family, 1000)).send(pod)?.peer.ip())
            };
            for server in outside {
                assert_eq!(seen_by(server)?, lab.node(1).ip(family), "{server}");
            }
            for server in inside {
                assert_eq!(seen_by(server)?, pod.ip(family), "{server}");
            }
        }
        lab.down()?;
    }
    Ok(())
}

#[test]
fn strict_rp_filter_drops_a_source_that_is_routed_elsewhere() -> Result<()> {
    for strict_rp_filter in [true, false] {
        let lab = Lab::up(Topology {
            strict_rp_filter,
            ..Topology::default()
        })?;
        let pod = lab.pod("pod-1-1");
        // An address of the other node's pods: the answer does not come back here.
        pod.run("ip addr add 10.244.2.99/32 dev eth0")?;
        let target = lab.pod("pod-1-2");
        let server = Serve::new("pod").udp(1002).start(target)?;
        let request = Request::udp_unconnected(target.at(Family::V4, 1002)).in_vain();
        let failure = request
            .from_ip("10.244.2.99".parse()?)
            .send(pod)
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::Timeout);
        let arrived = server.shut_down(Grace::SHORT)?.answers;
        assert_eq!(
            arrived,
            u64::from(!strict_rp_filter),
            "strict: {strict_rp_filter}"
        );
        lab.down()?;
    }
    Ok(())
}

fn counter(node: &Node, name: &str) -> Result<u64> {
    let json = node.run(&format!("nft -j list counter inet firewall {name}"))?;
    let json: serde_json::Value = serde_json::from_str(&json)?;
    let objects = json["nftables"].as_array().context("nft's answer")?;
    objects
        .iter()
        .find_map(|o| o["counter"]["packets"].as_u64())
        .context("no such counter")
}

/// A SYN-ACK without a SYN and without a checksum: it belongs to no connection.
fn send_unsolicited_syn_ack(from: &Host, target: SocketAddr) -> Result<()> {
    let mut segment = [0; 20];
    segment[..2].copy_from_slice(&4000_u16.to_be_bytes());
    segment[2..4].copy_from_slice(&target.port().to_be_bytes());
    segment[12] = 5 << 4; // header length in words
    segment[13] = 0x12; // SYN and ACK
    let sent: Result<usize> = from.netns().run(|| {
        let domain = Domain::for_address(target);
        let socket = Socket::new(domain, Type::RAW, Some(socket2::Protocol::TCP))?;
        Ok(socket.send_to(&segment, &SocketAddr::new(target.ip(), 0).into())?)
    })?;
    assert_eq!(sent?, segment.len());
    Ok(())
}
