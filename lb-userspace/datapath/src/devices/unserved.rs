//! Devices that should have programs and get none.

use std::{fmt, net::IpAddr};

use super::{Devices, RoleRules};

/// Devices by which packets of Services come, and which programs cannot read (InfiniBand).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved(Vec<String>);

impl Unserved {
    /// Those among a node's devices, if there are any; `is_of_pods` tells addresses of the networks
    /// of pods.
    pub fn among(
        devices: &Devices,
        rules: &RoleRules,
        is_of_pods: impl Fn(IpAddr) -> bool,
    ) -> Option<Self> {
        let unserved = devices
            .iter()
            .filter(|device| rules.is_unserved(device, &is_of_pods));
        let names: Vec<_> = unserved.map(|device| device.name.clone()).collect();
        (!names.is_empty()).then_some(Self(names))
    }

    /// What is wrong.
    pub fn found(&self) -> String {
        let names = self.0.join(", ");
        format!(
            "no programs on {names}, whose packets begin neither with an Ethernet nor with an IP header: answers \
             and connections that arrive there are not translated"
        )
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        let names = self.0.join(",");
        format!(
            "have pods' and clients' packets come by other devices; if Services need nothing that arrives there, \
             set --ignored-device={names} (chart: config.ignored-device)"
        )
    }
}

impl fmt::Display for Unserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.found(), self.remedy())
    }
}
