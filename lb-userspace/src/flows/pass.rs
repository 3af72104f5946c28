//! What one pass over a flow table collects.

use std::collections::HashMap;

use lb_common::{
    addr::Address,
    flow::{Flow, Stage, Timeouts, flow_flag, place::Place, tag},
};

use super::{
    records::{Connection, protocol},
    stats::{Removed, ServiceCounts, TableStats},
};

/// A record at a moment: enough to tell later whether it is still the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sighting {
    pub index: u32,
    pub tag: u32,
}

impl Sighting {
    pub fn of<A>(index: u32, flow: &Flow<A>) -> Self {
        Self {
            index,
            tag: flow.tag,
        }
    }
}

/// Records with which the next pass compares, each list in the order of the table.
#[derive(Debug, Default)]
pub struct Findings {
    pub tombs: Vec<Sighting>,
    pub busy: Vec<Sighting>,
    pub unpaired: Vec<Sighting>,
    /// Endpoints' directions of flows that are closed and hold seats.
    pub closed: Vec<u32>,
    /// The same of flows whose handshakes are not complete, or were ended by a reset, and that count
    /// against a limit.
    pub shaking_hands: Vec<u32>,
    /// The same of flows that are established and do not hold the seats that they should.
    pub unseated: Vec<u32>,
}

/// A pass in progress.
pub struct Pass<'a> {
    pub found: Findings,
    /// Records that a search for a live flow passes over, if this pass cleans tombs.
    pub passed: Option<Bitmap>,
    /// Endpoints' directions of flows that have deadlines.
    pub bound: Vec<u32>,
    /// Flows of parties: the index of the endpoint's direction, the party, and the queue that is charged if
    /// the flow has its seats.
    pub members: Vec<(u32, u64, Option<u32>)>,
    /// Endpoints' directions of flows that take more than one seat of their level, and how many.
    wide: HashMap<u32, u32>,
    /// Flags of live records, with [`Self::LIVE`]. A pass is several times faster if it reads the
    /// other half of a pair from here, because in the table that is a cold cache line.
    seen: Vec<u8>,
    /// Number of live records.
    halves: u64,
    /// Number of live records with a live other half.
    pairs: u64,
    pub stats: TableStats,
    pub now: u32,
    pub timeouts: Timeouts,
    services: &'a mut ServiceCounts,
    pub removed: &'a mut Removed,
}

impl<'a> Pass<'a> {
    const LIVE: u8 = 1 << 7;
    /// Of the client's direction: the flow is half-open. Of the endpoint's: it holds its seats.
    const HALF: u8 = 1 << 6;
    /// Of the endpoint's direction: the flow counts against a limit.
    const PLACED: u8 = 1 << 5;
    /// The same of the limit of a priority level.
    const LEVELED: u8 = 1 << 4;
    /// The [`flow_flag`]s on which a stage depends, at their places.
    const SHOWN: u32 = flow_flag::SEEN | flow_flag::FIN | flow_flag::FIN_ACKED | flow_flag::RST;

    /// `mask` is the number of records less one.
    pub fn new(
        mask: u32,
        now: u32,
        timeouts: Timeouts,
        services: &'a mut ServiceCounts,
        removed: &'a mut Removed,
        passed: Option<Bitmap>,
    ) -> Self {
        Self {
            found: Findings::default(),
            passed,
            bound: Vec::new(),
            members: Vec::new(),
            wide: HashMap::new(),
            seen: vec![0; mask as usize + 1],
            halves: 0,
            pairs: 0,
            stats: TableStats {
                records: mask + 1,
                ..TableStats::default()
            },
            now,
            timeouts,
            services,
            removed,
        }
    }

    /// Counts a live record, and its flow if the other half has been counted.
    pub fn count<A: Address>(&mut self, index: u32, flow: &Flow<A>) {
        self.halves += 1;
        self.services.add_seats(flow.place());
        let half = match tag::state(flow.tag) {
            tag::HALF => Self::HALF,
            _ => 0,
        };
        let placed = match flow.own_place().is_none() {
            true => 0,
            false => Self::PLACED,
        };
        let leveled = match flow.own_place().level() {
            0 => 0,
            _ => Self::LEVELED,
        };
        if flow.place().width() > 1 {
            self.wide.insert(index, flow.place().width());
        }
        let own = Self::LIVE | half | placed | leveled | (flow.flags & Self::SHOWN) as u8;
        self.seen[index as usize] = own;
        let other = match flow.peer < index {
            true => self.seen[flow.peer as usize],
            false => 0,
        };
        if other & Self::LIVE == 0 {
            return;
        }
        self.pairs += 1;
        let (forward, reply) = match flow.has(flow_flag::REPLY) {
            true => (other, own),
            false => (own, other),
        };
        let state = match forward & Self::HALF {
            0 => tag::LIVE,
            _ => tag::HALF,
        };
        let shown = |seen: u8| u32::from(seen) & Self::SHOWN;
        let stage = Stage::of(state, shown(forward), shown(reply));
        self.stats.flows.add(protocol(flow), stage);
        self.services.add(flow.service_id(), state == tag::HALF);
        if reply & Self::PLACED == 0 {
            return;
        }
        let is_seated = reply & Self::HALF != 0;
        let is_reply = flow.has(flow_flag::REPLY);
        let reply = if is_reply { index } else { flow.peer };
        let found = &mut self.found;
        // A datagram begins no handshake.
        if state == tag::HALF && !flow.has(flow_flag::UDP) {
            found.shaking_hands.push(reply);
        }
        match stage {
            Stage::Closed if is_seated => found.closed.push(reply),
            Stage::Established | Stage::HalfClosed if !is_seated => found.unseated.push(reply),
            _ => {}
        }
    }

    /// Counts a flow that holds the seat of its Service's limit at its endpoint.
    pub fn count_open(&mut self, endpoint: u32) {
        self.services.add_open(endpoint);
    }

    /// Whether it matters whose flows are.
    pub fn counts_parties(&self) -> bool {
        self.services.counts_parties()
    }

    /// Counts the flows of parties that hold seats of a level. To be called when all records have
    /// been counted.
    pub fn count_members(&mut self) {
        let seated = Self::LIVE | Self::HALF | Self::LEVELED;
        for (reply, party, queue) in std::mem::take(&mut self.members) {
            let seen = self.seen.get(reply as usize).copied().unwrap_or(0);
            if seen & seated != seated {
                continue;
            }
            if let Some(count) = self.services.of_party(party) {
                count.seated += 1;
            }
            if let Some(queue) = queue {
                let width = self.wide.get(&reply).copied().unwrap_or(1);
                self.services.add_charge(queue, width);
            }
        }
    }

    /// Half-open flows of a connection's service that have been counted so far.
    pub fn half_open<A: Address>(&self, connection: &Connection<A>) -> u32 {
        self.services.half_open(connection.forward.service_id())
    }

    /// Counts a slow handshake within these limits.
    pub fn count_slow(&mut self, place: Place) {
        self.services.add_slow(place);
    }

    /// Counts a slow handshake in a priority level of a party, which may have so many connections.
    pub fn count_slow_of(&mut self, (party, most): (u64, u32), level: u32) {
        if let Some(count) = self.services.of_party(party) {
            count.slow_handshakes += 1;
            (count.most, count.level) = (most, level);
        }
    }

    /// Subtracts a record whose other half was counted: both have been ended.
    pub fn uncount<A>(&mut self, index: u32, flow: &Flow<A>) {
        if flow.peer < index && self.seen[flow.peer as usize] & Self::LIVE != 0 {
            self.halves -= 1;
        }
    }

    /// Whether a live record has no other half. A half that came or went during the pass counts
    /// too.
    pub fn has_orphan(&self) -> bool {
        self.halves != 2 * self.pairs
    }
}

/// A set of records.
pub struct Bitmap(Vec<u64>);

impl Bitmap {
    pub fn new(mask: u32) -> Self {
        Self(vec![0; mask as usize / 64 + 1])
    }

    pub fn insert(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    pub fn contains(&self, index: u32) -> bool {
        self.0[index as usize / 64] & 1 << (index % 64) != 0
    }
}
