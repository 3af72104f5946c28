//! Two nodes that look the same from outside, one with the real kube-proxy and one with node-lb.
//! Both say that they are the same Node of the cluster. What their devices lead to is the test.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use lb_tests::{
    Agent, AgentSpec, Family, Lab, Namespace, Node, Topology,
    balanced::{self, AgentSource},
    control_plane::{ControlPlane, ControlPlaneSpec, ProxyMode, ProxyPorts, kube_proxy},
    lab::address::Addresses,
};
use serde_json::json;

use super::wires::{Wire, Wires};

/// The Node object's name.
pub const NAME: &str = "twin";
/// The zone of the Node.
pub const ZONE: &str = "here";

/// The node's addresses on [`Wire::Out`].
pub const NODE: Addresses = near(1);
/// Another node there, by which remote pods are reached.
pub const NEIGHBOUR: Addresses = near(2);
/// What everything else is reached by.
pub const GATEWAY: Addresses = near(254);

/// The pods on this node: one behind each device.
pub const LOCAL_PODS: [(Wire, Addresses); 2] =
    [(Wire::Pod1, pod(77, 11)), (Wire::Pod2, pod(77, 12))];

/// Both twins.
pub struct Twins {
    pub kube_proxy: Twin,
    pub node_lb: Twin,
    pub control_plane: ControlPlane,
    lab: Lab,
}

/// One of the nodes.
pub struct Twin {
    pub name: &'static str,
    pub agent: Agent,
    pub wires: Wires,
}

impl Twins {
    /// Builds both, and starts their proxies, node-lb with more arguments.
    pub fn up(arguments: &[&str]) -> Result<Self> {
        let lab = Lab::up(Topology {
            nodes: 2,
            pods_per_node: 0,
            ..Topology::default()
        })?;
        let control_plane = ControlPlane::start(&lab, ControlPlaneSpec::default())?;
        register(&control_plane)?;
        let (first, second) = (lab.node(1), lab.node(2));
        let wires = [plug_in(first)?, plug_in(second)?];
        let spec = kube_proxy::spec(
            &control_plane,
            first,
            ProxyMode::Nftables,
            ProxyPorts::USUAL,
        )?;
        let hostname = format!("--hostname-override={NAME}");
        let kube_proxy = Agent::launch(first, spec.arg(hostname))?;
        let node_lb = Agent::launch(second, node_lb(&control_plane, second, arguments)?)?;
        let [of_kube_proxy, of_node_lb] = wires;
        let mut twins = Self {
            kube_proxy: Twin {
                name: "kube-proxy",
                agent: kube_proxy,
                wires: of_kube_proxy,
            },
            node_lb: Twin {
                name: "node-lb",
                agent: node_lb,
                wires: of_node_lb,
            },
            control_plane,
            lab,
        };
        for twin in [&mut twins.kube_proxy, &mut twins.node_lb] {
            twin.agent.wait_until_ready()?;
        }
        Ok(twins)
    }

    /// Starts node-lb again with other arguments.
    pub fn restart_node_lb(self, arguments: &[&str]) -> Result<Self> {
        let node = self.lab.node(2);
        let spec = node_lb(&self.control_plane, node, arguments)?;
        self.node_lb.agent.kill()?;
        let node_lb = Twin {
            agent: Agent::start(node, spec)?,
            ..self.node_lb
        };
        Ok(Self { node_lb, ..self })
    }
}

/// How to run node-lb as a twin.
fn node_lb(control_plane: &ControlPlane, node: &Node, more: &[&str]) -> Result<AgentSpec> {
    let kubeconfig = control_plane.agent_kubeconfig(control_plane.address())?;
    let source = AgentSource::ApiServer { kubeconfig };
    let name = format!("--node={NAME}");
    let own = [
        &name,
        "--device=out",
        "--pod-device-pattern=pod*",
        // Nobody answers most of what is sent here.
        "--failing-endpoints=use",
    ];
    balanced::spec_of(node, &source, &[&own, more].concat())
}

/// A pod of the cluster, by the number of its node and its own.
pub const fn pod(node: u8, number: u8) -> Addresses {
    Addresses {
        v4: Ipv4Addr::new(10, 244, node, number),
        v6: Ipv6Addr::new(0xfd00, 0x10, 0x244, node as u16, 0, 0, 0, number as u16),
    }
}

/// A pod of another node.
pub const fn remote_pod(number: u8) -> Addresses {
    pod(88, number)
}

/// Somebody outside the cluster.
pub const fn client(number: u8) -> Addresses {
    Addresses {
        v4: Ipv4Addr::new(203, 0, 113, number),
        v6: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number as u16),
    }
}

/// An address that is not the node's, and whose packets come to it all the same: for load balancers
/// and externalIPs.
pub const fn outer(number: u8) -> Addresses {
    Addresses {
        v4: Ipv4Addr::new(198, 18, 1, number),
        v6: Ipv6Addr::new(0xfd00, 0x198, 0x18, 1, 0, 0, 0, number as u16),
    }
}

/// Whether an address is the node's.
pub fn is_nodes(address: IpAddr) -> bool {
    NODE.of(Family::of(address)) == address
}

const fn near(number: u8) -> Addresses {
    Addresses {
        v4: Ipv4Addr::new(198, 18, 0, number),
        v6: Ipv6Addr::new(0xfd00, 0x198, 0x18, 0, 0, 0, 0, number as u16),
    }
}

/// Writes the Node object.
fn register(control_plane: &ControlPlane) -> Result<()> {
    let nodes = control_plane.client().nodes();
    nodes.create(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": NAME, "labels": {
            "kubernetes.io/hostname": NAME,
            "topology.kubernetes.io/zone": ZONE,
        } },
        "spec": { "podCIDR": "10.244.77.0/24", "podCIDRs": ["10.244.77.0/24", "fd00:10:244:4d::/64"] },
    }))?;
    let addresses =
        Family::BOTH.map(|family| json!({ "type": "InternalIP", "address": NODE.of(family) }));
    let status = json!({ "addresses": addresses });
    nodes.patch_status(NAME, status).map(drop)
}

/// Gives a node of the lab the devices of a twin, and returns their other ends.
fn plug_in(node: &Node) -> Result<Wires> {
    // ICMP errors are compared too, so none may be held back.
    node.set_sysctl("net/ipv4/icmp_ratelimit", "0")?;
    node.set_sysctl("net/ipv6/icmp/ratelimit", "0")?;
    node.set_sysctl("net/ipv4/icmp_msgs_per_sec", "1000000")?;
    node.set_sysctl("net/ipv4/icmp_msgs_burst", "1000000")?;
    // The rest of refused datagrams waits for a minute for what does not come, and takes room from others.
    for table in [
        "net/ipv4/ipfrag_high_thresh",
        "net/ipv6/ip6frag_high_thresh",
        "net/netfilter/nf_conntrack_frag6_high_thresh",
    ] {
        node.set_sysctl(table, "134217728")?;
    }
    let beyond = Namespace::new();
    beyond.command(
        "sysctl",
        "-qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1",
    );
    let mut lines = Vec::new();
    for wire in Wire::ALL {
        let (device, near, far) = (wire.device(), mac(wire.near()), mac(wire.far()));
        let (mtu, id) = (wire.mtu(), beyond.thread());
        lines.push(format!(
            "link add {device} address {near} mtu {mtu} type veth \
             peer name {device} address {far} mtu {mtu} netns {id}"
        ));
        lines.push(format!("link set {device} up"));
    }
    for family in Family::BOTH {
        let (length, end) = match family {
            Family::V4 => ("24", ""),
            Family::V6 => ("64", " nodad"),
        };
        let far = mac(Wire::Out.far());
        let (gateway, neighbour) = (GATEWAY.of(family), NEIGHBOUR.of(family));
        lines.push(format!(
            "addr add {}/{length} dev out{end}",
            NODE.of(family)
        ));
        for address in [gateway, neighbour] {
            lines.push(format!(
                "neigh replace {address} lladdr {far} dev out nud permanent"
            ));
        }
        let everything = match family {
            Family::V4 => "0.0.0.0/0",
            Family::V6 => "::/0",
        };
        lines.push(format!("route replace {everything} via {gateway} dev out"));
        let pods = remote_pod(0).of(family);
        lines.push(format!("route add {pods}/{length} via {neighbour} dev out"));
        for (wire, addresses) in LOCAL_PODS {
            let (address, device, far) = (addresses.of(family), wire.device(), mac(wire.far()));
            // Or else the kernel takes one of the lab's for source NAT towards the pod.
            let own = NODE.of(family);
            let single = if family == Family::V4 { "32" } else { "128" };
            lines.push(format!("addr add {own}/{single} dev {device}{end}"));
            lines.push(format!("route add {address} dev {device}"));
            lines.push(format!(
                "neigh replace {address} lladdr {far} dev {device} nud permanent"
            ));
        }
    }
    node.feed("ip -batch -", &lines.join("\n"))
        .context("the twin's devices")?;
    for wire in Wire::ALL {
        let device = wire.device();
        // What the node sends has complete checksums, and comes one packet at a time.
        node.run(&format!(
            "ethtool -K {device} tx off gro off gso off tso off"
        ))?;
        beyond.ip(&format!("link set {device} up"));
        // Enough for packets from native XDP.
        beyond.command("ethtool", &format!("-K {device} gro on"));
    }
    Wires::new(beyond)
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}
