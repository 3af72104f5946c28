//! Compares what agents have written, byte for byte.

use std::path::Path;

use lb_datapath::bpf::{BatchMap, MappedArray};

/// All maps that plans are written to, without counters.
#[derive(PartialEq, Eq)]
pub struct Programmed {
    frontends4: Vec<([u8; 8], [u8; 8])>,
    frontends6: Vec<([u8; 20], [u8; 8])>,
    services: Vec<[u64; 1]>,
    plans: Vec<[u64; 8]>,
    endpoints: Vec<[u64; 3]>,
}

impl Programmed {
    /// Reads the maps pinned in a directory.
    pub fn read(maps: &Path) -> Self {
        Self {
            frontends4: entries(maps, "FRONTENDS4"),
            frontends6: entries(maps, "FRONTENDS6"),
            services: array(maps, "SERVICES"),
            plans: array(maps, "PLANS"),
            endpoints: array(maps, "ENDPOINTS"),
        }
    }

    /// The numbers of the services, by frontend.
    pub fn service_ids(&self) -> Vec<([u8; 8], [u8; 8])> {
        self.frontends4.clone()
    }

    /// The names of the maps that differ.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        [
            ("FRONTENDS4", self.frontends4 == other.frontends4),
            ("FRONTENDS6", self.frontends6 == other.frontends6),
            ("SERVICES", self.services == other.services),
            ("PLANS", self.plans == other.plans),
            ("ENDPOINTS", self.endpoints == other.endpoints),
        ]
        .into_iter()
        .filter_map(|(name, same)| (!same).then_some(name))
        .collect()
    }
}

/// Number of connections that all services have had. Nothing may reset it.
pub fn connections(maps: &Path) -> u64 {
    array::<4>(maps, "SERVICE_STATS")
        .iter()
        .map(|stats| stats[0])
        .sum()
}

fn array<const WORDS: usize>(maps: &Path, name: &str) -> Vec<[u64; WORDS]> {
    let map = MappedArray::<[u64; WORDS]>::from_pin(&maps.join(name)).unwrap();
    map.iter(0..map.len()).map(|(_, value)| value).collect()
}

fn entries<const KEY: usize, const VALUE: usize>(
    maps: &Path,
    name: &str,
) -> Vec<([u8; KEY], [u8; VALUE])> {
    let map = BatchMap::<[u8; KEY], [u8; VALUE]>::from_pin(&maps.join(name)).unwrap();
    let mut entries = map.entries().unwrap();
    entries.sort_unstable();
    entries
}
