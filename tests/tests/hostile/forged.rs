//! Pods that send from addresses that are not theirs. Services take from them what the kernel would
//! (`rp_filter`, `accept_local`), and what it would not opens nothing.

use anyhow::Result;
use lb_tests::{Family, Held, PodNetwork, Request, Topology, eventually, lab::POD_BRIDGE};

use super::support::{Ground, SMALL_TABLE, Source, cluster_ip};

const SERVICE: u8 = 10;
/// Of the other node's pods: the way back does not lead to who sends from it here.
const FORGED: &str = "10.244.2.99";

#[test]
fn routed_pods_are_believed_as_by_the_kernel() -> Result<()> {
    pods_are_believed_as_by_the_kernel(PodNetwork::Routed)
}

#[test]
fn pods_on_a_bridge_are_believed_as_by_the_kernel() -> Result<()> {
    pods_are_believed_as_by_the_kernel(PodNetwork::Bridge)
}

fn pods_are_believed_as_by_the_kernel(pod_network: PodNetwork) -> Result<()> {
    let topology = Topology {
        pod_network,
        strict_rp_filter: true,
        ..Topology::DEFAULT
    };
    let ground = Ground::with(topology, &SMALL_TABLE)?;
    ground.service(SERVICE, Source::Translated, &[ground.pod("pod-1-2")])?;
    let (pod, node) = (ground.pod("pod-1-1"), ground.balanced.lab.node(1));
    let own = node.ip(Family::V4).to_string();
    for address in [FORGED, own.as_str()] {
        pod.run(&format!("ip addr add {address}/32 dev eth0"))?;
    }
    let device = match pod_network {
        PodNetwork::Routed => "veth-pod-1-1",
        PodNetwork::Bridge => POD_BRIDGE,
    };
    let set = |scope, value: u8| {
        let key = format!("net/ipv4/conf/{scope}/rp_filter");
        node.set_sysctl(&key, &value.to_string())
    };
    let came_to = |reason: &str| {
        let name = format!("node_lb_packets_total{{hook=\"tc-ingress\",reason=\"{reason}\"}}");
        ground.balanced.metric(1, &name)
    };
    // A datagram from an address comes to a reason sooner or later, once the agent knows of a
    // setting.
    let comes_to = |address: &str, reason: &'static str| {
        let address = address.parse().expect("an address");
        eventually(|| {
            let before = came_to(reason).map_err(|error| format!("{error:#}"))?;
            let request = Request::udp_unconnected(cluster_ip(Family::V4, SERVICE)).in_vain();
            // Nobody answers: the endpoint's answer goes elsewhere.
            let _ = request.from_ip(address).send(pod);
            let after = came_to(reason).map_err(|error| format!("{error:#}"))?;
            let came = after > before;
            came.then_some(())
                .ok_or(format!("{address} does not come to {reason}"))
        });
    };
    let honest = || -> Result<()> {
        for family in Family::BOTH {
            Held::open(pod, cluster_ip(family, SERVICE))?.ask()?;
        }
        Ok(())
    };

    // First, or the node would not tell the pod its Ethernet address: it asks with the forged
    // source.
    honest()?;
    let opened = came_to("opened")?;
    comes_to(FORGED, "martian-source");
    comes_to(&own, "martian-source");
    assert_eq!(came_to("opened")?, opened, "a forged source has a flow");
    honest()?;
    // There is a way back, by another device.
    set("all", 2)?;
    comes_to(FORGED, "opened");
    honest()?;
    set("all", 0)?;
    comes_to(FORGED, "martian-source");
    set(device, 0)?;
    comes_to(FORGED, "opened");
    // This one is no matter of `rp_filter`.
    comes_to(&own, "martian-source");
    honest()
}
