//! Pods that send from addresses that are not theirs. Services accept from them what the kernel
//! would (`rp_filter`, `accept_local`). Anything else opens nothing.

use anyhow::Result;
use lb_tests::{Family, Held, PodNetwork, Request, Topology, eventually, lab::POD_BRIDGE};

use super::support::{Ground, SMALL_TABLE, Source, cluster_ip};

const SERVICE: u8 = 10;
/// An address of the other node's pods, so the way back does not lead to the sender.
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
    // A datagram from this address is counted for this reason, at the latest once the agent has
    // noticed a setting.
    let comes_to = |address: &str, reason: &'static str| {
        let address = address.parse().expect("an address");
        eventually(|| {
            let before = came_to(reason).map_err(|error| format!("{error:#}"))?;
            let request = Request::udp_unconnected(cluster_ip(Family::V4, SERVICE)).in_vain();
            // There is no answer, because the endpoint's answer goes elsewhere.
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

    // First an honest packet: the node would ask for the pod's Ethernet address with the forged
    // source, and get no answer.
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
    // `rp_filter` does not matter for this one.
    comes_to(&own, "martian-source");
    honest()
}
