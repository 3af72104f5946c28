//! The flow table: an array of records searched by hash, without locks.
//!
//! Records lie in groups of [`GROUP`]. A tuple's hash names a home record, and a search visits that
//! record's group, home first, then other groups. It ends at the first `CLEAN` record, which nearly
//! always is the first or second it looks at: an established packet costs one cold cache line.
//! Removing needs a tombstone, since later records may have been placed past it; the agent turns
//! tombstones `CLEAN` again when nothing depends on them.

use super::{
    Record,
    record::{advance, behind, look, read_tag},
    slots::Slots,
    tag,
};
use crate::{
    addr::Address,
    opaque::{choose, computed, mask_if_negative, rolled},
    parse::Tuple,
};

/// Records in a group; a power of two.
pub const GROUP: u32 = 8;
/// Groups that a tuple's record may be in.
pub const GROUPS: u32 = 4;
/// Records that [`approach`] reads for a tuple. In a table that is half full, one claim in sixteen
/// goes on past them.
const APPROACHED: u32 = 4;
/// The hash of a tuple: a keyed mix. Both of its halves can be used.
#[inline(always)]
pub fn hash<A: Address>(tuple: &Tuple<A>, secret: [u64; 2]) -> u64 {
    let (s0, s1) = tuple.source.halves();
    let (d0, d1) = tuple.destination.halves();
    let ports = u64::from(tuple.source_port) << 32
        | u64::from(tuple.destination_port) << 8
        | u64::from(tuple.protocol);
    let mut h = mix(secret[0] ^ s0 ^ d0.rotate_left(32), 0x9e37_79b9_7f4a_7c15);
    if A::HEADER == 40 {
        h = mix(h ^ s1 ^ d1.rotate_left(32), 0xc2b2_ae3d_27d4_eb4f);
        // The rotations above cancel when source and destination swap halves; this does not.
        h ^= d0.wrapping_mul(0x1656_67b1_9e37_79f9);
    }
    h = mix(h ^ ports ^ secret[1], 0xff51_afd7_ed55_8ccd);
    mix(h, 0xc4ce_b9fe_1a85_ec53)
}

/// Finds a tuple's live record.
#[inline(always)]
pub fn find<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> Option<Record<A>> {
    search(slots, tuple, slots.mask(), S::slot, &mut 0)
}

/// [`find`] for places where another copy of its code is not worth it.
#[inline(always)]
pub fn find_rarely<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> Option<Record<A>> {
    let record = slots.slot(u32::try_from(slots.find_index(tuple)).ok()?)?;
    Some(look(record).1)
}

/// The work behind [`find_rarely`]: the record's index, or one that no table has.
#[inline(always)]
pub fn find_index<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> u64 {
    let mut index = 0;
    match search(slots, tuple, slots.mask(), S::slot, &mut index) {
        Some(_) => u64::from(index),
        None => u64::MAX,
    }
}

/// [`find_index`] in the other table.
#[inline(always)]
pub fn find_other_index<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> u64 {
    let mut index = 0;
    match search(slots, tuple, slots.other_mask(), S::other_slot, &mut index) {
        Some(_) => u64::from(index),
        None => u64::MAX,
    }
}

#[inline(always)]
fn search<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    mask: u32,
    slot: impl Fn(&S, u32) -> Option<Record<A>>,
    index: &mut u32,
) -> Option<Record<A>> {
    let hash = hash(tuple, slots.secret());
    for step in rolled((GROUP * GROUPS) as usize) {
        *index = position(hash, mask, step as u32);
        let record = slot(slots, *index)?;
        let seen = read_tag(record);
        if tag::may_be(seen, hash) {
            let record = behind(record, seen);
            // SAFETY: live records keep their fields until every program that can see them ends.
            if unsafe { record.as_ref() }.is(tuple) {
                return Some(record);
            }
        }
        if tag::state(seen) == tag::CLEAN {
            return None;
        }
    }
    None
}

/// Reads the records that claims for tuples with these hashes visit first: the processor fetches
/// them all at once, where claims, which are barriers and end at the first `CLEAN` record, would
/// wait for one after the other.
#[inline(always)]
pub fn approach<A: Address, S: Slots<A>>(slots: &S, hashes: [u64; 2]) {
    for hash in hashes {
        for step in 0..APPROACHED {
            if let Some(record) = slots.slot(position(hash, slots.mask(), step)) {
                read_tag(record);
            }
        }
    }
}

/// Marks that a flow's connection has proved itself. Returns whether this call did it.
#[inline(always)]
pub fn settle<A: Address, S: Slots<A>>(slots: &S, forward: Record<A>) -> bool {
    let seen = read_tag(forward);
    if tag::state(seen) != tag::HALF || !advance(forward, seen, tag::LIVE) {
        return false;
    }
    // SAFETY: records stay valid until every program that can see them ends.
    slots.count_half_open(unsafe { forward.as_ref() }.service_id(), -1);
    true
}

/// Index of the record that a search for `hash` visits first.
#[inline(always)]
pub(super) fn home(hash: u64, mask: u32) -> u32 {
    hash as u32 & mask
}

/// Index of the record that a search for `hash` visits at `step`, 0 being its `home`. The first
/// versions of node-lb know the first two groups.
#[inline(always)]
pub fn position(hash: u64, mask: u32, step: u32) -> u32 {
    let home = hash as u32;
    let first = home & mask & !(GROUP - 1);
    let group = match step < GROUP {
        true => first,
        false => first ^ apart(hash, mask & !(GROUP - 1), first, step / GROUP),
    };
    group | (home ^ step) & (GROUP - 1)
}

/// How the number of a later group differs from the first's: each in another way, however small the
/// table is. Without branches, which the verifier would follow at every step of a search.
#[inline(always)]
fn apart(hash: u64, groups: u32, first: u32, group: u32) -> u32 {
    // Here and now: before the loop it would be in every packet's way, and need room on the stack.
    let hash = computed(hash);
    let is_zero = |number: u32| mask_if_negative(i64::from(number) - 1);
    let other = ((hash >> 29) as u32 & groups) ^ first;
    let second = choose(is_zero(other), GROUP, other);
    let other = (hash >> 17) as u32 & groups;
    let unlike_both = choose(is_zero(second ^ GROUP), 2 * GROUP, GROUP);
    let third = choose(is_zero(other) | is_zero(other ^ second), unlike_both, other);
    // The fourth is the third of the second.
    match group {
        1 => second,
        2 => third,
        _ => second ^ third,
    }
}

#[inline(always)]
pub(super) fn mix(value: u64, multiplier: u64) -> u64 {
    let product = value.wrapping_mul(multiplier);
    product ^ product >> 32
}
