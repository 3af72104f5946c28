//! Maps as memory and in batches.

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread,
};

use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData},
};
use aya_obj::generated::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, bpf_map_type};
use lb_datapath::bpf::{ArrayError, BatchError, BatchMap, MappedArray, Position, synchronize_rcu};
use lb_tests::{PATIENCE, patient};

const ARRAY: u32 = bpf_map_type::BPF_MAP_TYPE_ARRAY as u32;
const TRIE: u32 = bpf_map_type::BPF_MAP_TYPE_LPM_TRIE as u32;
const HASH: u32 = bpf_map_type::BPF_MAP_TYPE_HASH as u32;

fn create(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> MapData {
    let map = aya_obj::Map::new_from_params(kind, key, value, entries, flags);
    MapData::create(map, "test", None).expect("these tests make maps: run them as root")
}

/// Another handle to a map, for aya's own types.
fn share(map: &MapData) -> MapData {
    MapData::from_fd(map.fd().as_fd().try_clone_to_owned().unwrap()).unwrap()
}

#[test]
fn a_mapped_array_is_the_array_that_the_kernel_sees() {
    let map = create(ARRAY, 4, 24, 1000, BPF_F_MMAPABLE);
    let mut kernel: Array<_, [u64; 3]> = Map::Array(share(&map)).try_into().unwrap();
    let mapped = MappedArray::<[u64; 3]>::new(&map).unwrap();
    drop(map);
    assert_eq!(mapped.len(), 1000);

    mapped.write(0, &[1, 2, 3]);
    mapped.write_all(998, &[[4, 5, 6], [7, 8, 9]]);
    for (index, value) in [(0, [1, 2, 3]), (998, [4, 5, 6]), (999, [7, 8, 9])] {
        assert_eq!(kernel.get(&index, 0).unwrap(), value);
    }
    kernel.set(500, [10, 11, 12], 0).unwrap();
    assert_eq!(mapped.read(500), [10, 11, 12]);
    let some: Vec<_> = mapped.iter(499..501).collect();
    assert_eq!(some, [(499, [0; 3]), (500, [10, 11, 12])]);
    assert_eq!(mapped.iter(0..u32::MAX).count(), 1000);

    mapped.u64_at(500, 8).fetch_add(1, Ordering::Relaxed);
    mapped.u32_at(500, 20).store(1, Ordering::Release);
    assert_eq!(
        kernel.get(&500, 0).unwrap(),
        [10, 12, u64::from_ne_bytes([12, 0, 0, 0, 1, 0, 0, 0])]
    );
}

#[test]
#[should_panic(expected = "element 10 of an array of 10")]
fn an_index_out_of_bounds_panics() {
    let map = create(ARRAY, 4, 8, 10, BPF_F_MMAPABLE);
    MappedArray::<u64>::new(&map).unwrap().read(10);
}

#[test]
fn a_word_is_never_seen_half_written() {
    let map = create(ARRAY, 4, 8, 1, BPF_F_MMAPABLE);
    let mapped = Arc::new(MappedArray::<u64>::new(&map).unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let writer = thread::spawn({
        let (mapped, stop) = (Arc::clone(&mapped), Arc::clone(&stop));
        move || {
            while !stop.load(Ordering::Relaxed) {
                mapped.write(0, &0);
                mapped.write(0, &u64::MAX);
            }
        }
    });
    for _ in 0..200_000 {
        let value = mapped.read(0);
        assert!(value == 0 || value == u64::MAX, "{value:#x}");
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

#[test]
fn only_fitting_arrays_are_mapped() {
    let map = create(ARRAY, 4, 8, 1, 0);
    let error = MappedArray::<u64>::new(&map).unwrap_err();
    assert!(matches!(error, ArrayError::NotMappable { .. }), "{error}");
    let map = create(ARRAY, 4, 16, 1, BPF_F_MMAPABLE);
    let error = MappedArray::<u64>::new(&map).unwrap_err();
    assert!(matches!(error, ArrayError::ElementSize { .. }), "{error}");
}

#[test]
fn batches_write_read_and_remove() {
    const COUNT: u32 = 50_000;
    for flags in [0, BPF_F_NO_PREALLOC] {
        let map = create(HASH, 4, 8, COUNT, flags);
        let batches = BatchMap::<u32, u64>::new(&map).unwrap();
        assert!(batches.entries().unwrap().is_empty());

        let keys: Vec<u32> = (0..COUNT).collect();
        let values: Vec<u64> = keys.iter().map(|key| u64::from(*key) * 3).collect();
        batches.update(&keys, &values).unwrap();
        let mut entries = batches.entries().unwrap();
        entries.sort_unstable();
        assert!(entries.iter().copied().eq(keys.iter().copied().zip(values)));
        assert!(in_parts(&batches) == entries);
        assert_eq!(batches.get(&7).unwrap(), Some(21));
        assert_eq!(batches.get(&COUNT).unwrap(), None);

        // Every other key, some of them twice, and some that never existed.
        let gone: Vec<u32> = (0..COUNT + 10).step_by(2).chain([0, 2]).collect();
        assert_eq!(batches.delete(&gone).unwrap(), COUNT as usize / 2);
        assert_eq!(batches.delete(&gone).unwrap(), 0);
        let kernel: HashMap<_, u32, u64> = Map::HashMap(share(&map)).try_into().unwrap();
        assert_eq!(kernel.keys().count(), COUNT as usize / 2);
        assert_eq!(kernel.get(&1, 0).unwrap(), 3);
    }

    // A trie is read from key to key. A key is a prefix length and an address.
    let trie = create(TRIE, 8, 8, COUNT, BPF_F_NO_PREALLOC);
    let trie = BatchMap::<[u32; 2], u64>::new(&trie).unwrap();
    let networks: Vec<_> = (0..5000)
        .map(|n: u32| [24 + n % 9, (n << 8).to_be()])
        .collect();
    trie.update(&networks, &vec![1; networks.len()]).unwrap();
    let mut entries = trie.entries().unwrap();
    entries.sort_unstable();
    assert_eq!(entries.len(), networks.len());
    assert!(in_parts(&trie) == entries);
}

/// All entries in order, read a few at a time.
fn in_parts<K: Pod + Ord, V: Pod + Ord>(map: &BatchMap<K, V>) -> Vec<(K, V)> {
    let (mut entries, mut position, mut parts) = (Vec::new(), Position::default(), 0);
    while position != Position::End {
        entries.extend(map.part(&mut position, 700).unwrap());
        parts += 1;
    }
    assert!(parts > 2, "{parts}");
    assert_eq!(map.part(&mut position, 700).unwrap().len(), 0);
    entries.sort_unstable();
    entries
}

#[test]
fn nothing_is_a_batch_too() {
    let map = create(HASH, 4, 8, 10, 0);
    let batches = BatchMap::<u32, u64>::new(&map).unwrap();
    batches.update(&[], &[]).unwrap();
    assert_eq!(batches.delete(&[]).unwrap(), 0);
}

#[test]
fn a_full_map_is_told_of_with_what_was_written() {
    let map = create(HASH, 4, 8, 10, BPF_F_NO_PREALLOC);
    let batches = BatchMap::<u32, u64>::new(&map).unwrap();
    let keys: Vec<u32> = (0..12).collect();
    let error = batches.update(&keys, &[0; 12]).unwrap_err();
    let BatchError::Full { done, total, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((done, total), (10, 12));
    assert_eq!(batches.entries().unwrap().len(), 10);
}

#[test]
fn maps_of_other_sizes_are_refused() {
    let map = create(HASH, 4, 8, 10, 0);
    let error = BatchMap::<u64, u64>::new(&map).unwrap_err();
    assert!(matches!(error, BatchError::EntrySize { .. }), "{error}");
}

#[test]
fn waiting_for_running_programs_ends() {
    let (done, is_done) = channel();
    thread::spawn(move || {
        for _ in 0..3 {
            synchronize_rcu();
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(patient(PATIENCE)).unwrap();
}
