//! What the first packet of a connection says about it.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use lb_objects::Protocol;

use crate::schema::Ingress;

/// A new connection to a Service.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    pub ingress: Ingress,
    pub source: IpAddr,
    /// The pod that the source address belongs to; `None` if that is not known.
    pub identity: Option<&'a Identity>,
    pub destination: ServiceFrontend<'a>,
}

/// The address and port by which a connection reaches a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceFrontend<'a> {
    pub namespace: &'a str,
    pub service: &'a str,
    /// The port of the Service, not its node port. Zero means unknown, which no rule matches.
    pub port: u16,
    pub protocol: Protocol,
    /// The address that the packet was sent to. `None` means unknown, which no rule matches.
    pub address: Option<IpAddr>,
}

/// The pod that an address belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    pub namespace: String,
    pub service_account: String,
    pub labels: BTreeMap<String, String>,
    /// The pod's node; empty if not known.
    pub node: String,
}

/// The identities of addresses. Pods in their node's network have none: they share its address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Identities(HashMap<IpAddr, Arc<Identity>>);

impl Identities {
    /// Sets the identity of an address.
    pub fn insert(&mut self, address: IpAddr, identity: Arc<Identity>) {
        self.0.insert(address.to_canonical(), identity);
    }

    /// Forgets the identity of an address.
    pub fn remove(&mut self, address: IpAddr) {
        self.0.remove(&address.to_canonical());
    }

    /// All addresses whose identities are known.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, &Identity)> {
        let known = self.0.iter();
        known.map(|(address, identity)| (*address, &**identity))
    }

    /// The identity of an address, if it is known.
    pub fn get(&self, address: IpAddr) -> Option<&Identity> {
        self.0.get(&address.to_canonical()).map(AsRef::as_ref)
    }
}
