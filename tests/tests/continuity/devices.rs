//! Devices and addresses that come and go.

use std::net::SocketAddr;

use lb_tests::traffic::Protocol;
use lb_tests::{Endpoint, Family, Request, Serve, eventually};

use super::support::{Everywhere, NODE_PORT, Policy, cluster_ip, ground, ground_with};

#[test]
fn pods_that_come_and_go_disturb_nobody() {
    let (ground, _web) = ground(Policy::Cluster);
    let load = Everywhere::start(&ground);
    for round in 0..10 {
        let node = ground.lab.node(1 + round % 2);
        let pod = ground.lab.add_pod(node, "guest").unwrap();
        let request = Request::http(cluster_ip(Family::V4, Protocol::Http));
        request.send(&pod).unwrap();
        ground.lab.remove_pod(&pod).unwrap();
    }
    load.assert_nothing_noticed();
}

#[test]
fn a_pod_on_a_device_of_the_same_name_is_served_anew() {
    let (ground, _web) = ground(Policy::Cluster);
    let lab = &ground.lab;
    ground
        .change(|| {
            let service = lab.service("phoenix").cluster_ip("10.96.0.20");
            service.tcp("http", 80, 8080).node_port(30180).apply()
        })
        .unwrap();
    for _ in 0..3 {
        let pod = lab.add_pod(lab.node(1), "phoenix").unwrap();
        let server = Serve::new("phoenix").http(8080).start(&pod).unwrap();
        ground
            .change(|| {
                let slices = lab.endpoints("phoenix").tcp("http", 8080);
                slices.with(Endpoint::ready(&pod)).apply()
            })
            .unwrap();
        let ways: [(&lb_tests::Host, SocketAddr); 3] = [
            (lab.client(), lab.node(1).at(Family::V4, 30180)),
            (lab.client(), lab.node(2).at(Family::V4, 30180)),
            (lab.pod("pod-1-1"), "10.96.0.20:80".parse().unwrap()),
        ];
        for (from, to) in ways {
            assert_eq!(Request::http(to).send(from).unwrap().server, "phoenix");
        }
        // As a client as well.
        let request = Request::http(cluster_ip(Family::V4, Protocol::Http));
        request.send(&pod).unwrap();
        drop(server);
        lab.remove_pod(&pod).unwrap();
    }
}

#[test]
fn node_ports_follow_the_addresses_of_the_node() {
    let arguments = ["--xdp-mode=native", "--nodeport-addresses=0.0.0.0/0,::/0"];
    let (ground, _web) = ground_with(Policy::Cluster, &arguments);
    let (client, node) = (ground.lab.client(), ground.lab.node(1));
    for (address, prefix) in [("172.30.77.200", 24), ("fd00:172:30:77::200", 64)] {
        let target = SocketAddr::new(address.parse().unwrap(), NODE_PORT);
        let request = Request::http(target).in_vain();
        for _ in 0..2 {
            assert!(
                request.send(client).is_err(),
                "{target} is no address of the node yet"
            );
            let nodad = if target.is_ipv6() { "nodad" } else { "" };
            node.run(&format!("ip addr add {address}/{prefix} dev eth0 {nodad}"))
                .unwrap();
            eventually(|| request.send(client));
            node.run(&format!("ip addr del {address}/{prefix} dev eth0"))
                .unwrap();
            eventually(|| match request.send(client) {
                Ok(reply) => Err(format!("{} still answers", reply.server)),
                Err(_) => Ok(()),
            });
            let own = node.at(Family::of(target.ip()), NODE_PORT);
            Request::http(own).send(client).unwrap();
        }
    }
}
