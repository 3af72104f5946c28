//! The plain ordered search: schema after schema, rule after rule.

use super::{Connection, Identity, ServiceFrontend};
use crate::{
    configuration::InForce,
    schema::{Destination, Ingress, Rule, Schema, Source},
};

/// The part of a rule that a connection does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Ingress,
    /// It is from none of the sources.
    Source,
    /// It is from this exception.
    ExceptSource(usize),
    /// It goes to none of the destinations. This is how far the destination that fits best got.
    Destination(DestinationMismatch),
    /// It goes to this exception.
    ExceptDestination(usize),
}

/// The part of a destination that a connection does not fit, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DestinationMismatch {
    /// The rule has no destination at all.
    Nothing,
    Namespace,
    Service,
    Protocol,
    Port,
    Address,
}

impl InForce {
    /// Index of the schema that takes a connection: the first that matches. The last one,
    /// `catch-all`, takes what no other does.
    pub fn classify(&self, connection: &Connection<'_>) -> usize {
        let first = self
            .schemas
            .iter()
            .position(|active| active.schema.matches(connection));
        first.unwrap_or(self.schemas.len() - 1)
    }
}

impl Schema {
    /// Whether the rule takes a connection.
    pub fn matches(&self, connection: &Connection<'_>) -> bool {
        self.rules
            .iter()
            .any(|rule| rule.mismatch(connection).is_none())
    }
}

impl Rule {
    /// Why the rule does not take a connection; `None` if it does.
    pub fn mismatch(&self, connection: &Connection<'_>) -> Option<Mismatch> {
        let is_from = |source: &Source| {
            source.has_address(connection)
                || connection
                    .identity
                    .is_some_and(|id| source.has_identity(id))
        };
        let is_to = |destination: &Destination| destination.mismatch(&connection.destination);
        if !self.has_ingress(connection.ingress) {
            return Some(Mismatch::Ingress);
        }
        if !self.sources.iter().any(is_from) {
            return Some(Mismatch::Source);
        }
        if let Some(index) = self.except_sources.iter().position(is_from) {
            return Some(Mismatch::ExceptSource(index));
        }
        let mut closest = DestinationMismatch::Nothing;
        if !self
            .destinations
            .iter()
            .any(|destination| match is_to(destination) {
                None => true,
                Some(mismatch) => {
                    closest = closest.max(mismatch);
                    false
                }
            })
        {
            return Some(Mismatch::Destination(closest));
        }
        let excepted = self
            .except_destinations
            .iter()
            .position(|except| is_to(except).is_none());
        excepted.map(Mismatch::ExceptDestination)
    }

    pub(super) fn has_ingress(&self, ingress: Ingress) -> bool {
        self.ingress.any(|listed| *listed == ingress)
    }
}

impl Source {
    /// Whether the address alone makes a connection come from here.
    fn has_address(&self, connection: &Connection<'_>) -> bool {
        match self {
            Self::Any => true,
            Self::Network { network, except } => {
                let address = &connection.source.to_canonical();
                network.contains(address) && !except.iter().any(|range| range.contains(address))
            }
            Self::Namespace(_) | Self::ServiceAccount { .. } | Self::Workload { .. } => false,
        }
    }

    /// Whether the identity alone makes a connection come from here.
    pub(super) fn has_identity(&self, identity: &Identity) -> bool {
        match self {
            Self::Any | Self::Network { .. } => false,
            Self::Namespace(name) => name.matches(&identity.namespace),
            Self::ServiceAccount { namespace, name } => {
                *namespace == identity.namespace && name.matches(&identity.service_account)
            }
            Self::Workload { namespace, labels } => {
                namespace.matches(&identity.namespace)
                    && labels
                        .iter()
                        .all(|(key, value)| identity.labels.get(key) == Some(value))
            }
        }
    }
}

impl Destination {
    /// Why a connection does not go here; `None` if it does.
    pub(super) fn mismatch(&self, to: &ServiceFrontend<'_>) -> Option<DestinationMismatch> {
        if let Some(services) = &self.service {
            if !services
                .namespaces
                .any(|namespace| namespace == to.namespace)
            {
                return Some(DestinationMismatch::Namespace);
            }
            if !services.names.any(|name| name == to.service) {
                return Some(DestinationMismatch::Service);
            }
        }
        if !self.protocols.any(|protocol| *protocol == to.protocol) {
            return Some(DestinationMismatch::Protocol);
        }
        if !self.ports.any(|span| span.contains(to.port)) {
            return Some(DestinationMismatch::Port);
        }
        let address = to.address.map(|address| address.to_canonical());
        let is_in = |range: &ipnet::IpNet| address.is_some_and(|address| range.contains(&address));
        (!self.addresses.any(is_in)).then_some(DestinationMismatch::Address)
    }
}
