//! Every host of a lab reaches every server, over both families and all protocols.

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use ipnet::IpNet;
use lb_tests::traffic::Protocol;
use lb_tests::{Family, Host, Lab, PodNetwork, Request, Serve, Topology};

const PROTOCOLS: [Protocol; 4] = [
    Protocol::Tcp,
    Protocol::Http,
    Protocol::Udp,
    Protocol::UdpUnconnected,
];

#[test]
fn routed_pods_are_reached_from_everywhere() -> Result<()> {
    everything_is_reached_from_everywhere(PodNetwork::Routed)
}

#[test]
fn bridged_pods_are_reached_from_everywhere() -> Result<()> {
    everything_is_reached_from_everywhere(PodNetwork::Bridge)
}

fn everything_is_reached_from_everywhere(pod_network: PodNetwork) -> Result<()> {
    let lab = Lab::up(Topology {
        pod_network,
        ..Topology::default()
    })?;
    let nodes = lab.nodes().iter().map(AsRef::as_ref);
    let pods = lab.pods().iter().map(AsRef::as_ref);
    let servers: Vec<&Host> = nodes.chain(pods).collect();
    for host in servers.iter().copied().chain([lab.client()]) {
        assert_no_address_is_probed(host)?;
    }
    let _running = servers
        .iter()
        .map(|host| {
            Serve::new(host.name())
                .tcp(9001)
                .http(9002)
                .udp(9003)
                .start(host)
        })
        .collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        for client in servers.iter().copied().chain([lab.client()]) {
            let servers = &servers;
            scope.spawn(move || servers.iter().for_each(|server| reaches(client, server)));
        }
    });
    lab.down()
}

/// A lab is up quickly because no host probes whether others have its addresses, which takes a
/// second for each address.
fn assert_no_address_is_probed(host: &Host) -> Result<()> {
    for scope in ["all", "eth0"] {
        let setting = host.run(&format!("cat /proc/sys/net/ipv6/conf/{scope}/accept_dad"))?;
        assert_eq!(setting.trim(), "0", "{host}: {scope}");
    }
    assert_eq!(host.run("ip -6 addr show tentative")?, "", "{host}");
    Ok(())
}

fn reaches(client: &Host, server: &Host) {
    for family in Family::BOTH {
        for protocol in PROTOCOLS {
            let port = match protocol {
                Protocol::Tcp => 9001,
                Protocol::Http => 9002,
                Protocol::Udp | Protocol::UdpUnconnected => 9003,
            };
            let target = server.at(family, port);
            // Shorter than TCP's first retransmission timeout, so that a lost packet is a failure.
            let request = Request::new(protocol, target).deadline(Duration::from_millis(900));
            let what = format!("{protocol:?} from {client} to {server} at {target}");
            let reply = request
                .send(client)
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(reply.server, server.name(), "{what}");
            assert_eq!(reply.from, target, "{what}");
            assert_eq!(reply.peer.port(), reply.source.port(), "{what}");
            assert_eq!(reply.server_address, target, "{what}");
            // Nothing is translated here.
            assert_eq!(reply.peer.ip(), source_of(client, server, family), "{what}");
        }
    }
}

/// A host's own address, but for a node that has an address in its bridged pods' subnet.
fn source_of(client: &Host, server: &Host, family: Family) -> IpAddr {
    let bridge = client.run("ip -o addr show dev cni0").unwrap_or_default();
    let near = bridge.split_whitespace().find_map(|word| {
        let network: IpNet = word.parse().ok()?;
        network.contains(&server.ip(family)).then(|| network.addr())
    });
    near.unwrap_or_else(|| client.ip(family))
}

#[test]
fn service_addresses_are_routed_to_the_chosen_node() -> Result<()> {
    let lab = Lab::up(Topology {
        pods_per_node: 0,
        ..Topology::default()
    })?;
    for node in lab.nodes() {
        for ip in [
            "172.30.78.1",
            "10.96.0.1",
            "fd00:172:30:78::1",
            "fd00:10:96::1",
        ] {
            node.run(&format!("ip addr add {ip} dev lo"))?;
        }
    }
    let _servers = lab
        .nodes()
        .iter()
        .map(|node| Serve::new(node.name()).tcp(80).start(node))
        .collect::<Result<Vec<_>>>()?;
    for node in [lab.node(1), lab.node(2), lab.node(1)] {
        lab.route_services_via(node)?;
        for target in [
            "172.30.78.1:80",
            "10.96.0.1:80",
            "[fd00:172:30:78::1]:80",
            "[fd00:10:96::1]:80",
        ] {
            let reply = Request::tcp(target.parse()?).send(lab.client())?;
            assert_eq!(reply.server, node.name(), "{target}");
        }
    }
    lab.down()
}

#[test]
fn pods_come_and_go() -> Result<()> {
    let lab = Lab::up(Topology::default())?;
    for round in 0..3 {
        let pod = lab.add_pod(lab.node(2), "late")?;
        let server = Serve::new("late").http(80).start(pod.with_processes())?;
        let reply = Request::http(pod.at(Family::V6, 80)).send(lab.client())?;
        assert_eq!(reply.server, "late", "round {round}");
        lab.remove_pod(&pod)?;
        let devices = lab.node(2).run("ip -brief link")?;
        assert!(
            !devices.contains("veth-late") && devices.contains("veth-pod-2-1"),
            "{devices}"
        );
        drop(server);
    }
    lab.down()
}

#[test]
fn nodes_send_whole_checksums_and_wires_run_native_xdp() -> Result<()> {
    let lab = Lab::up(Topology {
        pods_per_node: 1,
        ..Topology::default()
    })?;
    for host in [lab.client(), lab.node(1), lab.node(2)] {
        let features = host.run("ethtool -k eth0")?;
        assert!(
            features.contains("tx-checksumming: off"),
            "{host}: {features}"
        );
        assert!(
            features.contains("tx-tcp-segmentation: off"),
            "{host}: {features}"
        );
    }
    let features = lab.pod("pod-1-1").run("ethtool -k eth0")?;
    assert!(
        features.contains("tx-checksumming: on"),
        "pods stay as veth is: {features}"
    );
    assert!(
        features.contains("generic-receive-offload: on"),
        "{features}"
    );
    for port in ["node-1", "node-2"] {
        let link = lab
            .router()
            .run(&format!("ip -details link show dev {port}"))?;
        assert!(
            link.contains(" xdp ") && link.contains("lab_pass"),
            "{link}"
        );
    }
    lab.down()
}

#[test]
fn small_mtus_hold_on_the_way() -> Result<()> {
    let lab = Lab::up(Topology {
        wire_mtu: 1400,
        pod_mtu: 1300,
        ..Topology::default()
    })?;
    let pod = lab.pod("pod-2-1");
    let _server = Serve::new("pod").tcp(9001).udp(9003).start(pod)?;
    for family in Family::BOTH {
        Request::tcp(pod.at(family, 9001))
            .payload(200_000)
            .send(lab.client())?;
    }
    let ping = |size: u32| {
        let target = pod.ip(Family::V4);
        lab.client()
            .run(&format!("ping -c1 -W1 -M do -s {size} {target}"))
    };
    // The payload is the packet without 8 bytes of ICMP and 20 of IP.
    ping(1300 - 28)?;
    assert!(
        ping(1300 - 27).is_err(),
        "one byte too many passed a link with MTU 1300"
    );
    lab.down()
}
