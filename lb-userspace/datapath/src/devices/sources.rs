//! What the kernel requires of the sources of IPv4 packets, by device.

use std::{fs, str::FromStr};

use netlink_packet_core::NlasIterator;
use netlink_packet_route::link::{AfSpecInet, AfSpecUnspec};

/// Settings of `net.ipv4.conf` for a device, or for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceRules {
    /// `rp_filter` (RFC 3704): whether there must be a way back to the source, and by which device.
    pub way_back: WayBack,
    /// `accept_local`: whether packets from the node's own addresses are accepted.
    pub accept_local: bool,
}

/// Values of `rp_filter`. The greater one of a device's own value and that for all devices is in
/// force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WayBack {
    #[default]
    NotAsked,
    /// It must lead to the device.
    ByTheDevice,
    /// It may lead to any device.
    ByAny,
}

impl SourceRules {
    /// The settings for all devices of the calling thread's network namespace. A setting that
    /// cannot be read counts as not set.
    pub(super) fn of_all() -> Self {
        Self {
            way_back: WayBack::from(setting("rp_filter").unwrap_or(0)),
            accept_local: setting("accept_local").is_some_and(|value: i32| value != 0),
        }
    }

    /// A device's own settings, from a link message.
    pub(super) fn of_link(families: &[AfSpecUnspec]) -> Self {
        let inet = families.iter().find_map(|family| match family {
            AfSpecUnspec::Inet(inet) => Some(inet),
            _ => None,
        });
        let settings = inet.into_iter().flatten().find_map(|part| match part {
            AfSpecInet::DevConf(settings) => Some(settings),
            _ => None,
        });
        settings.map_or_else(Self::default, |settings| Self {
            way_back: WayBack::from(settings.rp_filter),
            accept_local: settings.accept_local != 0,
        })
    }

    /// The settings in force on a device with the settings `own`, if `self` are those for all.
    pub(super) fn with(self, own: Self) -> Self {
        Self {
            way_back: self.way_back.max(own.way_back),
            accept_local: self.accept_local || own.accept_local,
        }
    }
}

impl From<i32> for WayBack {
    fn from(rp_filter: i32) -> Self {
        match rp_filter {
            i32::MIN..=0 => Self::NotAsked,
            1 => Self::ByTheDevice,
            _ => Self::ByAny,
        }
    }
}

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/all/{name}")).ok()?;
    text.trim().parse().ok()
}

/// Type of the message that reports a setting (`RTM_NEWNETCONF`), which netlink-packet-route does
/// not know.
pub(super) const SETTING_CHANGED: u16 = 80;
/// Length of the message's header, which contains only the family.
const HEADER: usize = 4;
/// `NETCONFA_IFINDEX` and `NETCONFA_RP_FILTER`.
const INDEX: u16 = 1;
const RP_FILTER: u16 = 3;
/// `NETCONFA_IFINDEX_ALL`.
const ALL: i32 = -1;

/// The interface index, `None` for all devices, and the `rp_filter` that such a message reports.
/// `None` if it reports another setting.
pub(super) fn changed(payload: &[u8]) -> Option<(Option<u32>, WayBack)> {
    let (mut index, mut way_back) = (None, None);
    for attribute in NlasIterator::new(payload.get(HEADER..)?) {
        let attribute = attribute.ok()?;
        let value = || Some(i32::from_ne_bytes(attribute.value().try_into().ok()?));
        match attribute.kind() {
            INDEX => index = value(),
            RP_FILTER => way_back = value().map(WayBack::from),
            _ => {}
        }
    }
    let device = match index? {
        ALL => None,
        // Other negative indices mean the settings of future devices.
        index => Some(u32::try_from(index).ok()?),
    };
    Some((device, way_back?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(attributes: &[(u16, i32)]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for (kind, value) in attributes {
            bytes.extend(8_u16.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(value.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn a_changed_rp_filter_is_read() {
        let of = |attributes| changed(&message(attributes));
        assert_eq!(
            of(&[(INDEX, 7), (RP_FILTER, 1)]),
            Some((Some(7), WayBack::ByTheDevice))
        );
        assert_eq!(
            of(&[(INDEX, ALL), (2, 1), (RP_FILTER, 2)]),
            Some((None, WayBack::ByAny))
        );
        assert_eq!(of(&[(INDEX, -2), (RP_FILTER, 1)]), None, "of none there is");
        assert_eq!(of(&[(INDEX, 7), (2, 1)]), None, "another setting");
        assert_eq!(of(&[(RP_FILTER, 1)]), None);
        assert_eq!(changed(&[2]), None);
        assert_eq!(changed(&[2, 0, 0, 0, 9, 0, 1]), None, "cut off");
    }

    #[test]
    fn the_greater_value_is_in_force() {
        let rules = |way_back, accept_local| SourceRules {
            way_back,
            accept_local,
        };
        use WayBack::{ByAny, ByTheDevice, NotAsked};
        // The value 2 takes precedence although it requires less than 1.
        assert_eq!(
            rules(ByTheDevice, false).with(rules(ByAny, true)),
            rules(ByAny, true)
        );
        assert_eq!(
            rules(ByTheDevice, true).with(rules(NotAsked, false)),
            rules(ByTheDevice, true)
        );
    }
}
