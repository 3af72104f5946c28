//! The cache of next hops: an entry is valid until it changes, and not afterwards.

use std::{cell::UnsafeCell, collections::HashSet, ptr::NonNull};

use lb_common::flow::{
    Ethernet, Hop,
    hop::{self, Hops},
};
use proptest::{collection::vec, prelude::*};

/// Ticks after which an outdated entry may be given to another hop.
const UNTOUCHED: u32 = 9;

struct Cache(Vec<UnsafeCell<Hop>>);

impl Cache {
    fn new(entries: usize) -> Self {
        Self((0..entries).map(|_| UnsafeCell::default()).collect())
    }

    /// The hop that a flow's packets would use.
    fn get(&self, kept: u32, generation: u32) -> Option<Hop> {
        let entry = self.hop(hop::index(kept))?;
        // SAFETY: only this thread uses the table.
        let hop = unsafe { *entry.as_ref() };
        hop.holds(kept, generation).then_some(hop)
    }
}

// SAFETY: the entries are aligned, and live and stay in place as long as the cache.
unsafe impl Hops for Cache {
    fn hop_mask(&self) -> u32 {
        self.0.len() as u32 - 1
    }

    fn hop(&self, index: u32) -> Option<NonNull<Hop>> {
        NonNull::new(self.0.get(index as usize)?.get())
    }
}

fn to(number: u8) -> Hop {
    Hop {
        ifindex: 7,
        ethernet: Ethernet {
            to: [2, 0, 0, 0, 0, number],
            from: [2; 6],
        },
        mtu: 1500,
        ..Hop::default()
    }
}

fn leads_to(hop: Option<Hop>, number: u8) -> bool {
    hop.is_some_and(|hop| hop.ethernet == to(number).ethernet && hop.ifindex == 7)
}

#[test]
fn flows_that_leave_the_same_way_share_an_entry() {
    let cache = Cache::new(64);
    let kept: HashSet<_> = (0..10)
        .map(|now| hop::keep(&cache, &to(1), 3, now))
        .collect();
    assert_eq!(kept.len(), 1);
    let kept = kept.into_iter().next().flatten().unwrap();
    assert!(leads_to(cache.get(kept, 3), 1));
    assert_ne!(hop::keep(&cache, &to(2), 3, 0), Some(kept));
}

#[test]
fn nothing_holds_before_it_was_looked_up() {
    let cache = Cache::new(64);
    for index in 0..64 {
        assert!(cache.get(index, 0).is_none());
    }
}

#[test]
fn a_new_generation_asks_again() {
    let cache = Cache::new(64);
    let kept = hop::keep(&cache, &to(1), 3, 0).unwrap();
    assert!(cache.get(kept, 4).is_none());
    let again = hop::keep(&cache, &to(1), 4, 0).unwrap();
    assert!(leads_to(cache.get(again, 4), 1));
    assert!(
        cache.get(kept, 4).is_none(),
        "it could lead elsewhere by now"
    );
    assert_eq!(hop::index(kept), hop::index(again), "in the same place");
}

#[test]
fn a_change_of_the_mtu_is_a_change() {
    let cache = Cache::new(64);
    let kept = hop::keep(&cache, &to(1), 3, 0).unwrap();
    let smaller = Hop { mtu: 1400, ..to(1) };
    let other = hop::keep(&cache, &smaller, 3, 0).unwrap();
    assert_eq!(cache.get(kept, 3).unwrap().mtu, 1500);
    assert_eq!(cache.get(other, 3).unwrap().mtu, 1400);
}

#[test]
fn a_full_set_gives_up_what_is_out_of_date_and_nothing_else() {
    let cache = Cache::new(4);
    let kept: Vec<_> = (1..=4)
        .map(|n| hop::keep(&cache, &to(n), 3, 100).unwrap())
        .collect();
    for now in [100, 100 + UNTOUCHED, 10_000] {
        assert_eq!(hop::keep(&cache, &to(9), 3, now), None);
    }
    assert_eq!(
        hop::keep(&cache, &to(9), 4, 100 + UNTOUCHED - 1),
        None,
        "just looked up"
    );
    let other = hop::keep(&cache, &to(9), 4, 100 + UNTOUCHED).unwrap();
    assert!(leads_to(cache.get(other, 4), 9));
    assert!(kept.iter().all(|kept| cache.get(*kept, 4).is_none()));
    let left = kept.iter().filter(|kept| cache.get(**kept, 3).is_some());
    assert_eq!(left.count(), 3);
}

#[test]
fn an_entry_that_is_being_written_is_left_alone() {
    let cache = Cache::new(4);
    let kept = hop::keep(&cache, &to(1), 3, 0).unwrap();
    // SAFETY: only this thread uses the table.
    unsafe { cache.hop(hop::index(kept)).unwrap().as_mut() }.version |= 1;
    assert!(cache.get(kept, 3).is_none());
    let other = hop::keep(&cache, &to(1), 3, 0).unwrap();
    assert_ne!(hop::index(other), hop::index(kept));
    assert!(leads_to(cache.get(other, 3), 1));
}

#[test]
fn versions_go_round_without_ever_being_none() {
    let cache = Cache::new(4);
    for generation in 0..70_000 {
        let kept = hop::keep(&cache, &to(1), generation, 0).unwrap();
        assert_ne!(kept >> 16, 0);
        assert!(leads_to(cache.get(kept, generation), 1), "{generation}");
    }
}

#[test]
fn generations_change_with_time_and_by_announcement() {
    assert_eq!(hop::generation(5, 0), hop::generation(5, 63));
    assert_ne!(hop::generation(5, 63), hop::generation(5, 64));
    assert_ne!(hop::generation(5, 0), hop::generation(6, 0));
    assert_ne!(hop::generation(u32::MAX, 0), hop::generation(u32::MAX, 64));
}

proptest! {
    /// Whatever flows look up and when, what they keep leads where it did at the lookup, or
    /// nowhere.
    #[test]
    fn what_holds_leads_where_it_was_looked_up(
        steps in vec((1..12u8, 0..4u32, any::<bool>()), 1..300),
    ) {
        let cache = Cache::new(8);
        let (mut now, mut generation) = (0, 1);
        let mut flows = Vec::new();
        for (number, pause, changes) in steps {
            now += pause * 4;
            generation += u32::from(changes && pause == 3);
            if let Some(kept) = hop::keep(&cache, &to(number), generation, now) {
                flows.push((number, kept));
                prop_assert!(leads_to(cache.get(kept, generation), number));
            }
            for (number, kept) in &flows {
                let found = cache.get(*kept, generation);
                prop_assert!(found.is_none() || leads_to(found, *number));
            }
        }
    }
}
