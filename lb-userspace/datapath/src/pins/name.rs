//! Names of pinned links.

use std::{fmt, str::FromStr};

use crate::hooks::{Direction, SocketHook, XdpMode};

/// What a pinned link attaches. Its text form is the pin's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkPin {
    /// `xdp-native-2`
    Xdp { mode: XdpMode, ifindex: u32 },
    /// `tcx-ingress-2`
    Tcx { direction: Direction, ifindex: u32 },
    /// `cgroup-connect4`
    Socket(SocketHook),
}

impl fmt::Display for LinkPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp { mode, ifindex } => write!(f, "xdp-{mode}-{ifindex}"),
            Self::Tcx { direction, ifindex } => write!(f, "tcx-{direction}-{ifindex}"),
            Self::Socket(hook) => write!(f, "cgroup-{hook}"),
        }
    }
}

/// The text is not the name of one of node-lb's pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPin;

impl FromStr for LinkPin {
    type Err = UnknownPin;

    fn from_str(name: &str) -> Result<Self, UnknownPin> {
        let (kind, rest) = name.split_once('-').ok_or(UnknownPin)?;
        if kind == "cgroup" {
            return SocketHook::ALL
                .into_iter()
                .find(|hook| hook.name() == rest)
                .map(Self::Socket)
                .ok_or(UnknownPin);
        }

        let (variant, ifindex) = rest.split_once('-').ok_or(UnknownPin)?;
        let ifindex = ifindex.parse().map_err(|_| UnknownPin)?;
        match (kind, variant) {
            ("xdp", "native") => Ok(Self::Xdp {
                mode: XdpMode::Native,
                ifindex,
            }),
            ("xdp", "generic") => Ok(Self::Xdp {
                mode: XdpMode::Generic,
                ifindex,
            }),
            ("tcx", "ingress") => Ok(Self::Tcx {
                direction: Direction::Ingress,
                ifindex,
            }),
            ("tcx", "egress") => Ok(Self::Tcx {
                direction: Direction::Egress,
                ifindex,
            }),
            _ => Err(UnknownPin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_names_are_read_back() {
        let pins = [
            LinkPin::Xdp {
                mode: XdpMode::Native,
                ifindex: 2,
            },
            LinkPin::Xdp {
                mode: XdpMode::Generic,
                ifindex: u32::MAX,
            },
            LinkPin::Tcx {
                direction: Direction::Ingress,
                ifindex: 7,
            },
            LinkPin::Tcx {
                direction: Direction::Egress,
                ifindex: 7,
            },
            LinkPin::Socket(SocketHook::GetPeerName6),
        ];
        for pin in pins {
            assert_eq!(pin.to_string().parse(), Ok(pin));
        }
    }

    #[test]
    fn other_names_are_no_pins() {
        for name in [
            "",
            "xdp",
            "xdp-native",
            "xdp-off-2",
            "xdp-native-eth0",
            "tcx-ingress--1",
            "cgroup-connect5",
            "tcx-ingress-4294967296",
        ] {
            assert_eq!(name.parse::<LinkPin>(), Err(UnknownPin), "{name}");
        }
    }
}
