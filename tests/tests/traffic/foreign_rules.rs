//! Rules that others have installed on the node, and endpoints that these rules concern.

use anyhow::Result;
use lb_tests::{Endpoint, Family, PodNetwork, Request, Serve, Topology, traffic::Protocol};

use crate::ground::{Frontend, Ground, LINES, Vips, harsh};

#[test]
fn pods_reach_endpoints_outside_the_cluster_with_the_cnis_masquerade() -> Result<()> {
    for topology in [
        Topology {
            masquerade: true,
            ..Topology::default()
        },
        Topology {
            masquerade: true,
            strict_rp_filter: true,
            pod_network: PodNetwork::Bridge,
            ..Topology::default()
        },
    ] {
        let ground = Ground::with(topology, &["--xdp-mode=native"])?;
        let lab = ground.lab();
        let client = lab.client();
        let _servers = [
            Serve::new("outside").tcp(LINES).udp(LINES).start(client)?,
            Serve::new("node-2")
                .tcp(LINES)
                .udp(LINES)
                .start(lab.node(2))?,
        ];
        let (outside, host) = (Vips(1), Vips(2));
        ground.publish(outside, |service| service, [Endpoint::outside(client)])?;
        ground.publish(host, |service| service, [Endpoint::on_node(lab.node(2))])?;
        ground.settle()?;
        let (pod, node) = (lab.pod("pod-1-1"), lab.node(1));
        for (vips, server) in [(outside, "outside"), (host, "node-2")] {
            for frontend in [Frontend::ClusterIp, Frontend::NodePort] {
                for family in Family::BOTH {
                    for protocol in [Protocol::Tcp, Protocol::Udp] {
                        let case = format!("{server} by {frontend:?} {family:?} {protocol:?}");
                        let target = vips.at(frontend, family, node);
                        let reply = Request::new(protocol, target).send(pod);
                        let reply = reply.unwrap_or_else(|e| panic!("{case}: {e}"));
                        assert_eq!(reply.server, server, "{case}");
                        assert_eq!(reply.peer.ip(), node.ip(family), "{case}");
                        assert_eq!(reply.from, target, "{case}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// The rules drop what netfilter calls invalid or did not expect. No packet of node-lb's may be.
#[test]
fn a_firewall_finds_nothing_wrong() -> Result<()> {
    for pod_network in [PodNetwork::Routed, PodNetwork::Bridge] {
        let ground = Ground::with(harsh(pod_network), &["--xdp-mode=native"])?;
        let lab = ground.lab();
        for (vips, pod) in [(Vips(1), "pod-1-1"), (Vips(2), "pod-2-1")] {
            ground.publish(vips, |service| service, [Endpoint::ready(lab.pod(pod))])?;
        }
        ground.settle()?;
        let reset = |node: &lb_tests::Node| node.run("nft reset counters").map(drop);
        lab.nodes().iter().try_for_each(reset)?;
        for vips in [Vips(1), Vips(2)] {
            for frontend in Frontend::ALL {
                for family in Family::BOTH {
                    let target = vips.at(frontend, family, lab.node(1));
                    Request::tcp(target).payload(100_000).send(lab.client())?;
                    Request::tcp(target)
                        .payload(100_000)
                        .send(lab.pod("pod-1-2"))?;
                    Request::tcp(target).payload(100_000).send(lab.node(1))?;
                }
            }
        }
        for node in lab.nodes() {
            let counters = node.run("nft list counters")?;
            let none = counters.matches("packets 0 bytes 0").count();
            assert_eq!(none, 2, "{}: {counters}", node.name());
        }
    }
    Ok(())
}

/// An agent without configured devices finds them itself.
#[test]
fn devices_are_found_and_pods_that_come_later_are_served() -> Result<()> {
    for pod_network in [PodNetwork::Routed, PodNetwork::Bridge] {
        let topology = Topology {
            pod_network,
            ..Topology::default()
        };
        let ground = Ground::with(topology, &[])?;
        let lab = ground.lab();
        let late = lab.add_pod(lab.node(1), "late")?;
        let _server = Serve::new("late").tcp(LINES).udp(LINES).start(&late)?;
        let vips = Vips(1);
        ground.publish(vips, |service| service, [Endpoint::ready(&late)])?;
        ground.settle()?;
        for family in Family::BOTH {
            let target = vips.at(Frontend::NodePort, family, lab.node(1));
            assert_eq!(Request::tcp(target).send(lab.client())?.server, "late");
            let cluster = vips.at(Frontend::ClusterIp, family, lab.node(1));
            assert_eq!(Request::tcp(cluster).send(&late)?.server, "late");
            assert_eq!(
                Request::tcp(cluster).send(lab.pod("pod-1-1"))?.server,
                "late"
            );
        }
    }
    Ok(())
}
