//! Follows the node's network devices and addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use crate::hooks::{Framing, XDP_PROGRAM, XDP_VIRTUAL_PROGRAM};

mod message;
mod neighbours;
mod netlink;
mod roles;
mod sources;
mod unserved;
mod watch;

pub use netlink::{Routes, WatchError, xdp_programs};
pub use roles::{DeviceNames, PatternError, Role, RoleRules};
pub use sources::{SourceRules, WayBack};
pub use unserved::Unserved;
pub use watch::Watcher;

/// A network device of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Interface index, by which the device is identified. Names change, and both are reused.
    pub index: u32,
    pub name: String,
    pub kind: DeviceKind,
    /// Absent for devices without Ethernet addresses.
    pub mac: Option<[u8; 6]>,
    /// Whether its packets begin with the IP header (WireGuard, IPIP, tun, PPP).
    pub layer3: bool,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Whether it is switched on. This says nothing about the cable.
    pub up: bool,
    pub carrier: bool,
    /// Index of the bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// Index of the device below, if it has an Ethernet address of its own there (macvlan).
    pub below: Option<u32>,
    /// Whether a default route of the main table goes through it.
    pub default_route: bool,
    /// Its own settings. [`Devices::source_rules`] returns those in force.
    pub sources: SourceRules,
    pub addresses: BTreeSet<DeviceAddress>,
}

impl Device {
    /// How its packets begin; `None` for links that programs cannot read, such as InfiniBand.
    pub fn framing(&self) -> Option<Framing> {
        match self.mac {
            Some(_) => Some(Framing::Ethernet),
            None => self.layer3.then_some(Framing::Ip),
        }
    }

    /// The name of its XDP program.
    pub fn xdp_program(&self) -> &'static str {
        match self.kind {
            DeviceKind::Physical | DeviceKind::Bond => XDP_PROGRAM,
            _ => XDP_VIRTUAL_PROGRAM,
        }
    }
}

/// The kind of a device, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    Loopback,
    /// Has a driver of its own, with or without hardware behind it.
    Physical,
    Bond,
    Vlan,
    Veth,
    Netkit,
    Bridge,
    /// Carries packets inside other packets: VXLAN, Geneve, IPIP, WireGuard, tun and so on.
    Tunnel,
    Other,
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress {
    pub ip: IpAddr,
    pub prefix_length: u8,
    /// Whether it is valid beyond the link: neither link-local nor host-only.
    pub global: bool,
}

/// A change of the devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Added(Device),
    /// Renamed, switched on or off, made a port, or with another MAC address, MTU or default route.
    /// Addresses have their own events.
    Changed {
        before: Device,
        after: Device,
    },
    /// Its addresses were removed before, each with an event.
    Removed(Device),
    AddressAdded {
        index: u32,
        address: DeviceAddress,
    },
    AddressRemoved {
        index: u32,
        address: DeviceAddress,
    },
    /// The settings for sources of all devices have changed.
    SourceRulesChanged,
    /// Routes, neighbours or links have changed, so next hops that were looked up before may be
    /// wrong.
    NextHopsChanged,
}

/// The present devices.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    by_index: BTreeMap<u32, Device>,
    /// The settings for all devices.
    sources: SourceRules,
}

impl Devices {
    /// The device with an interface index.
    pub fn get(&self, index: u32) -> Option<&Device> {
        self.by_index.get(&index)
    }

    /// The device with a name.
    pub fn by_name(&self, name: &str) -> Option<&Device> {
        self.iter().find(|device| device.name == name)
    }

    /// All devices, by index.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.by_index.values()
    }

    /// Whether an address is this node's. Several devices may have the same address.
    pub fn is_local(&self, ip: IpAddr) -> bool {
        self.iter()
            .any(|device| device.addresses.iter().any(|address| address.ip == ip))
    }

    /// All of this node's addresses.
    pub fn local_addresses(&self) -> BTreeSet<IpAddr> {
        self.iter()
            .flat_map(|device| device.addresses.iter().map(|address| address.ip))
            .collect()
    }

    /// What the kernel requires of the sources of IPv4 packets that a device receives, and the
    /// device that receives them in the kernel's view: a port's packets belong to its bridge.
    pub fn source_rules(&self, device: &Device) -> (SourceRules, u32) {
        let bridge = device.master.and_then(|index| self.get(index));
        let receiver = bridge
            .filter(|master| master.kind == DeviceKind::Bridge)
            .unwrap_or(device);
        (self.sources.with(receiver.sources), receiver.index)
    }

    /// Sets `rp_filter` of a device, or of all.
    fn set_way_back(&mut self, index: Option<u32>, way_back: WayBack, events: &mut Vec<Event>) {
        let Some(index) = index else {
            self.sources.way_back = way_back;
            events.push(Event::SourceRulesChanged);
            return;
        };
        if let Some(device) = self.by_index.get_mut(&index) {
            let mut after = device.clone();
            after.sources.way_back = way_back;
            change(device, after, events);
        }
    }

    /// Adds a device, or changes the one with its index. Addresses and default route stay, because
    /// a link message does not contain them.
    fn put(&mut self, device: Device, events: &mut Vec<Event>) {
        let Some(known) = self.by_index.get_mut(&device.index) else {
            events.push(Event::Added(device.clone()));
            self.by_index.insert(device.index, device);
            return;
        };
        let after = Device {
            default_route: known.default_route,
            addresses: known.addresses.clone(),
            ..device
        };
        change(known, after, events);
    }

    fn remove(&mut self, index: u32, events: &mut Vec<Event>) {
        let Some(mut device) = self.by_index.remove(&index) else {
            return;
        };
        for address in std::mem::take(&mut device.addresses) {
            events.push(Event::AddressRemoved { index, address });
        }
        events.push(Event::Removed(device));
    }

    fn put_address(&mut self, index: u32, address: DeviceAddress, events: &mut Vec<Event>) {
        if let Some(device) = self.by_index.get_mut(&index)
            && device.addresses.insert(address)
        {
            events.push(Event::AddressAdded { index, address });
        }
    }

    fn remove_address(&mut self, index: u32, address: DeviceAddress, events: &mut Vec<Event>) {
        if let Some(device) = self.by_index.get_mut(&index)
            && device.addresses.remove(&address)
        {
            events.push(Event::AddressRemoved { index, address });
        }
    }

    fn set_default_routes(&mut self, through: &BTreeSet<u32>, events: &mut Vec<Event>) {
        for device in self.by_index.values_mut() {
            let default_route = through.contains(&device.index);
            if device.default_route != default_route {
                let after = Device {
                    default_route,
                    ..device.clone()
                };
                change(device, after, events);
            }
        }
    }

    /// Becomes `other`, and returns the events that lead there.
    fn become_like(&mut self, other: Self, events: &mut Vec<Event>) {
        if self.sources != other.sources {
            self.sources = other.sources;
            events.push(Event::SourceRulesChanged);
        }
        let gone: Vec<u32> = self
            .by_index
            .keys()
            .filter(|index| !other.by_index.contains_key(index))
            .copied()
            .collect();
        for index in gone {
            self.remove(index, events);
        }
        for (index, mut device) in other.by_index {
            let wanted = std::mem::take(&mut device.addresses);
            self.put(device, events);
            let current = self.by_index[&index].addresses.clone();
            for address in current.difference(&wanted) {
                self.remove_address(index, *address, events);
            }
            for address in &wanted {
                self.put_address(index, *address, events);
            }
        }
    }
}

fn change(device: &mut Device, after: Device, events: &mut Vec<Event>) {
    if *device == after {
        return;
    }
    let before = std::mem::replace(device, after.clone());
    events.push(Event::Changed { before, after });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, name: &str) -> Device {
        Device {
            index,
            name: name.to_owned(),
            kind: DeviceKind::Veth,
            mac: Some([2, 0, 0, 0, 0, 1]),
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

    fn address(ip: &str) -> DeviceAddress {
        DeviceAddress {
            ip: ip.parse().unwrap(),
            prefix_length: 24,
            global: true,
        }
    }

    fn table(devices: &[Device]) -> Devices {
        Devices {
            by_index: devices.iter().map(|d| (d.index, d.clone())).collect(),
            ..Devices::default()
        }
    }

    #[test]
    fn a_changed_link_keeps_addresses_and_default_route() {
        let mut events = Vec::new();
        let mut devices = table(&[device(2, "eth0")]);
        devices.put_address(2, address("192.0.2.1"), &mut events);
        devices.set_default_routes(&BTreeSet::from([2]), &mut events);
        events.clear();

        devices.put(device(2, "uplink"), &mut events);
        let [Event::Changed { before, after }] = events.as_slice() else {
            panic!("{events:?}");
        };
        assert_eq!(
            (before.name.as_str(), after.name.as_str()),
            ("eth0", "uplink")
        );
        assert!(after.default_route);
        assert!(devices.is_local("192.0.2.1".parse().unwrap()));

        events.clear();
        devices.put(device(2, "uplink"), &mut events);
        assert!(events.is_empty(), "{events:?}");
    }

    #[test]
    fn a_removed_device_takes_its_addresses_along() {
        let mut events = Vec::new();
        let mut devices = table(&[device(2, "eth0")]);
        devices.put_address(2, address("192.0.2.1"), &mut events);
        events.clear();

        devices.remove(2, &mut events);
        assert_eq!(
            events,
            [
                Event::AddressRemoved {
                    index: 2,
                    address: address("192.0.2.1")
                },
                Event::Removed(device(2, "eth0")),
            ]
        );
        devices.remove(2, &mut events);
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn after_a_gap_only_differences_are_told() {
        let mut kept = device(2, "eth0");
        kept.addresses = BTreeSet::from([address("192.0.2.1"), address("192.0.2.2")]);
        let mut devices = table(&[kept.clone(), device(3, "veth3")]);

        kept.addresses = BTreeSet::from([address("192.0.2.2"), address("192.0.2.3")]);
        let now = table(&[kept, device(4, "veth3")]);
        let mut events = Vec::new();
        devices.become_like(now.clone(), &mut events);
        assert_eq!(
            events,
            [
                Event::Removed(device(3, "veth3")),
                Event::AddressRemoved {
                    index: 2,
                    address: address("192.0.2.1")
                },
                Event::AddressAdded {
                    index: 2,
                    address: address("192.0.2.3")
                },
                Event::Added(device(4, "veth3")),
            ]
        );
        assert_eq!(devices.by_index, now.by_index);
    }

    #[test]
    fn addresses_of_unknown_devices_are_ignored() {
        let mut events = Vec::new();
        let mut devices = Devices::default();
        devices.put_address(9, address("192.0.2.1"), &mut events);
        devices.remove_address(9, address("192.0.2.1"), &mut events);
        assert!(events.is_empty());
        assert!(devices.local_addresses().is_empty());
    }
}
