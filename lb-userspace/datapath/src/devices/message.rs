//! What netlink messages mean for the devices.

use std::{collections::BTreeSet, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage},
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::{RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType},
};

use super::{
    Device, DeviceAddress, DeviceKind,
    sources::{SourceRules, WayBack},
};

/// One change that a message reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// The present state of the device, without its addresses and default route.
    Link(Device),
    LinkGone(u32),
    Address(u32, DeviceAddress),
    AddressGone(u32, DeviceAddress),
    /// The link-layer address of a neighbour; `None` if it has none any more.
    Neighbour(u32, IpAddr, Option<Vec<u8>>),
    Route {
        default: bool,
    },
    /// `rp_filter` of a device, or of all if there is no index.
    WayBack(Option<u32>, WayBack),
    /// Something that may change next hops.
    Other,
}

impl Update {
    /// Reads a message; `None` if it does not matter here.
    pub fn parse(message: RouteNetlinkMessage) -> Option<Self> {
        use RouteNetlinkMessage::*;
        match message {
            // Bridges report their ports with a family of their own: a port that leaves still
            // exists.
            NewLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                device(link).map(Self::Link)
            }
            DelLink(link) if link.header.interface_family == AddressFamily::Unspec => {
                Some(Self::LinkGone(link.header.index))
            }
            NewAddress(message) => {
                let usable = !message.header.flags.contains(AddressHeaderFlags::Dadfailed);
                let (index, address) = address(&message)?;
                Some(match usable {
                    true => Self::Address(index, address),
                    false => Self::AddressGone(index, address),
                })
            }
            DelAddress(message) => {
                address(&message).map(|(index, address)| Self::AddressGone(index, address))
            }
            NewNeighbour(message) => neighbour(message, true),
            DelNeighbour(message) => neighbour(message, false),
            NewRoute(route) | DelRoute(route) => {
                let cached = route.header.flags.contains(RouteFlags::Cloned);
                (!cached).then(|| Self::Route {
                    default: is_default(&route),
                })
            }
            NewRule(_) | DelRule(_) => Some(Self::Other),
            _ => None,
        }
    }
}

/// The devices of a route, if it is a default route of the main table.
pub(super) fn default_devices(route: &RouteMessage) -> BTreeSet<u32> {
    if !is_default(route) {
        return BTreeSet::new();
    }
    route
        .attributes
        .iter()
        .flat_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => vec![*index],
            RouteAttribute::MultiPath(hops) => hops.iter().map(|hop| hop.interface_index).collect(),
            _ => vec![],
        })
        .collect()
}

fn is_default(route: &RouteMessage) -> bool {
    let header = &route.header;
    header.destination_prefix_length == 0
        && header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast
}

/// `None` if the message does not describe the whole device.
fn device(link: LinkMessage) -> Option<Device> {
    let flags = link.header.flags;
    let mut device = Device {
        index: link.header.index,
        name: String::new(),
        kind: DeviceKind::Physical,
        mac: None,
        layer3: is_layer3(link.header.link_layer_type),
        mtu: 0,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        master: None,
        below: None,
        default_route: false,
        sources: SourceRules::default(),
        addresses: BTreeSet::new(),
    };
    if flags.contains(LinkFlags::Loopback) {
        device.kind = DeviceKind::Loopback;
    }
    let mut is_tun = false;
    let (mut below, mut elsewhere, mut has_own_address) = (None, false, false);
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::Mtu(mtu) => device.mtu = mtu,
            LinkAttribute::Address(bytes) => device.mac = bytes.try_into().ok(),
            LinkAttribute::Controller(index) => device.master = Some(index),
            LinkAttribute::Link(index) => below = Some(index),
            // The device below is in another network namespace.
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::AfSpecUnspec(families) => {
                device.sources = SourceRules::of_link(&families);
            }
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        has_own_address = matches!(kind, InfoKind::MacVlan | InfoKind::MacVtap);
                        is_tun = kind == InfoKind::Tun;
                        device.kind = DeviceKind::from(kind);
                    }
                }
            }
            _ => {}
        }
    }
    device.below = below.filter(|_| has_own_address && !elsewhere);
    // With Ethernet addresses it is a tap, as of a virtual machine.
    if is_tun && device.mac.is_none() {
        device.kind = DeviceKind::Tunnel;
    }
    (!device.name.is_empty() && device.mtu > 0).then_some(device)
}

/// Whether packets of a type of device begin with the IP header. These are the types for which Linux
/// removes other headers before it sends (`dev_is_mac_header_xmit`).
fn is_layer3(link: LinkLayerType) -> bool {
    use LinkLayerType::*;
    matches!(
        link,
        Tunnel | Tunnel6 | Sit | Ipgre | Ip6gre | Void | None | Rawip | Ppp
    )
}

impl From<InfoKind> for DeviceKind {
    fn from(kind: InfoKind) -> Self {
        match kind {
            InfoKind::Bond | InfoKind::Team => Self::Bond,
            InfoKind::Vlan => Self::Vlan,
            InfoKind::Veth => Self::Veth,
            InfoKind::Netkit => Self::Netkit,
            InfoKind::Bridge => Self::Bridge,
            // A test driver that behaves like hardware.
            InfoKind::Netdevsim => Self::Physical,
            InfoKind::Vxlan
            | InfoKind::Geneve
            | InfoKind::IpIp
            | InfoKind::Ip6Tnl
            | InfoKind::SitTun
            | InfoKind::GreTap
            | InfoKind::GreTap6
            | InfoKind::GreTun
            | InfoKind::GreTun6
            | InfoKind::Vti
            | InfoKind::Vti6
            | InfoKind::Xfrm
            | InfoKind::Wireguard => Self::Tunnel,
            _ => Self::Other,
        }
    }
}

fn address(message: &AddressMessage) -> Option<(u32, DeviceAddress)> {
    // On point-to-point links "address" is the peer's, and "local" ours.
    let local = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Local(ip) => Some(*ip),
            _ => None,
        });
    let address = message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        });
    Some((
        message.header.index,
        DeviceAddress {
            ip: local.or(address)?,
            prefix_length: message.header.prefix_len,
            global: matches!(
                message.header.scope,
                AddressScope::Universe | AddressScope::Site
            ),
        },
    ))
}

fn neighbour(message: NeighbourMessage, known: bool) -> Option<Update> {
    let mut ip = None;
    let mut link_layer = None;
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => {
                ip = Some(IpAddr::from(address));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => {
                ip = Some(IpAddr::from(address));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => link_layer = Some(bytes),
            _ => {}
        }
    }
    let reachable = match message.header.state {
        // Multicast addresses and similar.
        NeighbourState::Noarp => return None,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None => false,
        _ => known,
    };
    Some(Update::Neighbour(
        message.header.ifindex,
        ip?,
        link_layer.filter(|_| reachable),
    ))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use netlink_packet_route::route::RouteNextHop;

    use super::*;

    fn link(attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.header.flags = LinkFlags::Up;
        message.attributes = attributes;
        message
    }

    #[test]
    fn links_are_read() {
        let message = link(vec![
            LinkAttribute::IfName("lxc1".to_owned()),
            LinkAttribute::Mtu(9000),
            LinkAttribute::Address(vec![2, 0, 0, 0, 0, 9]),
            LinkAttribute::Controller(3),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]),
        ]);
        let Some(Update::Link(device)) = Update::parse(RouteNetlinkMessage::NewLink(message))
        else {
            panic!("no link");
        };
        assert_eq!((device.index, device.mtu), (7, 9000));
        assert_eq!(device.kind, DeviceKind::Veth);
        assert_eq!(device.mac, Some([2, 0, 0, 0, 0, 9]));
        assert_eq!(device.master, Some(3));
        assert!(device.up && !device.carrier);
    }

    #[test]
    fn what_is_below_a_macvlan_is_read() {
        let below = |kind, more: &[LinkAttribute]| {
            let attributes = [
                LinkAttribute::IfName("vrrp.7".to_owned()),
                LinkAttribute::Mtu(1500),
                LinkAttribute::Link(2),
                LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]),
            ];
            let message = link([attributes.as_slice(), more].concat());
            let Some(Update::Link(device)) = Update::parse(RouteNetlinkMessage::NewLink(message))
            else {
                panic!("no link");
            };
            device.below
        };
        assert_eq!(below(InfoKind::MacVlan, &[]), Some(2));
        assert_eq!(
            below(InfoKind::MacVlan, &[LinkAttribute::LinkNetNsId(0)]),
            None
        );
        assert_eq!(below(InfoKind::Veth, &[]), None, "the other end");
        assert_eq!(below(InfoKind::Vlan, &[]), None, "has the same address");
    }

    #[test]
    fn a_port_leaving_a_bridge_is_not_gone() {
        let mut message = link(vec![]);
        message.header.interface_family = AddressFamily::Bridge;
        assert_eq!(
            Update::parse(RouteNetlinkMessage::DelLink(message.clone())),
            None
        );
        message.header.interface_family = AddressFamily::Unspec;
        assert_eq!(
            Update::parse(RouteNetlinkMessage::DelLink(message)),
            Some(Update::LinkGone(7))
        );
    }

    #[test]
    fn partial_link_messages_are_no_news() {
        let message = link(vec![LinkAttribute::IfName("wlan0".to_owned())]);
        assert_eq!(Update::parse(RouteNetlinkMessage::NewLink(message)), None);
    }

    #[test]
    fn our_side_of_a_point_to_point_link_is_the_address() {
        let mut message = AddressMessage::default();
        message.header.index = 4;
        message.header.prefix_len = 32;
        message.attributes = vec![
            AddressAttribute::Address(Ipv4Addr::new(10, 0, 0, 2).into()),
            AddressAttribute::Local(Ipv4Addr::new(10, 0, 0, 1).into()),
        ];
        let Some(Update::Address(4, address)) =
            Update::parse(RouteNetlinkMessage::NewAddress(message.clone()))
        else {
            panic!("no address");
        };
        assert_eq!(address.ip, Ipv4Addr::new(10, 0, 0, 1));
        assert!(address.global);

        message.header.flags = AddressHeaderFlags::Dadfailed;
        assert!(matches!(
            Update::parse(RouteNetlinkMessage::NewAddress(message)),
            Some(Update::AddressGone(4, _))
        ));
    }

    #[test]
    fn default_routes_name_all_their_devices() {
        let mut hop = RouteNextHop::default();
        hop.interface_index = 3;
        let mut route = RouteMessage::default();
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.kind = RouteType::Unicast;
        route.attributes = vec![RouteAttribute::Oif(2), RouteAttribute::MultiPath(vec![hop])];
        assert_eq!(default_devices(&route), BTreeSet::from([2, 3]));

        route.header.destination_prefix_length = 8;
        assert!(default_devices(&route).is_empty());
        assert_eq!(
            Update::parse(RouteNetlinkMessage::DelRoute(route)),
            Some(Update::Route { default: false })
        );
    }

    #[test]
    fn failed_neighbours_have_no_address() {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 2;
        message.header.state = NeighbourState::Stale;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(Ipv4Addr::LOCALHOST)),
            NeighbourAttribute::LinkLayerAddress(vec![1; 6]),
        ];
        let ip = IpAddr::from(Ipv4Addr::LOCALHOST);
        let parse = |message: &NeighbourMessage| {
            Update::parse(RouteNetlinkMessage::NewNeighbour(message.clone()))
        };
        assert_eq!(
            parse(&message),
            Some(Update::Neighbour(2, ip, Some(vec![1; 6])))
        );
        assert_eq!(
            Update::parse(RouteNetlinkMessage::DelNeighbour(message.clone())),
            Some(Update::Neighbour(2, ip, None))
        );
        message.header.state = NeighbourState::Failed;
        assert_eq!(parse(&message), Some(Update::Neighbour(2, ip, None)));
        message.header.state = NeighbourState::Noarp;
        assert_eq!(parse(&message), None);
    }
}
