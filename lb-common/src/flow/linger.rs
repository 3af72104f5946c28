//! Seats that linger: after the end of a connection, its seats of a priority level stay taken for as long
//! as its flow schema says (`linger`).
//!
//! The kernel tells nobody that such a time is over. So each level has a wheel of
//! [moments](Slots::moment): whoever takes a flow's seats out counts them in the moment at which they
//! become free. Who finds the level full looks for moments that have passed, and gives their seats back;
//! the agent does so as well, all the time.
//!
//! If nobody looks for longer than the wheel takes to turn, seats of moments to come may be taken for
//! those of moments that have passed. They come back too early then, and never too late.

use core::ptr::NonNull;

use super::{
    limit::{LEVELS, Seats, give},
    place::Place,
    slots::Slots,
};
use crate::{addr::Address, atomic, opaque::rolled};

/// Moments of a wheel: more than seats linger. A power of two.
pub const MOMENTS: usize = 1024;
/// How many moments programs look at in one go.
const SOME: usize = 64;

/// Element of `LINGERING`: the seats of a priority level that linger.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lingering {
    /// Seats that have begun to linger so far, and those of them that were given back, modulo 2^32.
    pub came: u32,
    pub went: u32,
    /// The latest moment whose seats were given back.
    pub passed: u32,
    pub pad: u32,
    /// The seats that become free in each moment, by the lower bits of its number.
    pub seats: [u32; MOMENTS],
}

impl Lingering {
    /// Seats that linger now.
    pub fn number(&self) -> u32 {
        self.came.wrapping_sub(self.went)
    }
}

/// Has the seats of a level linger that a flow of this schema, by its number, has just lost with its place.
/// Returns what of the place is to be given back at once.
#[inline(always)]
pub fn linger<A: Address, S: Slots<A>>(slots: &S, place: Place, schema: u32) -> Place {
    let moments = slots.flow_schema(schema).map_or(0, |schema| {
        // SAFETY: elements of maps stay; a word that the agent stores as a whole.
        let seats = unsafe { (&raw const (*schema.as_ptr()).seats).read_volatile() };
        seats.linger()
    });
    linger_for(slots, place, moments)
}

/// The same for so many moments; 0 means not at all.
#[inline(always)]
pub fn linger_for<A: Address, S: Slots<A>>(slots: &S, place: Place, moments: u32) -> Place {
    if moments == 0 || place.level() == 0 {
        return place;
    }
    let Some(lingering) = slots.lingering(place.level()) else {
        return place;
    };
    let free = (slots.moment() as u32).wrapping_add(moments);
    add(lingering, place.width(), free);
    place.without_shared()
}

/// Gives seats of a level, by its number, back whose time is over. Returns whether there were any.
#[inline(always)]
pub fn collect<A: Address, S: Slots<A>>(slots: &S, level: u32) -> bool {
    match (slots.lingering(level), slots.seats(LEVELS + level)) {
        (Some(lingering), Some(seats)) => gather(lingering, seats, slots.moment() as u32, SOME),
        _ => false,
    }
}

/// Counts seats that become free in this moment.
#[inline(always)]
pub fn add(lingering: NonNull<Lingering>, width: u32, free: u32) {
    let lingering = lingering.as_ptr();
    // SAFETY: elements of maps stay; words that are only added to, and one whose index is masked.
    unsafe {
        atomic::fetch_add(&raw mut (*lingering).came, width);
        let seats = (&raw mut (*lingering).seats).cast::<u32>();
        atomic::fetch_add(seats.add(free as usize & (MOMENTS - 1)), width);
    }
}

/// Gives those seats back whose moment is `now` or has passed, but looks at no more than `most` moments.
/// Returns whether there were any. Several CPUs may do so at once.
#[inline(always)]
pub fn gather(lingering: NonNull<Lingering>, seats: NonNull<Seats>, now: u32, most: usize) -> bool {
    let lingering = lingering.as_ptr();
    // SAFETY: elements of maps stay; words that other CPUs change.
    let (came, went, passed) = unsafe {
        (
            (&raw const (*lingering).came).read_volatile(),
            (&raw const (*lingering).went).read_volatile(),
            (&raw const (*lingering).passed).read_volatile(),
        )
    };
    let behind = now.wrapping_sub(passed);
    if behind == 0 {
        // Whoever is refused comes by here: in a flood, CPUs must not write the same word all the time.
        return false;
    }
    // Moments of which the clock of another CPU already knows are not behind.
    if came == went || behind > u32::MAX / 2 {
        // SAFETY: as above; any of the values that CPUs write will do.
        unsafe { (&raw mut (*lingering).passed).write_volatile(now) };
        return false;
    }
    let mut moment = now.wrapping_sub(behind.min(MOMENTS as u32));
    let mut due = 0u32;
    for _ in rolled(most) {
        if moment == now {
            break;
        }
        moment = moment.wrapping_add(1);
        // SAFETY: as above, and an index that is masked. Whoever makes a word zero has its seats.
        due = due.wrapping_add(unsafe {
            let seats = (&raw mut (*lingering).seats).cast::<u32>();
            atomic::take(seats.add(moment as usize & (MOMENTS - 1)))
        });
    }
    give(seats, due);
    // SAFETY: as above.
    unsafe {
        atomic::fetch_add(&raw mut (*lingering).went, due);
        (&raw mut (*lingering).passed).write_volatile(moment);
    }
    due != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Wheel {
        lingering: Lingering,
        seats: Seats,
    }

    impl Wheel {
        /// With so many seats in use, of which none lingers.
        fn new(used: u64) -> Self {
            Self {
                lingering: Lingering {
                    came: 0,
                    went: 0,
                    passed: 0,
                    pad: 0,
                    seats: [0; MOMENTS],
                },
                seats: Seats {
                    word: used << 32 | used,
                    ..Seats::default()
                },
            }
        }

        fn add(&mut self, width: u32, free: u32) {
            add(NonNull::from(&mut self.lingering), width, free);
        }

        /// Seats in use and lingering after a look at so many moments.
        fn gather(&mut self, now: u32, most: usize) -> (i32, u32) {
            let seats = NonNull::from(&mut self.seats);
            let before = self.seats.used();
            let some = gather(NonNull::from(&mut self.lingering), seats, now, most);
            assert_eq!(some, self.seats.used() != before);
            (self.seats.used(), self.lingering.number())
        }
    }

    #[test]
    fn seats_come_back_when_their_moment_has_come() {
        for start in [0, 5000, u32::MAX - 3] {
            let at = |moments: u32| start.wrapping_add(moments);
            let mut wheel = Wheel::new(20);
            assert_eq!(wheel.gather(start, 1), (20, 0));
            wheel.add(3, at(2));
            wheel.add(1, at(2));
            wheel.add(9, at(630));
            assert_eq!(wheel.gather(at(1), 8), (20, 13));
            assert_eq!(wheel.gather(at(2), 8), (16, 9));
            assert_eq!(wheel.gather(at(300), MOMENTS), (16, 9));
            assert_eq!(wheel.gather(at(629), MOMENTS), (16, 9));
            assert_eq!(wheel.gather(at(700), MOMENTS), (7, 0));
            assert_eq!(wheel.seats.taken(), 20);
        }
    }

    #[test]
    fn programs_look_at_some_moments_at_a_time() {
        let mut wheel = Wheel::new(6);
        wheel.gather(1000, 1);
        for moment in [1010, 1050, 1090] {
            wheel.add(2, moment);
        }
        assert_eq!(wheel.gather(1100, 40), (4, 4));
        assert_eq!(wheel.gather(1100, 40), (2, 2));
        assert_eq!(wheel.gather(1100, 40), (0, 0));
    }

    #[test]
    fn who_has_not_looked_for_long_gives_all_back() {
        let mut wheel = Wheel::new(5);
        wheel.gather(10, 1);
        wheel.add(2, 12);
        wheel.add(3, 600);
        assert_eq!(wheel.gather(1_000_000, MOMENTS), (0, 0));
        // An earlier moment, as a CPU with a clock behind says it.
        wheel.add(1, 1_000_001);
        assert_eq!(wheel.gather(999_999, MOMENTS), (0, 1));
        assert_eq!(wheel.gather(1_000_001, MOMENTS), (-1, 0));
    }
}
