//! Builds a lab's hosts and wires.
//!
//! Every wire is made by its upper end (router or node), which creates both ends in their
//! namespaces at once; the machine's own namespace never sees a device.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use anyhow::{Context, Result, ensure};

use super::address::{
    self, Addresses, CLIENT, LOAD_BALANCERS, NODES, ROUTED_GATEWAY, SERVICES, SPOOFED, gateway_of,
    host_in, pod_networks,
};
use super::cgroup::Cgroup;
use super::host::{Host, Node, Pod, TrafficRunsIn, output_of};
use super::links::ip_batch;
use super::netns::Netns;
use super::registry::LabId;
use super::topology::{PodNetwork, Topology};
use super::{bpffs, rules};

/// The router's bridge: the node network.
pub const LAN: &str = "lan";

/// The bridge of [`PodNetwork::Bridge`].
pub const POD_BRIDGE: &str = "cni0";

/// What is needed to build hosts: the lab's id, and its topology.
#[derive(Debug)]
pub struct Site {
    pub id: LabId,
    pub topology: Topology,
    /// Where the XDP pass program is pinned.
    xdp_pass: PathBuf,
}

impl Site {
    /// Prepares what all hosts need.
    pub fn prepare(id: LabId, topology: Topology) -> Result<Self> {
        let dir = id.pin_root("lab");
        fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let xdp_pass = dir.join("xdp_pass");
        bpffs::pin_xdp_pass(&xdp_pass)?;
        Ok(Self {
            id,
            topology,
            xdp_pass,
        })
    }

    /// The router, with the node network's bridge but no wires yet.
    pub fn router(&self) -> Result<Host> {
        let router = self.host("router", "router", gateway_of(NODES), TrafficRunsIn::Thread)?;
        let Addresses { v4, v6 } = router.addresses();
        forward(&router, 0)?;
        ip_batch(
            &router,
            &format!(
                "link set lo up
                link add {LAN} mtu {mtu} type bridge mcast_snooping 0 forward_delay 0
                addr add {v4}/24 dev {LAN}
                addr add {v6}/64 dev {LAN} nodad
                link set {LAN} up
                route add blackhole {}
                route add blackhole {}",
                SPOOFED.v4,
                SPOOFED.v6,
                mtu = self.topology.wire_mtu,
            ),
        )?;
        Ok(router)
    }

    /// The client, on its own subnet behind the router.
    pub fn client(&self, router: &Host) -> Result<Host> {
        let client = self.host(
            "client",
            "client",
            host_in(CLIENT, 10),
            TrafficRunsIn::Thread,
        )?;
        client.allow_many_connections()?;

        let Addresses { v4, v6 } = gateway_of(CLIENT);
        ip_batch(
            router,
            &format!(
                "{}
                addr add {v4}/24 dev client
                addr add {v6}/64 dev client nodad
                link set client up",
                self.wire("client", &client, self.topology.wire_mtu),
            ),
        )?;
        self.plug_in_wire(&client, gateway_of(CLIENT))?;
        Ok(client)
    }

    /// Node number `index`, on the node network.
    pub fn node(&self, router: &Host, index: u8) -> Result<Node> {
        let name = format!("node-{index}");
        let cgroup = format!("{name}/host");
        let host = self.host(
            &name,
            &cgroup,
            node_addresses(index),
            TrafficRunsIn::Process,
        )?;
        forward(&host, u8::from(self.topology.strict_rp_filter))?;

        // The router knows where pods are, as it would from a routing protocol.
        ip_batch(router, &routes_to_pods(index))?;
        self.node_wire(router, &host)?;
        self.configure_uplink(&host, index)?;
        let node = Node {
            index,
            pod_networks: pod_networks(index),
            dir: self.id.dir().join(&name),
            pin_root: self.id.pin_root(&name),
            cgroup_root: self.id.cgroup()?.join(&name),
            next_pod: Arc::new(AtomicU8::new(10)),
            host,
        };
        fs::create_dir_all(node.manifests())
            .with_context(|| format!("cannot create {}", node.manifests().display()))?;
        if self.topology.pod_network == PodNetwork::Bridge {
            self.pod_bridge(&node)?;
        }
        if self.topology.firewall {
            node.feed("nft -f -", rules::FIREWALL)?;
        }
        if self.topology.masquerade {
            node.feed("nft -f -", &rules::masquerade(node.pod_networks))?;
        }
        Ok(node)
    }

    /// A host on the node network that is no node: host number `number` there.
    pub fn server(&self, router: &Host, name: &str, number: u8) -> Result<Host> {
        let addresses = host_in(NODES, number);
        let host = self.host(name, name, addresses, TrafficRunsIn::Thread)?;
        self.node_wire(router, &host)?;
        self.plug_in_wire(&host, gateway_of(NODES))?;
        Ok(host)
    }

    /// A wire from a host to the node network.
    pub fn node_wire(&self, router: &Host, node: &Host) -> Result<()> {
        let end = node.name();
        let mut batch = self.wire(end, node, self.topology.wire_mtu);
        write!(batch, "\nlink set {end} master {LAN}\nlink set {end} up")?;
        if self.topology.far_ends_take_xdp {
            write!(
                batch,
                "\nlink set {end} xdpdrv pinned {}",
                self.xdp_pass.display()
            )?;
        }
        ip_batch(router, &batch)
    }

    /// Sets addresses and routes of node number `index`, whether or not some exist already.
    pub fn configure_uplink(&self, node: &Host, index: u8) -> Result<()> {
        self.plug_in_wire(node, gateway_of(NODES))?;
        let others = (1..=self.topology.nodes).filter(|other| *other != index);
        let routes: Vec<_> = others.map(routes_to_pods).collect();
        ip_batch(node, &routes.join("\n"))
    }

    /// A new pod on `node`.
    pub fn pod(&self, node: &Node, name: &str) -> Result<Pod> {
        // "veth-" and the name must fit a device name: 15 bytes.
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            (1..=10).contains(&name.len()) && name.chars().all(fits),
            "{name:?} is not a pod name: 1 to 10 lower-case letters, digits and dashes"
        );
        let addresses = host_in(node.pod_networks, node.take_pod_number()?);
        let cgroup = format!("{}/pods/{name}", node.name());
        let host = self.host(name, &cgroup, addresses, TrafficRunsIn::Thread)?;
        let pod = Pod {
            host,
            host_end: format!("veth-{name}"),
            node: node.name().to_owned(),
        };

        let mut batch = self.wire(&pod.host_end, &pod, self.topology.pod_mtu);
        let end = &pod.host_end;
        match self.topology.pod_network {
            PodNetwork::Routed => write!(batch, "\n{}", routed_host_end(node, &pod))?,
            PodNetwork::Bridge => write!(
                batch,
                "\nlink set {end} master {POD_BRIDGE}\nlink set {end} up"
            )?,
        }
        ip_batch(node, &batch)?;
        match self.topology.pod_network {
            PodNetwork::Routed => ip_batch(&pod, &routed_pod_end(&pod))?,
            PodNetwork::Bridge => plug_in(&pod, gateway_of(node.pod_networks))?,
        }
        if self.topology.far_ends_take_xdp {
            // Enough for XDP_REDIRECT, and unlike a program it leaves the pod's offloads alone.
            pod.run("ethtool -K eth0 gro on")?;
        }
        Ok(pod)
    }

    /// A namespace, a cgroup and the settings common to all hosts.
    fn host(
        &self,
        name: &str,
        cgroup: &str,
        addresses: Addresses,
        traffic: TrafficRunsIn,
    ) -> Result<Host> {
        let netns = self.id.netns(name);
        let mut add = Command::new("ip");
        add.args(["netns", "add", &netns]);
        output_of(add, "").with_context(|| format!("cannot create the namespace {netns}"))?;
        let cgroup = Cgroup::create(self.id.cgroup()?.join(cgroup))?;
        let host = Host::new(name, Netns::open(&netns)?, cgroup, addresses, traffic);
        // No other host can have these addresses, so no second is spent on finding out.
        for scope in ["all", "default"] {
            host.set_sysctl(&format!("net/ipv6/conf/{scope}/accept_dad"), "0")?;
            host.set_sysctl(&format!("net/ipv6/conf/{scope}/accept_ra"), "0")?;
        }
        Ok(host)
    }

    /// The line that makes a wire: `end` here, `eth0` in the lower host.
    fn wire(&self, end: &str, lower: &Host, mtu: u16) -> String {
        let netns = lower.netns().name();
        format!("link add {end} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {netns}")
    }

    /// The lower end of a wire to the router.
    fn plug_in_wire(&self, host: &Host, gateway: Addresses) -> Result<()> {
        if self.topology.wire_checksums {
            host.run("ethtool -K eth0 tx off")?;
        }
        plug_in(host, gateway)
    }

    fn pod_bridge(&self, node: &Node) -> Result<()> {
        let Addresses { v4, v6 } = gateway_of(node.pod_networks);
        ip_batch(
            node,
            &format!(
                "link add {POD_BRIDGE} mtu {mtu} type bridge mcast_snooping 0 forward_delay 0
                addr add {v4}/24 dev {POD_BRIDGE}
                addr add {v6}/64 dev {POD_BRIDGE} nodad
                link set {POD_BRIDGE} up",
                mtu = self.topology.pod_mtu,
            ),
        )
    }
}

/// Has the router send Service addresses (load balancer IPs and ClusterIPs) to `node`.
pub fn route_services(router: &Host, node: &Node) -> Result<()> {
    let Addresses { v4, v6 } = node.addresses();
    let mut batch = String::new();
    for networks in [LOAD_BALANCERS, SERVICES] {
        writeln!(batch, "route replace {} via {v4}", networks.v4)?;
        writeln!(batch, "route replace {} via {v6}", networks.v6)?;
    }
    ip_batch(router, &batch)
}

/// The addresses of node number `index`.
pub fn node_addresses(index: u8) -> Addresses {
    host_in(NODES, 10 + index)
}

/// Makes a host forward packets, with the given `rp_filter`.
fn forward(host: &Host, rp_filter: u8) -> Result<()> {
    for scope in ["all", "default"] {
        let rp_filter = rp_filter.to_string();
        host.set_sysctl(&format!("net/ipv4/conf/{scope}/rp_filter"), &rp_filter)?;
        // A redirect would teach senders a way around the tested host.
        host.set_sysctl(&format!("net/ipv4/conf/{scope}/send_redirects"), "0")?;
        host.set_sysctl(&format!("net/ipv4/conf/{scope}/forwarding"), "1")?;
        host.set_sysctl(&format!("net/ipv6/conf/{scope}/forwarding"), "1")?;
    }
    Ok(())
}

/// The routes other hosts on the node network have to the pods of node number `index`.
fn routes_to_pods(index: u8) -> String {
    let address::Networks { v4, v6 } = pod_networks(index);
    let node = node_addresses(index);
    format!(
        "route replace {v4} via {}\nroute replace {v6} via {}",
        node.v4, node.v6
    )
}

/// The lower end of a wire into a /24 and a /64.
fn plug_in(host: &Host, gateway: Addresses) -> Result<()> {
    let Addresses { v4, v6 } = host.addresses();
    ip_batch(
        host,
        &format!(
            "link set lo up
            addr replace {v4}/24 dev eth0
            link set eth0 up
            addr replace {v6}/64 dev eth0 nodad
            route replace 0.0.0.0/0 via {}
            route replace ::/0 via {}",
            gateway.v4, gateway.v6,
        ),
    )
}

fn routed_host_end(node: &Node, pod: &Pod) -> String {
    let Addresses { v4, v6 } = pod.addresses();
    let own = node.addresses();
    let end = &pod.host_end;
    format!(
        "addr add {}/32 dev {end}
        addr add {}/64 dev {end} nodad
        link set {end} up
        route add {v4}/32 dev {end} src {}
        route add {v6}/128 dev {end} src {}",
        ROUTED_GATEWAY.v4, ROUTED_GATEWAY.v6, own.v4, own.v6,
    )
}

fn routed_pod_end(pod: &Pod) -> String {
    let Addresses { v4, v6 } = pod.addresses();
    let gateway = ROUTED_GATEWAY;
    format!(
        "link set lo up
        addr add {v4}/32 dev eth0
        addr add {v6}/128 dev eth0 nodad
        link set eth0 up
        route add {}/32 dev eth0 scope link
        route add 0.0.0.0/0 via {} dev eth0
        route add ::/0 via {} dev eth0",
        gateway.v4, gateway.v4, gateway.v6,
    )
}
