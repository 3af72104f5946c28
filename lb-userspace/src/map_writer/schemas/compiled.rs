//! The configuration that frontends get their classes by, and sources theirs.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use lb_admission::{
    classify::{Classifier, DestinationClass, Identities, Identity},
    configuration::InForce,
    schema::Ingress,
};
use lb_common::abi::Decision;

use super::classes::Content;

/// A compiled configuration, with the pods of the node.
pub struct Compiled {
    pub classifier: Classifier,
    /// The classes of pods' addresses, where they differ from those of their networks.
    pub pods: BTreeMap<IpAddr, u32>,
    /// Its set of networks; 0 if it has none, because no schema depends on the source.
    pub set: u32,
    /// Numbers of schemas, in the order in which they are asked.
    pub schemas: Vec<u16>,
    /// Numbers of tenants, by the schema's index and the class of their pods.
    pub tenants: HashMap<(usize, u32), u16>,
    pub by_destination: HashMap<DestinationClass, u16>,
    /// The classes of sources that some address had from the beginning.
    met: BTreeSet<u32>,
}

/// What becomes of addresses when pods come and go.
pub struct Changes {
    pub classes: Vec<(IpNet, u32)>,
    pub gone: Vec<IpNet>,
}

impl Compiled {
    /// Without numbers yet.
    pub fn new(in_force: &InForce, identities: &Identities) -> Self {
        let mut classifier = Classifier::new(in_force);
        let pods = identities.iter().filter_map(|(address, identity)| {
            let class = pod_class(&mut classifier, address, identity)?;
            Some((address, class))
        });
        let pods: BTreeMap<_, _> = pods.collect();
        let networks = classifier.networks().map(|(_, class)| class);
        let met = networks.chain(pods.values().copied()).collect();
        Self {
            classifier,
            pods,
            set: 0,
            schemas: Vec::new(),
            tenants: HashMap::new(),
            by_destination: HashMap::new(),
            met,
        }
    }

    /// Whether it matters where connections come from.
    pub fn asks_for_source(&self) -> bool {
        self.met.len() > 1
    }

    /// The networks by which sources are told apart, pods among them, each with its class.
    pub fn networks(&self) -> impl Iterator<Item = (IpNet, u32)> {
        let of_rules = self.classifier.networks();
        let of_rules = of_rules.filter(|(network, _)| {
            let is_host = network.prefix_len() == network.max_prefix_len();
            !(is_host && self.pods.contains_key(&network.addr()))
        });
        let pods = self.pods.iter();
        of_rules.chain(pods.map(|(address, class)| (IpNet::from(*address), *class)))
    }

    /// The tenants that the schema of an index knows, by the classes of their pods.
    pub fn flows(&self) -> impl Iterator<Item = (usize, u32, String)> {
        let classes: BTreeSet<_> = self.pods.values().copied().collect();
        classes.into_iter().flat_map(|class| {
            let flows = self.classifier.flows_of(class);
            flows.map(move |(schema, flow)| (schema, class, flow.to_string()))
        })
    }

    /// The classes of pods' addresses as these identities say, of which those that were so before keep
    /// theirs. `None` if there is a class among the others that no pod had from the beginning: nothing has
    /// been decided for it.
    pub fn classes_of(
        &mut self,
        identities: &Identities,
        before: &Identities,
    ) -> Option<BTreeMap<IpAddr, u32>> {
        let mut pods = BTreeMap::new();
        for (address, identity) in identities.iter() {
            let class = match before.get(address) == Some(identity) {
                true => self.pods.get(&address).copied(),
                false => pod_class(&mut self.classifier, address, identity),
            };
            if let Some(class) = class {
                pods.insert(address, class);
            }
        }
        let is_known = pods.values().all(|class| self.met.contains(class));
        is_known.then_some(pods)
    }

    /// Which pods have another class than before, and which have that of their networks again.
    pub fn changes_since(&self, before: &BTreeMap<IpAddr, u32>) -> Changes {
        let host = |address: &IpAddr| IpNet::from(*address);
        let changed = self.pods.iter();
        let changed = changed.filter(|(address, class)| before.get(address) != Some(class));
        let mut classes: Vec<_> = changed.map(|(pod, class)| (host(pod), *class)).collect();
        let mut gone = Vec::new();
        for address in before.keys().filter(|pod| !self.pods.contains_key(pod)) {
            let network = host(address);
            match self.classifier.networks().find(|(of, _)| *of == network) {
                Some(of_rule) => classes.push(of_rule),
                None => gone.push(network),
            }
        }
        Changes { classes, gone }
    }

    /// What the class of a destination says.
    pub fn content(&self, destination: DestinationClass) -> Content {
        let decision = |source| {
            let number = |ingress| {
                let schema = self.classifier.decide(ingress, source, destination);
                let tenant = self.tenants.get(&(schema, source));
                *tenant.unwrap_or(&self.schemas[schema])
            };
            // In the order of `lb_common::service::Origin`.
            Decision::new([Ingress::Pod, Ingress::Node, Ingress::External].map(number))
        };
        let decisions: Arc<[_]> = (0..self.classifier.source_classes())
            .map(decision)
            .collect();
        let mut met = self.met.iter().map(|class| decisions[*class as usize]);
        match met.next() {
            Some(first) if met.all(|other| other == first) => Content::Any(first),
            _ => Content::BySource {
                set: self.set,
                decisions,
            },
        }
    }
}

/// The class of a pod's address, if it differs from that of its network.
fn pod_class(classifier: &mut Classifier, address: IpAddr, identity: &Identity) -> Option<u32> {
    if !classifier.asks_for_identity() {
        return None;
    }
    let class = classifier.pod_class(address, identity);
    (class != classifier.network_class(address)).then_some(class)
}
