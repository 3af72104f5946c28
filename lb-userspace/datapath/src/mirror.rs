//! Maps that nobody but this process writes.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

use crate::maps::{Entries, Incomplete, WriteError};

/// A key at which a map was not as it had been written: the value there, and the one written.
pub type Difference<K, V> = (K, Option<V>, Option<V>);

/// Such a map, and a copy of what is in it: only differences cost a system call.
pub struct Mirror<K, V> {
    map: Box<dyn Entries<K, V>>,
    /// Entries that the map has room for.
    room: u32,
    present: HashMap<K, V>,
}

impl<K: Copy + Eq + Hash, V: Copy + PartialEq> Mirror<K, V> {
    /// Begins with what a map of `room` entries has from before.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn new(map: impl Entries<K, V> + 'static, room: u32) -> Result<Self, WriteError> {
        Ok(Self {
            present: map.all()?.into_iter().collect(),
            map: Box::new(map),
            room,
        })
    }

    /// Entries that there is room for.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Entries that there are.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Makes `wanted`, in which no key comes twice, the map's only entries. If there is no room for
    /// all, those that come first have it; says how many are left out.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, which it does for no known reason. The next call tries again.
    pub fn set(&mut self, wanted: impl IntoIterator<Item = (K, V)>) -> Result<usize, WriteError> {
        let mut wanted: Vec<_> = wanted.into_iter().collect();
        let room = self.room as usize;
        let left_out = wanted.len().saturating_sub(room);
        wanted.truncate(room);

        let keys: HashSet<K> = wanted.iter().map(|(key, _)| *key).collect();
        let stale = self.present.keys().filter(|key| !keys.contains(key));
        let stale: Vec<K> = stale.copied().collect();
        if !stale.is_empty() {
            self.map.remove(&stale)?;
            self.present.retain(|key, _| keys.contains(key));
        }

        wanted.retain(|(key, value)| self.present.get(key) != Some(value));
        let (keys, values): (Vec<_>, Vec<_>) = wanted.iter().copied().unzip();
        let written = match keys.is_empty() {
            true => Ok(()),
            false => self.map.insert(&keys, &values),
        };
        let done = match &written {
            Ok(()) => keys.len(),
            Err(Incomplete { done, .. }) => *done,
        };
        self.present.extend(wanted[..done].iter().copied());
        match written {
            Ok(()) => Ok(left_out),
            Err(Incomplete { error, .. }) => Err(error),
        }
    }

    /// Compares the map with what was written to it, has it hold that again, and returns what
    /// differed.
    ///
    /// # Errors
    ///
    /// If the map cannot be read, or the kernel refuses a write. The next call tries again.
    pub fn verify(&mut self) -> Result<Vec<Difference<K, V>>, WriteError> {
        let found: HashMap<K, V> = self.map.all()?.into_iter().collect();
        if found == self.present {
            return Ok(Vec::new());
        }
        let written = std::mem::replace(&mut self.present, found);
        let keys: HashSet<K> = self.present.keys().chain(written.keys()).copied().collect();
        let differences = keys.into_iter().filter_map(|key| {
            let (found, written) = (self.present.get(&key), written.get(&key));
            (found != written).then_some((key, found.copied(), written.copied()))
        });
        let differences = differences.collect();
        let entries = written.clone().into_iter().collect::<Vec<_>>();
        if let Err(error) = self.set(entries) {
            self.present = written;
            return Err(error);
        }
        Ok(differences)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A map that notes what is asked of it.
    #[derive(Clone, Default)]
    struct Map(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        entries: HashMap<u32, u8>,
        writes: Vec<u32>,
        /// The kernel refuses once.
        refuses: bool,
    }

    impl Entries<u32, u8> for Map {
        fn capacity(&self) -> u32 {
            u32::MAX
        }

        fn insert(&self, keys: &[u32], values: &[u8]) -> Result<(), Incomplete> {
            let mut state = self.0.lock().unwrap();
            for (done, (key, value)) in keys.iter().zip(values).enumerate() {
                if done == 1 && std::mem::take(&mut state.refuses) {
                    let error = WriteError("no".to_owned());
                    return Err(Incomplete { done, error });
                }
                state.entries.insert(*key, *value);
                state.writes.push(*key);
            }
            Ok(())
        }

        fn remove(&self, keys: &[u32]) -> Result<(), WriteError> {
            let mut state = self.0.lock().unwrap();
            for key in keys {
                state.entries.remove(key);
                state.writes.push(*key);
            }
            Ok(())
        }

        fn all(&self) -> Result<Vec<(u32, u8)>, WriteError> {
            let state = self.0.lock().unwrap();
            Ok(state.entries.iter().map(|(k, v)| (*k, *v)).collect())
        }
    }

    impl Map {
        fn entries(&self) -> Vec<(u32, u8)> {
            let mut all = self.all().unwrap();
            all.sort_unstable();
            all
        }

        fn writes(&self) -> Vec<u32> {
            std::mem::take(&mut self.0.lock().unwrap().writes)
        }
    }

    #[test]
    fn only_differences_are_written() {
        let map = Map::default();
        map.insert(&[1, 2], &[10, 20]).unwrap();
        map.writes();
        let mut mirror = Mirror::new(map.clone(), 100).unwrap();
        mirror.set([(2, 20), (3, 30)]).unwrap();
        assert_eq!(map.entries(), [(2, 20), (3, 30)]);
        assert_eq!(map.writes(), [1, 3]);
        mirror.set([(3, 30), (2, 20)]).unwrap();
        assert_eq!(map.writes(), []);
        mirror.set([(3, 31), (2, 20)]).unwrap();
        assert_eq!(map.writes(), [3]);
    }

    #[test]
    fn what_comes_first_has_the_room() {
        let map = Map::default();
        let mut mirror = Mirror::new(map.clone(), 2).unwrap();
        assert_eq!(mirror.set([(5, 0), (4, 0), (3, 0)]).unwrap(), 1);
        assert_eq!(map.entries(), [(4, 0), (5, 0)]);
        assert_eq!(mirror.set([(3, 0), (5, 0), (4, 0)]).unwrap(), 1);
        assert_eq!(map.entries(), [(3, 0), (5, 0)]);
        assert_eq!(mirror.set([(3, 0)]).unwrap(), 0);
    }

    #[test]
    fn what_others_write_is_put_right() {
        let map = Map::default();
        let mut mirror = Mirror::new(map.clone(), 9).unwrap();
        mirror.set([(1, 10), (2, 20), (3, 30)]).unwrap();
        assert_eq!(mirror.verify().unwrap(), []);
        map.remove(&[1]).unwrap();
        map.insert(&[2, 4], &[21, 40]).unwrap();
        let mut found = mirror.verify().unwrap();
        found.sort_unstable();
        assert_eq!(
            found,
            [
                (1, None, Some(10)),
                (2, Some(21), Some(20)),
                (4, Some(40), None)
            ]
        );
        assert_eq!(map.entries(), [(1, 10), (2, 20), (3, 30)]);
        assert_eq!(mirror.verify().unwrap(), []);
    }

    #[test]
    fn what_was_refused_is_tried_again() {
        let map = Map::default();
        map.0.lock().unwrap().refuses = true;
        let mut mirror = Mirror::new(map.clone(), 9).unwrap();
        assert!(mirror.set([(1, 0), (2, 0)]).is_err());
        assert_eq!(map.entries(), [(1, 0)]);
        mirror.set([(1, 0), (2, 0)]).unwrap();
        assert_eq!(map.writes(), [1, 2]);
    }
}
