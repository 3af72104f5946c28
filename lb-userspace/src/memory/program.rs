//! From plans to tables.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64},
    },
};

use lb_common::{
    abi::{self, Config, config_flag, endpoint_flag, plan_flag},
    addr::{Ip4, Ip6},
    flow::Timeouts,
    parse,
};

use super::{FamilyTables, Learnt, MemoryTables, Service, shared::Shared};
use crate::{
    config::PortRange,
    model::{Algorithm, IpFamily, Protocol, TrafficPolicy},
    plan::{EndpointClass, FrontendKind, LocalDetector, LocalNode, Plan, TopologyMode},
    program::maglev,
};

/// A prefix length that no network has.
const NO_NETWORK: u32 = u32::MAX;

/// What decides about packets besides plans.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub node: &'a LocalNode,
    /// All addresses of this node.
    pub local_addresses: &'a [IpAddr],
    pub detector: &'a LocalDetector,
    pub masquerade_all: bool,
    /// Whether flows without source NAT bypass the host's stack where they can.
    pub bypass: bool,
    /// For source NAT.
    pub ports: PortRange,
    /// Room in each family's flow table; a flow takes two records.
    pub flow_records: u32,
    /// Length of Maglev lookup tables, a prime. Zero saves the work: whoever only asks for sets of
    /// endpoints does not miss them.
    pub maglev_rows: u32,
}

impl MemoryTables {
    /// Tables without Services.
    pub fn new(settings: &Settings<'_>) -> Self {
        Self {
            config: config(settings),
            timeouts: Timeouts::default(),
            v4: FamilyTables::new(settings.flow_records),
            v6: FamilyTables::new(settings.flow_records),
            services: BTreeMap::new(),
            endpoints: Vec::new(),
            slots: HashMap::new(),
            maglev: Vec::new(),
            maglev_rows: settings.maglev_rows,
            source_sets: Vec::new(),
            local_addresses: settings.local_addresses.iter().copied().collect(),
            detector: settings.detector.clone(),
            devices: Vec::new(),
            ways_back: HashMap::new(),
            routes: Vec::new(),
            service_ids: HashMap::new(),
            endpoint_ids: HashMap::new(),
            seconds: AtomicU32::new(0),
            random: AtomicU64::new(0),
            answers_left: AtomicU32::new(u32::MAX),
            learnt: Mutex::new(Learnt::default()),
            shared: Shared::new(),
        }
    }

    /// Replaces all Services. Flows, affinity and counters stay; services and endpoints that are
    /// still there keep their numbers.
    ///
    /// Where Services claim the same address the lesser kind of frontend wins, then the first plan.
    /// SCTP is left out, since the pipeline passes it on untouched.
    pub fn program<'a>(&mut self, plans: impl IntoIterator<Item = &'a Plan>) {
        self.services.clear();
        self.endpoints.clear();
        self.slots.clear();
        self.maglev.clear();
        self.source_sets.clear();
        self.v4.frontends.clear();
        self.v6.frontends.clear();

        let mut claims: HashMap<(SocketAddr, u8), (FrontendKind, u32)> = HashMap::new();
        for plan in plans {
            let Some(protocol) = protocol_number(plan.name.protocol) else {
                continue;
            };
            let service = self.add_service(plan);
            for frontend in &plan.frontends {
                let claim = (frontend.kind, service);
                claims
                    .entry((frontend.address, protocol))
                    .and_modify(|best| *best = (*best).min(claim))
                    .or_insert(claim);
            }
        }
        for (key, (kind, service)) in claims {
            let frontends = match key.0 {
                SocketAddr::V4(_) => &mut self.v4.frontends,
                SocketAddr::V6(_) => &mut self.v6.frontends,
            };
            frontends.insert(
                key,
                abi::Frontend {
                    service,
                    kind: abi_kind(kind) as u8,
                    pad: [0; 3],
                },
            );
        }
    }

    fn add_service(&mut self, plan: &Plan) -> u32 {
        let next = self.service_ids.len() as u32 + 1;
        let key = (plan.name.clone(), plan.family);
        let service = *self.service_ids.entry(key).or_insert(next);
        let source_set = match plan.source_ranges.as_slice() {
            [] => 0,
            ranges => {
                self.source_sets.push(ranges.to_vec());
                self.source_sets.len() as u32
            }
        };
        let mut content = abi::Plan {
            service,
            first: self.endpoints.len() as u32,
            counts: plan.endpoints.counts().map(|count| count as u32),
            flags: plan_flags(plan),
            affinity_seconds: plan.session_affinity.map_or(0, |timeout| {
                u32::try_from(timeout.as_secs().max(1)).unwrap_or(u32::MAX)
            }),
            source_set,
            ..abi::Plan::default()
        };
        for class in EndpointClass::ALL {
            for address in plan.endpoints.class(class) {
                self.add_endpoint(service, *address, class);
            }
        }
        if plan.algorithm == Algorithm::Maglev && !plan.endpoints.is_empty() {
            content.maglev_rows = self.maglev_rows;
            content.maglev_cluster = self.add_lookup_table(plan, plan.endpoints.cluster());
            content.maglev_local = self.add_lookup_table(plan, plan.endpoints.local());
        }
        let entry = Service {
            name: plan.name.clone(),
            plan: content,
            algorithm: plan.algorithm,
        };
        self.services.insert(service, entry);
        service
    }

    /// The first row of a lookup table for one of a plan's sets.
    fn add_lookup_table(&mut self, plan: &Plan, set: &[SocketAddr]) -> u32 {
        let first = self.maglev.len() as u32;
        let mut slots = plan.endpoints.slots().iter();
        // Every set is a contiguous part of the slots.
        let offset = slots.position(|slot| Some(slot) == set.first());
        let offset = offset.unwrap_or_default() as u16;
        self.maglev
            .extend(maglev::table(set, offset, self.maglev_rows));
        first
    }

    fn add_endpoint(&mut self, service: u32, address: SocketAddr, class: EndpointClass) {
        let next = self.endpoint_ids.len() as u32 + 1;
        let id = *self.endpoint_ids.entry((service, address)).or_insert(next);
        self.shared.grow(id + 1);
        let mut flags = 0;
        if is_local(class) {
            flags |= endpoint_flag::LOCAL;
            if self.local_addresses.contains(&address.ip()) {
                flags |= endpoint_flag::HOST;
            }
        }
        if matches!(&self.detector, LocalDetector::Networks(pods)
            if pods.iter().any(|net| net.contains(&address.ip())))
        {
            flags |= endpoint_flag::IN_CLUSTER;
        }
        self.slots.insert(id, self.endpoints.len() as u32);
        self.endpoints.push(abi::Endpoint {
            address: address.ip().into(),
            port: address.port(),
            flags,
            id,
        });
    }
}

fn config(settings: &Settings<'_>) -> Config {
    let mut config = Config {
        flags: detector_flag(settings.detector),
        pods4_prefix: NO_NETWORK,
        pods6_prefix: NO_NETWORK,
        snat_first: settings.ports.first.into(),
        snat_count: settings.ports.count(),
        hz: 1,
        ..Config::default()
    };
    if settings.masquerade_all {
        config.flags |= config_flag::MASQUERADE_ALL;
    }
    if settings.bypass {
        config.flags |= config_flag::BYPASS;
    }
    for family in [IpFamily::V4, IpFamily::V6] {
        match settings.node.ip(family) {
            Some(IpAddr::V4(node)) => config.node4 = Ip4::from(node),
            Some(IpAddr::V6(node)) => config.node6 = Ip6::from(node),
            None => {}
        }
    }
    if let LocalDetector::Networks(networks) = settings.detector {
        for network in networks {
            let prefix = network.prefix_len().into();
            match network.addr() {
                IpAddr::V4(pods) => (config.pods4, config.pods4_prefix) = (pods.into(), prefix),
                IpAddr::V6(pods) => (config.pods6, config.pods6_prefix) = (pods.into(), prefix),
            }
        }
    }
    config
}

fn detector_flag(detector: &LocalDetector) -> u32 {
    match detector {
        LocalDetector::Networks(_) => config_flag::DETECT_BY_CIDR,
        LocalDetector::Interface(_) | LocalDetector::InterfacePrefix(_) => {
            config_flag::DETECT_BY_DEVICE
        }
        LocalDetector::None => 0,
    }
}

fn plan_flags(plan: &Plan) -> u32 {
    let flag = |holds: bool, flag: u32| if holds { flag } else { 0 };
    flag(
        plan.endpoints.topology() != TopologyMode::None,
        plan_flag::HINTED,
    ) | flag(
        plan.internal_policy == TrafficPolicy::Local,
        plan_flag::INTERNAL_LOCAL,
    ) | flag(
        plan.external_policy == TrafficPolicy::Local,
        plan_flag::EXTERNAL_LOCAL,
    )
}

fn is_local(class: EndpointClass) -> bool {
    match class {
        EndpointClass::LocalReady
        | EndpointClass::LocalReadyHinted
        | EndpointClass::LocalTerminating => true,
        EndpointClass::RemoteReadyHinted
        | EndpointClass::RemoteReady
        | EndpointClass::RemoteTerminating => false,
    }
}

/// The IP protocol number; `None` for what the pipeline does not translate.
fn protocol_number(protocol: Protocol) -> Option<u8> {
    match protocol {
        Protocol::Tcp => Some(parse::TCP),
        Protocol::Udp => Some(parse::UDP),
        Protocol::Sctp => None,
    }
}

fn abi_kind(kind: FrontendKind) -> abi::FrontendKind {
    match kind {
        FrontendKind::ClusterIp => abi::FrontendKind::ClusterIp,
        FrontendKind::LoadBalancerIp => abi::FrontendKind::LoadBalancerIp,
        FrontendKind::ExternalIp => abi::FrontendKind::ExternalIp,
        FrontendKind::NodePort => abi::FrontendKind::NodePort,
    }
}
