//! The flow table: an array of records searched by hash, without locks.
//!
//! Records lie in groups of [`GROUP`]. A tuple's hash names a home record, and a search visits that
//! record's group, home first, then other groups. It ends at the first `CLEAN` record, which
//! nearly always is the first or second it looks at: an established packet costs one cold cache line.
//! Removing needs a tombstone, since later records may have been placed past it; the agent turns
//! tombstones `CLEAN` again when nothing depends on them.
//!
//! Without the agent the table goes on: a claim takes a record that has been dead for [`GRACE`], or
//! [`SHORT_GRACE`], and ends a flow that it passes over and that is over, for claims to come.

use super::{
    Record, Timeouts,
    end::{gives_way, replaces},
    record::{advance, behind, look, read_tag},
    resize, tag,
};
use crate::{
    addr::Address,
    atomic,
    opaque::{choose, computed, mask_if_negative, rolled},
    parse::{Segment, Tuple},
};

/// Records in a group; a power of two.
pub const GROUP: u32 = 8;
/// Groups that a tuple's record may be in.
pub const GROUPS: u32 = 4;
/// Records that [`approach`] reads for a tuple. In a table that is half full, one claim in sixteen goes on past them.
const APPROACHED: u32 = 4;
/// Ticks that a record has been dead when a claim may take it without the agent: a quarter of a second
/// at least. Programs run with softirqs disabled and end within microseconds; one that found the record
/// before it died has long returned.
pub const GRACE: i32 = 2;
/// The same for records of half-open flows that gave way, in eighths of ticks: more than a twentieth of a second.
/// Those of a million evictions per second then are a quarter of IPv6's table of the usual size, where [`GRACE`]
/// would need more than all of it.
pub const SHORT_GRACE: u32 = 4;

/// The memory of a flow table.
///
/// # Safety
///
/// Pointers must stay valid while the table is, and be aligned as [`super::Flow`] asks for.
pub unsafe trait Slots<A: Address> {
    /// Number of records less one; the number is a power of two and at least `GROUPS * GROUP`.
    fn mask(&self) -> u32;
    /// The record at an index; `None` past the end.
    fn slot(&self, index: u32) -> Option<Record<A>>;
    /// Secret of the hash, so that nobody can aim at one group.
    fn secret(&self) -> [u64; 2];
    /// The coarse clock, in ticks.
    fn now(&self) -> u32;
    /// The same clock in eighths of ticks: [`Self::now`] is the lower bits of its eighth.
    fn moment(&self) -> u64 {
        u64::from(self.now()) << 3
    }
    /// How long flows may stay silent, if it is known.
    fn timeouts(&self) -> Option<&Timeouts>;
    /// Notes that a service has so many more flows that have not proved themselves.
    fn count_half_open(&self, service: u32, change: i32);
    /// Notes that a service has so many more flows.
    fn count_flows(&self, service: u32, change: i32);
    /// Number of records of the other table less one, while the table's size changes (see [`super::resize`]); 0
    /// if there is none.
    fn other_mask(&self) -> u32 {
        0
    }
    /// The other table's record at an index; `None` past the end.
    fn other_slot(&self, _index: u32) -> Option<Record<A>> {
        None
    }

    // The work behind a search and a claim, in steps. The kernel's side makes each a function that the
    // verifier looks at by itself, and only once.

    /// [`find_index`].
    fn find_index(&self, tuple: &Tuple<A>) -> u64
    where
        Self: Sized,
    {
        find_index(self, tuple)
    }
    /// [`claim_index`].
    fn claim_index(&self, tuple: &Tuple<A>, hash: u64) -> u64
    where
        Self: Sized,
    {
        claim_index(self, tuple, hash)
    }
    /// [`has_rival`].
    fn has_rival(&self, tuple: &Tuple<A>, hash: u64, outcome: u64) -> bool
    where
        Self: Sized,
    {
        has_rival(self, tuple, hash, outcome)
    }
    /// [`super::end::gives_way`].
    fn gives_way(&self, index: u32, segment: &Segment, purpose: Purpose) -> bool
    where
        Self: Sized,
    {
        gives_way(self, index, segment, purpose)
    }
    /// [`find_other_index`]; for tables that have another one beside them, as the next.
    fn find_other_index(&self, _tuple: &Tuple<A>) -> u64 {
        resize::NONE
    }
    /// [`resize::copy_index`].
    fn copy_index(&self, _tuple: &Tuple<A>) -> u64 {
        resize::NONE
    }
    /// [`resize::end_other`].
    fn end_other(&self, _index: u32) {}
}

/// What a record is claimed for: it decides what becomes of a flow that has the tuple already.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A flow that has the tuple keeps it, unless it is just being ended.
    Plain,
    /// A SYN, which may take the place of a closed flow.
    Open,
    /// The answers to a SYN with a port of the node's, which a closed flow may let go.
    Port,
    /// A SYN on a flow whose endpoint may not have answered.
    Again,
    /// A SYN on a flow whose endpoint is gone.
    Afresh,
    /// A SYN to an endpoint past its Services, whose answers look like the flow's.
    Past,
    /// Nothing: the flow is in the way and may be over.
    Nothing,
}

impl Purpose {
    /// The purpose with this number; unknown numbers count as plain.
    #[inline(always)]
    pub fn from_u32(purpose: u32) -> Self {
        match purpose {
            1 => Self::Open,
            2 => Self::Port,
            3 => Self::Again,
            4 => Self::Afresh,
            5 => Self::Past,
            6 => Self::Nothing,
            _ => Self::Plain,
        }
    }
}

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
    search(slots, tuple, slots.mask(), S::slot, &mut 0)
}

/// [`find`] for where it is not worth another copy of the code.
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

/// Reads the records that claims for tuples with these hashes visit first: the processor fetches them all at
/// once, where claims, which are barriers and end at the first `CLEAN` record, would wait for one after the other.
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

    /// Leaves the claim to whoever knows its record's index.
    #[inline(always)]
    pub fn index(self) -> u32 {
        // SAFETY: the record is ours until its tag says otherwise, and has its own index there.
        unsafe { self.record.as_ref() }.peer
    }

    /// The record, which is the claimer's alone.
    #[inline(always)]
    pub fn record(&self) -> Record<A> {
        self.record
    }

    /// Makes the record visible, `HALF` or `LIVE`; all other fields must have been written.
    #[inline(always)]
    pub fn publish(self, state: u32) {
        self.hand_over(state);
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

/// Claims a record for a tuple with this [`hash`] that has none; `refused` says why if there is none. The
/// record's own index is in its `peer`. `segment` is the packet that asks for it.
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
        slots.gives_way(outcome.over(), segment, Purpose::Nothing);
    }
    claimed(slots, tuple, hash, outcome, refused)
}

/// [`claim`] for which nobody gives way.
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

/// The claim that came of looking for room, or why there is none.
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

/// What came of looking for room: one word, so that it fits a register.
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

    /// Whether a search visits the record that was claimed, which had been `CLEAN`, first and no other.
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
/// [`Outcome`].
#[inline(always)]
pub fn claim_index<A: Address, S: Slots<A>>(slots: &S, tuple: &Tuple<A>, hash: u64) -> u64 {
    let moment = slots.moment();
    let shortest = match slots.timeouts().map_or(0, |timeouts| timeouts.shortest) {
        0 => i64::from(i32::MAX),
        ticks => i64::from(ticks),
    };
    // Past the end. A number that the verifier does not know, so that it need not tell apart searches
    // that have found something from those that have not.
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

/// Shows that a flow's connection has proved itself; whether it was this call that did it.
#[inline(always)]
pub fn settle<A: Address, S: Slots<A>>(slots: &S, forward: Record<A>) -> bool {
    let seen = read_tag(forward);
    if tag::state(seen) != tag::HALF || !advance(forward, seen, tag::LIVE) {
        return false;
    }
    // SAFETY: records stay valid until every program that can see them ends.
    slots.count_half_open(unsafe { forward.as_ref() }.service, -1);
    true
}

/// Index of the record that a search for `hash` visits first.
#[inline(always)]
fn home(hash: u64, mask: u32) -> u32 {
    hash as u32 & mask
}

/// Index of the record that a search for `hash` visits at `step`, 0 being its [`home`]. The first versions of
/// node-lb know the first two groups.
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

/// How the number of a later group differs from the first's: each in another way, however small the table
/// is. Without branches, which the verifier would follow at every step of a search.
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

/// Whether a claim may take a record with this tag that has been silent for so many ticks, as a mask:
/// it is `CLEAN` or a `TOMB`, or has been `DEAD` or `EVICTED` for long enough.
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

/// Whether another record was claimed for what may be the same tuple, as well as the one that
/// [`claim_index`] says. Of two CPUs that claim at once at least one sees the other, since a claim is a
/// full barrier; both may, and both give up then. Past a record that was `CLEAN` there is none: no
/// search went further, and whoever comes now sees the claim.
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

#[inline(always)]
fn mix(value: u64, multiplier: u64) -> u64 {
    let product = value.wrapping_mul(multiplier);
    product ^ product >> 32
}
