//! What must be the same in maps of two starts.

use std::fmt;

use aya::maps::MapInfo;
use aya_obj::generated::{BPF_F_RDONLY_PROG, bpf_map_type};

use crate::bpf::page_size;

/// What must be the same in a pinned map and in the object's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

impl MapShape {
    /// The shape of a map that is to be created with so many entries.
    pub(super) fn of(map: &aya_obj::Map, max_entries: u32) -> Self {
        Self {
            map_type: map.map_type(),
            key_size: map.key_size(),
            value_size: map.value_size(),
            max_entries,
            flags: map.map_flags(),
        }
        .as_created()
    }

    /// The shape of a map in the kernel.
    pub(super) fn of_created(info: &MapInfo) -> Self {
        Self {
            map_type: info.map_type().map_or(u32::MAX, |kind| kind as u32),
            key_size: info.key_size(),
            value_size: info.value_size(),
            max_entries: info.max_entries(),
            flags: info.map_flags(),
        }
    }

    /// The shape as the kernel reports it after creation.
    fn as_created(mut self) -> Self {
        const DEVMAP: u32 = bpf_map_type::BPF_MAP_TYPE_DEVMAP as u32;
        const DEVMAP_HASH: u32 = bpf_map_type::BPF_MAP_TYPE_DEVMAP_HASH as u32;
        const RINGBUF: u32 = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
        match self.map_type {
            // Programs never write to them, and their values may contain a program besides the
            // index.
            DEVMAP | DEVMAP_HASH => {
                self.flags |= BPF_F_RDONLY_PROG;
                self.value_size = 8;
            }
            // A power of two, and a whole number of pages.
            RINGBUF => {
                let page = page_size() as u32;
                self.max_entries = self.max_entries.next_power_of_two().max(page);
            }
            _ => {}
        }
        self
    }
}

impl fmt::Display for MapShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match bpf_map_type::try_from(self.map_type) {
            Ok(kind) => {
                let name = format!("{kind:?}").to_lowercase();
                f.write_str(name.strip_prefix("bpf_map_type_").unwrap_or(&name))?;
            }
            Err(_) => write!(f, "type {}", self.map_type)?,
        }
        write!(
            f,
            " of {} entries, key {} B, value {} B, flags {:#x}",
            self.max_entries, self.key_size, self.value_size, self.flags
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_described_for_people() {
        let shape = MapShape {
            map_type: bpf_map_type::BPF_MAP_TYPE_LPM_TRIE as u32,
            key_size: 24,
            value_size: 4,
            max_entries: 1000,
            flags: 1,
        };
        assert_eq!(
            shape.to_string(),
            "lpm_trie of 1000 entries, key 24 B, value 4 B, flags 0x1"
        );
        let unknown = MapShape {
            map_type: 4000,
            ..shape
        };
        assert!(unknown.to_string().starts_with("type 4000 of"), "{unknown}");
    }

    #[test]
    fn ring_buffers_are_whole_pages() {
        let ring = |max_entries| {
            MapShape {
                map_type: bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32,
                key_size: 0,
                value_size: 0,
                max_entries,
                flags: 0,
            }
            .as_created()
            .max_entries
        };
        let page = page_size() as u32;
        assert_eq!(ring(1), page);
        assert_eq!(ring(page * 3), page * 4);
    }
}
