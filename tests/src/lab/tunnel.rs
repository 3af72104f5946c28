//! Tunnels between two nodes for packets to pods, set up as CNIs do.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Shutdown},
    os::unix::net::UnixStream,
};

use anyhow::{Context, Result, ensure};

use super::{Family, LabId, Node, daemon::Daemon, links::ip_batch, registry::WIREGUARD_SOCKETS};
use crate::patience::try_eventually;

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// Its devices have Ethernet headers, and take packets from everybody.
    Vxlan,
    /// WireGuard, in user space. Its devices have no Ethernet header, and let nothing in from sources
    /// that are not allowed: only the other node's pods, and its address in the tunnel.
    WireGuard,
}

impl Tunnel {
    /// Bytes that are left for a packet on a wire of 1500.
    fn mtu(self) -> u16 {
        match self {
            Self::Vxlan => 1430,
            Self::WireGuard => 1420,
        }
    }
}

/// Connects two nodes, so that packets between their pods go through the tunnel and no other way.
/// Each node's address in the tunnel is its pod networks' own.
pub fn connect(lab: &LabId, nodes: &[Node], tunnel: Tunnel) -> Result<Vec<Daemon>> {
    let mut daemons = Vec::new();
    if let [first, second] = nodes {
        for (keys, node, peer) in [(KEYS, first, second), ([KEYS[1], KEYS[0]], second, first)] {
            let device = match tunnel {
                Tunnel::Vxlan => vxlan(node, peer)?,
                Tunnel::WireGuard => {
                    let (device, daemon) = wireguard(lab, node, peer, keys)?;
                    daemons.push(daemon);
                    device
                }
            };
            route(&device, node, peer, tunnel)?;
        }
    }
    Ok(daemons)
}

/// A node's address in the tunnel.
pub fn address(node: &Node, family: Family) -> IpAddr {
    let networks = node.pod_networks;
    match family {
        Family::V4 => networks.v4.network().into(),
        Family::V6 => networks.v6.network().into(),
    }
}

/// Has packets for the peer's pods go by a device.
fn route(device: &str, node: &Node, peer: &Node, tunnel: Tunnel) -> Result<()> {
    let [v4, v6] = Family::BOTH.map(|family| address(node, family));
    let [peer4, peer6] = Family::BOTH.map(|family| address(peer, family));
    let via = |peer: IpAddr| match tunnel {
        Tunnel::Vxlan => format!("via {peer}"),
        Tunnel::WireGuard => String::new(),
    };
    let batch = format!(
        "link set {device} mtu {} up
        address add {v4}/32 dev {device}
        address add {v6}/128 dev {device} nodad
        route add {peer4}/32 dev {device}
        route add {peer6}/128 dev {device}
        route replace {} {} dev {device}
        route replace {} {} dev {device}",
        tunnel.mtu(),
        peer.pod_networks.v4,
        via(peer4),
        peer.pod_networks.v6,
        via(peer6),
    );
    ip_batch(node, &batch)
}

/// Makes a node's end of a VXLAN tunnel.
fn vxlan(node: &Node, peer: &Node) -> Result<String> {
    let [from, to] = [node, peer].map(|node| node.ip(Family::V4));
    let device = "vxlan.pods".to_owned();
    let batch = format!("link add {device} type vxlan id 1 local {from} remote {to} dstport 8472");
    ip_batch(node, &batch)?;
    Ok(device)
}

/// UDP port of WireGuard on all nodes.
const PORT: u16 = 51820;
/// Key pairs for X25519, private and public, in hexadecimal. Nothing outside of labs has them.
const KEYS: [(&str, &str); 2] = [
    (
        "78fd69caaf454be542c5104216a50436cd9f3900123bbd244fb1d266d33f446c",
        "83c2c57a525de876d8ee4b506d62b84624305b1cb70581b8bae9182861cb3419",
    ),
    (
        "c8d6901b8cbb0ec7b141fd8ca9b4d31803f3035cc0a6698c01103e5872a39a5b",
        "d50486b34480a5199f2597e0c71af8e1f595529584a1480bde4aefe782a1641b",
    ),
];

/// Makes a node's end of a WireGuard tunnel; the node has the first key pair, the peer the second.
fn wireguard(
    lab: &LabId,
    node: &Node,
    peer: &Node,
    keys: [(&str, &str); 2],
) -> Result<(String, Daemon)> {
    // WireGuard's sockets are named for devices, and all labs share their directory.
    let device = format!("{}{}", lab.wireguard_prefix(), node.index);
    let arguments = ["--foreground".to_owned(), device.clone()];
    let daemon = Daemon::start(node, "wireguard", &arguments, &node.dir)?;

    let socket = format!("{WIREGUARD_SOCKETS}/{device}.sock");
    let mut control = try_eventually(|| UnixStream::connect(&socket))
        .with_context(|| format!("no WireGuard at {socket}"))?;
    let ([(private_key, _), (_, public_key)], pods) = (keys, peer.pod_networks);
    let settings = format!(
        "set=1\nprivate_key={private_key}\nlisten_port={PORT}\npublic_key={public_key}\nendpoint={}\n\
         allowed_ip={}\nallowed_ip={}\n\n",
        peer.at(Family::V4, PORT),
        pods.v4,
        pods.v6,
    );
    control.write_all(settings.as_bytes())?;
    control.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    control.read_to_string(&mut answer)?;
    ensure!(
        answer.trim() == "errno=0",
        "{device}: WireGuard says {answer:?}"
    );
    Ok((device, daemon))
}
