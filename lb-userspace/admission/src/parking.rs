//! Room for the packets of waiting connections. While a connection waits, the node keeps its first
//! packet. All packets together, those of a level, and those of a source have limits, so that
//! nobody can use up the room of others.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use super::{classify::source_of, controller::LevelId, schema::Ingress};

/// How many octets may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParkingLimits {
    pub node: u64,
    pub level: u64,
    /// A source is an address inside the cluster, and a network outside: see [`source_of`].
    pub source: u64,
}

/// Whose room is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Node,
    Level,
    Source,
}

/// Room that a packet takes. It is to be given back with [`Parking::leave`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the room does not come back by itself"]
pub struct Parked {
    level: LevelId,
    source: IpNet,
    octets: u64,
}

/// The room of a node, and who uses it.
#[derive(Clone, Debug)]
pub struct Parking {
    limits: ParkingLimits,
    node: u64,
    levels: BTreeMap<LevelId, u64>,
    sources: BTreeMap<IpNet, u64>,
}

impl Parking {
    /// Room in which nothing is kept yet.
    pub fn new(limits: ParkingLimits) -> Self {
        Self {
            limits,
            node: 0,
            levels: BTreeMap::new(),
            sources: BTreeMap::new(),
        }
    }

    /// Changes the limits. What is kept already stays.
    pub fn configure(&mut self, limits: ParkingLimits) {
        self.limits = limits;
    }

    /// Takes room for a packet that came in from an address.
    ///
    /// # Errors
    /// If there is none. The connection is then refused as by a full queue.
    pub fn park(
        &mut self,
        level: LevelId,
        ingress: Ingress,
        address: IpAddr,
        octets: u32,
    ) -> Result<Parked, Full> {
        let octets = u64::from(octets);
        let source = source_of(ingress, address);
        let used = |used: Option<&u64>| used.copied().unwrap_or_default().saturating_add(octets);
        let (of_level, of_source) = (
            used(self.levels.get(&level)),
            used(self.sources.get(&source)),
        );
        // The narrowest first: it says who is to blame.
        if of_source > self.limits.source {
            return Err(Full::Source);
        }
        if of_level > self.limits.level {
            return Err(Full::Level);
        }
        if used(Some(&self.node)) > self.limits.node {
            return Err(Full::Node);
        }
        self.node += octets;
        self.levels.insert(level, of_level);
        self.sources.insert(source, of_source);
        Ok(Parked {
            level,
            source,
            octets,
        })
    }

    /// Gives back the room of a packet.
    pub fn leave(&mut self, parked: Parked) {
        let Parked {
            level,
            source,
            octets,
        } = parked;
        self.node = self.node.saturating_sub(octets);
        give_back(&mut self.levels, level, octets);
        give_back(&mut self.sources, source, octets);
    }

    /// Octets that are kept.
    pub fn octets(&self) -> u64 {
        self.node
    }

    /// Sources whose packets are kept.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }
}

/// Subtracts from a number, which is forgotten at zero.
fn give_back<K: Ord>(used: &mut BTreeMap<K, u64>, key: K, octets: u64) {
    if let Some(number) = used.get_mut(&key) {
        *number = number.saturating_sub(octets);
        if *number == 0 {
            used.remove(&key);
        }
    }
}
