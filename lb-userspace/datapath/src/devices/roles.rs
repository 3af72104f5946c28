//! Which devices get programs, by configuration or by their properties.

use std::net::IpAddr;

use glob::Pattern;
use thiserror::Error;

use super::{Device, DeviceKind};

/// The role of a device in the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Towards other nodes and clients: XDP, or TC where XDP is not possible.
    External,
    /// The node's end of a pod's device: TC.
    Pod,
    /// A bridge with pods on it: TC, for packets that are routed through the node.
    PodBridge,
    /// Carries pods' packets to other nodes inside other packets: TC.
    Overlay,
    /// Gets no programs.
    Other,
}

/// Patterns of device names, such as `eth*`.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceNames<'a> {
    pub external: &'a [String],
    pub pods: &'a [String],
    /// Devices that get no programs, whatever they are.
    pub ignored: &'a [String],
}

/// The rules that give devices their roles. Configured patterns come before a device's properties,
/// and in each case external comes before pods.
#[derive(Clone, Debug, Default)]
pub struct RoleRules {
    external: Vec<Pattern>,
    pods: Vec<Pattern>,
    ignored: Vec<Pattern>,
    /// The Node object's addresses.
    node_addresses: Vec<IpAddr>,
}

/// A pattern of device names that is not valid.
#[derive(Debug, Error)]
#[error("{option}: bad pattern of device names {pattern:?}: {source}")]
pub struct PatternError {
    option: &'static str,
    pattern: String,
    source: glob::PatternError,
}

impl RoleRules {
    /// Without patterns,
    ///
    /// - external devices are those with a default route or one of `node_addresses`, and every
    ///   physical, bond or VLAN device with an address that is valid beyond its link;
    /// - pods are behind the remaining veth and netkit devices and bridges.
    ///
    /// # Errors
    ///
    /// If a pattern is not valid.
    pub fn new(names: DeviceNames<'_>, node_addresses: Vec<IpAddr>) -> Result<Self, PatternError> {
        Ok(Self {
            external: patterns("--device", names.external)?,
            pods: patterns("--pod-device-pattern", names.pods)?,
            ignored: patterns("--ignored-device", names.ignored)?,
            node_addresses,
        })
    }

    /// The role of a device, which may change with its name, addresses and routes.
    pub fn role(&self, device: &Device) -> Role {
        let named = |patterns: &[Pattern]| patterns.iter().any(|p| p.matches(&device.name));
        if device.kind == DeviceKind::Loopback || named(&self.ignored) {
            return Role::Other;
        }
        if named(&self.external) {
            return Role::External;
        }
        if named(&self.pods) {
            return pod_role(device);
        }
        if self.external.is_empty() && self.looks_external(device) {
            return Role::External;
        }
        match device.kind {
            // Linux makes some that nobody uses (tunl0, sit0).
            DeviceKind::Tunnel if device.layer3 && !device.up => Role::Other,
            DeviceKind::Tunnel => Role::Overlay,
            DeviceKind::Veth | DeviceKind::Netkit | DeviceKind::Bridge if self.pods.is_empty() => {
                pod_role(device)
            }
            _ => Role::Other,
        }
    }

    /// Whether an address is one of the Node object's.
    pub fn is_of_node(&self, ip: IpAddr) -> bool {
        self.node_addresses.contains(&ip)
    }

    /// Whether a device should have programs and gets none, because they cannot read its packets
    /// (InfiniBand): it is external or a pod's, or it has an address of the networks of pods, which
    /// `is_of_pods` tells.
    pub fn is_unserved(&self, device: &Device, is_of_pods: impl Fn(IpAddr) -> bool) -> bool {
        if device.framing().is_some() || !device.up || device.kind == DeviceKind::Loopback {
            return false;
        }
        let has_address_of_pods = || {
            let addresses = device.addresses.iter();
            let mut global = addresses.filter(|address| address.global);
            global.any(|address| is_of_pods(address.ip))
        };
        match self.role(device) {
            Role::External | Role::Pod | Role::PodBridge => true,
            Role::Overlay | Role::Other => {
                !self.ignored.iter().any(|p| p.matches(&device.name)) && has_address_of_pods()
            }
        }
    }

    fn looks_external(&self, device: &Device) -> bool {
        if device.default_route {
            return true;
        }
        let own_link = matches!(
            device.kind,
            DeviceKind::Physical | DeviceKind::Bond | DeviceKind::Vlan
        );
        device.addresses.iter().any(|address| {
            self.node_addresses.contains(&address.ip) || (own_link && address.global)
        })
    }
}

fn pod_role(device: &Device) -> Role {
    match device.kind {
        DeviceKind::Bridge => Role::PodBridge,
        _ => Role::Pod,
    }
}

fn patterns(option: &'static str, patterns: &[String]) -> Result<Vec<Pattern>, PatternError> {
    patterns
        .iter()
        .map(|pattern| {
            Pattern::new(pattern).map_err(|source| PatternError {
                option,
                pattern: pattern.clone(),
                source,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{
        super::{DeviceAddress, SourceRules},
        *,
    };

    fn device(name: &str, kind: DeviceKind) -> Device {
        Device {
            index: 2,
            name: name.to_owned(),
            kind,
            mac: None,
            layer3: false,
            mtu: 1500,
            up: true,
            carrier: true,
            master: None,
            below: None,
            default_route: false,
            sources: SourceRules::default(),
            addresses: BTreeSet::new(),
        }
    }

    fn with_address(mut device: Device, ip: &str, global: bool) -> Device {
        device.addresses.insert(DeviceAddress {
            ip: ip.parse().unwrap(),
            prefix_length: 24,
            global,
        });
        device
    }

    fn rules(external: &[&str], pods: &[&str], ignored: &[&str]) -> RoleRules {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let names = DeviceNames {
            external: &owned(external),
            pods: &owned(pods),
            ignored: &owned(ignored),
        };
        RoleRules::new(names, vec!["192.0.2.1".parse().unwrap()]).unwrap()
    }

    #[test]
    fn roles_follow_from_what_devices_are() {
        let rules = rules(&[], &[], &[]);
        let mut uplink = device("eth0", DeviceKind::Veth);
        uplink.default_route = true;
        let node = with_address(device("ens1", DeviceKind::Veth), "192.0.2.1", true);
        let second = with_address(device("ens2", DeviceKind::Physical), "198.51.100.1", true);
        let pod = with_address(device("cali1", DeviceKind::Veth), "fe80::1", false);
        let gateway = with_address(device("cni0", DeviceKind::Bridge), "10.0.0.1", true);
        for (device, role) in [
            (uplink, Role::External),
            (node, Role::External),
            (second, Role::External),
            (pod, Role::Pod),
            (gateway, Role::PodBridge),
            (device("flannel.1", DeviceKind::Tunnel), Role::Overlay),
            (device("eth1", DeviceKind::Physical), Role::Other),
            (device("tap0", DeviceKind::Other), Role::Other),
            (
                with_address(device("lo", DeviceKind::Loopback), "192.0.2.1", true),
                Role::Other,
            ),
        ] {
            assert_eq!(rules.role(&device), role, "{}", device.name);
        }
    }

    #[test]
    fn named_devices_come_first() {
        let rules = rules(
            &["up*", "both", "down"],
            &["pod*", "both", "br-*"],
            &["down"],
        );
        let mut pod = device("pod1", DeviceKind::Veth);
        pod.default_route = true;
        let mut unnamed = device("eth0", DeviceKind::Physical);
        unnamed.default_route = true;
        for (device, role) in [
            (device("up1", DeviceKind::Bridge), Role::External),
            (device("both", DeviceKind::Veth), Role::External),
            (pod, Role::Pod),
            (device("br-1", DeviceKind::Bridge), Role::PodBridge),
            (device("tun-pods", DeviceKind::Other), Role::Other),
            (device("down", DeviceKind::Physical), Role::Other),
            (unnamed, Role::Other),
            (device("veth9", DeviceKind::Veth), Role::Other),
        ] {
            assert_eq!(rules.role(&device), role, "{}", device.name);
        }
    }

    #[test]
    fn a_device_that_programs_cannot_read_is_unserved_where_services_packets_come_by_it() {
        let rules = rules(&[], &[], &["wg-leave"]);
        let is_of_pods = |ip: IpAddr| ip.to_string().starts_with("10.244.");
        let tunnel = |name, ip| with_address(device(name, DeviceKind::Tunnel), ip, true);
        let mut off = tunnel("tunl0", "10.244.1.0");
        off.up = false;
        let mut vxlan = tunnel("flannel.1", "10.244.1.0");
        vxlan.mac = Some([2, 0, 0, 0, 0, 1]);
        let mut wireguard = tunnel("flannel-wg", "10.244.1.0");
        wireguard.layer3 = true;
        let mut uplink = device("ib0", DeviceKind::Physical);
        uplink.default_route = true;
        for (device, unserved) in [
            (tunnel("ib-pods", "10.244.1.0"), true),
            (uplink, true),
            (tunnel("ib-admin", "10.8.0.1"), false),
            (tunnel("wg-leave", "10.244.1.0"), false),
            (off, false),
            (vxlan, false),
            (wireguard, false),
        ] {
            let found = rules.is_unserved(&device, is_of_pods);
            assert_eq!(found, unserved, "{}", device.name);
        }
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let names = DeviceNames {
            external: &["eth[".to_owned()],
            ..DeviceNames::default()
        };
        let error = RoleRules::new(names, vec![]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("--device: bad pattern of device names \"eth[\""),
            "{error}"
        );
    }
}
