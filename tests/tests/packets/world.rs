//! The programs in the kernel, with maps to fill and counters to compare.

mod reuse;

use std::{
    mem::{offset_of, transmute},
    net::{IpAddr, SocketAddr},
    panic::resume_unwind,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use aya::{
    TestRun as _, TestRunOptions,
    maps::{Map, MapData, PerCpuArray, PerCpuValues, lpm_trie::Key},
    programs::Program,
    util::nr_cpus,
};
use lb_common::{
    abi::{
        self, ClusterIp, Config, Decision, DestinationClass, Device, Endpoint, EndpointState,
        FlowSchema, FragmentKey, Frontend, FrontendKey, Limits, LocalAddress, MaglevRows, Plan,
        RejectBudget, SERVICE_RANGES, Service, ServiceFlows, ServiceRange, ServiceStats, Shortages,
        SourceRangeKey, config_flag, device_flag,
    },
    addr::{Address, Ip4, Ip6},
    flow::{
        Flow, Seats, Timeouts, flow_flag,
        limit::{FIRST_LEVEL, NODE},
        party::{Members, PartyRule},
        place::LevelSeats,
        tag,
    },
    pipeline::RINGS,
    select::Policy,
    trace::{Filter, Trace},
    verdict::{COUNTERS, Hook, Reason},
};
use lb_datapath::{
    self, OBJECT, Settings, Tracing,
    bpf::{BatchMap, MappedArray},
    load,
    trace::Lines,
};
use lb_oracle::{self as oracle, service::MAGLEV_ROWS};
pub use lb_oracle::{expected::*, scene::SNAT_PORT};
use node_lb::{
    flows::{FlowSweeper, FlowTables, Parties, SeatTable, ServiceCounters},
    map_writer::maglev,
};

use self::reuse::Programs;
use super::{
    scene::{self, EXTERNAL, NARROW, POD, Scene},
    service::{Class, ServiceSpec},
};

/// Records in each flow table.
const FLOWS: u32 = 1024;
/// A tick of so many jiffies that time stands still, however slow the machine is.
const STANDSTILL: u32 = 40;
/// Half-open flows of a service under pressure.
pub const HALF_OPEN: u32 = 64;
/// Limits of connections that tests use: the node's, and those of the first services.
const LIMITED: u32 = 8;
/// Room for the resulting packet, in bytes.
const OUTPUT: usize = 70_000;

/// A node with node-lb's programs.
pub struct World {
    programs: Programs,
    /// Programs that take the place of the others.
    tracing: Option<(Tracing, Lines)>,
    config: MappedArray<Config>,
    services: MappedArray<Service>,
    plans: MappedArray<Plan>,
    endpoints: MappedArray<Endpoint>,
    states: MappedArray<EndpointState>,
    stats: MappedArray<ServiceStats>,
    shortages: MappedArray<Shortages>,
    seats: MappedArray<Seats>,
    maglev: MappedArray<MaglevRows>,
    frontends4: BatchMap<FrontendKey<Ip4>, Frontend>,
    frontends6: BatchMap<FrontendKey<Ip6>, Frontend>,
    source_ranges: BatchMap<Key<SourceRangeKey>, u8>,
    fragments: BatchMap<FragmentKey, u32>,
    flows4: MappedArray<[u64; 8]>,
    flows6: MappedArray<[u64; 16]>,
    counters: PerCpuArray<MapData, u64>,
    budget: PerCpuArray<MapData, RejectBudget>,
    counted: Vec<u64>,
    summed: Tally,
    /// The next service, and the next endpoint slot.
    next: (u32, u32),
    /// Next element of `MAGLEV`.
    next_rows: u32,
}

/// Runs a test on its own node.
pub fn world(test: impl FnOnce(&mut World) + Send) {
    in_world(Programs::get, test);
}

/// Runs a test on a node with these programs.
fn in_world(
    programs: impl FnOnce(&Settings<'_>) -> Programs + Send,
    test: impl FnOnce(&mut World) + Send,
) {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            scene::enter();
            test(&mut World::new(programs(&settings())));
        });
        thread.join().unwrap_or_else(|panic| resume_unwind(panic));
    });
}

/// Running packets.
impl World {
    /// Sends a frame through a program and compares everything: the action, the frame, and each
    /// counter.
    #[track_caller]
    pub fn check(
        &mut self,
        sentence: &str,
        at: At,
        device: &str,
        frame: impl Into<Vec<u8>>,
        expected: Expected,
    ) {
        let frame = frame.into();
        let found = self.run(at, device, &frame);
        let name = format!("{sentence} ({} on {device})", at.program());
        assert_expected(&name, at, &found, &expected);
    }

    /// Sends a frame through a program.
    pub fn run(&mut self, at: At, device: &str, frame: &[u8]) -> Outcome {
        self.run_as(at, device, frame, 0)
    }

    /// Sends frames through programs from so many threads at once, which share the programs, until
    /// there are no more. Returns how many frames there were.
    pub fn run_beside(
        &self,
        programs: [At; 2],
        device: &str,
        threads: usize,
        next: impl Fn() -> Option<Vec<u8>> + Sync,
    ) -> u64 {
        let ifindex = scene::index(device);
        let run = |at: At| {
            let program = self.programs.program(at);
            let mut frames = 0;
            while let Some(frame) = next() {
                test_run(program, at, ifindex, &frame, 0);
                frames += 1;
            }
            frames
        };
        thread::scope(|scope| {
            let start = |number| scope.spawn(move || run(programs[number % programs.len()]));
            let running: Vec<_> = (0..threads).map(start).collect();
            running
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        })
    }

    /// [`World::run`] with a frame that a device will split into segments of `gso_size` bytes (TC
    /// only).
    pub fn run_as(&mut self, at: At, device: &str, frame: &[u8], gso_size: u32) -> Outcome {
        let tracing = self.tracing.as_ref();
        let program = tracing.and_then(|(tracing, _)| tracing.tested(at.program()));
        let program = program.unwrap_or_else(|| self.programs.program(at));
        let (value, output) = test_run(program, at, scene::index(device), frame, gso_size);
        Outcome {
            action: Action::of(at, value),
            frame: output,
            counted: self.newly_counted(),
            stats: self.newly_summed(),
        }
    }

    /// From now on, programs that trace take the place of the others, and log the packets that
    /// match.
    pub fn trace(&mut self, filter: Filter, limit: u32, duration: Duration) {
        let programs = At::ALL.map(At::program);
        let (tracing, lines) = Tracing::load(&self.programs.pins, &programs, settings()).unwrap();
        tracing.begin(filter, limit, duration);
        self.tracing = Some((tracing, lines));
    }

    /// The lines that they have logged since this was last asked.
    pub fn lines(&mut self) -> Vec<String> {
        let (_, lines) = self.tracing.as_mut().expect("packets are traced");
        lines.read()
    }

    /// What they have come to.
    pub fn traced(&self) -> Trace {
        let (tracing, _) = self.tracing.as_ref().expect("packets are traced");
        tracing.so_far()
    }

    fn newly_counted(&mut self) -> Vec<(Hook, Reason, u64)> {
        let now = self.read_counters();
        let before = std::mem::replace(&mut self.counted, now);
        let differences = self.counted.iter().zip(before).enumerate();
        differences
            .filter(|(_, (now, before))| *now != before)
            .map(|(index, (now, before))| {
                let room = COUNTERS / Hook::ALL.len();
                (
                    Hook::ALL[index / room],
                    Reason::ALL[index % room],
                    now - before,
                )
            })
            .collect()
    }

    fn read_counters(&self) -> Vec<u64> {
        (0..COUNTERS as u32)
            .map(|index| self.counters.get(&index, 0).unwrap().iter().sum())
            .collect()
    }

    /// Also checks that the endpoints' connections add up to those of the services.
    fn newly_summed(&mut self) -> Stats {
        let (stats, shortages) = (&self.stats, &self.shortages);
        let services = 0..self.next.0;
        let newly = self
            .summed
            .newly(services.map(|service| (stats.read(service), shortages.read(service))));
        let states = self.states.iter(0..self.next.1);
        let connections: u64 = states.map(|(_, state)| state.connections).sum();
        assert_eq!(
            connections,
            self.summed.connections(),
            "connections of endpoints and of services"
        );
        newly
    }
}

impl oracle::Subject for World {
    fn seats(&self) -> i32 {
        self.seats.read(NODE).used()
    }

    fn run(&mut self, at: At, device: &str, frame: &[u8]) -> Outcome {
        World::run(self, at, device, frame)
    }

    fn kept(&self, protocol: u8, from: (IpAddr, u16), to: (IpAddr, u16)) -> Option<Kept> {
        World::kept(self, protocol, from, to)
    }
}

/// Filling maps.
impl World {
    /// Makes this equal to the model's node, without flows.
    pub fn become_like(&mut self, model: &oracle::Model) {
        self.forget();
        self.configure(|config| {
            config.snat_count = model.ports.into();
            config.reject_rate = u32::MAX;
            config.flags = config_flag::DETECT_BY_CIDR | oracle::memory::flags(model);
        });
        self.limit_connections(NODE, model.limit as u32);
        for service in &model.services {
            self.add(service);
        }
    }

    /// Adds a service. Its plan has the same number.
    pub fn add(&mut self, spec: &ServiceSpec) -> u32 {
        let (id, first) = self.next;
        let mut plan = Plan {
            service: id,
            first,
            flags: spec.flags,
            affinity_seconds: spec.affinity_seconds,
            source_set: if spec.source_ranges.is_empty() { 0 } else { id },
            ..Plan::default()
        };
        let mut slot = first;
        for class in Class::ALL {
            for endpoint in spec.endpoints.iter().filter(|e| e.class == class) {
                plan.counts[class as usize] += 1;
                let value = Endpoint {
                    address: endpoint.address.into(),
                    port: endpoint.port,
                    flags: endpoint.flags,
                    id: slot,
                };
                self.endpoints.write(slot, &value);
                let state = EndpointState {
                    slots: [slot, u32::MAX],
                    ..EndpointState::default()
                };
                self.states.write(slot, &state);
                slot += 1;
            }
        }
        if spec.maglev {
            plan.maglev_rows = MAGLEV_ROWS;
            plan.maglev_cluster = self.add_lookup_table(&plan, Policy::Cluster);
            plan.maglev_local = self.add_lookup_table(&plan, Policy::Local);
        }
        for (network, prefix) in &spec.source_ranges {
            let key = SourceRangeKey {
                set: id.to_be(),
                address: (*network).into(),
            };
            let mapped = if network.is_ipv4() { 96 } else { 0 };
            let key = Key::new(32 + mapped + u32::from(*prefix), key);
            self.source_ranges.update(&[key], &[1]).unwrap();
        }
        self.plans.write(id, &plan);
        self.services.write(
            id,
            &Service {
                plan: id,
                name_hash: 0,
            },
        );
        for (kind, address, port) in &spec.frontends {
            self.add_frontend(*kind, *address, *port, spec.protocol, id);
        }
        self.next = (id + 1, slot);
        id
    }

    /// The first row of a lookup table for one of a plan's sets.
    fn add_lookup_table(&mut self, plan: &Plan, policy: Policy) -> u32 {
        let set = plan.set(policy);
        let endpoints = (set.first..set.first + set.count).map(|slot| {
            let endpoint = self.endpoints.read(slot);
            SocketAddr::new(endpoint.address.into(), endpoint.port)
        });
        let endpoints: Vec<_> = endpoints.collect();
        let offset = (set.first - plan.first) as u16;
        let first = self.next_rows;
        for rows in maglev::table(&endpoints, &[], offset, MAGLEV_ROWS).chunks(4) {
            let position = |index: usize| rows.get(index).copied().unwrap_or(u16::MAX);
            let positions = std::array::from_fn(position);
            self.maglev.write(self.next_rows, &MaglevRows { positions });
            self.next_rows += 1;
        }
        first * 4
    }

    fn add_frontend(
        &self,
        kind: abi::FrontendKind,
        address: IpAddr,
        port: u16,
        protocol: u8,
        service: u32,
    ) {
        let value = Frontend {
            service,
            kind: kind as u8,
            pad: 0,
            class: 0,
        };
        match address {
            IpAddr::V4(address) => self
                .frontends4
                .update(&[key(address.into(), port, protocol)], &[value]),
            IpAddr::V6(address) => self
                .frontends6
                .update(&[key(address.into(), port, protocol)], &[value]),
        }
        .unwrap();
    }

    /// Has an address be a ClusterIP, in a range of its own.
    pub fn add_cluster_ip(&self, address: IpAddr, flags: u32) {
        let ips = BatchMap::new(&self.programs.map("CLUSTER_IPS")).unwrap();
        ips.update(&[Ip6::from(address)], &[ClusterIp::default()])
            .unwrap();
        let (index, prefix) = match address {
            IpAddr::V4(_) => (0, 32),
            IpAddr::V6(_) => (SERVICE_RANGES, 128),
        };
        let range = ServiceRange {
            network: address.into(),
            prefix,
            flags,
        };
        MappedArray::new(&self.programs.map("SERVICE_RANGES"))
            .unwrap()
            .write(index, &range);
    }

    /// No Service has the address any more.
    pub fn remove_cluster_ip(&self, address: IpAddr) {
        let ips = BatchMap::<Ip6, ClusterIp>::new(&self.programs.map("CLUSTER_IPS")).unwrap();
        ips.delete(&[Ip6::from(address)]).unwrap();
    }

    /// Removes a service's plan, as if the agent had not written it yet.
    pub fn unpublish(&self, service: u32) {
        self.services.write(service, &Service::default());
    }

    /// Changes the node's settings.
    pub fn configure(&self, change: impl FnOnce(&mut Config)) {
        let mut config = self.config.read(0);
        change(&mut config);
        self.config.write(0, &config);
    }

    /// Notes that routes or neighbours have changed.
    pub fn next_hops_changed(&self) {
        let offset = offset_of!(Config, hop_generation);
        self.config
            .u32_at(0, offset)
            .fetch_add(1, Ordering::Relaxed);
    }

    /// One direction of a live flow, as the kernel keeps it.
    pub fn kept(&self, protocol: u8, from: (IpAddr, u16), to: (IpAddr, u16)) -> Option<Kept> {
        // SAFETY: records are plain words in the map as well.
        let v4 = |(_, words)| unsafe { transmute::<[u64; 8], Flow<Ip4>>(words) };
        // SAFETY: records are plain words in the map as well.
        let v6 = |(_, words)| unsafe { transmute::<[u64; 16], Flow<Ip6>>(words) };
        match from.0 {
            IpAddr::V4(_) => kept(self.flows4.iter(0..FLOWS).map(v4), protocol, from, to),
            IpAddr::V6(_) => kept(self.flows6.iter(0..FLOWS).map(v6), protocol, from, to),
        }
    }

    /// Sets how long flows may be silent.
    pub fn limit(&self, timeouts: Timeouts) {
        let limits = MappedArray::<Limits>::new(&self.programs.map("LIMITS")).unwrap();
        let before = limits.read(0);
        limits.write(0, &Limits { timeouts, ..before });
    }

    /// Starts sweeping the flow tables as the agent does.
    pub fn sweep(&self) -> FlowSweeper {
        let map = |name| self.programs.map(name);
        let tables = FlowTables {
            v4: MappedArray::new(&map("FLOWS4")).unwrap(),
            v6: MappedArray::new(&map("FLOWS6")).unwrap(),
        };
        let limits = MappedArray::new(&map("LIMITS")).unwrap();
        let loaded = load(OBJECT, &self.programs.pins, &[], &settings()).unwrap();
        let counters = ServiceCounters::open(&loaded).unwrap();
        let seats = Arc::new(SeatTable::open(&loaded).unwrap());
        let parties = Parties::open(&loaded).unwrap();
        let config = self.config.read(0);
        FlowSweeper::start(tables, &config, limits, counters, seats, parties, None).unwrap()
    }

    /// The records of the IPv4 table.
    pub fn records4(&self) -> Vec<Flow<Ip4>> {
        let records = self.flows4.iter(0..FLOWS);
        // SAFETY: records are plain words in the map as well.
        records
            .map(|(_, words)| unsafe { transmute::<[u64; 8], Flow<Ip4>>(words) })
            .collect()
    }

    /// The records of the IPv6 table.
    pub fn records6(&self) -> Vec<Flow<Ip6>> {
        let records = self.flows6.iter(0..FLOWS);
        // SAFETY: records are plain words in the map as well.
        records
            .map(|(_, words)| unsafe { transmute::<[u64; 16], Flow<Ip6>>(words) })
            .collect()
    }

    /// The number of flows of all services that have not proved themselves, as programs and sweeper
    /// count them.
    pub fn half_open(&self) -> i64 {
        let stats = (0..self.next.0).map(|service| self.stats.read(service));
        stats.map(|stats| i64::from(stats.half_open)).sum()
    }

    /// The number of all flows, counted in the same way.
    pub fn flows(&self) -> i64 {
        let flows = self.service_flows();
        let services = 0..self.next.0;
        services
            .map(|service| i64::from(flows.read(service).flows))
            .sum()
    }

    fn service_flows(&self) -> MappedArray<ServiceFlows> {
        MappedArray::new(&self.programs.map("SERVICE_FLOWS")).unwrap()
    }

    /// Sets a limit of connections, and forgets what was counted of it.
    pub fn limit_connections(&self, index: u32, limit: u32) {
        let seats = Seats {
            limit,
            ..Seats::default()
        };
        self.seats.write(index, &seats);
    }

    /// A limit of connections, and what is counted of it.
    pub fn limit_counts(&self, index: u32) -> Seats {
        self.seats.read(index)
    }

    /// Has one flow schema take all connections, with a level that all are within; no source may have
    /// more than `most` of them. Nobody has any yet.
    pub fn admit_parties(&self, most: u32) {
        let far_away = i32::MAX.cast_unsigned();
        self.admit(far_away, 1, most);
    }

    /// Has one flow schema take all connections, of which each takes so many seats of a level with this limit.
    /// Nobody has any yet.
    pub fn admit_wide(&self, limit: u32, width: u32) {
        self.admit(limit, width, 0);
    }

    fn admit(&self, limit: u32, width: u32, most: u32) {
        const SCHEMA: u16 = 1;
        self.configure(|config| config.flags |= config_flag::ADMISSION);
        let map = |name| self.programs.map(name);
        let level = Seats {
            limit,
            ..Seats::default()
        };
        self.levels().write(FIRST_LEVEL, &level);
        let rule = PartyRule {
            most,
            by: 32 | 128 << 8,
        };
        let schema = FlowSchema {
            seats: LevelSeats::new(FIRST_LEVEL, width),
            rule,
            ..FlowSchema::default()
        };
        let schemas = MappedArray::new(&map("FLOW_SCHEMAS")).unwrap();
        schemas.write(SCHEMA.into(), &schema);
        let class = DestinationClass {
            decision: Decision::new([SCHEMA; 3]),
            ..DestinationClass::default()
        };
        // The class of frontends that have none of their own.
        MappedArray::new(&map("DESTINATION_CLASSES"))
            .unwrap()
            .write(0, &class);
        let parties = self.party_elements();
        for index in 0..parties.len() {
            parties.write(index, &0);
        }
    }

    /// What is counted of that level.
    pub fn level_counts(&self) -> Seats {
        self.levels().read(FIRST_LEVEL)
    }

    fn levels(&self) -> MappedArray<Seats> {
        MappedArray::new(&self.programs.map("LEVELS")).unwrap()
    }

    /// The connections of each party that has some.
    pub fn parties(&self) -> Vec<u32> {
        let parties = self.party_elements();
        let elements = parties.iter(0..parties.len());
        let counts = elements.map(|(index, element)| Members::read(index, element).connections);
        counts.filter(|connections| *connections != 0).collect()
    }

    fn party_elements(&self) -> MappedArray<u64> {
        MappedArray::new(&self.programs.map("PARTIES")).unwrap()
    }

    /// Marks all flows as past a deadline, as the agent does.
    pub fn expire_flows(&self) {
        let mark = flow_flag::EXPIRED | flow_flag::WATCH;
        for index in 0..FLOWS {
            if tag::in_use(self.flows4.u32_at(index, 0).load(Ordering::SeqCst)) {
                let offset = offset_of!(Flow<Ip4>, flags);
                self.flows4
                    .u32_at(index, offset)
                    .fetch_or(mark, Ordering::SeqCst);
            }
            if tag::in_use(self.flows6.u32_at(index, 0).load(Ordering::SeqCst)) {
                let offset = offset_of!(Flow<Ip6>, flags);
                self.flows6
                    .u32_at(index, offset)
                    .fetch_or(mark, Ordering::SeqCst);
            }
        }
    }

    /// Forgets flows.
    pub fn forget_flows(&self) {
        for index in 0..LIMITED {
            self.limit_connections(index, self.seats.read(index).limit);
        }
        for index in 0..FLOWS {
            self.flows4.write(index, &[0; 8]);
            self.flows6.write(index, &[0; 16]);
        }
        let offset = offset_of!(ServiceStats, half_open);
        let flows = self.service_flows();
        for service in 0..self.next.0 {
            flows.write(service, &ServiceFlows::default());
            self.stats
                .u32_at(service, offset)
                .store(0, Ordering::Relaxed);
        }
    }

    /// Forgets flows, fragments and answers given.
    pub fn forget(&mut self) {
        self.forget_flows();
        let entries = self.fragments.entries().unwrap();
        let keys: Vec<_> = entries.into_iter().map(|(key, _)| key).collect();
        self.fragments.delete(&keys).unwrap();
        // A second that never comes: 0 comes five minutes after a kernel has started.
        let unused = RejectBudget {
            second: u32::MAX,
            ..RejectBudget::default()
        };
        let fresh = vec![unused; nr_cpus().unwrap()];
        self.budget
            .set(0, PerCpuValues::try_from(fresh).unwrap(), 0)
            .unwrap();
    }

    fn new(programs: Programs) -> Self {
        let map = |name| programs.map(name);
        let mut world = Self {
            config: MappedArray::new(&map("CONFIG")).unwrap(),
            services: MappedArray::new(&map("SERVICES")).unwrap(),
            plans: MappedArray::new(&map("PLANS")).unwrap(),
            endpoints: MappedArray::new(&map("ENDPOINTS")).unwrap(),
            states: MappedArray::new(&map("ENDPOINT_STATES")).unwrap(),
            stats: MappedArray::new(&map("SERVICE_STATS")).unwrap(),
            shortages: MappedArray::new(&map("SERVICE_SHORTAGES")).unwrap(),
            seats: MappedArray::new(&map("SEATS")).unwrap(),
            maglev: MappedArray::new(&map("MAGLEV")).unwrap(),
            frontends4: BatchMap::new(&map("FRONTENDS4")).unwrap(),
            frontends6: BatchMap::new(&map("FRONTENDS6")).unwrap(),
            source_ranges: BatchMap::new(&map("SOURCE_RANGES")).unwrap(),
            fragments: BatchMap::new(&map("FRAGMENTS")).unwrap(),
            flows4: MappedArray::new(&map("FLOWS4")).unwrap(),
            flows6: MappedArray::new(&map("FLOWS6")).unwrap(),
            counters: Map::PerCpuArray(map("PACKETS")).try_into().unwrap(),
            budget: Map::PerCpuArray(map("REJECT_BUDGET")).try_into().unwrap(),
            counted: vec![0; COUNTERS],
            summed: Tally::default(),
            next: (1, 1),
            next_rows: 0,
            programs,
            tracing: None,
        };
        world.settle_in();
        world
    }

    /// Sets the settings with which tests start.
    fn settle_in(&mut self) {
        let (v4, v6) = (Scene::v4(), Scene::v6());
        let hz = lb_datapath::hz();
        self.config.write(
            0,
            &Config {
                secret: [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210],
                flags: config_flag::DETECT_BY_CIDR,
                hop_generation: 1,
                node4: Ip4::from_mapped(v4.node.into()),
                node6: v6.node.into(),
                pods4: Ip4::from_mapped(v4.local.into()),
                pods6: v6.local.into(),
                pods4_prefix: 24,
                pods6_prefix: 64,
                snat_first: SNAT_PORT.into(),
                snat_count: 1,
                tick_shift: STANDSTILL,
                hz,
                reject_rate: 1000,
                flow_mask4: FLOWS - 1,
                flow_mask6: FLOWS - 1,
                ..Config::default()
            },
        );
        let limits = MappedArray::new(&self.programs.map("LIMITS")).unwrap();
        limits.write(
            0,
            &Limits {
                half_open_mask: HALF_OPEN - 1,
                ..Limits::default()
            },
        );
        let devices = BatchMap::new(&self.programs.map("DEVICES")).unwrap();
        for (device, flags) in [
            (EXTERNAL, device_flag::XDP_TARGET),
            (NARROW, device_flag::XDP_TARGET),
            (POD, device_flag::PODS),
        ] {
            // Frames may be sent to any address, because these tests are about their contents.
            let flags = flags | device_flag::PORT;
            let value = Device { flags, address: 0 };
            devices.update(&[scene::index(device)], &[value]).unwrap();
        }
        let local = BatchMap::new(&self.programs.map("LOCAL_ADDRESSES")).unwrap();
        for scene in [v4, v6] {
            let node: Ip6 = scene.node.into();
            local.update(&[node], &[LocalAddress::default()]).unwrap();
        }
    }
}

/// Sizes of maps.
fn settings() -> Settings<'static> {
    let sizes = [
        ("FLOWS4", FLOWS),
        ("FLOWS6", FLOWS),
        ("FRONTENDS4", 4096),
        ("FRONTENDS6", 4096),
        ("CLUSTER_IPS", 1024),
        ("SERVICES", 1024),
        ("PLANS", 1024),
        ("ENDPOINTS", 4096),
        ("ENDPOINT_STATES", 4096),
        ("ENDPOINT_MEMORY", 4096),
        ("ENDPOINT_LOADS", 4096),
        ("ENDPOINT_LATENCIES", 4096),
        ("SERVICE_STATS", 1024),
        ("SERVICE_SHORTAGES", 1024),
        ("SERVICE_FLOWS", 1024),
        ("SERVICE_LATENCIES", 1024),
        ("MAGLEV", 4096),
        ("AFFINITY", 1024),
        ("SOCKET_AFFINITY", 1024),
        ("SOCKETS", 1024),
        ("SEATED_SOCKETS", 1024),
        ("HALF_OPEN4", RINGS * HALF_OPEN),
        ("HALF_OPEN6", RINGS * HALF_OPEN),
    ];
    sizes
        .into_iter()
        .fold(Settings::default(), |settings, (map, entries)| {
            settings.max_entries(map, entries)
        })
}

/// Has the kernel run a program on a frame that came in by a device: what it returned, and the
/// frame then.
fn test_run(
    program: &Program,
    at: At,
    ifindex: u32,
    frame: &[u8],
    gso_size: u32,
) -> (u32, Vec<u8>) {
    let mut output = vec![0; OUTPUT];
    // `struct xdp_md` and `struct __sk_buff`, all words of 32 bits.
    let context: Vec<u32> = match at.is_xdp() {
        true => vec![0, frame.len() as u32, 0, ifindex, 0, 0],
        false => {
            let mut context = vec![0; 48];
            context[10] = ifindex;
            context[44] = gso_size;
            context
        }
    };
    let context: Vec<u8> = context.into_iter().flat_map(u32::to_ne_bytes).collect();
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut output),
        ctx_in: Some(&context),
        ..TestRunOptions::default()
    };
    let result = match program {
        Program::Xdp(program) => program.test_run(options),
        Program::SchedClassifier(program) => program.test_run(options),
        _ => unreachable!("packets are for XDP and TC"),
    };
    let result = result
        .unwrap_or_else(|error| panic!("{} on {} bytes: {error:?}", at.program(), frame.len()));
    output.truncate(result.data_size_out as usize);
    (result.return_value, output)
}

fn key<A>(address: A, port: u16, protocol: u8) -> FrontendKey<A> {
    FrontendKey {
        address,
        port,
        protocol,
        sockets: 0,
    }
}
