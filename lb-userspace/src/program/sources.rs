//! Sets of source ranges, shared by the service ports that have the same one.

use std::{collections::BTreeMap, net::IpAddr};

use aya::maps::lpm_trie::Key;
use ipnet::IpNet;
use lb_common::abi::SourceRangeKey;

use super::maps::{Maps, SourceKey, WriteError};

/// Which sets are in the trie, and how many plans refer to each.
#[derive(Debug, Default)]
pub struct SourceSets {
    sets: BTreeMap<u32, (Vec<IpNet>, usize)>,
    last: u32,
}

impl SourceSets {
    /// Takes over the sets in the trie, without references.
    pub fn read(maps: &Maps) -> Result<Self, WriteError> {
        let mut found = Self::default();
        for (key, _) in maps.source_ranges.all()? {
            let data = key.data();
            let set = u32::from_be(data.set);
            let Some(range) = range(key.prefix_len(), data.address.into()) else {
                continue;
            };
            found.last = found.last.max(set);
            found.sets.entry(set).or_default().0.push(range);
        }
        for (ranges, _) in found.sets.values_mut() {
            ranges.sort_unstable();
        }
        Ok(found)
    }

    /// Adds a reference to a set in the trie; whether there is such a set.
    pub fn adopt(&mut self, set: u32) -> bool {
        if set == 0 {
            return true;
        }
        match self.sets.get_mut(&set) {
            Some((_, references)) => *references += 1,
            None => return false,
        }
        true
    }

    /// Removes the sets without references.
    pub fn remove_unused(&mut self, maps: &Maps) {
        for (set, (ranges, _)) in self
            .sets
            .extract_if(.., |_, (_, references)| *references == 0)
        {
            // Should the kernel refuse, nothing refers to the set any more.
            let _ = maps.source_ranges.remove(&keys(set, &ranges));
        }
    }

    /// The number of the set with these ranges, which gets one more reference; 0 for no ranges.
    pub fn acquire(&mut self, ranges: &[IpNet], maps: &Maps) -> Result<u32, WriteError> {
        if ranges.is_empty() {
            return Ok(0);
        }
        let mut ranges = ranges.to_vec();
        ranges.sort_unstable();
        ranges.dedup();
        if let Some((set, (_, references))) = self
            .sets
            .iter_mut()
            .find(|(_, (known, _))| *known == ranges)
        {
            *references += 1;
            return Ok(*set);
        }
        let set = (self.last.wrapping_add(1)..)
            .find(|set| *set != 0 && !self.sets.contains_key(set))
            .unwrap_or(1);
        let keys = keys(set, &ranges);
        let written = maps.source_ranges.insert(&keys, &vec![1; keys.len()]);
        if let Err(error) = written {
            maps.source_ranges.remove(&keys)?;
            return Err(error);
        }
        self.last = set;
        self.sets.insert(set, (ranges, 1));
        Ok(set)
    }

    /// Gives a reference back; without any the set goes.
    pub fn release(&mut self, set: u32, maps: &Maps) {
        let Some((ranges, references)) = self.sets.get_mut(&set) else {
            return;
        };
        *references -= 1;
        if *references == 0 {
            // Should the kernel refuse, nothing refers to the set any more.
            let _ = maps.source_ranges.remove(&keys(set, ranges));
            self.sets.remove(&set);
        }
    }
}

/// The range of an entry.
fn range(prefix: u32, network: IpAddr) -> Option<IpNet> {
    let mapped = match network {
        IpAddr::V4(_) => 96,
        IpAddr::V6(_) => 0,
    };
    let prefix = prefix.checked_sub(32 + mapped)?;
    IpNet::new(network, u8::try_from(prefix).ok()?).ok()
}

fn keys(set: u32, ranges: &[IpNet]) -> Vec<SourceKey> {
    ranges
        .iter()
        .map(|range| {
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
        })
        .collect()
}
