//! Addresses on which healthCheckNodePort servers listen, as `--nodeport-addresses` decides.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use lb_objects::IpFamily;

/// The addresses each family's servers listen on, as long as the node has these addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddresses {
    v4: Vec<IpAddr>,
    v6: Vec<IpAddr>,
}

impl ListenAddresses {
    /// The wildcard of each family.
    pub fn all() -> Self {
        Self {
            v4: vec![wildcard(IpFamily::V4)],
            v6: vec![wildcard(IpFamily::V6)],
        }
    }

    /// `networks` is `--nodeport-addresses` with `primary` already replaced by the node IPs. A
    /// family without a network in the list, or with a zero prefix, listens on its wildcard. Any
    /// other listens on each of `local`, the node's addresses, that one of its networks contains.
    /// Unlike for node ports, loopback addresses count here.
    ///
    /// Without a match there is no listener. `local` is an error only if the addresses could not be
    /// listed; then the wildcard is used.
    pub fn select(networks: &[IpNet], local: io::Result<Vec<IpAddr>>) -> Self {
        let local = local
            .inspect_err(|error| {
                tracing::warn!(
                    "cannot enumerate this node's addresses: {error}; healthCheckNodePort \
                     servers listen on all of them"
                );
            })
            .ok();
        let select = |family| addresses(family, networks, local.as_deref());
        Self {
            v4: select(IpFamily::V4),
            v6: select(IpFamily::V6),
        }
    }

    /// The addresses of a family.
    pub fn of(&self, family: IpFamily) -> &[IpAddr] {
        match family {
            IpFamily::V4 => &self.v4,
            IpFamily::V6 => &self.v6,
        }
    }
}

fn addresses(family: IpFamily, networks: &[IpNet], local: Option<&[IpAddr]>) -> Vec<IpAddr> {
    let networks: Vec<_> = networks
        .iter()
        .filter(|net| IpFamily::of_net(**net) == family)
        .collect();
    let matches_all = networks.is_empty() || networks.iter().any(|net| net.prefix_len() == 0);
    let Some(local) = local.filter(|_| !matches_all) else {
        return vec![wildcard(family)];
    };
    let mut selected: Vec<_> = local
        .iter()
        .filter(|address| networks.iter().any(|net| net.contains(*address)))
        .filter(|address| !needs_scope(address))
        .copied()
        .collect();
    selected.sort_unstable();
    selected.dedup();
    selected
}

fn wildcard(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A link-local IPv6 address is ambiguous without a device, so it cannot be listened on alone.
fn needs_scope(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_network_of_a_family_or_a_zero_prefix_means_its_wildcard() {
        assert_eq!(select(&[], &["192.0.2.1"]), ListenAddresses::all());

        let addresses = select(&["192.0.2.0/24", "0.0.0.0/0"], &["192.0.2.1"]);
        assert_eq!(addresses, ListenAddresses::all());

        let addresses = select(&["192.0.2.0/24"], &["192.0.2.1", "2001:db8::1"]);
        assert_eq!(addresses.of(IpFamily::V4), ips(&["192.0.2.1"]));
        assert_eq!(addresses.of(IpFamily::V6), ips(&["::"]));
    }

    #[test]
    fn each_matching_local_address_is_listened_on_once() {
        let networks = ["192.0.2.0/24", "192.0.2.0/28", "127.0.0.0/8", "::/1"];
        let local = [
            "192.0.2.9",
            "192.0.2.1",
            "198.51.100.1",
            "127.0.0.1",
            "::1",
            "192.0.2.1",
        ];
        let addresses = select(&networks, &local);
        assert_eq!(
            addresses.of(IpFamily::V4),
            ips(&["127.0.0.1", "192.0.2.1", "192.0.2.9"])
        );
        assert_eq!(addresses.of(IpFamily::V6), ips(&["::1"]));
    }

    #[test]
    fn no_match_means_no_listener() {
        let addresses = select(&["203.0.113.0/24", "fe80::/10"], &["192.0.2.1", "fe80::1"]);
        assert_eq!(addresses.of(IpFamily::V4), ips(&[]));
        assert_eq!(addresses.of(IpFamily::V6), ips(&[]));
    }

    #[test]
    fn unknown_local_addresses_mean_the_wildcard() {
        let networks = [net("192.0.2.0/24"), net("2001:db8::/64")];
        let unknown = Err(io::Error::other("netlink is gone"));
        assert_eq!(
            ListenAddresses::select(&networks, unknown),
            ListenAddresses::all()
        );
    }

    fn select(networks: &[&str], local: &[&str]) -> ListenAddresses {
        let networks: Vec<_> = networks.iter().copied().map(net).collect();
        ListenAddresses::select(&networks, Ok(ips(local)))
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }
}
