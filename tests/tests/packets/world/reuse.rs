//! Programs that tests use one after the other.
//!
//! Where a machine is emulated, nearly all of a test's time would be the verifier's. With
//! `LAB_REUSE` set, the first test leaves its programs and maps pinned, and those after it clear the
//! maps and go on with them. That is for a machine that is switched off when the tests are over, and
//! that runs one test at a time.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use aya::{
    Pod,
    maps::{Map, MapData, PerCpuArray, PerCpuValues, lpm_trie::Key},
    programs::{Program, SchedClassifier, Xdp},
    util::nr_cpus,
};
use aya_obj::programs::XdpAttachType;
use lb_common::{
    abi::{
        self, Affinity, AffinityKey, ClusterIp, Config, Decision, DestinationClass, Device,
        Endpoint, EndpointLatency, EndpointLoad, EndpointMemory, EndpointState, FlowSchema,
        FragmentKey, Frontend, FrontendKey, Latencies, Limits, LocalAddress, MaglevRows, Plan,
        RejectBudget, Service, ServiceFlows, ServiceRange, ServiceStats, Shortages, Socket,
        SocketAffinityKey, SocketKey, SocketSeats, SourceRangeKey, TunnelSource,
    },
    addr::{Ip4, Ip6},
    flow::{
        Seats,
        linger::Lingering,
        queue::{LevelQueues, Queue},
    },
    verdict::COUNTERS,
};
use lb_datapath::{
    Loaded, OBJECT, Pins, Settings,
    bpf::{BatchMap, MappedArray},
    load,
    preflight::BPF_FS,
};
use lb_tests::PinRoot;

use super::{super::oracle, At, in_world};

/// Has tests leave programs and maps to each other.
const VARIABLE: &str = "LAB_REUSE";
/// The name under which they do, in the BPF file system.
const NAME: &str = "node-lb-reused";
/// The directory of programs there. By its name, `node-lb cleanup` removes it with the maps.
const PROGRAMS: &str = "trial-programs";

/// Programs in the kernel, and their maps without content.
pub struct Programs {
    pub pins: Pins,
    programs: Kept,
    /// Removes what is pinned, unless it is left to the next test.
    _root: Option<PinRoot>,
}

enum Kept {
    Own(Box<Loaded>),
    Shared(BTreeMap<&'static str, Program>),
}

impl Programs {
    /// New ones, or with `LAB_REUSE` those of the test before.
    pub fn get(settings: &Settings<'_>) -> Self {
        if env::var_os(VARIABLE).is_some() {
            return Self::shared(&Path::new(BPF_FS).join(NAME), settings);
        }
        let root = PinRoot::new();
        let pins = root.pins(abi::VERSION);
        let loaded = load(OBJECT, &pins, &At::ALL.map(At::program), settings).unwrap();
        let programs = Kept::Own(Box::new(loaded));
        // The maps are empty. But this way all tests notice one without a name below.
        Self::cleared(pins, programs, Some(root))
    }

    /// Those that are left under `root`. If there are none, they are loaded and left there.
    pub fn shared(root: &Path, settings: &Settings<'_>) -> Self {
        let pins = Pins::open(root, abi::VERSION).expect("one test at a time");
        let directory = root.join(PROGRAMS);
        let pin = |at: At| directory.join(at.program());
        if At::ALL.iter().any(|at| !pin(*at).exists()) {
            let mut loaded = load(OBJECT, &pins, &At::ALL.map(At::program), settings).unwrap();
            fs::create_dir_all(&directory).unwrap();
            for at in At::ALL {
                // There is one if a test was stopped while it did this.
                let _ = fs::remove_file(pin(at));
                let program = loaded.program_mut(at.program()).unwrap();
                program.pin(pin(at)).unwrap();
            }
        }
        let open = |at: At| (at.program(), open(at, pin(at)));
        let programs = Kept::Shared(At::ALL.map(open).into());
        Self::cleared(pins, programs, None)
    }

    fn cleared(pins: Pins, programs: Kept, root: Option<PinRoot>) -> Self {
        let programs = Self {
            pins,
            programs,
            _root: root,
        };
        for name in programs.pins.maps().unwrap() {
            clear(&name, programs.map(&name));
        }
        programs
    }

    /// A program, to test.
    pub fn program(&self, at: At) -> &Program {
        match &self.programs {
            Kept::Own(loaded) => loaded.tested(at.program()).unwrap(),
            Kept::Shared(programs) => &programs[at.program()],
        }
    }

    /// A handle to a map.
    pub fn map(&self, name: &str) -> MapData {
        MapData::from_pin(self.pins.map(name)).unwrap()
    }
}

fn open(at: At, path: PathBuf) -> Program {
    match at.is_xdp() {
        true => Program::Xdp(Xdp::from_pin(path, XdpAttachType::Interface).unwrap()),
        false => Program::SchedClassifier(SchedClassifier::from_pin(path).unwrap()),
    }
}

/// Makes a map as it is when it is created. Every map whose content outlives a packet is here.
fn clear(name: &str, map: MapData) {
    match name {
        "CONFIG" => zero::<Config>(&map),
        "LIMITS" => zero::<Limits>(&map),
        "FRONTENDS4" => empty::<FrontendKey<Ip4>, Frontend>(&map),
        "FRONTENDS6" => empty::<FrontendKey<Ip6>, Frontend>(&map),
        "CLUSTER_IPS" => empty::<Ip6, ClusterIp>(&map),
        "SERVICE_RANGES" => zero::<ServiceRange>(&map),
        "SERVICES" => zero::<Service>(&map),
        "PLANS" => zero::<Plan>(&map),
        "ENDPOINTS" => zero::<Endpoint>(&map),
        "ENDPOINT_STATES" => zero::<EndpointState>(&map),
        "ENDPOINT_MEMORY" => zero::<EndpointMemory>(&map),
        "ENDPOINT_LATENCIES" => zero::<EndpointLatency>(&map),
        "SERVICE_LATENCIES" => zero::<Latencies>(&map),
        "ENDPOINT_LOADS" => zero::<EndpointLoad>(&map),
        "SERVICE_STATS" => zero::<ServiceStats>(&map),
        "SERVICE_SHORTAGES" => zero::<Shortages>(&map),
        "SERVICE_FLOWS" => zero::<ServiceFlows>(&map),
        "MAGLEV" => zero::<MaglevRows>(&map),
        "SOURCE_RANGES" => empty::<Key<SourceRangeKey>, u8>(&map),
        "LOCAL_ADDRESSES" => empty::<Ip6, LocalAddress>(&map),
        "DEVICES" => empty::<u32, Device>(&map),
        "WAYS_BACK" => empty::<u32, u32>(&map),
        "TUNNEL_SOURCES" => empty::<u32, TunnelSource>(&map),
        "AFFINITY" => empty::<AffinityKey, Affinity>(&map),
        "SOCKET_AFFINITY" => empty::<SocketAffinityKey, Affinity>(&map),
        "FLOWS4" => zero::<[u64; 8]>(&map),
        "FLOWS6" => zero::<[u64; 16]>(&map),
        "HOPS" => zero::<[u64; 4]>(&map),
        "SEATS" | "LEVELS" => zero::<Seats>(&map),
        // Nobody waits: no agent has promised to look after those who do.
        "WAITERS" => {}
        "PARTIES" => zero::<u64>(&map),
        "LINGERING" => zero::<Lingering>(&map),
        "LEVEL_QUEUES" => zero::<LevelQueues>(&map),
        "QUEUES" => zero::<Queue>(&map),
        "FLOW_SCHEMAS" => zero::<FlowSchema>(&map),
        "DESTINATION_CLASSES" => zero::<DestinationClass>(&map),
        "SOURCE_CLASSES" => empty::<Key<SourceRangeKey>, u32>(&map),
        "DECISIONS" => zero::<Decision>(&map),
        "HALF_OPEN4" | "HALF_OPEN6" => zero_by_batch::<u64>(&map),
        "HALF_OPEN_CURSORS" => zero_by_batch::<u32>(&map),
        "FRAGMENTS" => empty::<FragmentKey, u32>(&map),
        "SOCKETS" => empty::<SocketKey, Socket>(&map),
        // Each socket has its own value, which goes with it.
        "SOCKET_SEATS" => {}
        "SEATED_SOCKETS" => empty::<u64, SocketSeats>(&map),
        "PACKETS" => zero_per_cpu::<u64>(map, COUNTERS as u32),
        "REJECT_BUDGET" => zero_per_cpu::<RejectBudget>(map, 1),
        _ => panic!("map {name} is new: {} must know how it is cleared", file!()),
    }
}

/// Of an array that is mapped into memory.
fn zero<T: Pod>(map: &MapData) {
    let elements = MappedArray::<T>::new(map).unwrap();
    for index in 0..elements.len() {
        elements.write(index, &zeroed());
    }
}

/// Of another array.
fn zero_by_batch<T: Pod>(map: &MapData) {
    let elements = BatchMap::<u32, T>::new(map).unwrap();
    let keys: Vec<u32> = (0..elements.max_entries()).collect();
    elements.update(&keys, &vec![zeroed(); keys.len()]).unwrap();
}

fn zero_per_cpu<T: Pod>(map: MapData, len: u32) {
    let mut elements = PerCpuArray::<_, T>::try_from(Map::PerCpuArray(map)).unwrap();
    for index in 0..len {
        let values = PerCpuValues::try_from(vec![zeroed(); nr_cpus().unwrap()]);
        elements.set(index, values.unwrap(), 0).unwrap();
    }
}

/// Of a map with keys.
fn empty<K: Pod, V: Pod>(map: &MapData) {
    let entries = BatchMap::<K, V>::new(map).unwrap();
    let present = entries.entries().unwrap();
    let keys: Vec<K> = present.into_iter().map(|(key, _)| key).collect();
    entries.delete(&keys).unwrap();
}

fn zeroed<T: Pod>() -> T {
    // SAFETY: a type of which any bytes are a value.
    unsafe { std::mem::zeroed() }
}

#[test]
fn programs_go_from_test_to_test_and_what_they_know_does_not() {
    let root = PinRoot::new();
    let ids = || {
        let mut ids = Vec::new();
        in_world(
            |settings| Programs::shared(root.path(), settings),
            |world| {
                // What one of them left would be answered for by the other's services.
                oracle::compare(world, 0);
                let id = |at| world.programs.program(at).info().unwrap().id();
                ids = At::ALL.map(id).to_vec();
            },
        );
        ids
    };
    assert_eq!(ids(), ids());
}
