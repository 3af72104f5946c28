//! Sets of networks in `SOURCE_CLASSES`, by which flow schemas tell sources apart. Each configuration
//! has one of its own, so that frontends go over to it one by one.

use std::collections::{BTreeMap, HashMap, HashSet};

use ipnet::IpNet;
use lb_datapath::maps::{Maps, SourceKey, WriteError};

use super::{
    super::{
        source_ranges::key,
        verify::{Findings, Scan, verify_trie},
    },
    compiled::Changes,
};

/// The sets in the trie.
#[derive(Default)]
pub struct Sets(BTreeMap<u32, Keys>);

/// The keys of a set and their classes, by prefix length and address.
type Keys = HashMap<(u32, [u8; 16]), (SourceKey, u32)>;

impl Sets {
    /// Takes over the sets in the trie.
    pub fn read(maps: &Maps) -> Result<Self, WriteError> {
        let mut sets = Self::default();
        for (key, class) in maps.source_classes.all()? {
            let set = sets.0.entry(u32::from_be(key.data().set)).or_default();
            set.insert(content(&key), (key, class));
        }
        Ok(sets)
    }

    /// Writes a new set: networks and the classes of their sources. Returns its number.
    ///
    /// # Errors
    ///
    /// If there is no room for it. None of it is left in the trie then.
    pub fn add(
        &mut self,
        networks: impl Iterator<Item = (IpNet, u32)>,
        maps: &Maps,
    ) -> Result<u32, WriteError> {
        let is_free = |set: &u32| !self.0.contains_key(set);
        let set = (1..u32::MAX).find(is_free).unwrap_or(u32::MAX);
        let (keys, classes): (Vec<_>, Vec<_>) = networks
            .map(|(network, class)| (key(set, &network), class))
            .unzip();
        if let Err(incomplete) = maps.source_classes.insert(&keys, &classes) {
            // If the kernel refuses, this does no harm: nobody refers to them.
            let _ = maps.source_classes.remove(&keys[..incomplete.done]);
            return Err(incomplete.error);
        }
        self.0.insert(set, by_content(keys, classes));
        Ok(set)
    }

    /// Changes networks of a set.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or has no room.
    pub fn change(&mut self, set: u32, changes: &Changes, maps: &Maps) -> Result<(), WriteError> {
        let Some(known) = self.0.get_mut(&set) else {
            return Ok(());
        };
        let gone: Vec<_> = changes
            .gone
            .iter()
            .map(|network| key(set, network))
            .collect();
        maps.source_classes.remove(&gone)?;
        for gone in &gone {
            known.remove(&content(gone));
        }
        let classes = changes.classes.iter();
        let (keys, classes): (Vec<_>, Vec<_>) = classes
            .map(|(network, class)| (key(set, network), *class))
            .unzip();
        let inserted = maps.source_classes.insert(&keys, &classes);
        // It is no error to remove one that does not exist.
        known.extend(by_content(keys, classes));
        inserted.map_err(|incomplete| incomplete.error)
    }

    /// Removes all sets but these. No program uses the others any more.
    pub fn retain(&mut self, used: &HashSet<u32>, maps: &Maps) {
        self.0.retain(|set, keys| {
            // If the kernel refuses, the number is not used again before it has agreed.
            let keys: Vec<_> = keys.values().map(|(key, _)| *key).collect();
            used.contains(set) || maps.source_classes.remove(&keys).is_err()
        });
    }

    /// Compares the next entries of the trie with the sets; in the end, if something is wrong, all of
    /// them, and has the trie hold just the sets.
    pub fn verify(&self, scan: &mut Scan, maps: &Maps, findings: &mut Findings) {
        for (key, class) in scan.part(&*maps.source_classes, findings) {
            let set = self.0.get(&u32::from_be(key.data().set));
            let written = set.and_then(|set| set.get(&content(&key)));
            scan.met(
                written.is_some_and(|(_, written)| *written == class),
                findings,
            );
        }
        if scan.has_failed(self.entries()) {
            let written = self.0.values().flat_map(HashMap::values).copied();
            verify_trie("SOURCE_CLASSES", &*maps.source_classes, written, findings);
        }
    }

    /// Entries in the trie.
    pub fn entries(&self) -> u32 {
        self.0.values().map(Keys::len).sum::<usize>() as u32
    }
}

fn by_content(keys: Vec<SourceKey>, classes: Vec<u32>) -> Keys {
    let entries = keys.into_iter().zip(classes);
    entries.map(|entry| (content(&entry.0), entry)).collect()
}

fn content(key: &SourceKey) -> (u32, [u8; 16]) {
    (key.prefix_len(), key.data().address.octets)
}
