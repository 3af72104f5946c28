//! How a record changes hands: by compare-and-swap on its tag.

use core::ptr::NonNull;

use super::{Flow, flow_flag, tag};
use crate::{
    addr::Address,
    atomic,
    model::{Access, before},
    opaque::zero_after,
};

/// A record in the table. One word, as everything that functions of the packet path return: what
/// does not fit a register goes through the stack, where the verifier loses track of it.
pub type Record<A> = NonNull<Flow<A>>;

/// The tag as it is now. Fields that are read next may be older: see [`behind`].
#[inline(always)]
pub fn read_tag<A>(record: Record<A>) -> u32 {
    // SAFETY: tables hand out valid records only.
    let tag = unsafe { &raw mut (*record.as_ptr()).tag };
    // SAFETY: tags are never accessed otherwise than atomically or volatilely.
    unsafe { atomic::load(tag) }
}

/// The record, for reading what was written before its tag became `seen`, by the program that
/// published or killed it.
///
/// A processor of weak order, as arm64, may read a field first and the tag later, and then take
/// what was there before for what a new tag says. It does not if the field's address depends on the
/// tag. Not all kernels know a load that acquires.
#[inline(always)]
pub fn behind<A>(record: Record<A>, seen: u32) -> Record<A> {
    // SAFETY: nothing is added.
    unsafe { record.byte_add(zero_after(seen)) }
}

/// A record's tag as it is now, and the record [`behind`] it.
#[inline(always)]
pub fn look<A>(record: Record<A>) -> (u32, Record<A>) {
    let seen = read_tag(record);
    (seen, behind(record, seen))
}

/// Puts a record into another state if its tag is still `seen`. Returns whether it was.
#[inline(always)]
pub fn advance<A>(record: Record<A>, seen: u32, state: u32) -> bool {
    swap(record, seen, tag::with_state(seen, state))
}

/// Replaces a record's tag if it is still `seen`. Returns whether it was.
#[inline(always)]
fn swap<A>(record: Record<A>, seen: u32, new: u32) -> bool {
    // SAFETY: records stay valid; the tag is only reached through atomics.
    let tag = unsafe { &raw mut (*record.as_ptr()).tag };
    // SAFETY: a valid, aligned word.
    unsafe { atomic::compare_and_swap(tag, seen, new) }
}

/// Ends a record at tick `now`, so that it is not found any more. Returns the tag that it had, if
/// this call ended it.
#[inline(always)]
pub fn kill<A>(record: Record<A>, now: u32) -> Option<u32> {
    let seen = read_tag(record);
    kill_if(record, seen, now).then_some(seen)
}

/// [`kill`], if the tag is still `seen`. Returns whether it was.
#[inline(always)]
pub fn kill_if<A>(record: Record<A>, seen: u32, now: u32) -> bool {
    if !tag::in_use(seen) {
        return false;
    }
    // SAFETY: the record stays valid.
    let last_seen = unsafe { &raw mut (*record.as_ptr()).last_seen };
    before(last_seen, Access::Write);
    // Written first, or the record would seem to have been dead for long. SAFETY: a program that
    // found the record before may write the same word. Any of the values will do, because all are
    // of this moment.
    unsafe { last_seen.write_volatile(now) };
    swap(record, seen, tag::dead(seen))
}

/// Ends a record of a flow that gives way at this moment, if its tag is still `seen`. Returns
/// whether it was.
#[inline(always)]
pub fn evict_if<A>(record: Record<A>, seen: u32, moment: u64) -> bool {
    tag::in_use(seen) && swap(record, seen, tag::evicted(seen, moment))
}

/// The [`flow_flag`]s as they are now.
#[inline(always)]
pub fn flags<A>(record: Record<A>) -> u32 {
    // SAFETY: records stay valid.
    let flags = unsafe { &raw mut (*record.as_ptr()).flags };
    before(flags, Access::Read);
    // SAFETY: a valid, aligned word; volatile, since it changes under our hands.
    unsafe { flags.read_volatile() }
}

/// Sets [`flow_flag`]s that packets have shown.
#[inline(always)]
pub fn set<A: Address>(record: Record<A>, flags: u32) {
    // SAFETY: records stay valid; flags of live records are only changed atomically.
    unsafe { atomic::set_bits(&raw mut (*record.as_ptr()).flags, flags) }
}

/// Clears [`flow_flag`]s that packets have shown.
#[inline(always)]
pub fn clear<A: Address>(record: Record<A>, flags: u32) {
    // SAFETY: records stay valid; flags of live records are only changed atomically.
    unsafe { atomic::clear_bits(&raw mut (*record.as_ptr()).flags, flags) }
}

/// A record and its other direction, the client's first.
#[inline(always)]
pub fn in_order<A: Address>(record: Record<A>, peer: Record<A>) -> (Record<A>, Record<A>) {
    // SAFETY: records stay valid, and this flag does not change.
    match unsafe { record.as_ref() }.has(flow_flag::REPLY) {
        true => (peer, record),
        false => (record, peer),
    }
}
