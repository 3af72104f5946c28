//! Pods that reach themselves through a Service.

use anyhow::Result;
use lb_tests::{Endpoint, Family, PodNetwork, Request, Topology, traffic::Protocol};

use crate::ground::{Frontend, Ground, Vips, harsh};

#[test]
fn routed_pod() -> Result<()> {
    hairpin(Topology::default())
}

#[test]
fn bridged_pod() -> Result<()> {
    hairpin(Topology {
        pod_network: PodNetwork::Bridge,
        ..Topology::default()
    })
}

#[test]
fn among_other_rules() -> Result<()> {
    for pod_network in [PodNetwork::Routed, PodNetwork::Bridge] {
        hairpin(harsh(pod_network))?;
    }
    Ok(())
}

fn hairpin(topology: Topology) -> Result<()> {
    let ground = Ground::with(topology, &["--xdp-mode=native"])?;
    let (cluster, local) = (Vips(1), Vips(2));
    let (pod, node) = (ground.lab().pod("pod-1-1"), ground.lab().node(1));
    ground.publish(cluster, |service| service, [Endpoint::ready(pod)])?;
    ground.publish(
        local,
        |service| service.external_local(),
        [Endpoint::ready(pod)],
    )?;
    ground.settle()?;
    for vips in [cluster, local] {
        for frontend in Frontend::ALL {
            for family in Family::BOTH {
                for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::UdpUnconnected] {
                    let case = format!("{vips:?} {frontend:?} {family:?} {protocol:?}");
                    let target = vips.at(frontend, family, node);
                    let reply = Request::new(protocol, target).send(pod);
                    let reply = reply.unwrap_or_else(|e| panic!("{case}: {e}"));
                    assert_eq!(reply.server, "pod-1-1", "{case}");
                    assert_eq!(reply.peer.ip(), node.ip(family), "{case}");
                    assert_eq!(reply.from, target, "{case}");
                }
            }
        }
    }
    Ok(())
}
