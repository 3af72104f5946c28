//! Claims a record of the flow table for a tuple that has none, without locks.
//!
//! The table works without the agent: a claim takes a record that has been dead for [`GRACE`] or
//! [`SHORT_GRACE`]. It also ends a flow in its way that is over by its timeout, so that later
//! claims find room.

use super::{
    Record,
    end::{made_way, replaces},
    record::{look, read_tag},
    slots::{Purpose, Slots},
    table::{GROUP, GROUPS, hash, home, position},
    tag,
};
use crate::{
    addr::Address,
    atomic,
    opaque::{choose, computed, mask_if_negative, rolled},
    parse::{Segment, Tuple},
};

/// Ticks that a record has been dead when a claim may take it without the agent: a quarter of a
/// second at least. Programs run with softirqs disabled and end within microseconds; one that found
/// the record before it died has long returned.
pub const GRACE: i32 = 2;
/// The same for records of half-open flows that gave way, in eighths of ticks: more than a
/// twentieth of a second. Those of a million evictions per second then are a quarter of IPv6's
/// table of the usual size, where [`GRACE`] would need more than all of it.
pub const SHORT_GRACE: u32 = 4;

/// Why a record could not be claimed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refused {
    /// The tuple has a record already.
    #[default]
    Exists,
    /// All groups are full.
    Full,
    /// Another CPU is claiming one for what may be the same tuple.
    Race,
}

/// A record that was claimed and is not visible yet; publish it or release it.
#[must_use]
#[repr(transparent)]
pub struct Claim<A> {
    record: Record<A>,
}

impl<A: Address> Claim<A> {
    /// The claim of the record at an index, which was left there by [`Self::index`].
    #[inline(always)]
    pub fn of<S: Slots<A>>(slots: &S, index: u32) -> Option<Self> {
        Some(Self {
            record: slots.slot(index)?,
        })
    }

    /// Leaves the claim to the code that knows its record's index.
    #[inline(always)]
    pub fn index(self) -> u32 {
        // SAFETY: the record is ours until its tag says otherwise, and has its own index there.
        unsafe { self.record.as_ref() }.peer
    }

    /// The record, which belongs to the claimer alone.
    #[inline(always)]
    pub fn record(&self) -> Record<A> {
        self.record
    }

    /// Makes the record visible, `HALF` or `LIVE`; all other fields must have been written.
    #[inline(always)]
    pub fn publish(self, state: u32) {
        self.hand_over(state);
    }

    /// Gives the record back unused. No program has seen it live, so it needs no grace. But a
    /// search may have passed over it.
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

/// Claims a record for a tuple with this [`hash`] that has none; `refused` says why if that fails.
/// The record's own index is in its `peer`. `segment` is the packet that asks for it.
#[inline(always)]
pub fn claim<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    hash: u64,
    segment: &Segment,
    purpose: Purpose,
    refused: &mut Refused,
) -> Option<Claim<A>> {
    let mut outcome = Outcome(slots.claim_index(tuple, hash));
    if outcome.kind() == Outcome::EXISTS && replaces(slots, outcome.index(), segment, purpose) {
        outcome = Outcome(slots.claim_index(tuple, hash));
    }
    if outcome.over() != 0 {
        made_way(slots, outcome.over(), segment, Purpose::Nothing);
    }
    claimed(slots, tuple, hash, outcome, refused)
}

/// Like [`claim`], but no flow gives way.
#[inline(always)]
pub fn claim_free<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    refused: &mut Refused,
) -> Option<Claim<A>> {
    let hash = hash(tuple, slots.secret());
    let outcome = Outcome(slots.claim_index(tuple, hash));
    claimed(slots, tuple, hash, outcome, refused)
}

/// The claim that resulted from the search for room, or why there is none.
#[inline(always)]
fn claimed<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    hash: u64,
    outcome: Outcome,
    refused: &mut Refused,
) -> Option<Claim<A>> {
    *refused = match outcome.kind() {
        Outcome::EXISTS => Refused::Exists,
        Outcome::FULL => Refused::Full,
        _ => Refused::Race,
    };
    if outcome.kind() != Outcome::CLAIMED {
        return None;
    }
    let claim = Claim {
        record: slots.slot(outcome.index())?,
    };
    if !outcome.is_alone(home(hash, slots.mask())) && slots.has_rival(tuple, hash, outcome.0) {
        claim.release();
        return None;
    }
    Some(claim)
}

/// The result of the search for room: one word, so that it fits a register.
#[derive(Clone, Copy)]
struct Outcome(u64);

impl Outcome {
    // Kinds, in the upper four bits.
    /// A record is claimed.
    const CLAIMED: u64 = 1;
    /// It had been `CLEAN`.
    const WAS_CLEAN: u64 = 1 << 58;
    const EXISTS: u64 = 2;
    const FULL: u64 = 3;
    const RACE: u64 = 4;
    /// Bits of an index; no table is larger.
    const INDEX_BITS: u32 = 29;
    const INDEX: u64 = (1 << Self::INDEX_BITS) - 1;

    #[inline(always)]
    fn new(kind: u64, index: u32, over: u32) -> Self {
        Self(kind << 60 | u64::from(over) << Self::INDEX_BITS | u64::from(index))
    }

    #[inline(always)]
    fn kind(self) -> u64 {
        self.0 >> 60
    }

    /// Whether a search that starts at `home` visits only the claimed record, which had been
    /// `CLEAN`.
    #[inline(always)]
    fn is_alone(self, home: u32) -> bool {
        self.0 & Self::WAS_CLEAN != 0 && self.index() == home
    }

    /// Of the record that was claimed, or has the tuple.
    #[inline(always)]
    fn index(self) -> u32 {
        (self.0 & Self::INDEX) as u32
    }

    /// Index of a record whose flow may be over; 0 means none.
    #[inline(always)]
    fn over(self) -> u32 {
        (self.0 >> Self::INDEX_BITS & Self::INDEX) as u32
    }
}

/// The work behind [`claim`]: looks for the tuple and for room, and takes the room. Returns an
/// `Outcome`.
#[inline(always)]
pub fn claim_index<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>, hash: u64) -> u64 {
    let moment = slots.moment();
    let shortest = match slots.timeouts().map_or(0, |timeouts| timeouts.shortest) {
        0 => i64::from(i32::MAX),
        ticks => i64::from(ticks),
    };
    // An index past the end, as a number that the verifier does not know: then it need not tell
    // apart searches that have found something from those that have not.
    let none = slots.mask().wrapping_add(1);
    let (mut free, mut free_tag, mut over) = (none, none, none);
    for step in rolled((GROUP * GROUPS) as usize) {
        let index = position(hash, slots.mask(), step as u32);
        let Some(record) = slots.slot(index) else {
            break;
        };
        let (seen, record) = look(record);
        // SAFETY: records keep their fields until every program that can see them ends.
        let flow = unsafe { record.as_ref() };
        if tag::may_be(seen, hash) && flow.is(tuple) {
            return Outcome::new(Outcome::EXISTS, index, 0).0;
        }
        if tag::may_become(seen, hash) {
            return Outcome::new(Outcome::RACE, 0, 0).0;
        }
        // Each time anew: there is no register for the tick as well.
        let moment = computed(moment);
        let now = (moment >> 3) as u32;
        let silent = i64::from(now.wrapping_sub(flow.last_seen) as i32);
        let is_first = mask_if_negative(i64::from(free ^ none) - 1) & is_free(seen, silent, moment);
        free = choose(is_first, index, free);
        free_tag = choose(is_first, seen, free_tag);
        over = choose(
            is_in_use(seen) & mask_if_negative(shortest - silent),
            index,
            over,
        );
        if tag::state(seen) == tag::CLEAN {
            break;
        }
    }
    let over = if over == none { 0 } else { over };
    let Some(record) = slots.slot(free).filter(|_| free != none) else {
        return Outcome::new(Outcome::FULL, 0, over).0;
    };
    let claimed = tag::claimed(free_tag, hash);
    let word = record.as_ptr();
    // SAFETY: `slot` promises a valid record; tags are only accessed atomically.
    if !unsafe { atomic::compare_and_swap(&raw mut (*word).tag, free_tag, claimed) } {
        return Outcome::new(Outcome::RACE, 0, over).0;
    }
    // SAFETY: the record is ours until its tag says otherwise.
    unsafe { (*word).peer = free };
    let was_clean = match tag::state(free_tag) {
        tag::CLEAN => Outcome::WAS_CLEAN,
        _ => 0,
    };
    Outcome::new(Outcome::CLAIMED, free, over).0 | was_clean
}

/// Whether a claim may take a record with this tag that has been silent for so many ticks, as a
/// mask: it is `CLEAN` or a `TOMB`, or has been `DEAD` or `EVICTED` for long enough.
#[inline(always)]
fn is_free(tag: u32, silent: i64, moment: u64) -> u32 {
    const { assert!(tag::CLEAN == 0 && tag::TOMB == 1) };
    let kind = i64::from(tag & tag::KIND);
    let is = |state: u32| mask_if_negative((kind ^ i64::from(state)) - 1);
    let evicted_for = i64::from(tag::since_eviction(tag, moment));
    mask_if_negative(kind - 2)
        | is(tag::DEAD) & mask_if_negative(i64::from(GRACE) - silent)
        | is(tag::EVICTED) & mask_if_negative(i64::from(SHORT_GRACE) - evicted_for)
}

/// [`tag::in_use`] as a mask.
#[inline(always)]
fn is_in_use(tag: u32) -> u32 {
    mask_if_negative(i64::from((tag & tag::KIND) ^ tag::LIVE) - 1)
}

/// Whether no record has a tuple with this hash, nor is being claimed for it.
#[inline(always)]
pub fn is_unknown<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>, hash: u64) -> bool {
    // Of no record.
    const OUTCOME: u64 = Outcome::INDEX;
    !slots.has_rival(tuple, hash, OUTCOME)
}

/// Whether another record was claimed for what may be the same tuple, besides the one of
/// [`claim_index`]. If two CPUs claim at once, at least one sees the other, because a claim is a
/// full barrier. If both do, both give up. Past a record that was `CLEAN` there is no rival: no
/// search went further, and later ones see the claim.
#[inline(always)]
pub fn has_rival<A: Address, S: Slots<A>>(
    slots: &S,
    tuple: &Tuple<A>,
    hash: u64,
    outcome: u64,
) -> bool {
    let own = Outcome(outcome).index();
    for step in rolled((GROUP * GROUPS) as usize) {
        let index = position(hash, slots.mask(), step as u32);
        let Some(record) = slots.slot(index) else {
            return true;
        };
        if index == own {
            if outcome & Outcome::WAS_CLEAN != 0 {
                return false;
            }
            continue;
        }
        let (seen, record) = look(record);
        // SAFETY: live records keep their fields until every program that can see them ends.
        let same = tag::may_be(seen, hash) && unsafe { record.as_ref() }.is(tuple);
        if same || tag::may_become(seen, hash) {
            return true;
        }
        if tag::state(seen) == tag::CLEAN {
            return false;
        }
    }
    false
}
