//! The flow table: an array of records searched by hash, without locks.
//!
//! Records lie in groups of [`GROUP`]. A tuple's hash names a home record, and a search visits that
//! record's group, home first, then one other group. It ends at the first `CLEAN` record, which
//! nearly always is the first or second it looks at: an established packet costs one cold cache line.
//! Removing needs a tombstone, since later records may have been placed past it; the agent turns
//! tombstones `CLEAN` again when nothing depends on them.

use core::ptr::{self, NonNull};

use super::{Flow, end, tag};
use crate::{addr::Address, atomic, opaque::rolled, parse::Tuple};

/// Records in a group; a power of two.
pub const GROUP: u32 = 8;
/// Groups that a tuple's record may be in.
pub const GROUPS: u32 = 2;

/// The memory of a flow table.
///
/// # Safety
///
/// Pointers must stay valid while the table is, and be aligned as [`Flow`] asks for.
pub unsafe trait Slots<A: Address> {
    /// Number of records less one; the number is a power of two and at least `2 * GROUP`.
    fn mask(&self) -> u32;
    /// The record at an index; `None` past the end.
    fn slot(&self, index: u32) -> Option<Record<A>>;
    /// Secret of the hash, so that nobody can aim at one group.
    fn secret(&self) -> [u64; 2];
    /// [`find_index`], which the kernel's side makes a function that the verifier looks at by itself,
    /// and only once.
    fn find_index(&self, tuple: &Tuple<A>) -> u64;
    /// [`claim_index`], likewise.
    fn claim_index(&self, tuple: &Tuple<A>, opens: bool) -> u64;
}

/// A record in the table. One word, as everything that functions of the packet path return: what
/// does not fit a register goes through the stack, where the verifier loses track of it.
pub type Record<A> = NonNull<Flow<A>>;

/// Why a record could not be claimed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refused {
    /// The tuple has a record already.
    #[default]
    Exists,
    /// Both groups are full.
    Full,
    /// Another CPU is claiming one for what may be the same tuple.
    Race,
}

/// The hash of a tuple: a keyed mix whose halves are both usable.
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
    search(slots, tuple, &mut 0)
}

/// [`find`] for where it is not worth another copy of the code.
#[inline(always)]
pub fn find_rarely<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> Option<Record<A>> {
    slots.slot(u32::try_from(slots.find_index(tuple)).ok()?)
}

/// The work behind [`find_rarely`]: the record's index, or one that no table has.
#[inline(always)]
pub fn find_index<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>) -> u64 {
    let mut index = 0;
    match search(slots, tuple, &mut index) {
        Some(_) => u64::from(index),
        None => u64::MAX,
    }
}

#[inline(always)]
fn search<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    index: &mut u32,
) -> Option<Record<A>> {
    let hash = hash(tuple, slots.secret());
    for step in rolled((GROUP * GROUPS) as usize) {
        *index = position(hash, slots.mask(), step as u32);
        let record = slots.slot(*index)?;
        let seen = read_tag(record);
        // SAFETY: live records keep their fields until every program that can see them ends.
        if tag::matches(seen, hash, tag::LIVE) && unsafe { record.as_ref() }.is(tuple) {
            return Some(record);
        }
        if tag::state(seen) == tag::CLEAN {
            return None;
        }
    }
    None
}

/// Reads the home records of two tuples that are about to be claimed: the processor fetches both at
/// once, where claims, which are barriers, would wait for one after the other.
#[inline(never)]
pub fn approach<A: Address, S: Slots<A>>(slots: &S, one: &Tuple<A>, other: &Tuple<A>) {
    for tuple in [one, other] {
        let home = position(hash(tuple, slots.secret()), slots.mask(), 0);
        if let Some(record) = slots.slot(home) {
            read_tag(record);
        }
    }
}

/// A record that was claimed and is not visible yet; publish it or release it.
#[must_use]
#[repr(transparent)]
pub struct Claim<A> {
    record: Record<A>,
}

impl<A: Address> Claim<A> {
    /// The record, which is the claimer's alone.
    #[inline(always)]
    pub fn record(&self) -> Record<A> {
        self.record
    }

    /// Makes the record visible; all other fields must have been written.
    #[inline(always)]
    pub fn publish(self) {
        self.hand_over(tag::LIVE);
    }

    /// Gives the record back unused. Nobody has seen it live, so it needs no grace; a search may have
    /// passed over it, though.
    #[inline(always)]
    pub fn release(self) {
        self.hand_over(tag::TOMB);
    }

    #[inline(always)]
    fn hand_over(self, state: u32) {
        let tag = tag::with_state(read_tag(self.record), state);
        // SAFETY: the record is ours until its tag says otherwise.
        unsafe { atomic::publish(&raw mut (*self.record.as_ptr()).tag, tag) }
    }
}

/// Claims a record for a tuple that has none; `refused` says why if there is none. The record's own
/// index is in its `peer`. `opens` is true for a SYN, which may take the place of a closing flow.
#[inline(always)]
pub fn claim<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    opens: bool,
    refused: &mut Refused,
) -> Option<Claim<A>> {
    let outcome = slots.claim_index(tuple, opens);
    *refused = match outcome >> 32 {
        0 => return slots.slot(outcome as u32).map(|record| Claim { record }),
        1 => Refused::Exists,
        2 => Refused::Full,
        _ => Refused::Race,
    };
    None
}

/// The work behind [`claim`]. The lower half of the outcome is the record's index, the upper half
/// zero, or why there is none.
#[inline(always)]
pub fn claim_index<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>, opens: bool) -> u64 {
    const EXISTS: u64 = 1 << 32;
    const FULL: u64 = 2 << 32;
    const RACE: u64 = 3 << 32;
    let hash = hash(tuple, slots.secret());
    let mut free: *mut Flow<A> = ptr::null_mut();
    let mut free_index = 0;
    let mut free_tag = 0;
    for step in rolled((GROUP * GROUPS) as usize) {
        let index = position(hash, slots.mask(), step as u32);
        let Some(record) = slots.slot(index) else {
            return FULL;
        };
        let seen = read_tag(record);
        if tag::matches(seen, hash, tag::LIVE) {
            // SAFETY: live records keep their fields until every program that can see them ends.
            let same = unsafe { record.as_ref() }.is(tuple);
            if same && !(opens && end::reopens(slots, record)) {
                return EXISTS;
            }
        } else if tag::matches(seen, hash, tag::BUSY) {
            return RACE;
        } else if free.is_null() && matches!(tag::state(seen), tag::CLEAN | tag::TOMB) {
            free = record.as_ptr();
            free_index = index;
            free_tag = seen;
        }
        if tag::state(seen) == tag::CLEAN {
            break;
        }
    }
    let Some(record) = NonNull::new(free) else {
        return FULL;
    };
    let claimed = tag::claimed(free_tag, hash);
    // SAFETY: `slot` promises a valid record; tags are only accessed atomically.
    if !unsafe { atomic::compare_and_swap(&raw mut (*free).tag, free_tag, claimed) } {
        return RACE;
    }
    if has_rival(slots, tuple, hash, free_index, free_tag) {
        Claim { record }.release();
        return RACE;
    }
    // SAFETY: the record is ours until its tag says otherwise.
    unsafe { (*free).peer = free_index };
    u64::from(free_index)
}

/// Takes a live record out of sight; whether it was this call that did it.
#[inline(always)]
pub fn kill<A: Address>(record: Record<A>) -> bool {
    let seen = read_tag(record);
    if tag::state(seen) != tag::LIVE {
        return false;
    }
    let dead = tag::with_state(seen, tag::DEAD);
    // SAFETY: records stay valid; tags are only accessed atomically.
    unsafe { atomic::compare_and_swap(&raw mut (*record.as_ptr()).tag, seen, dead) }
}

/// Index of the record that a search for `hash` visits at `step`.
#[inline(always)]
pub fn position(hash: u64, mask: u32, step: u32) -> u32 {
    let home = hash as u32;
    let first = home & mask & !(GROUP - 1);
    let group = if step < GROUP {
        first
    } else {
        let second = (hash >> 29) as u32 & mask & !(GROUP - 1);
        if second == first {
            first ^ GROUP
        } else {
            second
        }
    };
    group | (home ^ step) & (GROUP - 1)
}

/// The tag as it is now.
#[inline(always)]
pub fn read_tag<A>(record: Record<A>) -> u32 {
    // SAFETY: `Slots` promises that records are valid.
    unsafe { (&raw const (*record.as_ptr()).tag).read_volatile() }
}

/// Whether another record was claimed for what may be the same tuple. Of two CPUs that claim at once
/// at least one sees the other, since a claim is a full barrier; both may, and both give up then.
/// Past a record that was `CLEAN` (`own_tag` is what it had before the claim) there is none: no search
/// went further, and whoever comes now sees the claim.
#[inline(always)]
fn has_rival<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    hash: u64,
    own: u32,
    own_tag: u32,
) -> bool {
    for step in rolled((GROUP * GROUPS) as usize) {
        let index = position(hash, slots.mask(), step as u32);
        let Some(record) = slots.slot(index) else {
            return true;
        };
        if index == own {
            if tag::state(own_tag) == tag::CLEAN {
                return false;
            }
            continue;
        }
        let seen = read_tag(record);
        let live = tag::matches(seen, hash, tag::LIVE);
        // SAFETY: live records keep their fields until every program that can see them ends.
        let same = live && unsafe { record.as_ref() }.is(tuple);
        if same || tag::matches(seen, hash, tag::BUSY) {
            return true;
        }
        if tag::state(seen) == tag::CLEAN {
            return false;
        }
    }
    false
}

#[inline(always)]
fn mix(value: u64, multiplier: u64) -> u64 {
    let product = value.wrapping_mul(multiplier);
    product ^ product >> 32
}
