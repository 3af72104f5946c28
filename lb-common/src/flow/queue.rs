//! Queues of a priority level, in which connections wait for seats.
//!
//! Every party is dealt a small hand of its level's queues by its hash (shuffle sharding, KEP-1040), so
//! that few parties share all queues with one that floods. A connection that holds a seat is charged to
//! a card of its party's hand that follows from its record: the queue in which it waited or, if it did not,
//! one that its ports choose. So whoever takes its seat out knows whom to charge less. One that has to
//! wait does so in the shortest queue of the hand; the agent keeps its SYN and decides who comes next.

use core::ptr::NonNull;

use super::{limit::change, party, place::Place, slots::Slots, table::mix};
use crate::{
    addr::Address,
    atomic,
    opaque::{choose, mask_if_negative, opaque, rolled},
};

/// How many elements `QUEUES` has: the most queues of all levels together.
pub const QUEUES: usize = 65_536;
/// The most cards of a hand.
pub const MAX_HAND: usize = 15;
/// Room for a hand's digits; a power of two.
const DIGITS: usize = 16;

/// Element of `LEVEL_QUEUES`: the queues of a priority level.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelQueues {
    /// Index of the first one in `QUEUES`; the others follow.
    pub first: u32,
    /// How many there are; 0 means that nobody waits at this level.
    pub number: u32,
    /// Cards of a hand, 1 to [`MAX_HAND`].
    pub hand: u32,
    /// The most connections that wait in one queue.
    pub length: u32,
    /// Connections that wait in all of them.
    pub waiting: u32,
    /// The tick until which the agent has promised to look after those who wait. 0 means never.
    pub until: u32,
    /// Connections that found their queue full.
    pub refused: u64,
    /// Free seats that are kept for parties without any: whoever wants one of them asks the agent, as one
    /// who waits.
    pub kept: u32,
    /// Not 0 while a flood of forged clients would fill the queues: nobody waits, who finds no seat is
    /// refused, and seats are kept by programs.
    pub overrun: u32,
}

/// Element of `QUEUES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Seats that are charged to it, as in [`Seats::word`](super::Seats::word).
    pub word: u64,
    /// Connections that wait in it.
    pub waiting: u32,
    pub pad: u32,
}

/// A party's hand, whose cards are dealt one by one as in the upstream's dealer: the digits of the hash,
/// lowest first, in a number system whose bases are the numbers of cards still in the deck.
pub struct Hand {
    rest: u64,
    deck: u32,
    digits: [u16; DIGITS],
    dealt: u32,
}

impl Hand {
    /// Of a party, out of so many queues.
    #[inline(always)]
    pub fn of(party: u64, queues: u32) -> Self {
        Self {
            rest: hash_of(party),
            deck: queues,
            digits: [0; DIGITS],
            dealt: 0,
        }
    }

    /// The next card: a queue by its place among the level's.
    #[inline(always)]
    pub fn deal(&mut self) -> u32 {
        // Never 0 in this form, not even if too many are dealt: a way through the program less.
        let left = u64::from(self.deck.wrapping_sub(self.dealt + 1)) + 1;
        let digit = (self.rest % left) as u32;
        self.rest /= left;
        // Turns a position among the cards left into one in the whole deck.
        let mut card = digit;
        for step in rolled(MAX_HAND) {
            let Some(before) = self.dealt.checked_sub(1 + step as u32) else {
                break;
            };
            let digit = u32::from(self.digits[before as usize & (DIGITS - 1)]);
            card += mask_if_negative(i64::from(digit) - i64::from(card) - 1) & 1;
        }
        self.digits[self.dealt as usize & (DIGITS - 1)] = digit as u16;
        self.dealt += 1;
        card
    }
}

/// The hash by which a party's hand is dealt, and by which the agent knows the party.
#[inline(always)]
pub fn hash_of(party: u64) -> u64 {
    mix(party, 0xd6e8_feb8_6659_fd93)
}

/// The place, among so many queues of a level with hands of so many cards, of the one to which a connection
/// of a party with these [ports](super::seats::client_of) is charged: that in which it waited, if that is
/// known by its [`card`](super::party::Taker::card).
#[inline(always)]
pub fn charged(queues: u32, cards: u32, party: u64, card: u32, ports: u32) -> u32 {
    let drawn = mix(party ^ u64::from(ports), 0xa076_1d64_78bd_642f);
    let drawn = ((drawn >> 32) as u32).checked_rem(cards).unwrap_or(0);
    let did_not_wait = mask_if_negative(i64::from(card) - 1);
    let card = choose(did_not_wait, drawn, card.wrapping_sub(1));
    let mut hand = Hand::of(party, queues);
    let mut queue = 0;
    for step in rolled(MAX_HAND) {
        if step as u32 > card {
            break;
        }
        queue = hand.deal();
    }
    queue
}

/// Which card of a party's hand a queue is, by its place among so many, counted from 1; 0 if it is none.
pub fn card_of(queues: u32, cards: u32, party: u64, queue: u32) -> u32 {
    let mut hand = Hand::of(party, queues);
    let dealt = (1..=cards.min(MAX_HAND as u32)).find(|_| hand.deal() == queue);
    dealt.unwrap_or(0)
}

/// Charges the seats that a connection of a party takes of its level to its queue, or no longer, if the level
/// has queues. The connection's [`card`](super::party::Taker::card) may be beside the party. Nothing for party 0.
/// (Whoever calls this need not ask first, which spares the verifier one way through the program.)
#[inline(always)]
pub fn charge<A: Address, S: Slots<A>>(
    slots: &S,
    place: Place,
    party: u64,
    ports: u32,
    is_over: bool,
) {
    let Some(queues) = slots.level_queues(place.level()).map(NonNull::as_ptr) else {
        return;
    };
    let card = (party >> party::CARD_SHIFT) as u32 & 0xf;
    let party = party & !(0xf << party::CARD_SHIFT);
    // SAFETY: elements of maps stay; words that the agent stores one by one.
    let (first, number, cards) = unsafe {
        (
            (&raw const (*queues).first).read_volatile(),
            (&raw const (*queues).number).read_volatile(),
            (&raw const (*queues).hand).read_volatile(),
        )
    };
    if party != 0
        && number != 0
        && let Some(queue) =
            slots.queue(first.wrapping_add(charged(number, cards, party, card, ports)))
    {
        let change = change(place.width(), is_over);
        // SAFETY: elements of maps stay; the word is only added to.
        unsafe { atomic::fetch_add_wide(&raw mut (*queue.as_ptr()).word, change) };
    }
}

/// Whether the level of a schema, by the schema's number, has queues.
#[inline(always)]
pub fn are_used<A: Address, S: Slots<A>>(slots: &S, schema: u32) -> bool {
    let Some(schema) = slots.flow_schema(schema) else {
        return false;
    };
    // SAFETY: elements of maps stay; a word that the agent stores as a whole.
    let seats = unsafe { (&raw const (*schema.as_ptr()).seats).read_volatile() };
    slots.level_queues(seats.level()).is_some_and(|queues| {
        // SAFETY: as above.
        unsafe { (&raw const (*queues.as_ptr()).number).read_volatile() != 0 }
    })
}

/// Who stands before the seats of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nobody can wait for them.
    None,
    /// Nobody waits, and so many seats are kept for those who have none.
    Empty {
        kept: u32,
    },
    Waiting,
}

/// The line before the seats of a level, by its number. If the agent no longer looks after those who
/// wait, nobody can.
#[inline(always)]
pub fn line<A: Address, S: Slots<A>>(slots: &S, level: u32) -> Line {
    let Some(queues) = slots.level_queues(level).map(NonNull::as_ptr) else {
        return Line::None;
    };
    // SAFETY: elements of maps stay; words that are stored one by one.
    let (waiting, kept, overrun) = unsafe {
        (
            (&raw const (*queues).waiting).read_volatile(),
            (&raw const (*queues).kept).read_volatile(),
            (&raw const (*queues).overrun).read_volatile(),
        )
    };
    match (are_looked_after(slots, queues) && overrun == 0, waiting) {
        (false, _) => Line::None,
        (true, 0) => Line::Empty { kept },
        (true, _) => Line::Waiting,
    }
}

/// Whether a level has queues, and the agent looks after them.
#[inline(always)]
fn are_looked_after<A: Address, S: Slots<A>>(slots: &S, queues: *const LevelQueues) -> bool {
    // SAFETY: elements of maps stay; words that are stored one by one.
    let (number, until) = unsafe {
        (
            (&raw const (*queues).number).read_volatile(),
            (&raw const (*queues).until).read_volatile(),
        )
    };
    number != 0 && until != 0 && until.wrapping_sub(slots.now()) as i32 > 0
}

/// How many free seats of a level, by its number, are kept for parties without any.
#[inline(always)]
pub fn seats_kept<A: Address, S: Slots<A>>(slots: &S, level: u32) -> u32 {
    let queues = slots.level_queues(level).map(NonNull::as_ptr);
    queues
        .filter(|queues| are_looked_after(slots, *queues))
        // SAFETY: elements of maps stay; a word that the agent stores as a whole.
        .map_or(0, |queues| unsafe {
            (&raw const (*queues).kept).read_volatile()
        })
}

/// [`shortest`]'s answer where no queue of the hand takes one more.
pub const ALL_FULL: u32 = u32::MAX;

/// The index in `QUEUES` of the queue of a party's hand at a level in which the fewest wait and, of
/// several, to which the fewest seats are charged; [`ALL_FULL`] if that is full, too.
#[inline(always)]
pub fn shortest<A: Address, S: Slots<A>>(slots: &S, level: u32, party: u64) -> u32 {
    let Some(queues) = slots.level_queues(level) else {
        return ALL_FULL;
    };
    // SAFETY: elements of maps stay; words that are stored one by one.
    let queues = unsafe { queues.as_ptr().read_volatile() };
    let mut hand = Hand::of(party, queues.number);
    let mut best = i64::MAX;
    let mut found = ALL_FULL;
    for step in rolled(MAX_HAND) {
        if step as u32 >= queues.hand {
            break;
        }
        let index = queues.first.wrapping_add(hand.deal());
        let Some(queue) = slots.queue(index) else {
            break;
        };
        // SAFETY: elements of maps stay; words that other CPUs change.
        let queue = unsafe { queue.as_ptr().read_volatile() };
        // Fewer than 2^31 of either, but for a moment.
        let seats = queue.word & (u64::MAX >> 33);
        let order = (u64::from(queue.waiting) << 32 | seats) as i64 & i64::MAX;
        let is_better = mask_if_negative(order - best);
        found = choose(is_better, index, found);
        best = best.min(order);
    }
    match best >> 32 < i64::from(queues.length) {
        true => found,
        false => ALL_FULL,
    }
}

/// Counts a connection in a queue and its level as waiting. Returns whether the queue had room.
#[inline(always)]
pub fn enter(queues: NonNull<LevelQueues>, queue: NonNull<Queue>, length: u32) -> bool {
    // SAFETY: elements of maps stay; words that are only added to.
    unsafe {
        let waiting = &raw mut (*queue.as_ptr()).waiting;
        if atomic::fetch_add(waiting, 1) >= length {
            atomic::fetch_add(waiting, u32::MAX);
            return false;
        }
        atomic::fetch_add(&raw mut (*queues.as_ptr()).waiting, 1);
    }
    true
}

/// Counts one that [entered](enter) as gone.
#[inline(always)]
pub fn leave(queues: NonNull<LevelQueues>, queue: NonNull<Queue>) {
    // SAFETY: elements of maps stay; words that are only added to.
    unsafe {
        atomic::fetch_add(&raw mut (*queue.as_ptr()).waiting, u32::MAX);
        atomic::fetch_add(&raw mut (*queues.as_ptr()).waiting, u32::MAX);
    }
}

/// Counts a connection that found its queue full.
#[inline(always)]
pub fn count_refused(queues: NonNull<LevelQueues>) {
    // SAFETY: elements of maps stay; the word is a counter.
    unsafe { atomic::add(&raw mut (*queues.as_ptr()).refused, 1) };
}

/// Bytes of a packet that are kept while its connection waits: the headers of any SYN, and most SYNs as
/// a whole.
pub const KEPT: usize = 256;

/// How many bytes are kept of a packet of this length, in a form whose bounds the verifier sees.
#[inline(always)]
pub fn kept(length: u32) -> u32 {
    let last = length.min(KEPT as u32).wrapping_sub(1);
    (opaque(last as usize) & (KEPT - 1)) as u32 + 1
}

/// What `WAITERS` has of a connection that has begun to wait.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The party that it belongs to.
    pub party: u64,
    pub level: u32,
    pub schema: u32,
    /// Index in `QUEUES` of the queue that counts it.
    pub queue: u32,
    /// The device that the SYN came by.
    pub ifindex: u32,
    /// Length of the packet, with the header of its link.
    pub length: u32,
    /// 1 if the device's packets have Ethernet headers.
    pub has_ethernet: u32,
    /// 1 if the source is a pod or the node.
    pub is_inside: u32,
    pub pad: u32,
    /// The packet's first bytes.
    pub packet: [u8; KEPT],
}
