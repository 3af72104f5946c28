//! A network namespace of the benchmark: one device, and routes with known neighbours as next hops
//! of flows.

use std::{
    fs,
    io::Write as _,
    net::IpAddr,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use lb_common::flow::Ethernet;
use nix::{
    net::if_::if_nametoindex,
    sched::{CloneFlags, unshare},
};

use super::traffic::{CLIENTS, ENDPOINTS, NODE};

/// The device on which packets arrive and leave.
const DEVICE: &str = "bench0";
const DEVICE_MAC: [u8; 6] = [2, 0, 0, 0, 0x10, 0];
const CLIENT_SIDE_MAC: [u8; 6] = [2, 0, 0, 0, 0x10, 1];
const ENDPOINT_SIDE_MAC: [u8; 6] = [2, 0, 0, 0, 0x10, 2];

/// The device and the next hops of packets.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Interface index of the device.
    pub ifindex: u32,
    /// Header of frames that leave towards clients.
    pub to_clients: Ethernet,
    /// Header of frames that leave towards endpoints.
    pub to_endpoints: Ethernet,
}

impl Network {
    /// Moves this thread into a new namespace, which ends with the thread, and configures it.
    ///
    /// # Errors
    ///
    /// Without root, or if `ip` is missing or fails.
    pub fn enter() -> Result<Self> {
        unshare(CloneFlags::CLONE_NEWNET)
            .context("cannot make a network namespace (the benchmark needs root)")?;
        // Only a node that forwards gets the next hops of forwarded packets.
        for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let path = format!("/proc/sys/net/{setting}");
            fs::write(&path, "1").with_context(|| format!("cannot write {path}"))?;
        }
        ip(&commands())?;
        let ethernet = |to| Ethernet {
            to,
            from: DEVICE_MAC,
        };
        Ok(Self {
            ifindex: if_nametoindex(DEVICE).with_context(|| format!("no device {DEVICE}"))?,
            to_clients: ethernet(CLIENT_SIDE_MAC),
            to_endpoints: ethernet(ENDPOINT_SIDE_MAC),
        })
    }
}

fn commands() -> String {
    let mut commands = format!(
        "link add {DEVICE} address {} type veth peer name peer0\nlink set peer0 up\n\
         link set {DEVICE} up\n",
        mac(DEVICE_MAC)
    );
    for family in [0, 1] {
        let node = NODE[family];
        let bits = if node.is_ipv4() { 32 } else { 128 };
        let nodad = if node.is_ipv4() { "" } else { "nodad" };
        commands += &format!("addr add {node}/{bits} dev {DEVICE} {nodad}\n");
        for (gateway, address, network) in [
            (1, CLIENT_SIDE_MAC, CLIENTS[family]),
            (2, ENDPOINT_SIDE_MAC, ENDPOINTS[family]),
        ] {
            let gateway = neighbour(node, gateway);
            let (first, prefix) = network;
            commands += &format!(
                "route add {gateway}/{bits} dev {DEVICE}\n\
                 neigh add {gateway} lladdr {} nud permanent dev {DEVICE}\n\
                 route add {first}/{prefix} via {gateway} dev {DEVICE}\n",
                mac(address)
            );
        }
    }
    commands
}

/// The address `distance` after the node's.
fn neighbour(node: IpAddr, distance: u8) -> IpAddr {
    match node {
        IpAddr::V4(node) => (node.to_bits() + u32::from(distance)).to_be_bytes().into(),
        IpAddr::V6(node) => (node.to_bits() + u128::from(distance)).to_be_bytes().into(),
    }
}

fn mac(address: [u8; 6]) -> String {
    address.map(|octet| format!("{octet:02x}")).join(":")
}

/// Runs commands of iproute2's `ip`, one a line.
fn ip(commands: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot run ip (install iproute2)")?;
    let mut input = child.stdin.take().expect("standard input is piped");
    input.write_all(commands.as_bytes())?;
    drop(input);
    let status = child.wait()?;
    ensure!(status.success(), "ip failed on one of:\n{commands}");
    Ok(())
}
