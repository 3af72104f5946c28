//! Which Services have endpoints on this node, by address.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use lb_objects::ObjectName;

use crate::plan::{EndpointClass, ServicePlan};

/// Finds the Services that an address of the node's concerns: those with an endpoint of this node
/// there, which is the node itself then.
#[derive(Debug, Default)]
pub struct Hosted {
    by_address: HashMap<IpAddr, BTreeSet<ObjectName>>,
    /// Goes up with each address that comes or goes.
    revision: u64,
}

impl Hosted {
    /// Takes note that a Service has another plan.
    pub fn replace(
        &mut self,
        name: &ObjectName,
        before: Option<&ServicePlan>,
        after: Option<&ServicePlan>,
    ) {
        let (had, has) = (addresses(before), addresses(after));
        for address in had.difference(&has) {
            if let Some(names) = self.by_address.get_mut(address) {
                names.remove(name);
                if names.is_empty() {
                    self.revision += 1;
                    self.by_address.remove(address);
                }
            }
        }
        for address in has.difference(&had) {
            let names = self.by_address.entry(*address).or_default();
            self.revision += u64::from(names.is_empty());
            names.insert(name.clone());
        }
    }

    /// Every address at which a Service has an endpoint of this node.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.by_address.keys().copied()
    }

    /// Whether a Service has an endpoint of this node at an address.
    pub fn has(&self, address: IpAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// Another number if [`Self::addresses`] are others than before.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The Services with an endpoint of this node at one of these addresses.
    pub fn at<'a>(
        &'a self,
        addresses: impl IntoIterator<Item = &'a IpAddr>,
    ) -> impl Iterator<Item = &'a ObjectName> {
        let found = addresses.into_iter();
        found.filter_map(|ip| self.by_address.get(ip)).flatten()
    }
}

/// Where a Service has endpoints of this node.
fn addresses(plan: Option<&ServicePlan>) -> BTreeSet<IpAddr> {
    let ports = plan.into_iter().flat_map(|plan| &plan.ports);
    let endpoints = ports.flat_map(|port| {
        let local = EndpointClass::ALL
            .into_iter()
            .filter(|class| class.is_local());
        local.flat_map(|class| port.endpoints.class(class))
    });
    endpoints.map(std::net::SocketAddr::ip).collect()
}
