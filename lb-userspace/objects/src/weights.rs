//! How much of a Service's connections its endpoints get, beside each other.

use std::{collections::BTreeMap, net::IpAddr};

use crate::Endpoint;

/// The weight of an endpoint that has none of its own.
pub const DEFAULT_WEIGHT: u16 = 1;
/// The greatest weight, as HAProxy has it.
pub const MAX_WEIGHT: u16 = 256;

/// The weights that a Service itself gives to endpoints. They go before those that EndpointSlices give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    by_address: BTreeMap<IpAddr, u16>,
    by_node: BTreeMap<Box<str>, u16>,
}

impl Weights {
    /// Gives a weight to the endpoint with an address, whatever its node is.
    pub fn set_address(&mut self, address: IpAddr, weight: u16) {
        self.by_address.insert(address, weight);
    }

    /// Gives a weight to all endpoints on a node.
    pub fn set_node(&mut self, node: Box<str>, weight: u16) {
        self.by_node.insert(node, weight);
    }

    /// The weight of an endpoint, if it is given one here.
    pub fn of(&self, endpoint: &Endpoint) -> Option<u16> {
        let own = self.by_address.get(&endpoint.address);
        let of_node = || self.by_node.get(endpoint.node_name.as_deref()?);
        own.or_else(of_node).copied()
    }
}
