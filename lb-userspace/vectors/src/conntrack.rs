//! The vectors' conntrack entries, and which of them a change of endpoints removes.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::Deserialize;

/// A Service, its endpoints, and conntrack entries.
#[derive(Deserialize)]
pub struct Conntrack {
    pub service: ConntrackService,
    pub endpoints: Vec<ConntrackEndpoint>,
    pub flows: Vec<ConntrackFlow>,
    pub extra: Vec<ConntrackExtra>,
}

#[derive(Deserialize)]
pub struct ConntrackService {
    pub ports: Vec<ConntrackPort>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Ipv4Addr,
    #[serde(rename = "loadBalancerVIP")]
    pub load_balancer_vip: Ipv4Addr,
    #[serde(rename = "externalIP")]
    pub external_ip: Ipv4Addr,
}

impl ConntrackService {
    /// Whether a port of the Service is reached at an address.
    pub fn has(&self, protocol: &str, address: SocketAddrV4) -> bool {
        let vips = [self.cluster_ip, self.load_balancer_vip, self.external_ip];
        let of_protocol = self.ports.iter().filter(|port| port.protocol == protocol);
        of_protocol.into_iter().any(|port| {
            port.node_port == Some(address.port())
                || port.port == address.port() && vips.contains(address.ip())
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConntrackPort {
    protocol: String,
    port: u16,
    node_port: Option<u16>,
}

#[derive(Deserialize)]
pub struct ConntrackEndpoint {
    ip: Ipv4Addr,
    port: u16,
    pub serving: bool,
}

impl ConntrackEndpoint {
    pub fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip, self.port)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConntrackFlow {
    #[serde(rename = "proto")]
    pub protocol: String,
    orig_dst: Ipv4Addr,
    orig_dst_port: u16,
    reply_src: Ipv4Addr,
    reply_src_port: u16,
    pub delete: bool,
}

impl ConntrackFlow {
    pub fn frontend(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.orig_dst, self.orig_dst_port)
    }

    pub fn endpoint(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.reply_src, self.reply_src_port)
    }
}

/// A case described in words.
#[derive(Deserialize)]
pub struct ConntrackExtra {
    pub case: String,
    pub delete: Option<Delete>,
}

/// Whether the flow is deleted; by release if releases differ.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum Delete {
    Always(bool),
    ByRelease(std::collections::BTreeMap<String, bool>),
}

/// A change of slices, described in words, and whether flows must be checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConntrackTrigger {
    pub change: String,
    pub cleanup_required: bool,
}
