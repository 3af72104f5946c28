//! Plans in tables in memory, written by the agent's own map writer, for `explain` and tests.

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
    ops::{Deref, DerefMut},
    sync::Arc,
};

use ipnet::IpNet;
use lb_admission::{classify::Identities, configuration::InForce};
use lb_common::{
    abi::{self, Config, config_flag},
    addr::Address,
    parse::{self, Tuple},
};
use lb_datapath::memory::MemoryTables;
use lb_objects::{Algorithm, Protocol};

use crate::{
    config::AdmissionMode,
    map_writer::{
        Key, Limited, MapWriter, NodeFacts, NotInForce, NotProgrammed, Numbered, Reserved, Settings,
    },
    plan::{LocalDetector, Plan, ServicePortName},
};

/// [`MemoryTables`] with the Services that [`Self::program`] has written to them.
pub struct ProgrammedTables {
    tables: MemoryTables,
    writer: MapWriter,
    /// By service id.
    services: BTreeMap<u32, Service>,
    detector: LocalDetector,
}

// The pipeline knows protocols by the same numbers.
const _: () = assert!(
    Protocol::Tcp.number() == parse::TCP
        && Protocol::Udp.number() == parse::UDP
        && Protocol::Sctp.number() == parse::SCTP
);

/// The addresses, ports and protocol of a packet, as the pipeline has them.
pub fn tuple<A: Address>(from: SocketAddr, to: SocketAddr, protocol: Protocol) -> Tuple<A> {
    Tuple {
        source: A::from_mapped(from.ip().into()),
        destination: A::from_mapped(to.ip().into()),
        source_port: from.port(),
        destination_port: to.port(),
        protocol: protocol.number(),
        pad: [0; 3],
    }
}

/// What the maps do not contain about a service port of one family.
struct Service {
    name: Arc<ServicePortName>,
    algorithm: Algorithm,
    source_ranges: Arc<[IpNet]>,
    left_to_node: Option<SocketAddr>,
    cluster_ip: Option<IpAddr>,
}

impl ProgrammedTables {
    /// Tables without Services, on a node with these settings. Each family's flow table has
    /// `flow_records` records, two for each flow.
    pub fn new(settings: &Settings<'_>, facts: NodeFacts, flow_records: u32) -> Self {
        let mut config = Config {
            hz: 1,
            ..Config::default()
        };
        settings.write(&mut config);
        let local_addresses = facts.local_addresses.iter().copied().collect();
        let tables = MemoryTables::new(config, local_addresses, flow_records);
        Self {
            writer: MapWriter::empty(tables.maps(), facts),
            tables,
            services: BTreeMap::new(),
            detector: settings.detector.clone(),
        }
    }

    /// Replaces all Services. Flows, affinity and counters stay; services and endpoints that still
    /// exist keep their numbers.
    pub fn program<'a>(&mut self, plans: impl IntoIterator<Item = &'a Plan>) {
        let ids = self.writer.ids();
        let mut gone: HashSet<Key> = ids.map(|(key, _)| key.clone()).collect();
        self.services.clear();
        for plan in plans {
            let key = Key::of(plan);
            gone.remove(&key);
            // Ports that found no room are listed by `not_programmed`.
            let _ = self.writer.apply(key.clone(), Some(plan));
            if let Some(id) = self.writer.id(&key) {
                let service = Service {
                    name: key.name,
                    algorithm: plan.algorithm,
                    source_ranges: plan.source_ranges.clone(),
                    left_to_node: plan.left_to_node.as_deref().copied(),
                    cluster_ip: plan.cluster_ip(),
                };
                self.services.insert(id, service);
            }
        }
        for key in gone {
            let _ = self.writer.apply(key, None);
        }
        self.writer.settle();
        self.writer.tidy();
    }

    /// Says which addresses Services do not get when they are programmed from now on.
    pub fn reserve(&mut self, reserved: Reserved) {
        self.writer.set_reserved(reserved);
    }

    /// Says which ServiceCIDRs the cluster has, for when Services are programmed from now on.
    pub fn set_service_cidrs(&mut self, cidrs: &[IpNet]) {
        self.writer.set_service_cidrs(cidrs);
    }

    /// Service ports that found no room.
    pub fn not_programmed(&self) -> impl Iterator<Item = (&Key, NotProgrammed)> {
        self.writer.waiting()
    }

    /// The Services with limits of connections.
    pub fn limited(&self) -> Arc<Limited> {
        self.writer.limited()
    }

    /// Classifies connections by these flow schemas, on a node with so many seats and these pods.
    ///
    /// # Errors
    /// If there is no room for them.
    pub fn admit(
        &mut self,
        in_force: &InForce,
        mode: AdmissionMode,
        seats: u32,
        identities: Identities,
    ) -> Result<(), NotInForce> {
        let limits = in_force.limits(seats);
        // Nothing is in force yet that this could change.
        let _ = self.writer.set_identities(identities);
        self.writer.set_schemas(in_force, mode, &limits)?;
        self.writer.settle();
        self.writer.tidy();
        self.tables.config.flags |= config_flag::ADMISSION;
        Ok(())
    }

    /// The flow schemas and priority levels.
    pub fn numbered(&self) -> Arc<Numbered> {
        self.writer.numbered()
    }

    /// Adds a device with this name and these [`abi::device_flag`]s. [`abi::device_flag::PODS`] is
    /// set if the detector says so. Returns the interface index.
    pub fn add_device(&mut self, name: &str, flags: u32) -> u32 {
        let flags = match self.detector.is_device_of_pods(name) {
            true => flags | abi::device_flag::PODS,
            false => flags,
        };
        self.tables.add_device(flags)
    }

    /// Forgets everything that packets have left behind, such as flows, and restarts time and
    /// random numbers: as if only programming had ever happened.
    pub fn forget(&mut self) {
        self.tables.forget(self.services.keys().copied());
    }

    /// The name of a service port, by its service id.
    pub fn service_name(&self, service: u32) -> Option<&ServicePortName> {
        self.services.get(&service).map(|service| &*service.name)
    }

    /// The service port with this ClusterIP, port and protocol, if it is left to the node.
    pub fn left_to_node(
        &self,
        address: SocketAddr,
        protocol: Protocol,
    ) -> Option<&ServicePortName> {
        let mut services = self.services.values();
        let found = services.find(|service| {
            service.left_to_node == Some(address) && service.name.protocol == protocol
        });
        found.map(|service| &*service.name)
    }

    /// A service port that has this ClusterIP.
    pub fn with_cluster_ip(&self, address: IpAddr) -> Option<&ServicePortName> {
        let mut services = self.services.values();
        let found = services.find(|service| service.cluster_ip == Some(address));
        found.map(|service| &*service.name)
    }

    /// How a service chooses endpoints, even if it has no lookup tables.
    pub fn algorithm(&self, service: u32) -> Option<Algorithm> {
        self.services.get(&service).map(|service| service.algorithm)
    }

    /// The sources that a service's load balancer IPs accept; empty means all.
    pub fn source_ranges(&self, service: u32) -> &[IpNet] {
        let service = self.services.get(&service);
        service.map_or(&[], |service| &service.source_ranges)
    }
}

impl Deref for ProgrammedTables {
    type Target = MemoryTables;

    fn deref(&self) -> &MemoryTables {
        &self.tables
    }
}

impl DerefMut for ProgrammedTables {
    fn deref_mut(&mut self) -> &mut MemoryTables {
        &mut self.tables
    }
}
