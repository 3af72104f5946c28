//! A client, a node and a pod, with Services programmed in one of several ways.
//!
//! ```text
//! client 198.18.0.0/15 ──── node-1 172.30.77.11 ──── pod 10.244.0.0/16
//!                           routes, nftables or node-lb
//! ```
//!
//! The client is the lab's router, so that there is nothing else between it and the node. The pod
//! has the addresses of all Services' endpoints.

pub mod agent;
pub mod rules;
pub mod services;
pub mod usage;

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use lb_tests::{Balanced, Family, Host, Lab, Node, Pod, Topology, lab::address::PODS};
use node_lb::config::XdpMode;

use self::{
    services::{PORT, TARGET_PORT},
    usage::Usage,
};

/// The network of clients (RFC 2544's network for benchmarks).
const CLIENTS: &str = "198.18.0.0/15";
const FIRST_CLIENT: u32 = u32::from_be_bytes([198, 18, 0, 1]);

/// What is between clients and endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proxy {
    /// Nothing: clients talk to endpoints directly, and the node forwards.
    Routing,
    /// Rules in the form of kube-proxy's.
    Nftables,
    NodeLb,
}

impl Proxy {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Routing => "plain routing",
            Self::Nftables => "nftables",
            Self::NodeLb => "node-lb",
        }
    }
}

/// A lab of one node and one pod, with Services.
#[derive(Debug)]
pub struct Cluster {
    pub proxy: Proxy,
    /// How many Services there are.
    pub services: u32,
    ground: Ground,
    clients: u32,
}

#[derive(Debug)]
enum Ground {
    Lab(Lab),
    Balanced(Balanced),
}

impl Cluster {
    /// Builds a lab and programs Services in it. Returns what programming took. `xdp_mode` and more
    /// `arguments` are for node-lb.
    ///
    /// # Errors
    ///
    /// Without root, if a tool is missing, or if node-lb does not get ready.
    pub fn build(
        proxy: Proxy,
        services: u32,
        xdp_mode: XdpMode,
        arguments: &[&str],
    ) -> Result<(Self, Usage)> {
        let topology = Topology {
            nodes: 1,
            pods_per_node: 1,
            far_ends_take_xdp: false,
            ..Topology::default()
        };
        let lab = Lab::up(topology)?;
        wire(&lab)?;
        let (ground, usage) = match proxy {
            Proxy::Routing => (Ground::Lab(lab), Usage::default()),
            Proxy::Nftables => {
                let usage = load_rules(lab.node(1), services)?;
                (Ground::Lab(lab), usage)
            }
            Proxy::NodeLb => {
                let (balanced, usage) = agent::start(lab, services, xdp_mode, arguments)?;
                (Ground::Balanced(balanced), usage)
            }
        };
        let cluster = Self {
            proxy,
            services,
            ground,
            clients: 0,
        };
        Ok((cluster, usage))
    }

    /// The lab.
    pub fn lab(&self) -> &Lab {
        match &self.ground {
            Ground::Lab(lab) => lab,
            Ground::Balanced(balanced) => &balanced.lab,
        }
    }

    /// Lab and agent, if node-lb is the proxy.
    pub fn balanced(&self) -> Option<&Balanced> {
        match &self.ground {
            Ground::Lab(_) => None,
            Ground::Balanced(balanced) => Some(balanced),
        }
    }

    /// Where clients run.
    pub fn client(&self) -> &Host {
        self.lab().router()
    }

    /// The node in the middle.
    pub fn node(&self) -> &Node {
        self.lab().node(1)
    }

    /// The pod that answers for all endpoints.
    pub fn server(&self) -> &Pod {
        self.lab().pod("pod-1-1")
    }

    /// A client address that has not been used yet.
    pub fn new_client(&mut self) -> Ipv4Addr {
        self.clients += 1;
        Ipv4Addr::from_bits(FIRST_CLIENT + self.clients)
    }

    /// The address of a Service, or of one of its endpoints if nothing balances.
    pub fn target(&self, service: u32, endpoint: u32) -> SocketAddrV4 {
        match self.proxy {
            Proxy::Routing => SocketAddrV4::new(services::endpoint(service, endpoint), TARGET_PORT),
            _ => SocketAddrV4::new(services::cluster_ip(service), PORT),
        }
    }

    /// Removes the lab.
    ///
    /// # Errors
    ///
    /// If something of it remains.
    pub fn down(self) -> Result<()> {
        match self.ground {
            Ground::Lab(lab) => lab.down(),
            Ground::Balanced(Balanced { agents, lab, .. }) => {
                drop(agents);
                lab.down()
            }
        }
    }
}

/// Sets routes for clients and endpoints, and the same properties of all devices: checksums are
/// complete and segments are single packets, as on a wire, and receivers have NAPI and GRO, as with
/// a real card.
fn wire(lab: &Lab) -> Result<()> {
    let (client, node, pod) = (lab.router(), lab.node(1), lab.pod("pod-1-1"));
    let node_ip = node.ip(Family::V4);
    let pod_ip = pod.ip(Family::V4);
    let pods = PODS.v4;
    client.run(&format!("ethtool -K {node} gro on tx off"))?;
    client.run(&format!("ip route add local {CLIENTS} dev lo"))?;
    client.run(&format!("ip route add {pods} via {node_ip}"))?;
    node.run("ethtool -K eth0 gro on")?;
    node.run(&format!("ethtool -K {} gro on", pod.host_end))?;
    node.run(&format!(
        "ip route add {pods} via {pod_ip} dev {} onlink",
        pod.host_end
    ))?;
    pod.run("ethtool -K eth0 gro on")?;
    pod.run(&format!("ip route add local {pods} dev lo"))?;
    Ok(())
}

fn load_rules(node: &Node, services: u32) -> Result<Usage> {
    rules::transactions(services)
        .map(|transaction| nft(node, &transaction))
        .sum()
}

/// Runs a transaction of `nft` on a node.
///
/// # Errors
///
/// If `nft` is missing, or fails.
pub fn nft(node: &Node, transaction: &str) -> Result<Usage> {
    let mut command = node.command("nft")?;
    command.args(["-f", "-"]);
    usage::run(command, transaction)
}
