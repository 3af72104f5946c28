//! node-lb's own program and maps, filled as the agent fills them.

use std::{
    marker::PhantomData, mem::offset_of, net::Ipv4Addr, ptr::NonNull, sync::atomic::Ordering,
};

use anyhow::{Result, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::{
        HashMap, Map, MapData, PerCpuArray,
        lpm_trie::{Key, LpmTrie},
    },
    programs::Xdp,
};
use lb_common::{
    abi::{
        Config, Decision, DestinationClass, Device, Endpoint, EndpointState, FlowSchema, Frontend,
        FrontendKey, FrontendKind, Limits, LocalAddress, Plan, RejectAnswer, SERVICE_RANGES,
        Service, ServiceRange, ServiceStats, SourceRangeKey, config_flag, device_flag,
        endpoint_flag, plan_flag, service_range_flag,
    },
    addr::{Address, Ip4, Ip6},
    flow::{
        Flow, Record, Seats, Timeouts, limit::limit_flag, party::PartyRule, place::LevelSeats,
        slots::Slots, steps::Plain, table, tag,
    },
    parse::{SCTP, TCP, Tuple, UDP},
    pipeline::RINGS,
    verdict::{Hook, Reason},
};
use lb_datapath::{OBJECT, bpf::MappedArray};

use super::{
    family::Family,
    harness::{self, take, xdp},
    traffic::{self, Destination, NODE, SERVICES, TARGET_PORT, address_of},
};

/// The measured program.
const PROGRAM: &str = "xdp_ingress";
/// Endpoints per service.
pub const ENDPOINTS: u32 = 100;
/// Slots per flow table: a million flows, which are two million records, fill half of them.
const SLOTS: u32 = 1 << 22;
/// What agents set by default and packets may cost something for.
const FLAGS: u32 = config_flag::REFUSE_UNKNOWN | config_flag::SCTP;
/// Half-open flows that a service may have, as set by the agent.
pub const HALF_OPEN: u32 = 1 << 14;
/// The initial count of a service's half-open flows if its clients complete their handshakes: so
/// far below zero that no sample reaches the start of the budget.
const NONE_HALF_OPEN: u32 = i32::MIN.cast_unsigned();
/// Index of a limit that no sample reaches.
const LIMITED: u32 = 1;
/// A priority level with such a limit, the flow schema that leads to it, and the set of networks by
/// which sources are told apart.
const LEVEL: u32 = 2;
const SCHEMA: u16 = 1;
const NETWORKS: u32 = 1;
/// Ports for source NAT.
pub const SNAT_PORTS: std::ops::RangeInclusive<u16> = 32_768..=65_535;
const SECRET: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

/// node-lb in the kernel, attached to nothing.
pub struct Datapath {
    ebpf: Ebpf,
    counters: PerCpuArray<MapData, u64>,
    services: MapData,
    config: MappedArray<Config>,
}

impl Datapath {
    /// Loads node-lb, with large flow tables, and programs the benchmark's services.
    ///
    /// # Errors
    ///
    /// If the kernel refuses maps or programs.
    pub fn load(ifindex: u32) -> Result<Self> {
        let mut ebpf = EbpfLoader::new()
            .map_max_entries(Ip4::FLOWS, SLOTS)
            .map_max_entries(Ip6::FLOWS, SLOTS)
            .map_max_entries("HALF_OPEN4", RINGS * HALF_OPEN)
            .map_max_entries("HALF_OPEN6", RINGS * HALF_OPEN)
            .load(OBJECT)?;
        let program: &mut Xdp = match ebpf.program_mut(PROGRAM) {
            Some(program) => program.try_into()?,
            None => bail!("the object has no program {PROGRAM}"),
        };
        program.load()?;
        program_services(&mut ebpf)?;
        let counters = PerCpuArray::try_from(take(&mut ebpf, "PACKETS")?)?;
        let services = array(&mut ebpf, "SERVICE_STATS")?;
        let config = program_node(&mut ebpf, ifindex)?;
        program_admission(&mut ebpf)?;
        Ok(Self {
            ebpf,
            counters,
            services,
            config,
        })
    }

    /// Has the programs classify connections by flow schemas, or not.
    pub fn classify(&self, does: bool) {
        let flags = self.config.u32_at(0, offset_of!(Config, flags));
        let flag = if does { config_flag::ADMISSION } else { 0 };
        flags.store(FLAGS | flag, Ordering::SeqCst);
    }

    /// The measured program.
    pub fn program(&self) -> Result<&Xdp> {
        xdp(&self.ebpf, PROGRAM)
    }

    /// Packets so far, by reason.
    pub fn counters(&self) -> Result<Counters> {
        let count = |reason: &Reason| -> Result<u64> {
            let per_cpu = self.counters.get(&Hook::Xdp.counter(*reason), 0)?;
            Ok(per_cpu.iter().sum())
        };
        Reason::ALL
            .iter()
            .map(count)
            .collect::<Result<_>>()
            .map(Counters)
    }

    /// The flows of a family.
    pub fn flows<A: Family>(&mut self) -> Result<FlowTable<A>> {
        let services = MappedArray::new(&self.services)?;
        FlowTable::new(&array(&mut self.ebpf, A::FLOWS)?, services)
    }
}

/// Packets by reason.
pub struct Counters(Vec<u64>);

impl Counters {
    /// What was counted since `earlier`, without reasons that did not occur.
    pub fn since(&self, earlier: &Self) -> Vec<(Reason, u64)> {
        let pairs = self.0.iter().zip(&earlier.0);
        let changes = pairs.map(|(now, before)| now - before);
        let reasons = Reason::ALL.iter().copied();
        reasons
            .zip(changes)
            .filter(|(_, change)| *change != 0)
            .collect()
    }
}

/// A flow table in the kernel, seen from outside.
pub struct FlowTable<A: Family> {
    records: MappedArray<A::Record>,
    services: MappedArray<ServiceStats>,
    family: PhantomData<A>,
}

impl<A: Family> FlowTable<A> {
    fn new(map: &MapData, services: MappedArray<ServiceStats>) -> Result<Self> {
        Ok(Self {
            records: MappedArray::new(map)?,
            services,
            family: PhantomData,
        })
    }

    /// Removes all flows, while no program runs. New flows have a budget of half-open ones, or
    /// count as if every handshake was completed.
    pub fn clear(&self, has_budget: bool) {
        for index in 0..self.records.len() {
            if self.tag(index) != tag::CLEAN {
                self.records.write(index, &A::FREE);
            }
        }
        let half_open = offset_of!(ServiceStats, half_open);
        let start = if has_budget { 0 } else { NONE_HALF_OPEN };
        for service in 0..self.services.len() {
            let count = self.services.u32_at(service, half_open);
            count.store(start, Ordering::Relaxed);
        }
    }

    /// The number of live records, which is twice the number of flows.
    pub fn live(&self) -> usize {
        let tags = (0..self.records.len()).map(|index| self.tag(index));
        tags.filter(|seen| tag::in_use(*seen)).count()
    }

    /// The record of packets with this tuple.
    pub fn find(&self, tuple: &Tuple<A>) -> Option<Flow<A>> {
        // SAFETY: records stay valid while the table is mapped, and no program is running.
        table::find(self, tuple).map(|record| unsafe { record.read() })
    }

    fn tag(&self, index: u32) -> u32 {
        self.records.u32_at(index, 0).load(Ordering::Relaxed)
    }
}

impl<A: Family> Plain for FlowTable<A> {}

// SAFETY: the mapping starts at a page, lives as long as `self`, and consists of whole `Flow`s.
unsafe impl<A: Family> Slots<A> for FlowTable<A> {
    fn mask(&self) -> u32 {
        self.records.len() - 1
    }

    fn slot(&self, index: u32) -> Option<Record<A>> {
        const { assert!(size_of::<A::Record>() == size_of::<Flow<A>>()) };
        NonNull::new(self.records.u64_at(index, 0).as_ptr().cast())
    }

    fn secret(&self) -> [u64; 2] {
        SECRET
    }

    fn now(&self) -> u32 {
        0
    }

    /// Without timeouts nothing ends by itself.
    fn timeouts(&self) -> Option<&Timeouts> {
        None
    }

    fn count_half_open(&self, _service: u32, _change: i32) {}

    fn count_flows(&self, _service: u32, _change: i32) {}
}

fn program_node(ebpf: &mut Ebpf, ifindex: u32) -> Result<MappedArray<Config>> {
    let mut locals: HashMap<_, [u8; 16], LocalAddress> =
        HashMap::try_from(take(ebpf, "LOCAL_ADDRESSES")?)?;
    for node in NODE {
        locals.insert(Ip6::from(node).octets, LocalAddress::default(), 0)?;
    }
    let mut devices: HashMap<_, u32, Device> = HashMap::try_from(take(ebpf, "DEVICES")?)?;
    let [a, b, c, d, e, f, ..] = harness::ETHERNET;
    let device = Device {
        // As agents write them, so that the checks cost the same here.
        flags: device_flag::XDP_TARGET | device_flag::NO_OWN_SOURCES,
        address: Device::address_of([a, b, c, d, e, f]),
    };
    devices.insert(ifindex, device, 0)?;

    let config = Config {
        secret: SECRET,
        hop_generation: 1,
        node4: address_of(NODE[0]),
        node6: address_of(NODE[1]),
        pods4_prefix: u32::MAX,
        pods6_prefix: u32::MAX,
        snat_first: u32::from(*SNAT_PORTS.start()),
        snat_count: SNAT_PORTS.len() as u32,
        tick_shift: 8,
        hz: 250,
        flags: FLAGS,
        reject_rate: u32::MAX,
        flow_mask4: SLOTS - 1,
        flow_mask6: SLOTS - 1,
        ..Config::default()
    };
    let element = MappedArray::new(&array(ebpf, "CONFIG")?)?;
    element.write(0, &config);
    let ranges = MappedArray::new(&array(ebpf, "SERVICE_RANGES")?)?;
    for (index, (network, prefix)) in (0..).step_by(SERVICE_RANGES as usize).zip(SERVICES) {
        let range = ServiceRange {
            network: network.into(),
            prefix,
            flags: service_range_flag::USED,
        };
        ranges.write(index, &range);
    }
    let limits = Limits {
        half_open_mask: HALF_OPEN - 1,
        ..Limits::default()
    };
    MappedArray::new(&array(ebpf, "LIMITS")?)?.write(0, &limits);
    Ok(element)
}

/// A level that all connections are within, and classes that lead there: number 1 whoever connects,
/// number 2 if the client's network says so, and number 3 as far as its other connections allow. Number 4
/// leads to a level that refuses all, without an answer.
fn program_admission(ebpf: &mut Ebpf) -> Result<()> {
    let far_away = Seats {
        limit: i32::MAX.cast_unsigned(),
        ..Seats::default()
    };
    let none = Seats {
        flags: limit_flag::STRICT,
        ..Seats::default()
    };
    let levels = MappedArray::new(&array(ebpf, "LEVELS")?)?;
    levels.write(LEVEL, &far_away);
    levels.write(LEVEL + 1, &none);
    let schema = FlowSchema {
        seats: LevelSeats::new(LEVEL, 1),
        ..FlowSchema::default()
    };
    let schemas = MappedArray::new(&array(ebpf, "FLOW_SCHEMAS")?)?;
    schemas.write(SCHEMA.into(), &schema);
    let of_parties = FlowSchema {
        rule: PartyRule {
            most: far_away.limit,
            by: 32,
        },
        ..schema
    };
    schemas.write((SCHEMA + 1).into(), &of_parties);
    let drop = RejectAnswer::Drop;
    let of_none = FlowSchema {
        seats: LevelSeats::new(LEVEL + 1, 1),
        answers: RejectAnswer::join(drop, drop, drop),
        ..schema
    };
    schemas.write((SCHEMA + 2).into(), &of_none);
    let decision = Decision::new([SCHEMA; 3]);
    let decisions = MappedArray::new(&array(ebpf, "DECISIONS")?)?;
    decisions.write(1, &decision);
    let classes = MappedArray::new(&array(ebpf, "DESTINATION_CLASSES")?)?;
    let any = DestinationClass {
        decision,
        ..DestinationClass::default()
    };
    classes.write(1, &any);
    let of_parties = DestinationClass {
        decision: Decision::new([SCHEMA + 1; 3]),
        ..any
    };
    classes.write(3, &of_parties);
    let of_none = DestinationClass {
        decision: Decision::new([SCHEMA + 2; 3]),
        ..any
    };
    classes.write(4, &of_none);
    let by_source = DestinationClass {
        set: NETWORKS,
        first: 0,
        count: 2,
        ..DestinationClass::default()
    };
    classes.write(2, &by_source);

    let mut networks = LpmTrie::<_, SourceRangeKey, u32>::try_from(take(ebpf, "SOURCE_CLASSES")?)?;
    // As many as in a configuration with some tenants; each client is in one of its own and in one
    // of all.
    for number in 0..=u8::MAX {
        let address = Ipv4Addr::new(11, number, 0, 0);
        let data = SourceRangeKey {
            set: NETWORKS.to_be(),
            address: address.to_ipv6_mapped().into(),
        };
        networks.insert(&Key::new(32 + 96 + 16, data), 1, 0)?;
    }
    for bits in [0, 96] {
        let data = SourceRangeKey {
            set: NETWORKS.to_be(),
            address: match bits {
                0 => Ip6::default(),
                _ => Ipv4Addr::UNSPECIFIED.to_ipv6_mapped().into(),
            },
        };
        networks.insert(&Key::new(32 + bits, data), 1, 0)?;
    }
    Ok(())
}

fn program_services(ebpf: &mut Ebpf) -> Result<()> {
    let services = MappedArray::<Service>::new(&array(ebpf, "SERVICES")?)?;
    let plans = MappedArray::<Plan>::new(&array(ebpf, "PLANS")?)?;
    let endpoints = MappedArray::<Endpoint>::new(&array(ebpf, "ENDPOINTS")?)?;
    let states = MappedArray::<EndpointState>::new(&array(ebpf, "ENDPOINT_STATES")?)?;
    let seats = MappedArray::<Seats>::new(&array(ebpf, "SEATS")?)?;
    let far_away = Seats {
        limit: i32::MAX.cast_unsigned(),
        ..Seats::default()
    };
    seats.write(LIMITED, &far_away);
    let mut frontends4 = HashMap::try_from(take(ebpf, "FRONTENDS4")?)?;
    let mut frontends6 = HashMap::try_from(take(ebpf, "FRONTENDS6")?)?;

    let mut id = 1;
    for family in [0, 1] {
        for destination in Destination::SERVICES {
            let (counts, flags) = match destination {
                remote if remote.is_remote() => ([0, 0, 0, ENDPOINTS, 0, 0], 0),
                Destination::Local => ([ENDPOINTS, 0, 0, 0, 0, 0], endpoint_flag::LOCAL),
                _ => ([0; 6], 0),
            };
            let first = id * ENDPOINTS;
            for number in 0..counts.iter().sum() {
                let index = first + number;
                let endpoint = Endpoint {
                    address: traffic::endpoint(family, number).into(),
                    port: TARGET_PORT,
                    flags,
                    id: index,
                };
                endpoints.write(index, &endpoint);
                let state = EndpointState {
                    slots: [index, u32::MAX],
                    ..EndpointState::default()
                };
                states.write(index, &state);
            }
            let plan = Plan {
                service: id,
                first,
                counts,
                flags: match destination {
                    Destination::Local => plan_flag::EXTERNAL_LOCAL,
                    _ => 0,
                },
                seats: match destination {
                    Destination::Limited => LIMITED,
                    _ => 0,
                },
                ..Plan::default()
            };
            plans.write(id, &plan);
            services.write(
                id,
                &Service {
                    plan: id,
                    name_hash: 0,
                },
            );
            for protocol in [TCP, UDP, SCTP] {
                match family {
                    0 => add_frontend::<Ip4>(&mut frontends4, destination, protocol, id)?,
                    _ => add_frontend::<Ip6>(&mut frontends6, destination, protocol, id)?,
                }
            }
            id += 1;
        }
    }
    Ok(())
}

fn add_frontend<A: Address>(
    map: &mut HashMap<MapData, FrontendKey<A>, Frontend>,
    destination: Destination,
    protocol: u8,
    service: u32,
) -> Result<()>
where
    FrontendKey<A>: aya::Pod,
{
    let (address, port) = destination.frontend(traffic::family::<A>());
    let key = FrontendKey {
        address: address_of(address),
        port,
        protocol,
        sockets: 0,
    };
    let frontend = Frontend {
        service,
        kind: FrontendKind::LoadBalancerIp as u8,
        pad: 0,
        class: match destination {
            Destination::Level => 1,
            Destination::LevelOfSource => 2,
            Destination::LevelOfParties => 3,
            Destination::FullLevel => 4,
            _ => 0,
        },
    };
    Ok(map.insert(key, frontend, 0)?)
}

/// An array map of the object.
fn array(ebpf: &mut Ebpf, name: &str) -> Result<MapData> {
    match take(ebpf, name)? {
        Map::Array(map) => Ok(map),
        other => bail!("{name} is no array but {other:?}"),
    }
}
