//! Sets of source ranges. Service ports with the same ranges share a set.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use aya::maps::lpm_trie::Key;
use ipnet::IpNet;
use lb_common::abi::SourceRangeKey;
use lb_datapath::maps::{Maps, SourceKey, WriteError};

use super::{
    ranges::Numbers,
    verify::{Findings, Scan, verify_trie},
};

/// The value of every entry: that there is one says all.
const MEMBER: u8 = 1;

/// The sets that are in the trie, and how many plans refer to each.
pub struct SourceSets {
    numbers: Numbers,
    by_content: HashMap<Vec<IpNet>, u32>,
    /// Ranges and references.
    sets: BTreeMap<u32, (Vec<IpNet>, usize)>,
    /// Entries in the trie that belong to no set.
    strays: Vec<SourceKey>,
    /// How many service ports of each namespace have each set.
    namespaces: HashMap<String, BTreeMap<u32, u32>>,
}

impl Default for SourceSets {
    /// For an empty trie.
    fn default() -> Self {
        Self {
            numbers: Numbers::new(1..u32::MAX),
            by_content: HashMap::new(),
            sets: BTreeMap::new(),
            strays: Vec::new(),
            namespaces: HashMap::new(),
        }
    }
}

impl SourceSets {
    /// Takes over the sets in the trie, without references.
    pub fn read(maps: &Maps) -> Result<Self, WriteError> {
        let mut found = Self::default();
        for (key, _) in maps.source_ranges.all()? {
            let set = u32::from_be(key.data().set);
            match range(&key) {
                Some(range) if (1..u32::MAX).contains(&set) => {
                    found.sets.entry(set).or_default().0.push(range);
                }
                _ => found.strays.push(key),
            }
        }
        for (set, (ranges, _)) in &mut found.sets {
            ranges.sort_unstable();
            found.numbers.reserve(*set);
            found.by_content.entry(ranges.clone()).or_insert(*set);
        }
        Ok(found)
    }

    /// Entries in the trie.
    pub fn entries(&self) -> u32 {
        let sets = self.sets.values().map(|(ranges, _)| ranges.len());
        (sets.sum::<usize>() + self.strays.len()) as u32
    }

    /// The number of the set with these ranges: 0 for no ranges, `None` if there is no such set.
    pub fn number(&self, ranges: &[IpNet]) -> Option<u32> {
        if ranges.is_empty() {
            return Some(0);
        }
        self.by_content.get(&normal(ranges)).copied()
    }

    /// Ranges that a namespace has, each set once, besides the set `but` and the one with `wanted`.
    pub fn of_namespace(&self, namespace: &str, but: u32, wanted: &[IpNet]) -> u32 {
        let number = self.number(wanted);
        let sets = self.namespaces.get(namespace).into_iter().flatten();
        let others = sets.filter(|(set, _)| **set != but && Some(**set) != number);
        let ranges = others.filter_map(|(set, _)| Some(self.sets.get(set)?.0.len()));
        ranges.sum::<usize>() as u32
    }

    /// A service port of a namespace has the set `to` from now on, after `from`; 0 is none.
    pub fn change(&mut self, namespace: &str, from: u32, to: u32) {
        if from == to {
            return;
        }
        if to != 0 {
            let sets = self.namespaces.entry(namespace.to_owned()).or_default();
            *sets.entry(to).or_default() += 1;
        }
        let Some(sets) = self.namespaces.get_mut(namespace) else {
            return;
        };
        if let Some(ports) = sets.get_mut(&from) {
            *ports -= 1;
            if *ports == 0 {
                sets.remove(&from);
            }
        }
        if sets.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// Adds a reference to a set in the trie. Returns whether there is such a set.
    pub fn adopt(&mut self, set: u32) -> bool {
        match self.sets.get_mut(&set) {
            Some((_, references)) => *references += 1,
            None => return false,
        }
        true
    }

    /// Removes sets that were read from the trie and have no references, and stray entries.
    pub fn remove_unused(&mut self, maps: &Maps) {
        let strays = std::mem::take(&mut self.strays);
        if !strays.is_empty() {
            // If the kernel refuses, this does no harm: no plan refers to them.
            let _ = maps.source_ranges.remove(&strays);
        }
        let unused: Vec<_> = self
            .sets
            .iter()
            .filter(|(_, (_, references))| *references == 0)
            .map(|(set, _)| *set)
            .collect();
        for set in unused {
            self.remove(set, maps);
        }
    }

    /// Number of the set with these ranges, with one more reference; 0 for no ranges.
    pub fn acquire(&mut self, ranges: &[IpNet], maps: &Maps) -> Result<u32, WriteError> {
        if ranges.is_empty() {
            return Ok(0);
        }
        let ranges = normal(ranges);
        if let Some(set) = self.by_content.get(&ranges) {
            if let Some((_, references)) = self.sets.get_mut(set) {
                *references += 1;
            }
            return Ok(*set);
        }
        let Some(set) = self.numbers.take() else {
            return Err(WriteError("no number for source ranges is free".into()));
        };
        let keys = keys(set, &ranges);
        if let Err(incomplete) = maps.source_ranges.insert(&keys, &vec![MEMBER; keys.len()]) {
            // If the kernel refuses, this does no harm: no plan refers to them.
            let _ = maps.source_ranges.remove(&keys[..incomplete.done]);
            self.numbers.release(set);
            return Err(incomplete.error);
        }
        self.by_content.insert(ranges.clone(), set);
        self.sets.insert(set, (ranges, 1));
        Ok(set)
    }

    /// Gives back a reference. A set without references is removed.
    pub fn release(&mut self, set: u32, maps: &Maps) {
        let Some((_, references)) = self.sets.get_mut(&set) else {
            return;
        };
        *references -= 1;
        if *references == 0 {
            self.remove(set, maps);
        }
    }

    /// Compares the next entries of the trie with the sets; in the end, if something is wrong, all of
    /// them, and has the trie hold just the sets.
    pub fn verify(&self, scan: &mut Scan, maps: &Maps, findings: &mut Findings) {
        for (key, value) in scan.part(&*maps.source_ranges, findings) {
            let ranges = self.sets.get(&u32::from_be(key.data().set));
            let is_in_set = ranges
                .zip(range(&key))
                .is_some_and(|((ranges, _), range)| ranges.binary_search(&range).is_ok());
            scan.met(is_in_set && value == MEMBER, findings);
        }
        if scan.has_failed(self.entries()) {
            let sets = self.sets.iter();
            let written = sets.flat_map(|(set, (ranges, _))| keys(*set, ranges));
            let written = written.chain(self.strays.iter().copied());
            let written = written.map(|key| (key, MEMBER));
            verify_trie("SOURCE_RANGES", &*maps.source_ranges, written, findings);
        }
    }

    fn remove(&mut self, set: u32, maps: &Maps) {
        let Some((ranges, _)) = self.sets.remove(&set) else {
            return;
        };
        // If the kernel refuses, this does no harm, because no plan refers to them. But the number
        // is not used again.
        if maps.source_ranges.remove(&keys(set, &ranges)).is_ok() {
            self.numbers.release(set);
        }
        if self.by_content.get(&ranges) == Some(&set) {
            self.by_content.remove(&ranges);
        }
    }
}

/// The same result for every order and notation of the same ranges.
fn normal(ranges: &[IpNet]) -> Vec<IpNet> {
    let mut ranges: Vec<_> = ranges.iter().map(IpNet::trunc).collect();
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

/// The range of an entry.
fn range(key: &SourceKey) -> Option<IpNet> {
    let network = IpAddr::from(key.data().address);
    let mapped = match network {
        IpAddr::V4(_) => 96,
        IpAddr::V6(_) => 0,
    };
    let prefix = key.prefix_len().checked_sub(32 + mapped)?;
    IpNet::new(network, u8::try_from(prefix).ok()?).ok()
}

fn keys(set: u32, ranges: &[IpNet]) -> Vec<SourceKey> {
    ranges.iter().map(|range| key(set, range)).collect()
}

/// The key of a network in a set.
pub fn key(set: u32, range: &IpNet) -> SourceKey {
    let mapped_prefix = match range {
        IpNet::V4(v4) => 96 + u32::from(v4.prefix_len()),
        IpNet::V6(v6) => u32::from(v6.prefix_len()),
    };
    Key::new(
        32 + mapped_prefix,
        SourceRangeKey {
            set: set.to_be(),
            address: range.network().into(),
        },
    )
}
