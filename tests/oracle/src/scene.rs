//! The node that packets pass: its devices, and addresses of it and of others.

use std::net::IpAddr;

use lb_packet::Mac;

/// First port for source NAT.
pub const SNAT_PORT: u16 = 50_000;

/// The node's device towards routers and other nodes.
pub const EXTERNAL: &str = "ext0";
/// The node's device of its pod.
pub const POD: &str = "pod0";
/// A device towards other nodes with an MTU of only [`NARROW_MTU`] bytes.
pub const NARROW: &str = "narrow0";
pub const NARROW_MTU: u16 = 1400;

/// Ethernet addresses of [`EXTERNAL`], of the router and of another node behind it; of the pod's
/// device and of the pod; of [`NARROW`] and of the node behind it.
pub const EXTERNAL_MAC: Mac = [0x02, 0, 0, 0, 1, 2];
pub const ROUTER_MAC: Mac = [0x02, 0, 0, 0, 1, 1];
pub const PEER_MAC: Mac = [0x02, 0, 0, 0, 1, 3];
pub const POD_SIDE_MAC: Mac = [0x02, 0, 0, 0, 2, 1];
pub const POD_MAC: Mac = [0x02, 0, 0, 0, 2, 5];
pub const NARROW_MAC: Mac = [0x02, 0, 0, 0, 3, 2];
pub const NARROW_PEER_MAC: Mac = [0x02, 0, 0, 0, 3, 1];

/// One family's addresses.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub node: IpAddr,
    /// An address somewhere behind the router.
    pub client: IpAddr,
    /// Addresses of pods: behind another node; on this node; behind the narrow device; behind a
    /// node with an unknown Ethernet address; nowhere.
    pub remote: IpAddr,
    pub local: IpAddr,
    pub narrow: IpAddr,
    pub unresolved: IpAddr,
    pub unroutable: IpAddr,
    pub cluster_ip: IpAddr,
    pub load_balancer: IpAddr,
    pub external_ip: IpAddr,
}

impl Scene {
    /// The scenes of IPv4 and IPv6.
    pub fn both() -> [Self; 2] {
        [Self::v4(), Self::v6()]
    }

    /// IPv4's.
    pub fn v4() -> Self {
        Self::parse([
            "192.0.2.2",
            "198.51.100.7",
            "10.2.0.8",
            "10.1.0.5",
            "10.3.0.9",
            "10.4.0.9",
            "10.5.0.9",
            "10.96.0.10",
            "203.0.113.10",
            "203.0.113.20",
        ])
    }

    /// IPv6's.
    pub fn v6() -> Self {
        Self::parse([
            "2001:db8:1::2",
            "2001:db8:c::7",
            "fd00:2::8",
            "fd00:1::5",
            "fd00:3::9",
            "fd00:4::9",
            "fd00:5::9",
            "fd00:96::10",
            "2001:db8:f::10",
            "2001:db8:f::20",
        ])
    }

    /// Addresses of pods that no other rule on the node rewrites.
    pub fn pods(&self) -> [IpAddr; 3] {
        [self.local, self.remote, self.narrow]
    }

    fn parse(addresses: [&str; 10]) -> Self {
        let [
            node,
            client,
            remote,
            local,
            narrow,
            unresolved,
            unroutable,
            cluster_ip,
            load_balancer,
            external_ip,
        ] = addresses.map(|address| address.parse().unwrap());
        Self {
            node,
            client,
            remote,
            local,
            narrow,
            unresolved,
            unroutable,
            cluster_ip,
            load_balancer,
            external_ip,
        }
    }
}
