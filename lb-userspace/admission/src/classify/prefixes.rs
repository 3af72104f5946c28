//! Longest prefix match in a table, as in a trie map of the kernel.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A value for each prefix of a set. The set always includes the two prefixes that hold all
/// addresses of a family.
#[derive(Clone, Debug)]
pub struct Prefixes {
    /// Sorted by family, first address and length, so that a prefix comes after those that contain
    /// it.
    entries: Vec<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    prefix: IpNet,
    /// Index of the longest other prefix that contains this one.
    parent: Option<usize>,
    value: u32,
}

impl Prefixes {
    /// A table of `prefixes` and of the two that hold all addresses; `value` gives the value of
    /// each.
    pub fn new(
        prefixes: impl IntoIterator<Item = IpNet>,
        mut value: impl FnMut(IpNet) -> u32,
    ) -> Self {
        let everything = [Ipv4Net::default().into(), Ipv6Net::default().into()];
        let sorted: BTreeSet<_> = prefixes
            .into_iter()
            .chain(everything)
            .map(|net| net.trunc())
            .collect();
        let mut entries: Vec<Entry> = Vec::with_capacity(sorted.len());
        for prefix in sorted {
            let mut parent = entries.len().checked_sub(1);
            while let Some(index) = parent
                && !entries[index].prefix.contains(&prefix)
            {
                parent = entries[index].parent;
            }
            entries.push(Entry {
                prefix,
                parent,
                value: value(prefix),
            });
        }
        Self { entries }
    }

    /// All prefixes, with their values.
    pub fn entries(&self) -> impl Iterator<Item = (IpNet, u32)> {
        self.entries.iter().map(|entry| (entry.prefix, entry.value))
    }

    /// The value of the longest prefix that holds an address.
    pub fn longest_match(&self, address: IpAddr) -> u32 {
        let address = address.to_canonical();
        let host = IpNet::from(address);
        let after = self.entries.partition_point(|entry| entry.prefix <= host);
        let mut candidate = after.checked_sub(1);
        while let Some(index) = candidate {
            let entry = &self.entries[index];
            if entry.prefix.contains(&address) {
                return entry.value;
            }
            candidate = entry.parent;
        }
        unreachable!("some prefix holds all addresses of each family");
    }
}
