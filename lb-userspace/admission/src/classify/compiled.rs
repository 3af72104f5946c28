//! Classification by bit vectors (Lakshman and Stiliadis, SIGCOMM 1998): each property of a packet
//! is looked up on its own, which yields the set of rules that it fits. The first rule that is in
//! all sets decides.
//!
//! A lookup is one longest prefix match, three array accesses, and a step per 64 rules, of which
//! there are at most [`MAX_RULES`](crate::configuration::MAX_RULES). Identities and destinations
//! get their class when they become known, not when a packet comes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    Connection, Identity, ServiceFrontend,
    bits::{Bits, WORD},
    interned::Interned,
    prefixes::Prefixes,
};
use crate::{
    configuration::ActiveSchema,
    schema::{Destination, Ingress, Listed, Rule, Source},
};

/// Flow schemas, compiled for lookups by packets.
#[derive(Clone, Debug)]
pub struct Classifier {
    rules: Vec<Rule>,
    /// Index of each rule's schema.
    schemas: Vec<usize>,
    /// Index of the schema that takes a connection which fits no rule.
    last: usize,
    /// By [`Ingress`].
    ingress: [Bits; 3],
    addresses: Prefixes,
    sources: Interned<Sources>,
    destinations: Interned<Bits>,
}

/// The rules that a property of the source (its address or its identity) fits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sources {
    /// It is one of the rule's sources.
    included: Bits,
    /// It is one of the rule's exceptions.
    excepted: Bits,
}

/// A class of identities that all rules treat alike. It belongs to one classifier and means nothing
/// to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdentityClass(u32);

/// A class of frontends that all rules treat alike. It belongs to one classifier and means nothing
/// to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DestinationClass(u32);

/// The properties by which a connection is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub ingress: Ingress,
    pub source: IpAddr,
    pub identity: IdentityClass,
    pub destination: DestinationClass,
}

impl Classifier {
    /// Compiles schemas, given in the order in which they are asked. There must be at least one.
    pub fn new(active: &[ActiveSchema]) -> Self {
        let rules_of = |active: &ActiveSchema| active.schema.rules.clone();
        let rules: Vec<_> = active.iter().flat_map(rules_of).collect();
        let schemas = active.iter().enumerate();
        let schemas = schemas.flat_map(|(index, active)| vec![index; active.schema.rules.len()]);
        let mut sources = Interned::default();
        // A source without a known identity fits no rule by identity.
        sources.number(Sources::new(&rules, |_| false));
        let addresses = Prefixes::new(networks(&rules), |region| {
            sources.number(Sources::new(&rules, |source| holds_region(source, region)))
        });
        let by_ingress = |ingress| Bits::of(&rules, |rule| rule.has_ingress(ingress));
        Self {
            schemas: schemas.collect(),
            last: active.len().saturating_sub(1),
            ingress: [Ingress::External, Ingress::Pod, Ingress::Node].map(by_ingress),
            addresses,
            sources,
            destinations: Interned::default(),
            rules,
        }
    }

    /// The class of an identity; `None` is the identity of an unknown source.
    pub fn identity_class(&mut self, identity: Option<&Identity>) -> IdentityClass {
        let has = |source: &Source| identity.is_some_and(|identity| source.has_identity(identity));
        IdentityClass(self.sources.number(Sources::new(&self.rules, has)))
    }

    /// The class of a frontend.
    pub fn destination_class(&mut self, frontend: &ServiceFrontend<'_>) -> DestinationClass {
        let fits = |rule: &Rule| {
            let is_here = |destination: &Destination| destination.mismatch(frontend).is_none();
            rule.destinations.iter().any(is_here) && !rule.except_destinations.iter().any(is_here)
        };
        DestinationClass(self.destinations.number(Bits::of(&self.rules, fits)))
    }

    /// The key by which a connection is looked up.
    pub fn key(&mut self, connection: &Connection<'_>) -> Key {
        Key {
            ingress: connection.ingress,
            source: connection.source,
            identity: self.identity_class(connection.identity),
            destination: self.destination_class(&connection.destination),
        }
    }

    /// The networks by which the schemas tell sources apart, each with the class of those addresses
    /// that no longer one of them has. The networks of all addresses of a family are always among
    /// them.
    pub fn networks(&self) -> impl Iterator<Item = (IpNet, u32)> {
        self.addresses.entries()
    }

    /// How many classes of sources there are: they are numbered from 0.
    pub fn source_classes(&self) -> u32 {
        self.sources.len()
    }

    /// Whether it matters at which address a Service is reached.
    pub fn asks_for_address(&self) -> bool {
        let destinations = self
            .rules
            .iter()
            .flat_map(|rule| rule.destinations.iter().chain(&rule.except_destinations));
        destinations
            .into_iter()
            .any(|destination| destination.addresses != Listed::Any)
    }

    /// Index of the schema that takes connections from sources of a class, see [`Self::networks`],
    /// without a known identity.
    pub fn decide(&self, ingress: Ingress, source: u32, destination: DestinationClass) -> usize {
        self.first_of(ingress, source, 0, destination)
    }

    /// Index of the schema that takes a connection, as
    /// [`InForce::classify`](crate::configuration::InForce::classify) finds it.
    ///
    /// With classes of another classifier the result is wrong.
    pub fn classify(&self, key: &Key) -> usize {
        let address = self.addresses.longest_match(key.source);
        self.first_of(key.ingress, address, key.identity.0, key.destination)
    }

    fn first_of(
        &self,
        ingress: Ingress,
        address: u32,
        identity: u32,
        destination: DestinationClass,
    ) -> usize {
        let address = self.sources.get(address);
        let identity = self.sources.get(identity);
        let destination = self.destinations.get(destination.0);
        let (Some(address), Some(identity), Some(destination)) = (address, identity, destination)
        else {
            return self.last;
        };
        let ingress = self.ingress[ingress as usize].words();
        for (index, (&ingress, &destination)) in ingress.iter().zip(destination.words()).enumerate()
        {
            let fits = ingress & destination & address.or(identity, index);
            if fits != 0 {
                return self.schemas[index * WORD + fits.trailing_zeros() as usize];
            }
        }
        self.last
    }
}

impl Sources {
    /// The rules with a source for which `is_such` holds, and those with such an exception.
    fn new(rules: &[Rule], is_such: impl Fn(&Source) -> bool) -> Self {
        Self {
            included: Bits::of(rules, |rule| rule.sources.iter().any(&is_such)),
            excepted: Bits::of(rules, |rule| rule.except_sources.iter().any(&is_such)),
        }
    }

    /// One word of the rules that one of the two includes and neither excepts.
    fn or(&self, other: &Self, index: usize) -> u64 {
        let word = |bits: &Bits| bits.words()[index];
        (word(&self.included) | word(&other.included))
            & !(word(&self.excepted) | word(&other.excepted))
    }
}

/// Every prefix that some rule names.
fn networks(rules: &[Rule]) -> impl Iterator<Item = IpNet> {
    let sources = rules
        .iter()
        .flat_map(|rule| rule.sources.iter().chain(&rule.except_sources));
    sources.flat_map(|source| match source {
        Source::Network { network, except } => [&[*network], except.as_slice()].concat(),
        Source::Any
        | Source::Namespace(_)
        | Source::ServiceAccount { .. }
        | Source::Workload { .. } => Vec::new(),
    })
}

/// Whether addresses in `region`, which no longer prefix of [`networks`] holds, are of `source`.
/// Either all of them are, or none.
fn holds_region(source: &Source, region: IpNet) -> bool {
    match source {
        Source::Any => true,
        Source::Network { network, except } => {
            network.contains(&region) && !except.iter().any(|range| range.contains(&region))
        }
        Source::Namespace(_) | Source::ServiceAccount { .. } | Source::Workload { .. } => false,
    }
}
