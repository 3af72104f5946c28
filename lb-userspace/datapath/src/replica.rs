//! A second copy of the programs, to ask what they would do with a packet.
//!
//! It reads the maps that decide where connections go, the very ones that the attached programs read. All that
//! programs write to, and all that they count, is its own: no flow stays behind, and no counter of the others
//! moves. It is attached to nothing. The kernel runs it on packets that never were on a device
//! (`BPF_PROG_TEST_RUN`), and its maps go with the process.
//!
//! That it is the same program is not taken on trust: [`Replica::tag`] is the kernel's hash of its instructions,
//! to be compared with that of the attached one. Maps do not count in it, nor does what is set at load.

use std::net::{IpAddr, SocketAddr};

use aya::{
    Pod, TestRun as _, TestRunOptions,
    maps::{MapData, MapError, PerCpuArray},
    programs::{Program, ProgramError},
};
use lb_common::{
    abi::{self, config_flag},
    addr::{Address, Ip4, Ip6},
    flow::{Flow, flow_flag, tag},
    verdict::{COUNTERS, Hook, Reason},
};
use thiserror::Error;

use crate::{
    Loaded, OBJECT, Settings,
    bpf::{ArrayError, MappedArray},
    load::{Ahead, LoadError},
    pins::MapPins,
};

/// What decides where connections go, and no program writes to. Each other map, also one that a later version
/// adds, is the replica's own.
const SHARED: [&str; 12] = [
    "FRONTENDS4",
    "FRONTENDS6",
    "CLUSTER_IPS",
    "SERVICE_RANGES",
    "SERVICES",
    "PLANS",
    "ENDPOINTS",
    "MAGLEV",
    "SOURCE_RANGES",
    "LOCAL_ADDRESSES",
    "DEVICES",
    "TUNNEL_SOURCES",
];

/// Entries of maps that are large elsewhere. What is not there is not counted, and not remembered.
const SMALL: [(&str, u32); 28] = [
    ("FLOWS4", RECORDS),
    ("FLOWS6", RECORDS),
    ("ENDPOINT_STATES", 1),
    ("ENDPOINT_MEMORY", 1),
    ("ENDPOINT_LOADS", 1),
    ("ENDPOINT_LATENCIES", 1),
    ("SERVICE_LATENCIES", 1),
    ("SERVICE_STATS", 1),
    ("SERVICE_SHORTAGES", 1),
    ("SERVICE_FLOWS", 1),
    ("AFFINITY", 1),
    ("SOCKET_AFFINITY", 1),
    ("SOCKETS", 1),
    ("SEATED_SOCKETS", 1),
    ("FRAGMENTS", 1),
    ("HALF_OPEN4", 1),
    ("HALF_OPEN6", 1),
    ("SEATS", 1),
    ("LEVELS", 1),
    ("FLOW_SCHEMAS", 1),
    ("LEVEL_QUEUES", 1),
    ("LINGERING", 1),
    ("QUEUES", 1),
    ("PARTIES", 1),
    ("WAITERS", 1),
    ("DESTINATION_CLASSES", 1),
    ("SOURCE_CLASSES", 1),
    ("DECISIONS", 1),
];

/// Records of each flow table: a flow is forgotten before the next packet comes.
const RECORDS: u32 = 64;

/// Settings that are not in force here: limits depend on how many connections there are.
const WITHOUT: u32 = config_flag::ADMISSION | config_flag::CONNECTION_LIMIT;

/// Room for what becomes of a packet, in bytes.
const OUTPUT: usize = 1024;

/// Programs that are attached to nothing, and what they need.
pub struct Replica {
    loaded: Loaded,
    /// The settings of the attached programs.
    theirs: MappedArray<abi::Config>,
    own: MappedArray<abi::Config>,
    flows4: MappedArray<Flow<Ip4>>,
    flows6: MappedArray<Flow<Ip6>>,
    packets: PerCpuArray<MapData, u64>,
    /// What they have counted before the packet to come.
    counted: Vec<u64>,
}

/// What a program has done with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub fate: Fate,
    pub reason: Reason,
    /// The frame as it is now.
    pub frame: Vec<u8>,
    /// The flow that the packet has opened, if it has.
    pub flow: Option<OpenedFlow>,
}

/// Where a packet goes from a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// To the host's stack.
    Passed,
    /// Out of a device, past the stack; what is answered leaves by its own.
    Sent,
    Dropped,
}

/// A flow, as its client's direction has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFlow {
    /// Source and destination of the packets as they leave.
    pub source: SocketAddr,
    pub endpoint: SocketAddr,
    /// Whether the client's address is replaced.
    pub source_nat: bool,
    /// Whether packets go past the host's stack.
    pub bypasses: bool,
}

/// Why there is no replica, or why it cannot be asked.
#[derive(Debug, Error)]
pub enum ReplicaError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("map {map}: {source}")]
    Map {
        map: &'static str,
        source: ArrayError,
    },
    #[error(
        "the maps of the attached programs are not all there, or have just been replaced: has an agent of this \
         version been started on this node?"
    )]
    NoMaps,
    #[error("the kernel does not run program {program} on a packet: {source}")]
    Run {
        program: String,
        source: ProgramError,
    },
    #[error("cannot read what the replica has counted: {0}")]
    Counters(#[source] MapError),
    #[error("program {0} has not counted the packet: there are no settings yet")]
    NotCounted(String),
}

impl Replica {
    /// Loads these programs beside those that use the pinned maps. Takes about a second.
    ///
    /// # Errors
    ///
    /// If the maps are not there or not of this version, or the kernel refuses, which it does without `CAP_BPF`
    /// and `CAP_NET_ADMIN`.
    pub fn load(pins: &MapPins, programs: &[&str]) -> Result<Self, ReplicaError> {
        let pinned = pins.names().map_err(LoadError::from)?;
        if !SHARED.iter().all(|map| pinned.contains(*map)) {
            return Err(ReplicaError::NoMaps);
        }
        let small = SMALL.into_iter();
        let mut settings = small.fold(
            Settings::default().sharing_only(&SHARED),
            |settings, (map, entries)| settings.max_entries(map, entries),
        );
        for map in SHARED {
            settings = settings.max_entries(map, entries_of(pins, map)?);
        }
        let ahead = Ahead::load(OBJECT, pins, programs, &settings)?;
        let mut loaded = ahead.ok_or(ReplicaError::NoMaps)?.into_loaded();
        let theirs = array(&pinned_map(pins, "CONFIG")?, "CONFIG")?;
        let packets = loaded.take_own_counters("PACKETS")?;
        Ok(Self {
            theirs,
            own: array(loaded.own_map("CONFIG")?, "CONFIG")?,
            flows4: array(loaded.own_map("FLOWS4")?, "FLOWS4")?,
            flows6: array(loaded.own_map("FLOWS6")?, "FLOWS6")?,
            counted: vec![0; COUNTERS],
            packets,
            loaded,
        })
    }

    /// The kernel's hash of a program's instructions.
    ///
    /// # Errors
    ///
    /// If it is none of those that were loaded.
    pub fn tag(&self, program: &str) -> Result<u64, LoadError> {
        let info = self.loaded.tested(program)?.info();
        let info = info.map_err(|source| LoadError::Program {
            name: program.to_owned(),
            source,
        })?;
        Ok(info.tag())
    }

    /// Takes over the settings that the attached programs have by now.
    pub fn follow_settings(&self) {
        let theirs = self.theirs.read(0);
        let own = abi::Config {
            flags: theirs.flags & !WITHOUT,
            flow_mask4: RECORDS - 1,
            flow_mask6: RECORDS - 1,
            resize: 0,
            // Every packet that is to be answered is.
            reject_rate: u32::MAX,
            ..theirs
        };
        self.own.write(0, &own);
    }

    /// Runs a program on a frame that seems to have come by this device. `likely` is the reason that is looked for
    /// first, which is quicker if it is right.
    ///
    /// # Errors
    ///
    /// If the kernel does not run it: the device may be gone, or lacks what the kernel needs for XDP.
    pub fn run(
        &mut self,
        program: &str,
        ifindex: u32,
        frame: &[u8],
        likely: Reason,
    ) -> Result<Outcome, ReplicaError> {
        let mut output = vec![0; OUTPUT];
        let tested = self.loaded.tested(program)?;
        let context: Vec<u8> = match tested {
            // `struct xdp_md`: the end of the data, and the device.
            Program::Xdp(_) => words([0, frame.len() as u32, 0, ifindex, 0, 0]),
            // `struct __sk_buff`: the device.
            _ => {
                let mut words_of = [0; 48];
                words_of[10] = ifindex;
                words(words_of)
            }
        };
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut output),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let (hook, ran) = match tested {
            Program::Xdp(program) => (Hook::Xdp, program.test_run(options)),
            Program::SchedClassifier(program) => (Hook::TcIngress, program.test_run(options)),
            _ => {
                return Err(LoadError::Kind {
                    name: program.to_owned(),
                }
                .into());
            }
        };
        let ran = ran.map_err(|source| ReplicaError::Run {
            program: program.to_owned(),
            source,
        })?;
        output.truncate(ran.data_size_out as usize);
        let flow = take_flow(&self.flows4).or_else(|| take_flow(&self.flows6));
        let reason = self.reason(hook, likely)?;
        Ok(Outcome {
            fate: Fate::of(hook, ran.return_value),
            reason: reason.ok_or_else(|| ReplicaError::NotCounted(program.to_owned()))?,
            frame: output,
            flow,
        })
    }

    /// Why the last packet has met what it has.
    fn reason(&mut self, hook: Hook, likely: Reason) -> Result<Option<Reason>, ReplicaError> {
        let others = Reason::ALL.iter().copied();
        for reason in [likely].into_iter().chain(others) {
            let index = hook.counter(reason);
            let on_each = self.packets.get(&index, 0);
            let now = on_each.map_err(ReplicaError::Counters)?.iter().sum();
            let before = &mut self.counted[index as usize];
            if *before != now {
                *before = now;
                return Ok(Some(reason));
            }
        }
        Ok(None)
    }
}

impl Fate {
    /// What a hook's return value says (linux/bpf.h, linux/pkt_cls.h).
    fn of(hook: Hook, value: u32) -> Self {
        const XDP_DROP: u32 = 1;
        const XDP_TX: u32 = 3;
        const XDP_REDIRECT: u32 = 4;
        const TC_ACT_SHOT: u32 = 2;
        const TC_ACT_REDIRECT: u32 = 7;
        match (hook, value) {
            (Hook::Xdp, XDP_TX | XDP_REDIRECT) | (Hook::TcIngress, TC_ACT_REDIRECT) => Self::Sent,
            (Hook::Xdp, XDP_DROP) | (Hook::TcIngress, TC_ACT_SHOT) => Self::Dropped,
            _ => Self::Passed,
        }
    }
}

/// The flow in a table that had none before; there is none afterwards.
fn take_flow<A: Address>(records: &MappedArray<Flow<A>>) -> Option<OpenedFlow>
where
    Flow<A>: Pod + Default,
{
    let mut opened = None;
    for (index, flow) in records.iter(0..records.len()) {
        if flow.tag == 0 {
            continue;
        }
        records.write(index, &Flow::default());
        if tag::in_use(flow.tag) && !flow.has(flow_flag::REPLY) {
            let to = &flow.rewrite;
            opened = Some(OpenedFlow {
                source: SocketAddr::new(ip(to.source), to.source_port),
                endpoint: SocketAddr::new(ip(to.destination), to.destination_port),
                source_nat: flow.has(flow_flag::SOURCE_NAT),
                bypasses: flow.has(flow_flag::FORWARD),
            });
        }
    }
    opened
}

fn ip<A: Address>(address: A) -> IpAddr {
    address.to_mapped().into()
}

fn entries_of(pins: &MapPins, map: &'static str) -> Result<u32, ReplicaError> {
    let info = pinned_map(pins, map)?.info();
    let info = info.map_err(|source| LoadError::Pinned {
        path: pins.path(map),
        source,
    })?;
    Ok(info.max_entries())
}

fn pinned_map(pins: &MapPins, map: &str) -> Result<MapData, LoadError> {
    let path = pins.path(map);
    MapData::from_pin(&path).map_err(|source| LoadError::Pinned { path, source })
}

fn array<T: Pod>(map: &MapData, name: &'static str) -> Result<MappedArray<T>, ReplicaError> {
    MappedArray::new(map).map_err(|source| ReplicaError::Map { map: name, source })
}

fn words<const COUNT: usize>(words: [u32; COUNT]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}
