//! Which endpoints a service port has, and in which of six classes they are. Every traffic policy's
//! set is cut from these classes.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    net::SocketAddr,
    ops::Range,
};

use lb_objects::{
    DEFAULT_WEIGHT, Endpoint, EndpointSlice, IpFamily, Protocol, RemovedEndpoints, ServicePort,
    SharedName, Weights,
};

use super::node::LocalNode;

/// The class of a usable endpoint, in the order of [`ClassifiedEndpoints`].
///
/// The order makes every set that a rule can ask for one contiguous range: the Local set is the two
/// local ready classes, the hinted Cluster set is the two hinted ones, all ready endpoints are the
/// first four, and the fallback sets are the terminating classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointClass {
    LocalReady,
    LocalReadyHinted,
    RemoteReadyHinted,
    RemoteReady,
    /// Serving and terminating on this node.
    LocalTerminating,
    /// Serving and terminating on another node.
    RemoteTerminating,
}

impl EndpointClass {
    /// All classes, in their order.
    pub const ALL: [Self; 6] = [
        Self::LocalReady,
        Self::LocalReadyHinted,
        Self::RemoteReadyHinted,
        Self::RemoteReady,
        Self::LocalTerminating,
        Self::RemoteTerminating,
    ];

    /// Whether its endpoints are on this node.
    pub fn is_local(self) -> bool {
        matches!(
            self,
            Self::LocalReady | Self::LocalReadyHinted | Self::LocalTerminating
        )
    }

    /// Whether its endpoints are ready, not terminating.
    pub fn is_ready(self) -> bool {
        !matches!(self, Self::LocalTerminating | Self::RemoteTerminating)
    }
}

/// Whether topology hints narrow the Cluster set, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyMode {
    /// There are no hints, not all endpoints have one, or none is for here: every ready endpoint is
    /// used.
    #[default]
    None,
    /// Only endpoints hinted for this node's zone.
    SameZone,
    /// Only endpoints hinted for this node.
    SameNode,
}

/// The usable endpoints of one service port and family, ordered by class, then by `ip:port` text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassifiedEndpoints {
    slots: Box<[SocketAddr]>,
    /// Of the slots; empty if all have the same.
    weights: Box<[u16]>,
    counts: [u32; 6],
    topology: TopologyMode,
}

impl ClassifiedEndpoints {
    /// All usable endpoints, class after class.
    pub fn slots(&self) -> &[SocketAddr] {
        &self.slots
    }

    /// The weights of [`Self::slots`]; empty if all are the same.
    pub fn weights(&self) -> &[u16] {
        &self.weights
    }

    /// The number of endpoints in each class, in the order of [`EndpointClass::ALL`].
    pub fn counts(&self) -> [u32; 6] {
        self.counts
    }

    /// Whether and how hints narrow the Cluster set.
    pub fn topology(&self) -> TopologyMode {
        self.topology
    }

    /// The endpoints of one class.
    pub fn class(&self, class: EndpointClass) -> &[SocketAddr] {
        self.range(class as usize..class as usize + 1)
    }

    /// All ready endpoints, whatever their hints.
    pub fn ready(&self) -> &[SocketAddr] {
        self.range(0..4)
    }

    /// The Cluster set: ready endpoints that the topology mode allows, or else all terminating
    /// ones.
    pub fn cluster(&self) -> &[SocketAddr] {
        if self.ready().is_empty() {
            return self.range(4..6);
        }
        match self.topology {
            TopologyMode::None => self.ready(),
            TopologyMode::SameZone | TopologyMode::SameNode => self.range(1..3),
        }
    }

    /// The Local set: ready endpoints of this node, or else its terminating ones. Hints never
    /// apply.
    pub fn local(&self) -> &[SocketAddr] {
        match self.range(0..2) {
            [] => self.class(EndpointClass::LocalTerminating),
            ready => ready,
        }
    }

    /// Has each endpoint count for so many parts of its weight, beside the others.
    pub fn scale(&mut self, parts: impl Fn(&SocketAddr) -> u16) {
        let own = self.weights.iter().copied();
        let own = own.chain(iter::repeat(DEFAULT_WEIGHT));
        let scaled = self.slots.iter().zip(own);
        self.weights = unless_same(scaled.map(|(slot, weight)| weight * parts(slot)));
    }

    /// Whether no endpoint in the cluster is usable.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    fn new<'a>(
        endpoints: impl Iterator<Item = (SocketAddr, Member<'a>)> + Clone,
        weights: &Weights,
        node: &LocalNode,
    ) -> Self {
        let ready = || endpoints.clone().map(|(_, member)| member.endpoint);
        let topology = topology_mode(|| ready().filter(|e| e.ready), node);
        let mut classes: [Vec<(SocketAddr, u16)>; 6] = Default::default();
        for (address, member) in endpoints {
            if let Some(class) = classify(member.endpoint, topology, node) {
                classes[class as usize].push((address, member.weight(weights)));
            }
        }

        for class in &mut classes {
            class.sort_by_cached_key(|(address, _)| address.to_string());
        }
        let all = || classes.iter().flatten();
        Self {
            counts: std::array::from_fn(|class| classes[class].len() as u32),
            slots: all().map(|(address, _)| *address).collect(),
            weights: unless_same(all().map(|(_, weight)| *weight)),
            topology,
        }
    }

    fn range(&self, classes: Range<usize>) -> &[SocketAddr] {
        let count = |counts: &[u32]| counts.iter().sum::<u32>() as usize;
        let start = count(&self.counts[..classes.start]);
        &self.slots[start..start + count(&self.counts[classes])]
    }
}

/// The weights of all endpoints; nothing if they are the same.
fn unless_same(weights: impl Iterator<Item = u16>) -> Box<[u16]> {
    let weights: Box<_> = weights.collect();
    let are_same = weights.iter().all(|weight| *weight == weights[0]);
    if are_same { Box::default() } else { weights }
}

/// A Service's slices of one family, merged per slice port, without duplicates.
pub(super) struct MergedSlices<'a> {
    ports: BTreeMap<(&'a str, Protocol), HashMap<SocketAddr, Member<'a>>>,
}

/// An endpoint, and the weight that its slice gives it.
#[derive(Clone, Copy)]
struct Member<'a> {
    endpoint: &'a Endpoint,
    weight: u16,
}

impl Member<'_> {
    /// Its weight in a Service with these.
    fn weight(self, weights: &Weights) -> u16 {
        weights.of(self.endpoint).unwrap_or(self.weight)
    }
}

impl<'a> MergedSlices<'a> {
    /// Merges in the order of the slices' names, so that the result does not depend on the order of
    /// `slices`.
    pub(super) fn new(slices: &[&'a EndpointSlice], family: IpFamily) -> Self {
        let mut slices = slices.to_vec();
        slices.sort_by(|a, b| a.name.cmp(&b.name));

        let mut ports: BTreeMap<_, HashMap<_, Member<'_>>> = BTreeMap::new();
        for slice in slices {
            for port in &slice.ports {
                let merged = ports.entry((&*port.name, port.protocol)).or_default();
                for endpoint in &slice.endpoints {
                    if IpFamily::of(endpoint.address) != family {
                        continue;
                    }
                    // A running pod takes precedence over a terminating one that still has the same
                    // address in some slice, whatever their order. Of two running ones the last is
                    // used, of two terminating ones the first.
                    let key = SocketAddr::new(endpoint.address, port.port);
                    if !endpoint.terminating || !merged.contains_key(&key) {
                        let weight = slice.weight;
                        merged.insert(key, Member { endpoint, weight });
                    }
                }
            }
        }
        Self { ports }
    }

    /// The endpoints behind a port of a Service with these weights, in classes.
    pub(super) fn classify(
        &self,
        port: &ServicePort,
        weights: &Weights,
        node: &LocalNode,
    ) -> ClassifiedEndpoints {
        match self.ports.get(&(&*port.name, port.protocol)) {
            Some(members) => {
                let members = members.iter().map(|(key, member)| (*key, *member));
                ClassifiedEndpoints::new(members, weights, node)
            }
            None => ClassifiedEndpoints::default(),
        }
    }

    /// [`Plan::remaining`](super::Plan::remaining) of the port with this name and protocol.
    pub(super) fn remaining(
        &self,
        port: &ServicePort,
        removed: RemovedEndpoints,
    ) -> Option<Box<[SocketAddr]>> {
        let remains: fn(&Endpoint) -> bool = match (port.protocol, removed) {
            (Protocol::Udp, _) => |endpoint| endpoint.serving,
            (Protocol::Tcp | Protocol::Sctp, RemovedEndpoints::Reset) => |_| true,
            (_, RemovedEndpoints::Keep) => return None,
        };
        let key = (&*port.name, port.protocol);
        let endpoints = self.ports.get(&key).into_iter().flatten();
        let mut remaining: Vec<_> = endpoints
            .filter(|(_, member)| remains(member.endpoint))
            .map(|(address, _)| *address)
            .collect();
        remaining.sort_unstable();
        Some(remaining.into())
    }

    /// The number of distinct addresses of ready endpoints on this node, over all slice ports.
    pub(super) fn local_ready(&self, node: &LocalNode) -> usize {
        let mut addresses: Vec<_> = self
            .ports
            .values()
            .flatten()
            .filter(|(_, member)| member.endpoint.ready && node.hosts(member.endpoint))
            .map(|(address, _)| address.ip())
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.len()
    }
}

/// Chooses the topology mode from the hints of the ready endpoints.
///
/// A kind of hint counts only if every ready endpoint has one, and at least one of them is for this
/// node, or its zone. Node hints take precedence, even if they lead out of the zone.
fn topology_mode<'a, I>(ready: impl Fn() -> I, node: &LocalNode) -> TopologyMode
where
    I: Iterator<Item = &'a Endpoint>,
{
    let in_force = |hints: fn(&Endpoint) -> &[SharedName], wanted: &str| {
        ready().all(|e| !hints(e).is_empty()) && ready().any(|e| has(hints(e), wanted))
    };
    if node.honours_node_hints() && in_force(|e| &e.node_hints, node.name()) {
        return TopologyMode::SameNode;
    }
    match node.zone() {
        Some(zone) if in_force(|e| &e.zone_hints, zone) => TopologyMode::SameZone,
        _ => TopologyMode::None,
    }
}

fn has(hints: &[SharedName], name: &str) -> bool {
    hints.iter().any(|hint| **hint == *name)
}

/// The endpoint's class; `None` if it is unusable (neither ready, nor serving while terminating).
fn classify(
    endpoint: &Endpoint,
    topology: TopologyMode,
    node: &LocalNode,
) -> Option<EndpointClass> {
    let local = node.hosts(endpoint);
    if !endpoint.ready {
        return match (endpoint.serving && endpoint.terminating, local) {
            (false, _) => None,
            (true, true) => Some(EndpointClass::LocalTerminating),
            (true, false) => Some(EndpointClass::RemoteTerminating),
        };
    }

    let hinted = match topology {
        TopologyMode::None => false,
        TopologyMode::SameNode => has(&endpoint.node_hints, node.name()),
        TopologyMode::SameZone => node
            .zone()
            .is_some_and(|zone| has(&endpoint.zone_hints, zone)),
    };
    Some(match (local, hinted) {
        (true, false) => EndpointClass::LocalReady,
        (true, true) => EndpointClass::LocalReadyHinted,
        (false, true) => EndpointClass::RemoteReadyHinted,
        (false, false) => EndpointClass::RemoteReady,
    })
}
