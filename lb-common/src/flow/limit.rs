//! A limit of connections: an element of `SEATS` or `LEVELS`, and how seats of it are taken and given
//! back. Which flows hold one is told in [`super::seats`].
//!
//! Both maps together have one numbering: first `SEATS`, with the limits of the node and of Services,
//! then, from [`LEVELS`] on, those of priority levels.

use core::ptr::NonNull;

use crate::{
    atomic,
    opaque::{choose, mask_if_negative},
};

/// How many elements `SEATS` has: the node's limit, and one for each limited Service.
pub const LIMITS: usize = 2048;
/// Index of the limit of level 0, if there were one.
pub const LEVELS: u32 = LIMITS as u32;
/// How many elements `LEVELS` has. The first two are not used: number 0 is no level, and number 1
/// stands for the node's own limit.
pub const LEVEL_NUMBERS: usize = 256;
/// The first number of a level.
pub const FIRST_LEVEL: u32 = 2;
/// Index of the node's limit.
pub const NODE: u32 = 0;

/// Element of `SEATS` or `LEVELS`: a limit, and who is within it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seats {
    /// Seats in use: the lower half, below zero if they were given back too often. The upper half
    /// is how many have been taken so far, modulo 2^32, less one if the lower half is below zero.
    pub word: u64,
    /// The most seats in use; 0 means no limit, unless [`limit_flag::STRICT`] is set.
    pub limit: u32,
    /// The most that were in use since the agent last looked.
    pub highest: u32,
    /// Connections refused because all seats were in use.
    pub refused: u64,
    /// Seats taken without regard to the limit: by connections in progress, whose flow was lost or
    /// seemed to be over.
    pub recovered: u64,
    /// Connections let in without a seat, because the cluster depends on their Service.
    pub exempted: u64,
    /// Hash of the limit's name, by which a later agent recognises it; 0 means that it is nobody's.
    pub owner: u64,
    /// Connections let in above the limit, because it is only audited.
    pub over: u64,
    /// [`limit_flag`]s.
    pub flags: u32,
    /// Not 0 while many handshakes have been open for long: see [`is_pressed`].
    pub pressed: u32,
}

/// Bits of [`Seats::flags`].
pub mod limit_flag {
    /// A limit of 0 lets nobody in.
    pub const STRICT: u32 = 1 << 0;
    /// Connections above the limit are counted, and let in.
    pub const AUDIT: u32 = 1 << 1;
    /// Connections that find no seat wait for one, in the [queues](super::queue) of the level.
    pub const QUEUES: u32 = 1 << 2;
    /// From here on: how many slow handshakes it bears, for the agent; 0 means a part of the limit.
    pub const PATIENCE_SHIFT: u32 = 8;
}

/// How many slow handshakes a limit bears before it [is pressed](is_pressed).
pub fn patience(limit: u32) -> u32 {
    limit / 4
}

/// [`Seats::word`] after so many seats were taken, or given back, less what it was before.
#[inline(always)]
pub(super) fn change(width: u32, is_over: bool) -> u64 {
    let width = u64::from(width);
    match is_over {
        true => width.wrapping_neg(),
        false => width << 32 | width,
    }
}

impl Seats {
    /// Seats in use; below zero if they were given back too often.
    #[inline(always)]
    pub fn used(&self) -> i32 {
        self.word as i32
    }

    /// How many seats have been taken so far, modulo 2^32.
    #[inline(always)]
    pub fn taken(&self) -> u32 {
        let used = i64::from(self.used()) as u64;
        (self.word.wrapping_sub(used) >> 32) as u32
    }
}

/// Whether a limit has not so many free seats, beside those that are kept for others: a plain read, so
/// that refusing stays cheap.
#[inline(always)]
pub fn is_full(seats: NonNull<Seats>, width: u32, kept: u32) -> bool {
    let seats = seats.as_ptr();
    // SAFETY: elements of maps stay; a word that other CPUs change.
    let word = unsafe { (&raw const (*seats).word).read_volatile() };
    exceeds(word, width, kept, most(seats.cast_const()))
}

/// Whether connections above a limit are let in, because it is only audited.
#[inline(always)]
pub fn is_audited(seats: NonNull<Seats>) -> bool {
    flags(seats.as_ptr()) & limit_flag::AUDIT != 0
}

/// Whether connections wait for a seat here that find none.
#[inline(always)]
pub fn has_queues(seats: NonNull<Seats>) -> bool {
    flags(seats.as_ptr()) & (limit_flag::QUEUES | limit_flag::AUDIT) == limit_flag::QUEUES
}

/// Whether handshakes hold no seats: a connection takes them when its handshake is complete. The
/// agent decides so while many handshakes have been open for longer than real ones are. Else spoofed
/// SYNs would hold all seats.
#[inline(always)]
pub fn is_pressed(seats: NonNull<Seats>) -> bool {
    // SAFETY: elements of maps stay; a word that the agent stores as a whole.
    unsafe { (&raw const (*seats.as_ptr()).pressed).read_volatile() != 0 }
}

/// The most seats that may be in use; negative if there is no limit.
#[inline(always)]
fn most(seats: *const Seats) -> i64 {
    // SAFETY: elements of maps stay; a word that the agent stores as a whole.
    let limit = unsafe { (&raw const (*seats).limit).read_volatile() };
    match limit == 0 && flags(seats) & limit_flag::STRICT == 0 {
        true => -1,
        false => i64::from(limit),
    }
}

#[inline(always)]
fn flags(seats: *const Seats) -> u32 {
    // SAFETY: elements of maps stay; a word that the agent stores as a whole.
    unsafe { (&raw const (*seats).flags).read_volatile() }
}

/// Whether so many more seats in use, beside those that are kept, would be more than there may be. As in
/// APF, a connection wider than the limit needs all of it: it is let in where nobody else is.
#[inline(always)]
fn exceeds(word: u64, width: u32, kept: u32, most: i64) -> bool {
    let is_wider = mask_if_negative(most - i64::from(width));
    let needed = choose(is_wider, (most as u32).max(1), width);
    most >= 0 && i64::from(word as i32) + i64::from(kept) + i64::from(needed) > most
}

/// Takes seats if the limit allows so many more beside those that are kept for others. Returns whether it
/// did. At the same moment as other CPUs at the limit it may fail although some have just become free.
#[inline(always)]
pub fn try_take(seats: NonNull<Seats>, width: u32, kept: u32) -> bool {
    if is_full(seats, width, kept) {
        return false;
    }
    let before = add(seats, change(width, false));
    if exceeds(before, width, kept, most(seats.as_ptr())) {
        add(seats, change(width, false).wrapping_neg());
        return false;
    }
    note_highest(seats, before, width);
    true
}

/// Takes seats whatever the limit is, and counts that.
#[inline(always)]
pub fn take_anyway(seats: NonNull<Seats>, width: u32) {
    let before = add(seats, change(width, false));
    note_highest(seats, before, width);
    // SAFETY: elements of maps stay; the word is a counter.
    unsafe { atomic::add(&raw mut (*seats.as_ptr()).recovered, width.into()) };
}

/// Takes a connection's seats above a limit that is only audited, and counts the connection.
#[inline(always)]
pub fn take_audited(seats: NonNull<Seats>, width: u32) {
    let before = add(seats, change(width, false));
    note_highest(seats, before, width);
    // SAFETY: elements of maps stay; the word is a counter.
    unsafe { atomic::add(&raw mut (*seats.as_ptr()).over, 1) };
}

/// Gives seats back.
#[inline(always)]
pub fn give(seats: NonNull<Seats>, width: u32) {
    add(seats, change(width, true));
}

#[inline(always)]
fn add(seats: NonNull<Seats>, change: u64) -> u64 {
    // SAFETY: elements of maps stay; the word is only added to.
    unsafe { atomic::fetch_add_wide(&raw mut (*seats.as_ptr()).word, change) }
}

/// Notes how many seats are in use after so many were taken; `before` is the word before that.
#[inline(always)]
fn note_highest(seats: NonNull<Seats>, before: u64, width: u32) {
    let used = (before as i32).wrapping_add(width as i32);
    // SAFETY: elements of maps stay. Of several CPUs at once any may write.
    unsafe {
        let highest = &raw mut (*seats.as_ptr()).highest;
        if i64::from(used) > i64::from(highest.read_volatile()) {
            highest.write_volatile(used as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(limit: u32) -> Seats {
        Seats {
            limit,
            ..Seats::default()
        }
    }

    /// A limit that lets nobody in.
    fn nobody() -> Seats {
        Seats {
            flags: limit_flag::STRICT,
            ..Seats::default()
        }
    }

    fn pointer(seats: &mut Seats) -> NonNull<Seats> {
        NonNull::from(seats)
    }

    #[test]
    fn seats_are_taken_up_to_the_limit() {
        let mut seats = limited(2);
        let pointer = pointer(&mut seats);
        assert!(!is_full(pointer, 1, 0) && try_take(pointer, 1, 0) && try_take(pointer, 1, 0));
        assert!(is_full(pointer, 1, 0) && !try_take(pointer, 1, 0));
        take_anyway(pointer, 1);
        let Seats {
            highest, recovered, ..
        } = seats;
        assert_eq!((seats.used(), seats.taken()), (3, 3));
        assert_eq!((highest, recovered), (3, 1));
        give(pointer, 1);
        assert!(is_full(pointer, 1, 0));
        give(pointer, 1);
        assert!(!is_full(pointer, 1, 0) && try_take(pointer, 1, 0));
        assert_eq!((seats.used(), seats.taken()), (2, 4));
    }

    #[test]
    fn a_connection_takes_as_many_seats_as_it_is_wide() {
        let mut seats = limited(5);
        let pointer = pointer(&mut seats);
        assert!(try_take(pointer, 3, 2) && !try_take(pointer, 3, 0));
        assert!(is_full(pointer, 3, 0) && is_full(pointer, 2, 1) && !is_full(pointer, 2, 0));
        assert!(try_take(pointer, 2, 0) && is_full(pointer, 1, 0));
        take_anyway(pointer, 2);
        take_audited(pointer, 3);
        assert_eq!((seats.used(), seats.taken(), seats.highest), (10, 10, 10));
        assert_eq!((seats.recovered, seats.over), (2, 1));
        for width in [3, 2, 2, 3] {
            give(pointer, width);
        }
        assert_eq!((seats.used(), seats.taken()), (0, 10));
    }

    #[test]
    fn one_that_is_wider_than_the_limit_needs_all_of_it() {
        let mut seats = limited(2);
        let pointer = pointer(&mut seats);
        assert!(is_full(pointer, 4, 1) && try_take(pointer, 4, 0));
        assert!(!try_take(pointer, 1, 0) && !try_take(pointer, 4, 0));
        give(pointer, 4);
        assert!(try_take(pointer, 1, 0) && is_full(pointer, 4, 0) && !is_full(pointer, 1, 0));
        let mut nobody = nobody();
        assert!(is_full(NonNull::from(&mut nobody), 4, 0));
    }

    #[test]
    fn a_strict_limit_of_zero_lets_nobody_in() {
        let mut seats = nobody();
        let pointer = pointer(&mut seats);
        assert!(is_full(pointer, 1, 0) && !try_take(pointer, 1, 0) && !is_audited(pointer));
        assert_eq!(seats.taken(), 0);
    }

    #[test]
    fn above_an_audited_limit_connections_are_counted() {
        let mut seats = Seats {
            limit: 1,
            flags: limit_flag::STRICT | limit_flag::AUDIT,
            ..Seats::default()
        };
        let pointer = pointer(&mut seats);
        assert!(is_audited(pointer) && try_take(pointer, 1, 0) && !try_take(pointer, 1, 0));
        take_audited(pointer, 1);
        assert_eq!((seats.used(), seats.highest, seats.over), (2, 2, 1));
    }

    #[test]
    fn what_was_given_back_too_often_does_not_spoil_the_number_taken() {
        let mut seats = Seats::default();
        let pointer = pointer(&mut seats);
        give(pointer, 1);
        assert_eq!((seats.used(), seats.taken()), (-1, 0));
        assert!(
            try_take(pointer, 1, 0) && try_take(pointer, 1, 0),
            "0 means no limit"
        );
        assert_eq!((seats.used(), seats.taken()), (1, 2));
    }
}
