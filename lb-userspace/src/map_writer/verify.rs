//! Compares the maps with what has been written to them, a piece at a time, and writes again what
//! differs. Nobody but the agent writes to its maps: a difference is the work of another program, or
//! a fault of this one or of the machine's.
//!
//! Only what decides about packets is compared: the records that a frontend leads to, and that there
//! are no others; limits, priority levels and flow schemas. Counters and flow records change all the time, and
//! limits of levels are set anew all the time. Of an endpoint's two positions, the one that belongs to the published
//! plan is compared.

use std::{collections::HashMap, fmt, net::IpAddr};

use lb_common::abi::{self, plan_flag};
use lb_datapath::maps::{Elements, Entries, Position, SourceKey};
use lb_objects::IpFamily;

use super::{Key, MapWriter, frontends::Address, service::all_weights};

/// Single look-ups, or elements, at a time.
const LOOKUPS: usize = 512;
/// Differences that a round describes; more are only counted.
const DESCRIBED: usize = 20;

/// A record that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The map, by its name in the kernel, or what else of the data plane.
    pub part: &'static str,
    /// The record's key or index, and whose it is.
    pub record: String,
    pub wrong: Wrong,
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Missing,
    Changed,
    /// Nobody has written it.
    Foreign,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wrong = match self.wrong {
            Wrong::Missing => "is missing",
            Wrong::Changed => "has been changed",
            Wrong::Foreign => "should not be there",
        };
        write!(f, "{} {} {wrong}", self.part, self.record)
    }
}

/// What a round has found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Records compared.
    pub records: u64,
    /// How many of them differed.
    pub differences: u64,
    /// The first of these.
    pub described: Vec<Difference>,
    /// Why a map could not be read, or the kernel did not tell what is attached, if so.
    pub unread: Option<String>,
}

impl Findings {
    /// Notes that a record has been compared, and what is wrong with it if anything is.
    pub fn compared(
        &mut self,
        part: &'static str,
        wrong: Option<Wrong>,
        record: impl FnOnce() -> String,
    ) {
        self.records += 1;
        let Some(wrong) = wrong else { return };
        self.differences += 1;
        if self.described.len() < DESCRIBED {
            self.described.push(Difference {
                part,
                record: record(),
                wrong,
            });
        }
    }

    /// What could be read; what could not is noted, and is no difference.
    pub fn read<T>(&mut self, read: Result<T, impl fmt::Display>) -> Option<T> {
        let read = read.inspect_err(|error| self.unread = Some(format!("{error:#}")));
        read.ok()
    }

    /// Compares an element of an array, and mends it.
    pub(super) fn element<T: PartialEq>(
        &mut self,
        map: &'static str,
        elements: &(impl Elements<T> + ?Sized),
        (index, written): (u32, &T),
        whose: &dyn fmt::Display,
    ) {
        let is_wrong = elements.read(index) != *written;
        if is_wrong {
            elements.write(index, written);
        }
        let wrong = is_wrong.then_some(Wrong::Changed);
        self.compared(map, wrong, || format!("{index} of {whose}"));
    }
}

/// Compares a trie with all that has been written to it, and has it hold just that. A look-up finds
/// the longest prefix, not a key: so what is missing shows only where the trie is read as a whole.
/// That takes a while, and is left for when a scan in parts has failed.
pub(super) fn verify_trie<V: Copy + PartialEq>(
    map: &'static str,
    trie: &dyn Entries<SourceKey, V>,
    written: impl IntoIterator<Item = (SourceKey, V)>,
    findings: &mut Findings,
) {
    let Some(found) = findings.read(trie.all()) else {
        return;
    };
    let mut found: HashMap<_, _> = found
        .into_iter()
        .map(|(key, value)| (network(&key), (key, value)))
        .collect();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (key, value) in written {
        let found = found.remove(&network(&key)).map(|(_, value)| value);
        let wrong = wrong(found.as_ref(), Some(&value));
        if wrong.is_some() {
            keys.push(key);
            values.push(value);
        }
        findings.compared(map, wrong, || in_words(&key));
    }
    let foreign: Vec<_> = found.into_values().map(|(key, _)| key).collect();
    for key in &foreign {
        findings.compared(map, Some(Wrong::Foreign), || in_words(key));
    }
    // First of all makes room. What the kernel refuses is found again by the next round.
    if !foreign.is_empty() {
        let _ = trie.remove(&foreign);
    }
    if !keys.is_empty() {
        let _ = trie.insert(&keys, &values);
    }
}

/// Set, prefix length and address of a key.
fn network(key: &SourceKey) -> (u32, u32, [u8; 16]) {
    let data = key.data();
    (data.set, key.prefix_len(), data.address.octets)
}

fn in_words(key: &SourceKey) -> String {
    let data = key.data();
    let address = IpAddr::from(data.address);
    let (set, bits) = (u32::from_be(data.set), key.prefix_len());
    format!("set {set}, {address}, {bits} bits with the set's number")
}

/// How far a map has been read, how many entries it has so far, and how many of them were as they
/// were written: if that are all, none is missing, and no single one has to be looked up.
#[derive(Debug, Default)]
pub(super) struct Scan {
    position: Position,
    seen: usize,
    pub right: usize,
}

impl Scan {
    /// Some of the entries to come; none, and no more in this round, if they cannot be read.
    pub fn part<K, V>(
        &mut self,
        map: &(impl Entries<K, V> + ?Sized),
        findings: &mut Findings,
    ) -> Vec<(K, V)> {
        let part = findings.read(map.part(&mut self.position));
        let part = part.unwrap_or_else(|| {
            self.position = Position::End;
            Vec::new()
        });
        self.seen += part.len();
        part
    }

    /// Takes in whether an entry is as it was written. What is not is still to be compared.
    pub fn met(&mut self, is_right: bool, findings: &mut Findings) {
        self.right += usize::from(is_right);
        findings.records += u64::from(is_right);
    }

    /// Whether the map has been read to its end.
    pub fn is_over(&self) -> bool {
        self.position == Position::End
    }

    /// Whether the map has been read to its end, and had anything but the entries that it should
    /// have, so many of them.
    pub fn has_failed(&self, entries: u32) -> bool {
        let entries = entries as usize;
        self.is_over() && (self.seen, self.right) != (entries, entries)
    }
}

/// What is wrong with a value that was found, if anything is.
pub fn wrong<V: PartialEq>(found: Option<&V>, written: Option<&V>) -> Option<Wrong> {
    match (found, written) {
        (found, written) if found == written => None,
        (None, _) => Some(Wrong::Missing),
        (_, None) => Some(Wrong::Foreign),
        _ => Some(Wrong::Changed),
    }
}

/// A comparison of everything. What changes meanwhile is compared as it is by then.
#[derive(Debug)]
pub struct Round {
    /// Those to come, the next one last.
    pieces: Vec<Piece>,
    findings: Findings,
}

/// What is compared at a time.
#[derive(Debug)]
enum Piece {
    Port(Key),
    LookupTable(u32),
    Frontends(IpFamily, Scan),
    /// Addresses of a family, some of which are missing.
    Addresses(Vec<Address>),
    ClusterIps(Scan),
    ServiceRanges,
    SourceRanges(Scan),
    Classes,
    SourceClasses(Scan),
    /// Of Services.
    Limits,
    Levels,
    /// From this number on.
    Schemas(u32),
}

impl Round {
    /// What has been found so far.
    pub fn findings(&self) -> &Findings {
        &self.findings
    }

    /// The same, for others to add to.
    pub fn findings_mut(&mut self) -> &mut Findings {
        &mut self.findings
    }
}

impl MapWriter {
    /// Begins to compare the maps with what has been written to them. To be called when
    /// [`MapWriter::finish_adoption`] has been.
    pub fn begin_round(&self) -> Round {
        let mut pieces = vec![
            Piece::Schemas(0),
            Piece::Levels,
            Piece::Limits,
            Piece::SourceClasses(Scan::default()),
            Piece::Classes,
            Piece::SourceRanges(Scan::default()),
            Piece::ServiceRanges,
            Piece::ClusterIps(Scan::default()),
            Piece::Frontends(IpFamily::V6, Scan::default()),
            Piece::Frontends(IpFamily::V4, Scan::default()),
        ];
        pieces.extend(self.lookup_tables.rows().map(Piece::LookupTable));
        pieces.extend(self.programmed.keys().cloned().map(Piece::Port));
        Round {
            pieces,
            findings: Findings::default(),
        }
    }

    /// Compares the next piece, and has the maps hold again what they should. Returns whether there
    /// is more to compare.
    pub fn verify_next(&mut self, round: &mut Round) -> bool {
        let Some(piece) = round.pieces.pop() else {
            return false;
        };
        let findings = &mut round.findings;
        let before = findings.differences;
        let rest = self.verify(piece, findings);
        if findings.differences > before {
            // Takes back what is foreign, and adds what is missing.
            self.flush();
        }
        round.pieces.extend(rest);
        !round.pieces.is_empty()
    }

    /// Returns what of a piece is to be compared yet.
    fn verify(&mut self, piece: Piece, findings: &mut Findings) -> Option<Piece> {
        let maps = &self.maps;
        match piece {
            Piece::Port(key) => self.verify_port(&key, findings),
            Piece::LookupTable(row) => self.lookup_tables.verify(row, maps, findings),
            Piece::Frontends(family, mut scan) => {
                self.frontends
                    .verify_part(family, &mut scan, maps, findings);
                return match scan.is_over() {
                    true => self.missing(family, scan.right),
                    false => Some(Piece::Frontends(family, scan)),
                };
            }
            Piece::Addresses(mut addresses) => {
                let rest = addresses.split_off(addresses.len().min(LOOKUPS));
                for address in addresses {
                    self.frontends.verify_address(&address, maps, findings);
                }
                return (!rest.is_empty()).then_some(Piece::Addresses(rest));
            }
            Piece::ClusterIps(mut scan) => {
                self.cluster_ips.verify(&mut scan, maps, findings);
                return (!scan.is_over()).then_some(Piece::ClusterIps(scan));
            }
            Piece::ServiceRanges => self.cluster_ips.verify_ranges(maps, findings),
            Piece::SourceRanges(mut scan) => {
                self.source_sets.verify(&mut scan, maps, findings);
                return (!scan.is_over()).then_some(Piece::SourceRanges(scan));
            }
            Piece::Classes => self.schemas.verify_classes(maps, findings),
            Piece::SourceClasses(mut scan) => {
                self.schemas.sets().verify(&mut scan, maps, findings);
                return (!scan.is_over()).then_some(Piece::SourceClasses(scan));
            }
            Piece::Limits => self.seats.verify(maps, findings),
            Piece::Levels => self.schemas.written().verify_levels(maps, findings),
            Piece::Schemas(from) => {
                let written = self.schemas.written();
                let more = written.verify_schemas(from, LOOKUPS, maps, findings);
                return more.map(Piece::Schemas);
            }
        }
        None
    }

    /// The addresses of a family, if more of them should be in the map than have been found there.
    fn missing(&self, family: IpFamily, found: usize) -> Option<Piece> {
        let should = self.frontends.entries()[family as usize] as usize;
        let all = || self.frontends.addresses(family).collect();
        (found < should).then(|| Piece::Addresses(all()))
    }

    /// Compares what a service port has in the maps.
    fn verify_port(&self, key: &Key, findings: &mut Findings) {
        let Some(programmed) = self.programmed.get(key) else {
            return;
        };
        let maps = &self.maps;
        let service = abi::Service {
            plan: programmed.plan,
            name_hash: programmed.name_hash,
        };
        findings.element("SERVICES", &*maps.services, (programmed.id, &service), key);
        if programmed.plan != 0 {
            let content = (programmed.plan, &programmed.content);
            findings.element("PLANS", &*maps.plans, content, key);
        }
        let lane = usize::from(programmed.lane);
        let is_weighed = programmed.content.has(plan_flag::LEAST_CONNECTIONS)
            || programmed.content.balance_factor() != 0;
        let slots = programmed.slots().zip(&*programmed.endpoints);
        for ((slot, endpoint), weight) in slots.zip(all_weights(&programmed.weights)) {
            findings.element("ENDPOINTS", &*maps.endpoints, (slot, endpoint), key);
            let slots = maps.endpoint_states.read(endpoint.id).slots;
            let is_wrong = slots[lane] != slot;
            if is_wrong {
                self.write_position(endpoint.id, [slot; 2]);
            }
            let wrong = is_wrong.then_some(Wrong::Changed);
            findings.compared("ENDPOINT_STATES", wrong, || {
                format!("{} of {key}", endpoint.id)
            });
            if is_weighed {
                let is_wrong = maps.endpoint_loads.read(endpoint.id).weight != weight;
                self.write_weight(endpoint.id, weight);
                let wrong = is_wrong.then_some(Wrong::Changed);
                findings.compared("ENDPOINT_LOADS", wrong, || {
                    format!("{} of {key}", endpoint.id)
                });
            }
        }
    }
}
