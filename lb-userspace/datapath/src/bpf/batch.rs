//! Many entries of a map in one system call.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::Path,
};

use aya::{
    Pod,
    maps::{MapData, MapError},
};
use aya_obj::generated::{bpf_attr, bpf_cmd};
use thiserror::Error;

use super::{bpf, empty_attr};

/// How many entries are requested at a time when a whole map is read. The cost per entry does not
/// fall with more.
const LOOKUP_CHUNK: usize = 16 * 1024;

/// A hash, LRU hash, LPM trie or array map with one value per key, read and written in batches.
#[derive(Debug)]
pub struct BatchMap<K, V> {
    fd: OwnedFd,
    name: String,
    max_entries: u32,
    entry: PhantomData<(K, V)>,
}

/// A batch that was not carried out, or not completely.
#[derive(Debug, Error)]
pub enum BatchError {
    #[error(
        "map {name} has keys of {found_key} and values of {found_value} bytes, \
         {expected_key} and {expected_value} were expected"
    )]
    EntrySize {
        name: String,
        found_key: u32,
        found_value: u32,
        expected_key: usize,
        expected_value: usize,
    },
    /// There was no room for more entries; `done` of them were written.
    #[error("map {name} is full ({max_entries} entries); {done} of {total} were written")]
    Full {
        name: String,
        max_entries: u32,
        done: usize,
        total: usize,
    },
    #[error("{action} of {total} entries of map {name} stopped after {done}: {source}")]
    Stopped {
        action: &'static str,
        name: String,
        done: usize,
        total: usize,
        source: io::Error,
    },
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("map {name}: {source}")]
    Fd { name: String, source: io::Error },
}

impl<K: Pod, V: Pod> BatchMap<K, V> {
    /// A new handle to `map`.
    ///
    /// # Errors
    ///
    /// If keys and values are not of these sizes.
    pub fn new(map: &MapData) -> Result<Self, BatchError> {
        let info = map.info()?;
        let name = info.name_as_str().unwrap_or("(unnamed)").to_owned();
        let sizes = (info.key_size() as usize, info.value_size() as usize);
        if sizes != (size_of::<K>(), size_of::<V>()) {
            return Err(BatchError::EntrySize {
                name,
                found_key: info.key_size(),
                found_value: info.value_size(),
                expected_key: size_of::<K>(),
                expected_value: size_of::<V>(),
            });
        }

        let fd = match map.fd().as_fd().try_clone_to_owned() {
            Ok(fd) => fd,
            Err(source) => return Err(BatchError::Fd { name, source }),
        };
        Ok(Self {
            fd,
            name,
            max_entries: info.max_entries(),
            entry: PhantomData,
        })
    }

    /// A handle to a pinned map.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and if nothing is pinned there.
    pub fn from_pin(path: &Path) -> Result<Self, BatchError> {
        Self::new(&MapData::from_pin(path)?)
    }

    /// How many entries the map has room for.
    pub fn max_entries(&self) -> u32 {
        self.max_entries
    }

    /// Inserts entries, replacing the values of keys that exist.
    ///
    /// # Errors
    ///
    /// [`BatchError::Full`] if there is no room. The entries before that one have been written.
    ///
    /// # Panics
    ///
    /// If there are not as many values as keys.
    pub fn update(&self, keys: &[K], values: &[V]) -> Result<(), BatchError> {
        assert_eq!(keys.len(), values.len());
        let mut attr = self.attr();
        attr.batch.keys = keys.as_ptr() as u64;
        attr.batch.values = values.as_ptr() as u64;
        let (done, result) = Self::run(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut attr, keys.len());
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => Err(BatchError::Full {
                name: self.name.clone(),
                max_entries: self.max_entries,
                done,
                total: keys.len(),
            }),
            Err(source) => Err(self.stopped("update", done, keys.len(), source)),
        }
    }

    /// Removes entries. Keys that do not exist are skipped. Returns how many existed.
    ///
    /// # Errors
    ///
    /// The kernel's. The entries before the failure have been removed.
    pub fn delete(&self, keys: &[K]) -> Result<usize, BatchError> {
        let mut rest = keys;
        let mut removed = 0;
        while !rest.is_empty() {
            let mut attr = self.attr();
            attr.batch.keys = rest.as_ptr() as u64;
            let (done, result) = Self::run(bpf_cmd::BPF_MAP_DELETE_BATCH, &mut attr, rest.len());
            removed += done;
            match result {
                Ok(()) => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    rest = &rest[done + 1..];
                }
                Err(source) => return Err(self.stopped("removal", removed, keys.len(), source)),
            }
        }
        Ok(removed)
    }

    /// All entries. Those that come or go while this runs may be missing; a map that grows
    /// meanwhile may show entries twice.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn entries(&self) -> Result<Vec<(K, V)>, BatchError> {
        let mut entries = Vec::new();
        // Where the last batch ended: for hash maps the number of a bucket, for others a key.
        let mut position = vec![0u8; size_of::<K>().max(4)];
        let mut next = position.clone();
        let mut started = false;
        let mut room = LOOKUP_CHUNK.min(self.max_entries as usize);
        let mut keys: Vec<K> = Vec::with_capacity(room);
        let mut values: Vec<V> = Vec::with_capacity(room);
        loop {
            let mut attr = self.attr();
            if started {
                attr.batch.in_batch = position.as_ptr() as u64;
            }
            attr.batch.out_batch = next.as_mut_ptr() as u64;
            attr.batch.keys = keys.as_mut_ptr() as u64;
            attr.batch.values = values.as_mut_ptr() as u64;
            let (found, result) = Self::run(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr, room);
            let end = match result {
                Ok(()) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                // A bucket contains more entries than there is room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    room *= 2;
                    keys.reserve(room);
                    values.reserve(room);
                    continue;
                }
                Err(source) => {
                    return Err(self.stopped("reading", entries.len(), room, source));
                }
            };
            // SAFETY: the kernel wrote `found` keys and values, no more than `room`, for which both
            // have the capacity; they are empty before.
            unsafe {
                keys.set_len(found);
                values.set_len(found);
            }
            entries.extend(keys.drain(..).zip(values.drain(..)));
            if end {
                return Ok(entries);
            }
            std::mem::swap(&mut position, &mut next);
            started = true;
        }
    }

    fn attr(&self) -> bpf_attr {
        let mut attr = empty_attr();
        attr.batch.map_fd = self.fd.as_raw_fd() as u32;
        attr
    }

    /// Carries out a batch of `count` entries. Returns how many of them were done, and the result.
    fn run(command: bpf_cmd, attr: &mut bpf_attr, count: usize) -> (usize, io::Result<()>) {
        if count == 0 {
            return (0, Ok(()));
        }
        attr.batch.count = u32::try_from(count).expect("a map has at most 2^32 entries");
        let result = bpf(command, attr).map(drop);
        // SAFETY: plain integers, written by us and then by the kernel.
        let done = unsafe { attr.batch.count as usize };
        match result {
            // Refused before the kernel counted anything. The end of a map (ENOENT) is not a
            // refusal.
            Err(error) if done == count && error.raw_os_error() != Some(libc::ENOENT) => {
                (0, Err(error))
            }
            result => (done, result),
        }
    }

    fn stopped(
        &self,
        action: &'static str,
        done: usize,
        total: usize,
        source: io::Error,
    ) -> BatchError {
        BatchError::Stopped {
            action,
            name: self.name.clone(),
            done,
            total,
            source,
        }
    }
}
