//! The agent's state for people: what `node-lb status` shows.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::SystemTime,
};

use lb_common::{flow::Deadline, pipeline::WITHOUT_RING};
use lb_datapath::{XdpMode, devices::Role};
use serde::{Deserialize, Serialize};

use super::{progress, sizes};
use crate::{
    explain::{self, InUse, Numbers},
    flows::{Limit, Stats},
    map_writer::{Key, MapFill},
    metrics::{LevelCount, LimitCount, SchemaCount, ServiceTraffic},
    plan::ServicePortName,
};

/// The agent's state, and what it cannot do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub version: String,
    /// Milliseconds since the agent's loop said what is in here, but for the Services' numbers,
    /// what they are short of and [`Self::syncing`], which are those of this moment.
    #[serde(default)]
    pub age_ms: u64,
    /// The sync that runs, if one does.
    #[serde(default)]
    pub syncing: Option<Syncing>,
    /// The checks of `/readyz` that fail, with their reasons.
    #[serde(default)]
    pub not_ready: Vec<String>,
    pub node: String,
    /// The node's addresses, as far as they are known.
    #[serde(default)]
    pub node_addresses: Vec<IpAddr>,
    /// Addresses of this node that found no room in the map of its own.
    #[serde(default)]
    pub local_addresses_left_out: usize,
    pub source: String,
    /// Where the API server was reached last, if it is the source.
    #[serde(default)]
    pub api_server: Option<String>,
    /// Since when the maps have followed the source (RFC 3339). Absent until the source has
    /// delivered everything once.
    pub in_sync_since: Option<String>,
    /// When the maps were last brought up to date (RFC 3339).
    pub last_sync: Option<String>,
    /// Number of Services, programmed or not.
    pub services: usize,
    pub service_ports: usize,
    pub not_programmed: Vec<NotProgrammed>,
    /// Service ports that are not programmed at their ClusterIP because the node itself answers
    /// there.
    #[serde(default)]
    pub left_to_node: Vec<LeftToNode>,
    /// The maps that Services are written to.
    #[serde(default)]
    pub maps: Vec<Map>,
    /// Service ports under attack, or so it seems.
    pub pressed: Vec<Pressed>,
    /// Service ports that have reached a limit within the last minute.
    pub at_limit: Vec<AtLimit>,
    /// Service ports with endpoints that refuse connections or do not answer.
    pub failing: Vec<Failing>,
    /// Other nodes none of whose endpoints answers.
    #[serde(default)]
    pub silent_nodes: Vec<SilentNode>,
    /// Limits of connections.
    #[serde(default)]
    pub connection_limits: Vec<ConnectionLimit>,
    /// What is done about priority levels: `off`, `audit` or `enforce`.
    #[serde(default)]
    pub admission: String,
    /// Empty if that is nothing.
    #[serde(default)]
    pub priority_levels: Vec<PriorityLevel>,
    /// In the order in which they are asked.
    #[serde(default)]
    pub flow_schemas: Vec<FlowSchema>,
    /// What is wrong with their objects.
    #[serde(default)]
    pub admission_problems: Vec<String>,
    pub devices: Vec<Device>,
    /// What the Node object lacks, or that there is none; whether pods cannot be told from other
    /// sources; whether pins are gone.
    #[serde(default)]
    pub node_problems: Vec<String>,
    /// What the source has that cannot be used.
    pub source_problems: Vec<String>,
    pub health_checks: HealthChecks,
    /// Absent until the first pass over the flow tables.
    pub flows: Option<[FlowTable; 2]>,
    pub flow_table_size: FlowTableSize,
    /// What is traced, if something is.
    #[serde(default)]
    pub trace: Option<String>,
    #[serde(default)]
    pub verification: Verification,
    #[serde(default)]
    pub test_packets: TestPackets,
}

/// How the data plane compares with what it should be. The agent compares all of it, again and
/// again, and puts right what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verification {
    /// When everything was last compared once (RFC 3339); absent before the first time.
    pub last_round: Option<String>,
    /// Records compared then.
    pub records: u64,
    /// Milliseconds that the comparison took, and of these the ones of work.
    pub took_ms: u64,
    pub worked_ms: u64,
    #[serde(flatten)]
    pub found: Differences,
    /// Why the data plane does not stay as it should be, if so.
    pub problem: Option<String>,
}

/// What the programs do with test packets, compared with what the Services ask for. The agent sends some to
/// all Services, again and again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TestPackets {
    /// When there had last been some to every Service (RFC 3339); absent before the first time.
    pub last_round: Option<String>,
    /// How many these were.
    pub packets: u64,
    /// Milliseconds that this took, and of these the ones of work.
    pub took_ms: u64,
    pub worked_ms: u64,
    #[serde(flatten)]
    pub found: Differences,
    /// Why programs go on to do something else, if so.
    pub problem: Option<String>,
    /// Why there are none, if so.
    pub not_sent: Option<String>,
}

/// What has been found different from what it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Differences {
    /// How many since the agent started, and within the last hour.
    pub differences: u64,
    pub within_an_hour: u64,
    /// The latest of them, the newest last.
    pub latest: Vec<Difference>,
}

impl Differences {
    /// The latest one, if it is not long ago.
    pub fn recent(&self) -> Option<&Difference> {
        self.latest.last().filter(|_| self.within_an_hour > 0)
    }
}

/// Something that differed from what it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// When that was found (RFC 3339).
    pub at: String,
    /// A record of a map or a test packet, and what was wrong with it.
    pub what: String,
}

/// A sync that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Syncing {
    /// Milliseconds since it began.
    pub for_ms: u64,
    /// Services that it is about.
    pub services: usize,
    /// Those that are planned and written already.
    pub done: usize,
}

impl From<progress::Syncing> for Syncing {
    fn from(syncing: progress::Syncing) -> Self {
        Self {
            for_ms: syncing.age.as_millis() as u64,
            services: syncing.services,
            done: syncing.done,
        }
    }
}

/// A limit of connections, and those within it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionLimit {
    /// `namespace/name`; absent for the node's.
    pub service: Option<String>,
    /// 0: they are only counted.
    pub limit: u32,
    /// Whether they do not count against the node's limit.
    pub long_running: bool,
    pub in_use: u32,
    /// The most in use in the latest second.
    pub highest: u32,
    /// Connections refused so far.
    pub refused: u64,
    /// TCP handshakes within it that have been open for half a second at least.
    #[serde(default)]
    pub slow_handshakes: u32,
    /// Whether these are so many that handshakes take no places.
    #[serde(default)]
    pub pressed: bool,
}

impl From<&LimitCount> for ConnectionLimit {
    fn from(count: &LimitCount) -> Self {
        Self {
            service: count.service.as_ref().map(ToString::to_string),
            limit: count.limit,
            long_running: count.long_running,
            in_use: count.in_use,
            highest: count.highest,
            refused: count.refused,
            slow_handshakes: count.slow_handshakes,
            pressed: count.is_pressed,
        }
    }
}

impl Status {
    /// How many connections there are within limits.
    pub fn in_use(&self) -> InUse {
        let mut numbers = Numbers::default();
        for limit in &self.connection_limits {
            match &limit.service {
                None => numbers.node = limit.in_use,
                Some(service) => drop(numbers.services.insert(service.clone(), limit.in_use)),
            }
        }
        let levels = self.priority_levels.iter().map(|level| {
            let numbers = explain::Level {
                in_use: level.in_use,
                limit: level.limit,
                waiting: level.waiting,
                kept: level.kept,
            };
            (level.name.clone(), numbers)
        });
        numbers.levels = levels.collect();
        numbers.into()
    }

    /// A priority level, by its name.
    pub fn priority_level(&self, name: &str) -> Option<&PriorityLevel> {
        self.priority_levels.iter().find(|level| level.name == name)
    }

    /// A flow schema, by its name.
    pub fn flow_schema(&self, name: &str) -> Option<&FlowSchema> {
        self.flow_schemas.iter().find(|schema| schema.name == name)
    }
}

/// A priority level, and the connections in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PriorityLevel {
    pub name: String,
    /// Whether its connections are only counted.
    pub exempt: bool,
    pub in_use: u32,
    /// The most in use in the latest second.
    pub highest: u32,
    /// The most connections at the moment; without a meaning if it is exempt.
    pub limit: u32,
    /// Its own part of the node's seats.
    pub nominal: u32,
    /// The limits between which others lend and borrow.
    pub min: u32,
    pub max: u32,
    /// Connections refused so far.
    pub refused: u64,
    /// Connections let in above the limit so far, because it is only audited.
    pub over: u64,
    /// Free seats that are kept for flows without any.
    #[serde(default)]
    pub kept: u32,
    /// Seats that are still taken after the end of their connections.
    #[serde(default)]
    pub lingering: u32,
    /// Connections that wait for a seat.
    #[serde(default)]
    pub waiting: u32,
    /// Connections refused so far because too many of their queue waited.
    #[serde(default)]
    pub queue_full: u64,
    /// As for [`ConnectionLimit`].
    #[serde(default)]
    pub slow_handshakes: u32,
    #[serde(default)]
    pub pressed: bool,
}

impl From<&LevelCount> for PriorityLevel {
    fn from(count: &LevelCount) -> Self {
        Self {
            name: count.name.clone(),
            exempt: count.is_exempt,
            in_use: count.in_use,
            highest: count.highest,
            limit: count.limit,
            nominal: count.limits.nominal,
            min: count.limits.min,
            max: count.limits.max,
            refused: count.refused,
            over: count.over,
            kept: count.kept,
            lingering: count.lingering,
            waiting: count.waiting,
            queue_full: count.queue_full,
            slow_handshakes: count.slow_handshakes,
            pressed: count.is_pressed,
        }
    }
}

/// A flow schema, and what became of the connections that it took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowSchema {
    pub name: String,
    pub priority_level: String,
    /// Seats of the level that each of its connections takes.
    #[serde(default = "one")]
    pub seats: u32,
    /// Connections let in so far.
    pub admitted: u64,
    /// Those of them above a limit that is only audited.
    pub over: u64,
    /// Connections refused so far because no seat was free.
    pub refused: u64,
    /// Those refused because their client had as many as one may have (`maxConnectionsPerFlow`).
    #[serde(default)]
    pub flow_limit: u64,
    /// Those let in that had to wait for a seat, and for how long on average, in milliseconds.
    #[serde(default)]
    pub waited: u64,
    #[serde(default)]
    pub mean_wait_ms: u64,
    /// Those refused because they had waited for as long as they may.
    #[serde(default)]
    pub timed_out: u64,
    /// Those that ran into each deadline that the schema sets, or would have if it were not only audited.
    #[serde(default)]
    pub expired: BTreeMap<String, u64>,
}

fn one() -> u32 {
    1
}

impl From<&SchemaCount> for FlowSchema {
    fn from(count: &SchemaCount) -> Self {
        Self {
            name: count.name.clone(),
            priority_level: count.level.clone(),
            seats: count.seats,
            admitted: count.admitted,
            over: count.over,
            refused: count.refused,
            flow_limit: count.flow_limit,
            waited: count.waited.let_in.number(),
            mean_wait_ms: count.waited.let_in.mean().as_millis() as u64,
            timed_out: count.waited.timed_out,
            expired: Deadline::ALL
                .map(|deadline| deadline.name().to_owned())
                .into_iter()
                .zip(count.expired)
                .filter(|(_, connections)| *connections != 0)
                .collect(),
        }
    }
}

/// The size of the flow tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowTableSize {
    /// How many IPv4 flows there is room for; for IPv6, half as many.
    pub flows: u32,
    /// The result of a change of size since the agent started, or why there was none.
    pub change: Option<String>,
}

/// A service port that is not in the maps, or not completely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotProgrammed {
    pub service_port: String,
    pub protocol: String,
    pub family: String,
    pub reason: String,
    /// What to do about it.
    #[serde(default)]
    pub remedy: String,
}

/// A service port with a ClusterIP that is an address of this node: a DNS cache on each node
/// (NodeLocal DNSCache).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeftToNode {
    pub service_port: String,
    pub protocol: String,
    pub address: SocketAddr,
}

/// How full a map is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Map {
    pub name: String,
    pub entries: u32,
    pub capacity: u32,
    /// The setting that decides its capacity, if one does.
    #[serde(default)]
    pub setting: Option<String>,
}

impl Map {
    /// Entries in a hundred that are in use.
    pub fn percent(&self) -> u64 {
        u64::from(self.entries) * 100 / u64::from(self.capacity.max(1))
    }
}

impl From<&MapFill> for Map {
    fn from(fill: &MapFill) -> Self {
        Self {
            name: fill.map.to_owned(),
            entries: fill.entries,
            capacity: fill.capacity,
            setting: sizes::setting(fill.map).map(str::to_owned),
        }
    }
}

/// A service port with more half-open flows than one has that is not attacked: each new one ends
/// the oldest once its ring is full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pressed {
    pub service_port: String,
    pub protocol: String,
    pub half_open: u64,
    /// How many half-open flows have given way so far.
    pub gave_way: u64,
}

impl Pressed {
    /// The pressure on a service port, if its traffic shows any.
    pub fn of(traffic: &ServiceTraffic) -> Option<Self> {
        let pressed = traffic.half_open >= u64::from(WITHOUT_RING);
        pressed.then(|| Self {
            service_port: service_port(traffic),
            protocol: traffic.protocol.to_string(),
            half_open: traffic.half_open,
            gave_way: traffic.gave_way,
        })
    }
}

/// A service port with flows that use up all they may of something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AtLimit {
    pub service_port: String,
    pub protocol: String,
    pub family: String,
    /// What is used up, in words for people.
    pub exhausted: Vec<String>,
    /// What to do about each.
    #[serde(default)]
    pub remedies: Vec<String>,
}

impl AtLimit {
    /// A service port that is at these limits.
    pub fn new(key: &Key, limits: &[Limit]) -> Self {
        let each = |words: fn(Limit) -> &'static str| {
            let limits = limits.iter().copied();
            limits.map(words).map(str::to_owned).collect()
        };
        Self {
            service_port: key.name.to_string(),
            protocol: key.name.protocol.to_string(),
            family: key.family.to_string(),
            exhausted: each(Limit::name),
            remedies: each(Limit::remedy),
        }
    }
}

/// A service port with endpoints that have refused or not answered the latest connections. New
/// connections avoid these endpoints, if there are others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    pub service_port: String,
    pub protocol: String,
    pub endpoints: Vec<SocketAddr>,
}

impl Failing {
    /// The failing endpoints of a service port, if its traffic shows any.
    pub fn of(traffic: &ServiceTraffic) -> Option<Self> {
        let fails = !traffic.failing.is_empty();
        fails.then(|| Self {
            service_port: service_port(traffic),
            protocol: traffic.protocol.to_string(),
            endpoints: traffic.failing.clone(),
        })
    }
}

/// A node with several endpoints that connections were sent to, none of which answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SilentNode {
    pub node: String,
    /// Addresses of these endpoints.
    pub endpoints: usize,
}

fn service_port(traffic: &ServiceTraffic) -> String {
    let name = ServicePortName {
        service: traffic.service.clone(),
        port: traffic.port.as_str().into(),
        protocol: traffic.protocol,
    };
    name.to_string()
}

/// A device that programs are attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    pub name: String,
    pub role: String,
    /// `native`, `generic`, or `tc` where XDP does nothing.
    pub mode: String,
    /// Why the mode is not the one asked for.
    pub reason: Option<String>,
}

/// The healthCheckNodePort servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthChecks {
    /// Sockets they listen on.
    pub listening: usize,
    pub problems: Vec<String>,
}

/// A family's flow table, as the last pass over it saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowTable {
    pub family: String,
    pub flows: u64,
    /// Number of records in the table. A flow takes two.
    pub records: u32,
    /// Records that are not free.
    pub occupied: u32,
    /// How many flows one service port may have that have proved themselves: as many as are free, and half of all
    /// at most.
    #[serde(default)]
    pub flows_of_one: u64,
    /// The service port that has the most of them; absent if none has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest: Option<Busiest>,
}

/// The service port with the most flows in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Busiest {
    pub service_port: String,
    pub protocol: String,
    /// Those that have proved themselves.
    pub flows: u64,
}

impl FlowTable {
    /// Both families' tables.
    pub fn both(stats: &Stats) -> [Self; 2] {
        [("IPv4", &stats.v4), ("IPv6", &stats.v6)].map(|(family, table)| Self {
            family: family.to_owned(),
            flows: table.flows.total(),
            records: table.records,
            occupied: table.occupied,
            flows_of_one: table.flows_of_one(),
            busiest: None,
        })
    }
}

/// The name of an XDP mode for people.
pub fn mode_name(mode: XdpMode) -> &'static str {
    match mode {
        XdpMode::Native => "native",
        XdpMode::Generic => "generic",
        XdpMode::Off => "tc",
    }
}

/// The name of a device's role for people.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::External => "external",
        Role::Pod => "pod",
        Role::PodBridge => "pod bridge",
        Role::Overlay => "overlay",
        Role::Other => "other",
    }
}

/// A point in time for people (RFC 3339).
pub fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
