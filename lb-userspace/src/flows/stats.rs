//! Counts of flows, for metrics and status.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use lb_common::{
    abi::SocketSeats,
    flow::{
        SERVICE_BITS, Stage,
        limit::{LEVEL_NUMBERS, LIMITS},
        place::Place,
        stage::STAGES,
    },
};
use lb_objects::Protocol;

/// What the latest pass over the tables saw, and what has been removed since the agent started.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub v4: TableStats,
    pub v6: TableStats,
    /// Live flows by service, both families together.
    pub services: ServiceCounts,
    pub removed: Removed,
    pub passes: u64,
    /// When the latest pass ended.
    pub at: Option<Instant>,
}

/// The state of a table in one pass.
#[derive(Clone, Debug, Default)]
pub struct TableStats {
    /// Records in the table; a flow takes two.
    pub records: u32,
    /// Live flows.
    pub flows: FlowCounts,
    /// Records in use, or not yet free.
    pub occupied: u32,
    /// Free records that searches have to pass over.
    pub tombs: u32,
    /// Records that programs of another version had used and this pass has converted.
    pub adopted: u32,
    /// CPU time for looking at all records.
    pub scan: Duration,
}

impl TableStats {
    /// The occupied part of the table, between zero and one.
    pub fn fill(&self) -> f64 {
        f64::from(self.occupied) / f64::from(self.records.max(1))
    }

    /// The part of the table that live flows take, between zero and one. Records of ended flows are
    /// not counted: they become free within moments, however many a flood leaves.
    pub fn live(&self) -> f64 {
        2.0 * self.flows.total() as f64 / f64::from(self.records.max(1))
    }

    /// The part of the table that one service may take, in 65536ths: as much as is free. So one service
    /// alone gets half, two get a third each, and there is always room for one more (dynamic thresholds:
    /// Choudhury and Hahne, 1998). Never more than half, because a service may take it before the next
    /// pass.
    pub fn share(&self) -> u16 {
        let share = (1.0 - self.live()).clamp(0.0, 0.5) * f64::from(1 << 16);
        // 0 would mean no limit.
        (share as u16).max(1)
    }

    /// How many flows that have proved themselves one service may have.
    pub fn flows_of_one(&self) -> u64 {
        // Two records to a flow, as programs reckon.
        (u64::from(self.records) * u64::from(self.share())) >> 17
    }
}

/// Numbers of flows by protocol and stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts([[u64; STAGES]; PROTOCOLS.len()]);

impl FlowCounts {
    /// The number of flows of a protocol in a stage.
    pub fn of(&self, protocol: Protocol, stage: Stage) -> u64 {
        self.0[row(protocol)][stage as usize]
    }

    /// The number of all flows.
    pub fn total(&self) -> u64 {
        self.0.iter().flatten().sum()
    }

    /// Every protocol and stage with its number.
    pub fn iter(&self) -> impl Iterator<Item = (Protocol, Stage, u64)> + '_ {
        PROTOCOLS.into_iter().flat_map(|protocol| {
            Stage::ALL.map(|stage| (protocol, stage, self.of(protocol, stage)))
        })
    }

    pub(super) fn add(&mut self, protocol: Protocol, stage: Stage) {
        self.0[row(protocol)][stage as usize] += 1;
    }
}

/// A service's number of flows, or a change of it, as programs and the agent count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub flows: i32,
    /// Flows that have not proved themselves.
    pub half_open: i32,
}

/// Numbers of live flows by service id, and of the seats that they hold by limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    flows: Vec<ServiceFlows>,
    seats: Vec<u32>,
    slow_handshakes: Vec<u32>,
    /// `None` if parties are not counted.
    parties: Option<HashMap<u64, PartyCount>>,
    /// Seats by the index of the queue that is charged for them.
    queues: HashMap<u32, u32>,
    /// Flows that are counted at their endpoint, by its id.
    open: HashMap<u32, u32>,
}

/// The flows of a party.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartyCount {
    /// Those that hold a level's seat.
    pub seated: u32,
    /// TCP connections whose handshake is slow.
    pub slow_handshakes: u32,
    /// The most connections that it may have, and the priority level of the latest slow handshake.
    pub most: u32,
    pub level: u32,
}

/// The live flows of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ServiceFlows {
    all: u32,
    /// Flows that have not proved themselves.
    half_open: u32,
}

impl ServiceCounts {
    /// More services than any node has. A larger id means a broken record.
    const LIMIT: u32 = 1 << SERVICE_BITS;

    /// The number of a service's live flows.
    pub fn of(&self, service: u32) -> u32 {
        self.get(service).all
    }

    /// Flows of a service that have not proved themselves.
    pub fn half_open(&self, service: u32) -> u32 {
        self.get(service).half_open
    }

    /// The numbers that were seen of a service, in the form that programs count.
    pub fn counted(&self, service: u32) -> Counted {
        let ServiceFlows { all, half_open } = self.get(service);
        Counted {
            flows: all as i32,
            half_open: half_open as i32,
        }
    }

    fn get(&self, service: u32) -> ServiceFlows {
        self.flows
            .get(service as usize)
            .copied()
            .unwrap_or_default()
    }

    /// Services with live flows, and the number of these.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let all = self.flows.iter().map(|flows| flows.all);
        (0..).zip(all).filter(|(_, flows)| *flows != 0)
    }

    /// The seats of a limit that flows hold.
    pub fn seats(&self, limit: u32) -> u32 {
        self.seats.get(limit as usize).copied().unwrap_or(0)
    }

    /// The seats of TCP connections within a limit whose handshake is slow: it has been open for half a second at least,
    /// or would have been, if its service had not so many that none stays for so long, or if a reset
    /// from its client had not ended it.
    pub fn slow_handshakes(&self, limit: u32) -> u32 {
        self.slow_handshakes
            .get(limit as usize)
            .copied()
            .unwrap_or(0)
    }

    /// Counts parties as well.
    #[must_use]
    pub fn with_parties(self) -> Self {
        Self {
            parties: Some(HashMap::new()),
            ..self
        }
    }

    pub(super) fn counts_parties(&self) -> bool {
        self.parties.is_some()
    }

    /// The flows of each party. They are not kept.
    pub fn take_parties(&mut self) -> HashMap<u64, PartyCount> {
        self.parties.take().unwrap_or_default()
    }

    /// The seats for which each queue is to be charged, by its index.
    pub fn queues(&self) -> &HashMap<u32, u32> {
        &self.queues
    }

    pub(super) fn add_charge(&mut self, queue: u32, seats: u32) {
        *self.queues.entry(queue).or_default() += seats;
    }

    /// The flows that are counted at each endpoint, by its id.
    pub fn open(&self) -> &HashMap<u32, u32> {
        &self.open
    }

    pub(super) fn add_open(&mut self, endpoint: u32) {
        *self.open.entry(endpoint).or_default() += 1;
    }

    /// The numbers of a party, if parties are counted.
    pub(super) fn of_party(&mut self, party: u64) -> Option<&mut PartyCount> {
        let parties = self.parties.as_mut()?;
        Some(parties.entry(party).or_default())
    }

    pub(super) fn add_seats(&mut self, place: Place) {
        add_place(&mut self.seats, place);
    }

    /// Adds a socket that holds seats, without a flow, and the queue that is charged for it, if one is.
    pub(super) fn add_socket(&mut self, socket: &SocketSeats, queue: Option<u32>) {
        let place = socket.place();
        self.add_seats(place);
        if place.counts_at_endpoint() {
            self.add_open(socket.endpoint);
        }
        if socket.party != 0
            && let Some(party) = self.of_party(socket.party)
        {
            party.seated += 1;
        }
        if let Some(queue) = queue {
            self.add_charge(queue, place.width());
        }
    }

    pub(super) fn add_slow(&mut self, place: Place) {
        add_place(&mut self.slow_handshakes, place);
    }

    pub(super) fn add(&mut self, service: u32, half_open: bool) {
        let index = service as usize;
        if index >= self.flows.len() {
            if service >= Self::LIMIT {
                return;
            }
            let services = (index + 1).next_power_of_two();
            self.flows.resize(services, ServiceFlows::default());
        }
        let flows = &mut self.flows[index];
        flows.all += 1;
        flows.half_open += u32::from(half_open);
    }
}

/// Adds the seats of a place to the numbers of its limits.
fn add_place(numbers: &mut Vec<u32>, place: Place) {
    if place.is_none() {
        return;
    }
    numbers.resize(LIMITS + LEVEL_NUMBERS, 0);
    for (index, width) in place.limits() {
        numbers[index as usize] += width;
    }
}

/// What has been removed, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Flows that were silent for too long, by stage. Those that were closed ended normally.
    pub expired: FlowCounts,
    /// UDP flows to endpoints that no longer served.
    pub stale_udp: u64,
    /// TCP and SCTP flows to endpoints that have left a Service that asks for a reset.
    pub reset_tcp: u64,
    /// UDP sockets of the node's own processes that were connected to such an endpoint.
    pub stale_sockets: u64,
    /// Records without their other direction: a stale UDP flow leaves its answers' record behind,
    /// and a killed agent may leave either.
    pub orphans: u64,
    /// Records that were claimed and never published. There should be none.
    pub leaked_claims: u64,
}

/// A stage's name in tables and metrics.
pub fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Unreplied => "unreplied",
        Stage::Handshake => "handshake",
        Stage::Established => "established",
        Stage::HalfClosed => "half-closed",
        Stage::Closed => "closed",
    }
}

/// The protocols that flows may have, in the order of their rows.
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

fn row(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Sctp => 2,
    }
}
