//! The shape of a lab: its sizes, and the conditions on its nodes.

use anyhow::{Result, ensure};

use super::tunnel::Tunnel;

/// The shape of a lab. Every field has a default, so tests name only what they are about:
/// `Topology { pod_network: PodNetwork::Bridge, ..Topology::default() }`.
#[derive(Clone, Copy, Debug)]
pub struct Topology {
    /// How many nodes, 1 to 99; they are called `node-1`, `node-2` and so on.
    pub nodes: u8,
    /// How many pods each node starts with, up to 200; those of node 1 are called `pod-1-1`,
    /// `pod-1-2` and so on.
    pub pods_per_node: u8,
    /// How pods are connected to their node.
    pub pod_network: PodNetwork,
    /// `rp_filter=1` on every device of the nodes: a packet is dropped if its source is not routed
    /// back through the device on which it arrived.
    pub strict_rp_filter: bool,
    /// A stateful nftables firewall on the nodes: conntrack-INVALID is dropped, and FORWARD's
    /// policy is drop, with only conntrack's established and related let through.
    pub firewall: bool,
    /// A CNI's masquerade rule on the nodes: what leaves a pod for a place outside the pod
    /// networks takes the node's address.
    pub masquerade: bool,
    /// MTU of the links to the client and to the nodes, in bytes.
    pub wire_mtu: u16,
    /// MTU of the links to the pods (and of the bridge), in bytes.
    pub pod_mtu: u16,
    /// The client and the nodes send complete checksums and no super-packets, as on a wire. Pods
    /// always leave checksums to be completed later, as is the default with veth.
    pub wire_checksums: bool,
    /// What packets to the pods of the other node go through, instead of the router. For two nodes.
    pub tunnel: Option<Tunnel>,
    /// The other ends of node and pod links take packets from native `XDP_TX` and `XDP_REDIRECT`.
    pub far_ends_take_xdp: bool,
}

/// How pods are connected to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    /// Each pod has one address (/32, /128) and a veth to the node, with a host route there.
    Routed,
    /// The pods of a node share a subnet on the Linux bridge `cni0`: pods of one node talk to
    /// each other without IP routing.
    Bridge,
}

impl Default for Topology {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Topology {
    /// Two nodes with two routed pods each, without foreign rules.
    pub const DEFAULT: Self = Self {
        nodes: 2,
        pods_per_node: 2,
        pod_network: PodNetwork::Routed,
        strict_rp_filter: false,
        firewall: false,
        masquerade: false,
        wire_mtu: 1500,
        pod_mtu: 1500,
        wire_checksums: true,
        tunnel: None,
        far_ends_take_xdp: true,
    };

    /// Refuses sizes for which the address plan has no room.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            (1..=99).contains(&self.nodes),
            "nodes is {}, must be 1 to 99",
            self.nodes
        );
        ensure!(
            self.pods_per_node <= 200,
            "pods_per_node is {}, must be at most 200",
            self.pods_per_node
        );
        ensure!(
            self.tunnel.is_none() || self.nodes == 2,
            "nodes is {}, a tunnel connects 2",
            self.nodes
        );
        for (name, mtu) in [("wire_mtu", self.wire_mtu), ("pod_mtu", self.pod_mtu)] {
            ensure!(mtu >= 1280, "{name} is {mtu}, IPv6 needs at least 1280");
        }
        Ok(())
    }
}
