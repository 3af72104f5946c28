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
    Connection, Distinguisher, Identity, ServiceFrontend,
    bits::{Bits, WORD},
    interned::Interned,
    prefixes::Prefixes,
};
use crate::{
    configuration::{ActiveSchema, InForce},
    schema::{Destination, DistinguisherMethod, Ingress, Listed, Rule, Source},
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
    /// Of addresses.
    sources: Interned<SourceClass>,
    identities: Interned<Sources>,
    destinations: Interned<Bits>,
    /// By which part of an identity each schema tells flows apart, if it does.
    methods: Vec<Option<DistinguisherMethod>>,
    asks_for_identity: bool,
}

/// What all addresses of a class have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SourceClass {
    sources: Sources,
    /// Of a pod, what schemas tell flows apart by; the rest is empty.
    whose: Option<Identity>,
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
    /// Compiles the schemas of a configuration. There must be at least one.
    pub fn new(in_force: &InForce) -> Self {
        let active = &in_force.schemas;
        let rules_of = |active: &ActiveSchema| active.schema.rules.clone();
        let rules: Vec<_> = active.iter().flat_map(rules_of).collect();
        let schemas = active.iter().enumerate();
        let schemas = schemas.flat_map(|(index, active)| vec![index; active.schema.rules.len()]);
        let mut sources = Interned::default();
        let addresses = Prefixes::new(networks(&rules), |region| {
            sources.number(SourceClass {
                sources: Sources::new(&rules, |source| holds_region(source, region)),
                whose: None,
            })
        });
        let by_ingress = |ingress| Bits::of(&rules, |rule| rule.has_ingress(ingress));
        Self {
            schemas: schemas.collect(),
            last: active.len().saturating_sub(1),
            ingress: [Ingress::External, Ingress::Pod, Ingress::Node].map(by_ingress),
            addresses,
            sources,
            identities: Interned::default(),
            destinations: Interned::default(),
            methods: active
                .iter()
                .map(|active| in_force.identity_method(active))
                .collect(),
            asks_for_identity: in_force.asks_for_identity(),
            rules,
        }
    }

    /// The class of an identity; `None` is the identity of an unknown source.
    pub fn identity_class(&mut self, identity: Option<&Identity>) -> IdentityClass {
        let has = |source: &Source| identity.is_some_and(|identity| source.has_identity(identity));
        IdentityClass(self.identities.number(Sources::new(&self.rules, has)))
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

    /// The class of a pod's address: as that of its network, but by whose it is as well.
    pub fn pod_class(&mut self, address: IpAddr, identity: &Identity) -> u32 {
        let of_identity = Sources::new(&self.rules, |source| source.has_identity(identity));
        let network = self.addresses.longest_match(address);
        let of_address = self.sources.get(network).map(|class| &class.sources);
        let class = SourceClass {
            sources: of_address.map_or_else(|| of_identity.clone(), |of| of.with(&of_identity)),
            whose: self.whose(identity),
        };
        self.sources.number(class)
    }

    /// The class of an address that is no known pod's.
    pub fn network_class(&self, address: IpAddr) -> u32 {
        self.addresses.longest_match(address)
    }

    /// What of an identity some schema tells flows apart by.
    fn whose(&self, identity: &Identity) -> Option<Identity> {
        let is_asked = |method| self.methods.contains(&Some(method));
        let (by_account, by_node) = (
            is_asked(DistinguisherMethod::SourceServiceAccount),
            is_asked(DistinguisherMethod::SourceNode),
        );
        let by_namespace = by_account || is_asked(DistinguisherMethod::SourceNamespace);
        let of = |is_asked, text: &String| {
            if is_asked {
                text.clone()
            } else {
                String::new()
            }
        };
        (by_namespace || by_node).then(|| Identity {
            namespace: of(by_namespace, &identity.namespace),
            service_account: of(by_account, &identity.service_account),
            node: of(by_node, &identity.node),
            ..Identity::default()
        })
    }

    /// Whether it matters whose a pod is.
    pub fn asks_for_identity(&self) -> bool {
        self.asks_for_identity
    }

    /// Which flows of schemas, by their indexes, connections from sources of a class belong to where that
    /// depends on whose pods they are.
    pub fn flows_of(&self, source: u32) -> impl Iterator<Item = (usize, Distinguisher<'_>)> {
        let whose = self
            .sources
            .get(source)
            .and_then(|class| class.whose.as_ref());
        let methods = self.methods.iter().enumerate();
        methods.filter_map(move |(schema, method)| {
            let flow = Distinguisher::of_identity((*method)?, whose?)?;
            Some((schema, flow))
        })
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

    /// Index of the schema that takes connections from sources of a class, see [`Self::networks`] and
    /// [`Self::pod_class`].
    pub fn decide(&self, ingress: Ingress, source: u32, destination: DestinationClass) -> usize {
        let source = self.sources.get(source).map(|class| &class.sources);
        let destination = self.destinations.get(destination.0);
        source.zip(destination).map_or(self.last, |(source, to)| {
            self.first_of(ingress, source, source, to)
        })
    }

    /// Index of the schema that takes a connection, as
    /// [`InForce::classify`](crate::configuration::InForce::classify) finds it.
    ///
    /// With classes of another classifier the result is wrong.
    pub fn classify(&self, key: &Key) -> usize {
        let address = self.addresses.longest_match(key.source);
        let address = self.sources.get(address).map(|class| &class.sources);
        let identity = self.identities.get(key.identity.0);
        let destination = self.destinations.get(key.destination.0);
        let (Some(address), Some(identity), Some(destination)) = (address, identity, destination)
        else {
            return self.last;
        };
        self.first_of(key.ingress, address, identity, destination)
    }

    fn first_of(
        &self,
        ingress: Ingress,
        address: &Sources,
        identity: &Sources,
        destination: &Bits,
    ) -> usize {
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

    /// Of an address and an identity together.
    fn with(&self, other: &Self) -> Self {
        Self {
            included: self.included.or(&other.included),
            excepted: self.excepted.or(&other.excepted),
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
