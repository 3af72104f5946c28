//! Many entries of a map in one system call.

use std::{
    io,
    marker::PhantomData,
    mem::MaybeUninit,
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

/// How far a map has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Position {
    #[default]
    Start,
    /// Where the last part ended: for hash maps the number of a bucket, for others a key.
    After(Vec<u8>),
    End,
}

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

    /// The value of a key, as programs find it: in an LPM trie, that of the longest prefix.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn get(&self, key: &K) -> Result<Option<V>, BatchError> {
        let mut value = MaybeUninit::<V>::uninit();
        let mut attr = empty_attr();
        attr.__bindgen_anon_2.map_fd = self.fd.as_raw_fd() as u32;
        attr.__bindgen_anon_2.key = std::ptr::from_ref(key) as u64;
        attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
        match bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr) {
            // SAFETY: the kernel wrote a whole value, of the size that `new` has checked, and every
            // bit pattern is a valid `Pod`.
            Ok(_) => Ok(Some(unsafe { value.assume_init() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.stopped("look-up", 0, 1, source)),
        }
    }

    /// All entries. Those that come or go while this runs may be missing; a map that grows
    /// meanwhile may show entries twice.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn entries(&self) -> Result<Vec<(K, V)>, BatchError> {
        let mut entries = Vec::new();
        let mut position = Position::Start;
        while position != Position::End {
            entries.extend(self.part(&mut position, LOOKUP_CHUNK)?);
        }
        Ok(entries)
    }

    /// The next entries from a position on, about `most` of them, and moves the position behind
    /// them. As for [`Self::entries`] if the map changes between two parts.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn part(&self, position: &mut Position, most: usize) -> Result<Vec<(K, V)>, BatchError> {
        let mut next = vec![0u8; size_of::<K>().max(4)];
        let mut room = most.clamp(1, self.max_entries as usize);
        let (mut keys, mut values) = (Vec::<K>::new(), Vec::<V>::new());
        loop {
            keys.reserve(room);
            values.reserve(room);
            let mut attr = self.attr();
            match position {
                Position::Start => {}
                Position::After(last) => attr.batch.in_batch = last.as_ptr() as u64,
                Position::End => return Ok(Vec::new()),
            }
            attr.batch.out_batch = next.as_mut_ptr() as u64;
            attr.batch.keys = keys.as_mut_ptr() as u64;
            attr.batch.values = values.as_mut_ptr() as u64;
            let (found, result) = Self::run(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr, room);
            let after = match result {
                Ok(()) => Position::After(next),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Position::End,
                // A bucket contains more entries than there is room for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    room *= 2;
                    continue;
                }
                Err(source) => return Err(self.stopped("reading", 0, room, source)),
            };
            // SAFETY: the kernel wrote `found` keys and values, no more than `room`, for which both
            // have the capacity; they are empty before.
            unsafe {
                keys.set_len(found);
                values.set_len(found);
            }
            *position = after;
            return Ok(keys.into_iter().zip(values).collect());
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
