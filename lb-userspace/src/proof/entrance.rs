//! Where packets come in: devices with programs, and who may send there.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::IpNet;
use lb_datapath::{
    Direction,
    devices::{Device, Devices, Role, WayBack},
    hooks::Framing,
};
use lb_objects::{IpFamily, Node};

/// Networks for examples (RFC 5737, RFC 3849): clients of these are nobody's.
const OUTSIDE: [&str; 4] = [
    "198.51.100.0/24",
    "192.0.2.0/24",
    "203.0.113.0/24",
    "2001:db8::/32",
];
/// How many addresses of a network are looked at for one that is free.
const LOOKS: usize = 64;

/// A device by which packets come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrance {
    pub device: String,
    pub ifindex: u32,
    /// Whether clients outside send here, or pods.
    pub is_outside: bool,
    /// Its link-layer address.
    pub mac: [u8; 6],
    /// The programs that see packets there.
    pub programs: Vec<&'static str>,
    /// Who may send there, by preference; some of each family.
    pub sources: Vec<IpAddr>,
    /// Whether the kernel takes packets only from where there is a way back to.
    pub asks_way_back: bool,
}

/// `outside by eth0`.
impl fmt::Display for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = match self.is_outside {
            true => "outside",
            false => "a pod",
        };
        write!(f, "{from} by {}", self.device)
    }
}

/// The first external device and the first one of pods, of those with Ethernet headers: the kernel runs programs on
/// no other packets. `has_xdp` says at which devices XDP runs.
pub fn entrances(
    devices: &Devices,
    role: impl Fn(&Device) -> Role,
    has_xdp: impl Fn(u32) -> bool,
    node: &Node,
) -> Vec<Entrance> {
    let own = devices.local_addresses();
    let is_usable = |device: &&Device| device.up && device.framing() == Some(Framing::Ethernet);
    let of = |wanted: Role| {
        let usable = devices.iter().filter(is_usable);
        usable.filter(|device| role(device) == wanted).collect()
    };
    let external: Vec<_> = of(Role::External);
    // XDP sees a packet before TC does.
    let first = external.iter().find(|device| has_xdp(device.index));
    let external = first.or(external.first()).copied();
    let pods: Vec<_> = of(Role::Pod);
    let pods = pods
        .first()
        .copied()
        .or(of(Role::PodBridge).first().copied());
    let entrance = |device: &Device, is_outside: bool| {
        let mut programs = vec![Direction::Ingress.program(Framing::Ethernet)];
        if is_outside && has_xdp(device.index) {
            programs.insert(0, device.xdp_program());
        }
        let networks = match is_outside {
            true => networks(device),
            false => node
                .pod_cidrs
                .iter()
                .copied()
                .chain(networks(device))
                .collect(),
        };
        Some(Entrance {
            device: device.name.clone(),
            ifindex: device.index,
            is_outside,
            mac: device.mac?,
            programs,
            sources: sources(networks, &own),
            asks_way_back: devices.source_rules(device).0.way_back != WayBack::NotAsked,
        })
    };
    let external = external.and_then(|device| entrance(device, true));
    let pods = pods.and_then(|device| entrance(device, false));
    external.into_iter().chain(pods).collect()
}

impl Entrance {
    /// A source of a family that `fits`, if there is one.
    pub fn source(&self, family: IpFamily, fits: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let mut sources = self.sources.iter().copied();
        sources.find(|ip| IpFamily::of(*ip) == family && fits(*ip))
    }
}

/// The networks of a device.
fn networks(device: &Device) -> Vec<IpNet> {
    let global = device.addresses.iter().filter(|address| address.global);
    let network = global.map(|address| IpNet::new(address.ip, address.prefix_length));
    network.filter_map(Result::ok).collect()
}

/// An address in each of these networks, and then in those for examples, that is not the node's own.
fn sources(networks: Vec<IpNet>, own: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let examples = OUTSIDE.iter().filter_map(|network| network.parse().ok());
    let networks = networks.into_iter().chain(examples);
    networks.filter_map(|network| free(network, own)).collect()
}

/// An address of a network that a host may have, and this node has not.
pub fn free(network: IpNet, own: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let mut hosts = network.hosts().take(LOOKS);
    hosts.find(|ip| *ip != network.network() && !own.contains(ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_of_others() {
        let own = BTreeSet::from(["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]);
        let free = |network: &str| {
            let found = free(network.parse().unwrap(), &own);
            found.map(|ip| ip.to_string()).unwrap_or_default()
        };
        assert_eq!(free("10.0.0.0/24"), "10.0.0.2");
        assert_eq!(free("10.0.0.1/24"), "10.0.0.2", "an address within it");
        assert_eq!(free("10.0.0.1/32"), "", "it is the node's own");
        assert_eq!(free("192.0.2.8/30"), "192.0.2.9");
        assert_eq!(
            free("fd00::/64"),
            "fd00::2",
            "not the routers' own anycast address"
        );
        let sources = sources(vec!["10.0.0.0/24".parse().unwrap()], &own);
        assert_eq!(sources.len(), 1 + OUTSIDE.len());
        assert!(sources.iter().any(IpAddr::is_ipv6));
    }
}
