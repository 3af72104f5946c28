//! Map writing in memory: what a program would find is checked after every write.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use lb_objects::{
    Algorithm, Endpoint, EndpointPort, EndpointSlice, IpFamily, Node, ObjectName, Protocol,
    RemovedEndpoints, Service, ServicePort, ServiceType, SharedName, TrafficPolicy, Weights,
};

use self::fake::{Kernel, PlanView, ROOMY, Sizes, View};
use super::{
    Key, MapWriter, NodeFacts, Reason,
    frontends::{Address, claims},
    maglev,
};
use crate::{
    config::MapLimits,
    plan::{self, FrontendKind, Importance, LocalNode, Plan, PlanOptions, Rank},
};

mod adoption;
mod capacity;
mod changes;
mod cluster_ips;
mod counted;
mod fairness;
mod fake;
mod full_maps;
mod properties;
mod schemas;
mod seats;
mod tenants;
mod verification;
mod weights;

/// Rows of Maglev tables: few, to keep the checks quick.
const ROWS: u32 = 13;

/// What a test specifies of a Service with one port.
#[derive(Clone, Debug)]
struct Spec {
    /// Part of its name and its cluster IP.
    number: u8,
    /// When it was created.
    created: i64,
    family: IpFamily,
    protocol: Protocol,
    port: u16,
    node_port: u16,
    load_balancer: Option<u8>,
    /// How many externalIPs it has.
    externals: u8,
    /// Whether others depend on it.
    essential: bool,
    /// Last octets of source networks.
    sources: Vec<u8>,
    affinity: u64,
    maglev: bool,
    local: bool,
    endpoints: Vec<(u8, Condition)>,
    /// Of the endpoints from the first one on; all others have the usual one.
    weights: Vec<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Ready,
    ReadyHere,
    Terminating,
    TerminatingHere,
}

fn spec(number: u8, endpoints: impl IntoIterator<Item = u8>) -> Spec {
    Spec {
        number,
        created: 0,
        family: IpFamily::V4,
        protocol: Protocol::Tcp,
        port: 80,
        node_port: 0,
        load_balancer: None,
        externals: 0,
        essential: false,
        sources: Vec::new(),
        affinity: 0,
        maglev: false,
        local: false,
        endpoints: endpoints
            .into_iter()
            .map(|number| (number, Condition::Ready))
            .collect(),
        weights: Vec::new(),
    }
}

impl Spec {
    fn plan(&self) -> Plan {
        let name = ObjectName::new("default", format!("s{}", self.number));
        let policy = match self.local {
            true => TrafficPolicy::Local,
            false => TrafficPolicy::Cluster,
        };
        let service = Service {
            name: name.clone(),
            uid: None,
            created: self.created,
            service_type: ServiceType::LoadBalancer,
            cluster_ips: vec![self.ip(96, self.number)],
            external_ips: (0..self.externals)
                .map(|n| self.ip(self.number, n))
                .collect(),
            load_balancer_ips: self
                .load_balancer
                .map(|n| self.ip(50, n))
                .into_iter()
                .collect(),
            ports: vec![ServicePort {
                name: SharedName::default(),
                protocol: self.protocol,
                port: self.port,
                node_port: self.node_port,
            }],
            internal_traffic_policy: policy,
            external_traffic_policy: policy,
            load_balancer_source_ranges: self
                .sources
                .iter()
                .map(|n| ipnet::IpNet::new_assert(self.ip(8, *n), 32))
                .collect(),
            health_check_node_port: 0,
            session_affinity: (self.affinity != 0).then(|| Duration::from_secs(self.affinity)),
            algorithm: match self.maglev {
                true => Algorithm::Maglev,
                false => Algorithm::Random,
            },
            weights: self.weights(),
            slow_start: None,
            removed_endpoints: RemovedEndpoints::Keep,
            max_connections: 0,
            hash_balance_factor: 0,
            max_connections_per_endpoint: 0,
            long_running: false,
        };
        let slice = EndpointSlice {
            name: name.clone(),
            service: name.name.to_string(),
            weight: 1,
            ports: vec![EndpointPort {
                name: SharedName::default(),
                protocol: self.protocol,
                port: 8080,
            }],
            endpoints: self.endpoints.iter().map(|e| self.endpoint(*e)).collect(),
        };
        let mut plan = plan::plan(&service, &[&slice], &node())
            .ports
            .swap_remove(0);
        if self.essential {
            plan.rank.importance = Importance::Essential;
        }
        plan
    }

    fn weights(&self) -> Weights {
        let mut weights = Weights::default();
        for ((number, _), weight) in self.endpoints.iter().zip(&self.weights) {
            weights.set_address(self.ip(1, *number), *weight);
        }
        weights
    }

    fn key(&self) -> Key {
        Key::of(&self.plan())
    }

    fn endpoint(&self, (number, condition): (u8, Condition)) -> Endpoint {
        let ready = matches!(condition, Condition::Ready | Condition::ReadyHere);
        let here = matches!(condition, Condition::ReadyHere | Condition::TerminatingHere);
        Endpoint {
            address: self.ip(1, number),
            ready,
            serving: true,
            terminating: !ready,
            node_name: here.then(|| "here".into()),
            zone_hints: Box::default(),
            node_hints: Box::default(),
        }
    }

    fn ip(&self, network: u8, number: u8) -> IpAddr {
        ip(self.family, network, number)
    }
}

fn ip(family: IpFamily, network: u8, number: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(10, network, 0, number).into(),
        IpFamily::V6 => Ipv6Addr::new(0xfd00, network.into(), 0, 0, 0, 0, 0, number.into()).into(),
    }
}

fn node() -> LocalNode {
    let addresses: Vec<_> = [IpFamily::V4, IpFamily::V6].map(|f| ip(f, 200, 1)).into();
    let node = Node {
        name: "here".into(),
        addresses: addresses.clone(),
        ..Node::default()
    };
    LocalNode::new(&node, &addresses, &PlanOptions::default())
}

fn facts() -> NodeFacts {
    NodeFacts {
        maglev_rows: ROWS,
        ..NodeFacts::default()
    }
}

/// A map writer and the maps that it writes.
struct Bench {
    kernel: Kernel,
    writer: MapWriter,
    /// The plans that have been applied.
    plans: BTreeMap<Key, Plan>,
}

impl Bench {
    fn new(sizes: Sizes) -> Self {
        Self::limited(sizes, MapLimits::default())
    }

    fn limited(sizes: Sizes, limits: MapLimits) -> Self {
        Self::on_node(sizes, NodeFacts { limits, ..facts() })
    }

    fn on_node(sizes: Sizes, facts: NodeFacts) -> Self {
        let kernel = Kernel::new(sizes);
        let writer = MapWriter::new(kernel.maps(), facts).unwrap();
        let mut bench = Self {
            kernel,
            writer,
            plans: BTreeMap::new(),
        };
        bench.writer.finish_adoption();
        bench
    }

    /// Ends the map writer and starts another one on the same maps.
    fn restart(&mut self) {
        self.kernel.state().allowed = None;
        self.writer = MapWriter::new(self.kernel.maps(), facts()).unwrap();
    }

    /// Applies some specs and removes others in one round. During the round programs must find
    /// either the old or the new state.
    fn round(&mut self, apply: &[Spec], remove: &[Key]) {
        let before = self.plans.clone();
        self.note(apply, remove);
        self.allow(&before);
        self.write(apply, remove);
        self.writer.settle();
        self.kernel.state().allowed = None;
    }

    /// Applies everything again, as an agent does after its start.
    fn apply_all(&mut self) {
        for (key, plan) in &self.plans {
            // In some tests there is no room for all of it.
            let _ = self.writer.apply(key.clone(), Some(plan));
        }
        self.writer.settle();
        self.writer.finish_adoption();
    }

    fn note(&mut self, apply: &[Spec], remove: &[Key]) {
        for key in remove {
            self.plans.remove(key);
        }
        for spec in apply {
            self.plans.insert(spec.key(), spec.plan());
        }
    }

    fn write(&mut self, apply: &[Spec], remove: &[Key]) {
        for key in remove {
            self.writer.apply(key.clone(), None).unwrap();
        }
        for spec in apply {
            let _ = self.writer.apply(spec.key(), Some(&spec.plan()));
        }
    }

    /// Allows programs to find the state of `before` or what is applied now. If an address changes
    /// hands, both holders may be in their old and in their new state.
    fn allow(&self, before: &BTreeMap<Key, Plan>) {
        let (old, new) = (holders(before), holders(&self.plans));
        let mut allowed: HashMap<Address, HashSet<Option<View>>> = HashMap::new();
        for address in old.keys().chain(new.keys()) {
            let views = allowed.entry(*address).or_default();
            let present = [old.contains_key(address), new.contains_key(address)];
            if present.contains(&false) {
                views.insert(None);
            }
            for (key, kind) in [&old, &new].into_iter().filter_map(|h| h.get(address)) {
                for plan in [before, &self.plans].into_iter().filter_map(|p| p.get(key)) {
                    views.insert(Some(view(plan, *kind)));
                }
            }
        }
        self.kernel.state().allowed = Some(allowed);
    }

    /// Checks that programs find exactly what is applied.
    fn assert_complete(&self) {
        let wanted: BTreeMap<_, _> = holders(&self.plans)
            .into_iter()
            .map(|(address, (key, kind))| (address, view(&self.plans[&key], kind)))
            .collect();
        assert_eq!(self.kernel.state().views(), wanted);
        for (key, plan) in &self.plans {
            let (found, wanted) = (self.weights(key), plan.endpoints.weights());
            let wanted = wanted.iter().map(|weight| u32::from(*weight));
            let all = wanted.chain(std::iter::repeat(0));
            assert!(found.iter().copied().eq(all.take(found.len())), "{found:?}");
        }
        assert_eq!(self.waiting(), Vec::<String>::new());
    }

    /// The weights of a service port's endpoints, where programs find them.
    fn weights(&self, key: &Key) -> Vec<u32> {
        let state = self.kernel.state();
        let endpoints = self.writer.programmed[key].endpoints.iter();
        let loads = endpoints.map(|endpoint| &state.endpoint_loads[endpoint.id as usize]);
        loads.map(|load| load.weight).collect()
    }

    fn writes(&self) -> usize {
        self.kernel.state().writes
    }

    /// Who lacks something, but for addresses that somebody else has.
    fn waiting(&self) -> Vec<String> {
        let waiting = self.writer.waiting();
        let waiting = waiting.filter(|(_, error)| error.reason() != Reason::AddressTaken);
        waiting.map(|(_, error)| error.to_string()).collect()
    }
}

/// Who holds each address: the lesser kind, then who goes first, then the lesser key.
fn holders(plans: &BTreeMap<Key, Plan>) -> BTreeMap<Address, (Key, u8)> {
    let mut holders: BTreeMap<Address, (FrontendKind, Rank, Key)> = BTreeMap::new();
    for (key, plan) in plans {
        for claim in claims(key, &*plan.frontends) {
            let mine = (claim.kind, plan.rank, key.clone());
            let holder = holders.entry(claim.address).or_insert_with(|| mine.clone());
            if mine < *holder {
                *holder = mine;
            }
        }
    }
    holders
        .into_iter()
        .map(|(address, (kind, _, key))| (address, (key, kind as u8)))
        .collect()
}

/// What a program should find for a plan, computed from the plan alone.
fn view(plan: &Plan, kind: u8) -> View {
    let endpoints = &plan.endpoints;
    let counts = endpoints.counts();
    let local = |position: usize| {
        let [a, b, c, d, e, _] = counts.map(|count| count as usize);
        position < a + b || (a + b + c + d..a + b + c + d + e).contains(&position)
    };
    let slots = endpoints.slots().iter().enumerate();
    let external_local = plan.external_policy == TrafficPolicy::Local && plan.externally_accessible;
    let flags = u32::from(plan.internal_policy == TrafficPolicy::Local) * 2
        + u32::from(external_local) * 4
        + u32::from(plan.rank.is_essential()) * 16;
    let (is_maglev, has_weights) = (
        plan.algorithm == Algorithm::Maglev,
        !endpoints.weights().is_empty(),
    );
    let flags = flags + u32::from(has_weights && !is_maglev) * 64;
    let weight = |address: &SocketAddr| {
        let mut slots = endpoints.slots().iter().zip(endpoints.weights());
        let found = slots.find(|(slot, _)| *slot == address);
        *found.map_or(&1, |(_, weight)| weight)
    };
    let table = |set: &[SocketAddr]| -> Vec<SocketAddr> {
        let weights: Vec<_> = set.iter().map(weight).collect();
        let rows = maglev::table(set, &weights, 0, ROWS).into_iter();
        rows.map(|position| set[usize::from(position)]).collect()
    };
    let has_tables = has_weights || is_maglev && !endpoints.is_empty();
    View {
        kind,
        plan: Some(PlanView {
            counts,
            flags,
            affinity_seconds: plan.session_affinity.map_or(0, |s| s.as_secs() as u32),
            endpoints: slots
                .map(|(position, address)| (*address, u16::from(local(position))))
                .collect(),
            source_ranges: plan
                .source_ranges
                .iter()
                .map(|range| match range.network() {
                    IpAddr::V4(v4) => (32 + 96 + 32, v4.to_ipv6_mapped().octets()),
                    IpAddr::V6(v6) => (32 + 32, v6.octets()),
                })
                .collect(),
            tables: has_tables.then(|| [table(endpoints.cluster()), table(endpoints.local())]),
        }),
    }
}
