//! Parties: the connections of a flow schema that count as one client's. APF calls them flows, a word
//! that means something else here.
//!
//! A schema's [`PartyRule`] says what tells parties apart, and how many seats each may hold. Which
//! party a flow belongs to follows from its client's record: the schema that has taken it, the
//! source and the service. So whoever takes a flow's seats out knows whom to count less.
//!
//! `PARTIES` lists those that hold seats, in groups of [`GROUP`] by hash. An element belongs to a party
//! as long as it counts connections, or the party is pressed: many handshakes from its sources, perhaps
//! forged, stay open. As with a [limit](super::limit::is_pressed) that is pressed, its connections are
//! then counted at the end of their handshakes.

use core::{net::IpAddr, ptr::NonNull};

use super::{
    Flow,
    entry::{BESIDE_SERVICE, flow_flag},
    table::mix,
};
use crate::{
    addr::Address,
    atomic,
    opaque::{choose, forgotten, mask_if_negative, mask_unless_zero, rolled},
};

/// How many elements `PARTIES` has; a power of two. Parties hold seats, so there are never more than
/// seats.
pub const PARTIES: usize = 131_072;
/// Elements among which a party has its own: a cache line.
const GROUP: u32 = 8;
/// Bits of a party that say where its group begins.
const HOME: u64 = (PARTIES as u64 - 1) & !(GROUP as u64 - 1);
/// Bits of an element that are a number of connections.
const COUNT: u64 = PRESSED - 1;
/// The bit of an element whose party is pressed.
const PRESSED: u64 = 1 << 23;
/// Bits of an element that say what is in it. Those above are a part of the party's hash.
const CONTENT: u64 = COUNT | PRESSED;
/// What takes a connection from an element.
const ONE_LESS: u64 = u64::MAX;
/// How often to try to count a connection while other CPUs make elements for it or for others.
const ATTEMPTS: usize = 3;

/// What tells the parties of a flow schema apart, and how many connections each may have.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartyRule {
    /// The most connections; [`ANY`] means that there is no limit, 0 that parties are not counted either.
    pub most: u32,
    /// Bits 0-7 and 8-15: how many bits of an IPv4 or IPv6 source tell. Above: [`party_by`].
    pub by: u32,
}

/// What the connections of one party have in common, besides their flow schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Common {
    Nothing,
    Service,
    /// So many first bits of their sources.
    Source(u32),
}

impl PartyRule {
    /// The most connections of a party, if there is a limit.
    pub fn limit(self) -> Option<u32> {
        Some(self.most).filter(|most| (1..ANY).contains(most))
    }

    /// For a source, which may be a pod or the node. [`party`] decides the same in the kernel.
    pub fn common(self, source: IpAddr, is_inside: bool) -> Common {
        if self.by & party_by::SERVICE != 0 {
            return Common::Service;
        }
        let (bits, all) = match source {
            IpAddr::V4(_) => (self.by & 0xff, 32),
            IpAddr::V6(_) => (self.by >> 8 & 0xff, 128),
        };
        match bits {
            _ if self.by & party_by::WHOLE_INSIDE != 0 && is_inside => Common::Source(all),
            0 => Common::Nothing,
            bits => Common::Source(bits.min(all)),
        }
    }
}

/// Bits of [`PartyRule::by`].
pub mod party_by {
    /// All bits of the addresses of pods and of the node tell.
    pub const WHOLE_INSIDE: u32 = 1 << 16;
    /// The service port tells.
    pub const SERVICE: u32 = 1 << 17;
}

/// Who has taken a flow: a flow schema, for a source inside the cluster or not.
///
/// Bits 0-12 are the schema's number, 0 for none; bit 13 says that the source is a pod or the node; bits
/// 14-17 are those of [`Self::card`]. The lower twelve bits are in the upper bits of [`Flow::service`] in
/// the client's direction, the others in bits 24-29 of [`Flow::flags`] there. Other versions have nothing
/// in the latter, or only in the lower two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taker(u32);

impl Taker {
    const SCHEMA: u32 = (1 << 13) - 1;
    const INSIDE: u32 = 1 << 13;
    const CARD_SHIFT: u32 = 14;
    const CARD: u32 = 0xf;
    const ALL: u32 = Self::SCHEMA | Self::INSIDE | Self::CARD << Self::CARD_SHIFT;
    /// Bits that lie above the service's id.
    const LOW: u32 = 32 - BESIDE_SERVICE;
    const FLAGS_SHIFT: u32 = 24;

    #[inline(always)]
    pub fn new(schema: u32, is_inside: bool) -> Self {
        Self(schema & Self::SCHEMA | if is_inside { Self::INSIDE } else { 0 })
    }

    #[inline(always)]
    pub fn schema(self) -> u32 {
        self.0 & Self::SCHEMA
    }

    /// The same for a connection that has waited in a queue, with the queue's [`Self::card`].
    #[inline(always)]
    #[must_use]
    pub fn with_card(self, card: u32) -> Self {
        Self(self.0 | (card & Self::CARD) << Self::CARD_SHIFT)
    }

    /// Which card of its party's [hand](super::queue::Hand) the queue was in which the connection waited,
    /// counted from 1; 0 if it did not wait.
    #[inline(always)]
    pub fn card(self) -> u32 {
        self.0 >> Self::CARD_SHIFT & Self::CARD
    }

    /// Whether the source is a pod or the node.
    #[inline(always)]
    pub fn is_inside(self) -> bool {
        self.0 & Self::INSIDE != 0
    }

    /// [`Flow::service`] of a flow of this service, in the client's direction.
    #[inline(always)]
    pub fn beside(self, service: u32) -> u32 {
        service | self.0 << BESIDE_SERVICE
    }

    /// What is beside the [`flow_flag`]s there.
    #[inline(always)]
    pub fn in_flags(self) -> u32 {
        self.0 >> Self::LOW << Self::FLAGS_SHIFT
    }
}

impl<A> Flow<A> {
    /// Who has taken the flow, if this is its client's direction.
    #[inline(always)]
    pub fn taker(&self) -> Taker {
        let high = (self.flags & !flow_flag::NUMBERED) >> Taker::FLAGS_SHIFT;
        Taker((self.service >> BESIDE_SERVICE | high << Taker::LOW) & Taker::ALL)
    }
}

/// A party by what a rule tells apart; never 0. Its upper bits are those of its element, and of the
/// lower ones [`HOME`] says where that lies. `secret` keeps sources from choosing whose elements theirs
/// lie beside.
#[inline(always)]
pub fn party<A: Address>(by: u32, taker: Taker, source: &A, service: u32, secret: [u64; 2]) -> u64 {
    // Without branches: the verifier would look at what follows once for each way.
    let whole =
        mask_unless_zero(by & party_by::WHOLE_INSIDE) & mask_unless_zero(taker.0 & Taker::INSIDE);
    let (high_bits, low_bits) = telling_bits::<A>(by);
    let (high, low) = source.halves();
    let (high, low) = (high & (high_bits | whole), low & (low_bits | whole));
    let service = service & mask_unless_zero(by & party_by::SERVICE) as u32;
    let mut hash = mix(secret[1] ^ high, 0x9e37_79b9_7f4a_7c15);
    hash = mix(hash ^ low, 0xc2b2_ae3d_27d4_eb4f);
    let whose = u64::from(service) << 32 | u64::from(taker.schema());
    hash = mix(hash ^ whose ^ secret[0], 0xff51_afd7_ed55_8ccd);
    hash & (!CONTENT | HOME) | 1 << 63
}

/// What an element says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// Whose connections they are. It has no meaning if there are none and it is not pressed.
    pub party: u64,
    pub connections: u32,
    pub is_pressed: bool,
}

impl Members {
    /// What the element at an index says.
    #[inline(always)]
    pub fn read(index: u32, element: u64) -> Self {
        Self {
            party: element & !CONTENT | u64::from(index) & HOME,
            connections: (element & COUNT) as u32,
            is_pressed: element & PRESSED != 0,
        }
    }
}

/// The bits of an address's halves that tell.
#[inline(always)]
fn telling_bits<A: Address>(by: u32) -> (u64, u64) {
    if A::HEADER != 40 {
        return (first_bits(by & 0xff), 0);
    }
    let bits = by >> 8 & 0xff;
    let high = first_bits(bits) << 32 | first_bits(beyond(bits, 32));
    let low = first_bits(beyond(bits, 64)) << 32 | first_bits(beyond(bits, 96));
    (high, low)
}

/// The first bits of a word of an address, in memory order.
#[inline(always)]
fn first_bits(bits: u32) -> u64 {
    let is_whole = mask_if_negative(31 - i64::from(bits));
    u64::from((is_whole | !(u32::MAX >> (bits & 31))).to_be())
}

/// How many of these bits are beyond so many. As [`first_bits`] without a branch, for the verifier.
#[inline(always)]
fn beyond(bits: u32, others: u32) -> u32 {
    bits.wrapping_sub(others) & !mask_if_negative(i64::from(bits) - i64::from(others))
}

/// The connection is counted.
pub const JOINED: u64 = 0;
/// The party has as many connections as it may have.
pub const FULL: u64 = 1;
/// There is no element for the party, so it is not counted.
pub const NO_ROOM: u64 = 2;
/// The party is pressed, so the connection is to be counted at the end of its handshake.
pub const LATER: u64 = 3;

/// The bits of these answers, which a party does not have.
pub const ANSWERS: u64 = GROUP as u64 - 1;
/// Where a [`Taker::card`] is beside a party, which does not have these bits.
pub const CARD_SHIFT: u32 = 18;
const _: () = assert!(HOME >> CARD_SHIFT == 0 && (Taker::CARD as u64) << CARD_SHIFT <= CONTENT);

/// A bit beside the most connections that a party may have: the one to be counted begins with a
/// handshake.
pub const HANDSHAKE: u32 = 1 << 31;
/// As many connections as there are.
pub const ANY: u32 = HANDSHAKE - 1;

/// Counts a connection of a party, if that has less than `most`, which may have [`HANDSHAKE`] beside it:
/// [`JOINED`], [`FULL`], [`NO_ROOM`] or [`LATER`]. `element` is that of `PARTIES` at an index.
#[inline(always)]
pub fn join(element: impl Fn(u32) -> Option<NonNull<u64>>, party: u64, most: u32) -> u64 {
    let waits = if most & HANDSHAKE != 0 { PRESSED } else { 0 };
    // What other CPUs add for a moment must fit, too.
    let most = u64::from(most & !HANDSHAKE).min(COUNT >> 1);
    for _ in rolled(ATTEMPTS) {
        let index = find(&element, party, NOWHERE);
        let Some(own) = element(index) else {
            return NO_ROOM;
        };
        let seen = read(own);
        if is_of(seen, party) {
            if seen & COUNT >= most {
                return FULL;
            }
            if seen & waits != 0 {
                return LATER;
            }
            let before = add(own, 1);
            if is_of(before, party) && before & COUNT < most {
                return JOINED;
            }
            add(own, ONE_LESS);
        } else if seen & CONTENT == 0 && swap(own, seen, party & !CONTENT | 1) {
            if !has(&element, party, index) {
                return JOINED;
            }
            // Another CPU has made one for the same party.
            add(own, ONE_LESS);
        }
    }
    NO_ROOM
}

/// Counts one connection of a party less.
#[inline(always)]
pub fn leave(element: impl Fn(u32) -> Option<NonNull<u64>>, party: u64) {
    if let Some(own) = element(find(&element, party, NOWHERE)) {
        let counts = |seen| is_of(seen, party) && seen & COUNT != 0;
        if counts(read(own)) && !counts(add(own, ONE_LESS)) {
            // It became another's before.
            add(own, 1);
        }
    }
}

/// Marks a party as pressed or not, for the agent: if need be, in an element of its own. Returns whether
/// the party is so now: there may be no room for an element.
pub fn press(element: impl Fn(u32) -> Option<NonNull<u64>>, party: u64, is_pressed: bool) -> bool {
    while let Some(own) = element(find(&element, party, NOWHERE)) {
        let seen = read(own);
        let next = match (is_of(seen, party), is_pressed) {
            (true, true) => seen | PRESSED,
            (true, false) => seen & !PRESSED,
            (false, true) if seen & CONTENT == 0 => party & !CONTENT | PRESSED,
            (false, _) => return !is_pressed,
        };
        if swap(own, seen, next) {
            return true;
        }
    }
    !is_pressed
}

/// The connections of a party, for the agent.
pub fn connections(element: impl Fn(u32) -> Option<NonNull<u64>>, party: u64) -> u32 {
    let own = element(find(&element, party, NOWHERE)).map(read);
    own.filter(|seen| is_of(*seen, party))
        .map_or(0, |seen| (seen & COUNT) as u32)
}

/// An index that `PARTIES` does not have.
const NOWHERE: u32 = PARTIES as u32;

/// Whether an element other than `except` belongs to a party.
#[inline(always)]
fn has(element: &impl Fn(u32) -> Option<NonNull<u64>>, party: u64, except: u32) -> bool {
    element(find(element, party, except)).is_some_and(|own| is_of(read(own), party))
}

/// Index of the element, other than `except`, that belongs to a party; or if there is none, of the first
/// that is nobody's, or one past them all.
#[inline(always)]
fn find(element: &impl Fn(u32) -> Option<NonNull<u64>>, party: u64, except: u32) -> u32 {
    // A number that the verifier does not know: then it need not tell apart searches that have
    // found something from those that have not.
    let none = NOWHERE | (party & HOME) as u32;
    let mut free = none;
    for step in rolled(GROUP as usize) {
        let index = position(party, step as u32);
        let Some(own) = element(index) else {
            return NOWHERE;
        };
        let seen = read(own);
        // Before the verifier learns, on one of the ways from here, that it is.
        let is_free = mask_if_negative((seen & CONTENT) as i64 - 1);
        if is_of(seen, party) && index != except {
            return forgotten(index, seen);
        }
        let is_first = mask_if_negative(i64::from(free ^ none) - 1) & is_free;
        free = choose(is_first, index, free);
    }
    free
}

#[inline(always)]
fn position(party: u64, step: u32) -> u32 {
    (party & HOME) as u32 | step & (GROUP - 1)
}

/// Whether an element belongs to a party.
#[inline(always)]
fn is_of(element: u64, party: u64) -> bool {
    element & !CONTENT == party & !CONTENT && element & CONTENT != 0
}

#[inline(always)]
fn read(element: NonNull<u64>) -> u64 {
    // SAFETY: elements of maps stay; a word that is only reached atomically or volatilely.
    unsafe { element.as_ptr().read_volatile() }
}

/// Adds to an element: its value before.
#[inline(always)]
fn add(element: NonNull<u64>, change: u64) -> u64 {
    // SAFETY: as in `swap`.
    unsafe { atomic::fetch_add_wide(element.as_ptr(), change) }
}

#[inline(always)]
fn swap(element: NonNull<u64>, old: u64, new: u64) -> bool {
    // SAFETY: a valid, aligned word, which is only reached atomically or volatilely.
    unsafe { atomic::compare_and_swap_wide(element.as_ptr(), old, new) }
}
