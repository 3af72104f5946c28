//! How many connections an endpoint has open, where that matters: for least connections, and for the
//! most that an endpoint may have.
//!
//! A flow is counted at its endpoint while it holds the seat of its Service's limit (see
//! [`super::seats`]), and by whoever takes the seat or gives it back. A Service without a limit of its
//! own has one that lets everybody in.

use core::ptr::NonNull;

use super::slots::Slots;
use crate::{abi::EndpointLoad, addr::Address, atomic};

/// [`enter`] of an endpoint, by its id.
#[inline(always)]
pub fn enter_endpoint<A: Address, S: Slots<A>>(slots: &S, endpoint: u32, most: u32) -> bool {
    enter(slots.endpoint_load(endpoint), most)
}

/// Counts a connection to an endpoint, if that has less than `most`; 0 means that there is no limit.
/// Returns whether it did.
#[inline(always)]
fn enter(load: Option<NonNull<EndpointLoad>>, most: u32) -> bool {
    let Some(load) = load else {
        return true;
    };
    let before = add(load, 1);
    let has_room = most == 0 || i64::from(before) < i64::from(most);
    if !has_room {
        add(load, -1);
    }
    has_room
}

/// Counts a connection to an endpoint less.
#[inline(always)]
pub fn leave(load: Option<NonNull<EndpointLoad>>) {
    if let Some(load) = load {
        add(load, -1);
    }
}

/// The connections that an endpoint has open.
#[inline(always)]
pub fn open(load: Option<NonNull<EndpointLoad>>) -> u32 {
    // SAFETY: elements of maps stay; a word that is only added to.
    let open = load.map_or(0, |load| unsafe {
        (&raw const (*load.as_ptr()).open).read_volatile()
    });
    // Below zero if an agent is yet to correct it.
    open.max(0) as u32
}

/// Whether one endpoint has fewer connections open than another, for its weight.
#[inline(always)]
pub fn is_less(one: Option<NonNull<EndpointLoad>>, other: Option<NonNull<EndpointLoad>>) -> bool {
    u64::from(open(one)) * weight(other) < u64::from(open(other)) * weight(one)
}

/// The weight of an endpoint beside the others of its Service, at least 1.
#[inline(always)]
pub(crate) fn weight(load: Option<NonNull<EndpointLoad>>) -> u64 {
    // SAFETY: elements of maps stay; a word that the agent replaces as a whole.
    let weight = load.map_or(0, |load| unsafe {
        (&raw const (*load.as_ptr()).weight).read_volatile()
    });
    u64::from(weight.max(1))
}

#[inline(always)]
fn add(load: NonNull<EndpointLoad>, change: i32) -> i32 {
    // SAFETY: elements of maps stay; the word is only added to.
    unsafe { atomic::fetch_add((&raw mut (*load.as_ptr()).open).cast(), change as u32) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_takes_as_many_as_it_may_have() {
        let mut element = EndpointLoad::default();
        let load = NonNull::from(&mut element);
        assert!(enter(Some(load), 2) && enter(Some(load), 2));
        assert!(!enter(Some(load), 2), "it is full");
        assert_eq!(open(Some(load)), 2, "and who is refused is not counted");
        assert!(enter(Some(load), 0), "without a limit");
        assert_eq!(open(Some(load)), 3);
        leave(Some(load));
        leave(Some(load));
        assert!(enter(Some(load), 2));
        assert_eq!(open(Some(load)), 2);
    }

    #[test]
    fn who_has_twice_the_weight_may_have_twice_as_many() {
        let has_less = |one: (i32, u32), other: (i32, u32)| {
            let mut loads = [one, other].map(|(open, weight)| EndpointLoad { open, weight });
            let [one, other] = &mut loads;
            is_less(Some(one.into()), Some(other.into()))
        };
        assert!(has_less((1, 0), (2, 1)) && !has_less((2, 1), (1, 0)));
        assert!(!has_less((2, 1), (2, 0)), "0 counts as 1");
        assert!(has_less((3, 2), (2, 1)) && !has_less((4, 2), (2, 1)));
        assert!(!has_less((-1, 1), (0, 256)), "none is not fewer than none");
        let most = (i32::MAX, 256);
        assert!(!has_less(most, most), "and nothing overflows");
    }

    #[test]
    fn a_number_below_zero_counts_as_none() {
        let mut element = EndpointLoad {
            open: -3,
            weight: 0,
        };
        let load = NonNull::from(&mut element);
        assert_eq!(open(Some(load)), 0);
        assert!(enter(Some(load), 1));
        assert_eq!((open(Some(load)), element.open), (0, -2));
        assert!(
            enter(None, 1) && open(None) == 0,
            "where nothing is counted"
        );
    }
}
