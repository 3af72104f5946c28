//! The lab's address plan. All labs use the same addresses: each is a world of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    /// Both families, to loop over.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// As Kubernetes names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// The family of an address.
    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// A host's pair of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Addresses {
    /// The address of one family.
    pub fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

/// A network of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Networks {
    pub v4: Ipv4Net,
    pub v6: Ipv6Net,
}

/// The network between the client and the router.
pub const CLIENT: Networks = networks(
    [172, 29, 77, 0],
    24,
    [0xfd00, 0x172, 0x29, 0x77, 0, 0, 0, 0],
    64,
);
/// The network the nodes are on.
pub const NODES: Networks = networks(
    [172, 30, 77, 0],
    24,
    [0xfd00, 0x172, 0x30, 0x77, 0, 0, 0, 0],
    64,
);
/// Addresses for Services of type LoadBalancer; the router sends them to one node.
pub const LOAD_BALANCERS: Networks = networks(
    [172, 30, 78, 0],
    24,
    [0xfd00, 0x172, 0x30, 0x78, 0, 0, 0, 0],
    64,
);
/// The ClusterIPs.
pub const SERVICES: Networks =
    networks([10, 96, 0, 0], 16, [0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0], 112);
/// The pods of all nodes (`--cluster-cidr`).
pub const PODS: Networks = networks(
    [10, 244, 0, 0],
    16,
    [0xfd00, 0x10, 0x244, 0, 0, 0, 0, 0],
    48,
);

/// The sources of floods, which no host has: those of RFC 2544 and RFC 3849. The router drops what
/// is sent to them.
pub const SPOOFED: Networks = networks(
    [198, 18, 0, 0],
    15,
    [0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0],
    64,
);

/// The gateway of pods on routed veths. Every host end has this address.
pub const ROUTED_GATEWAY: Addresses = Addresses {
    v4: Ipv4Addr::new(169, 254, 1, 1),
    v6: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
};

/// The pods of node `index` (from 1): its `podCIDRs`.
pub fn pod_networks(index: u8) -> Networks {
    // Written `fd00:10:244:N::`, so that N reads the same in both families.
    let spelled = u16::from_str_radix(&index.to_string(), 16).expect("decimal digits are hex");
    networks(
        [10, 244, index, 0],
        24,
        [0xfd00, 0x10, 0x244, spelled, 0, 0, 0, 0],
        64,
    )
}

/// Host number `host` (1 to 254) of a /24 and a /64, spelled alike in both: `.11` and `::11`.
pub fn host_in(network: Networks, host: u8) -> Addresses {
    let spelled = u128::from_str_radix(&host.to_string(), 16).expect("decimal digits are hex");
    Addresses {
        v4: (u32::from(network.v4.network()) | u32::from(host)).into(),
        v6: (u128::from(network.v6.network()) | spelled).into(),
    }
}

/// The router's address in a network.
pub fn gateway_of(network: Networks) -> Addresses {
    host_in(network, 1)
}

const fn networks(v4: [u8; 4], v4_len: u8, v6: [u16; 8], v6_len: u8) -> Networks {
    let [a, b, c, d] = v4;
    let [s, t, u, v, w, x, y, z] = v6;
    Networks {
        v4: Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), v4_len),
        v6: Ipv6Net::new_assert(Ipv6Addr::new(s, t, u, v, w, x, y, z), v6_len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_spelled_alike() {
        let addresses = host_in(pod_networks(12), 21);
        assert_eq!(addresses.v4.to_string(), "10.244.12.21");
        assert_eq!(addresses.v6.to_string(), "fd00:10:244:12::21");
        assert_eq!(addresses.of(Family::V6), IpAddr::V6(addresses.v6));
    }

    #[test]
    fn pods_of_every_node_are_in_the_cluster_networks() {
        for index in 1..=9 {
            let node = pod_networks(index);
            assert!(PODS.v4.contains(&node.v4) && PODS.v6.contains(&node.v6));
        }
    }
}
