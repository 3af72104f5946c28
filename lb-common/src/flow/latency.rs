//! How long endpoints take to answer: from a flow's first packet to the first one of its endpoint,
//! as they pass this node. For TCP that is the SYN and the SYN-ACK.
//!
//! The flow's endpoint's direction keeps when the first packet came, in [`Flow::detail`](super::Flow),
//! until the answer. Nothing else is kept, and packets of answered flows cost nothing. Times are counted by
//! Service in [`Latencies`], and smoothed by endpoint in [`EndpointLatency`], for those that are picked
//! by their latency.
//!
//! What a client needs is not in it: neither its way to this node, nor the time for which admission
//! has it wait. A packet that is sent again does not start anew.

use core::ptr::NonNull;

use super::{Record, flow_flag, load, record::flags, slots::Slots, stage::idle};
use crate::{
    abi::{EndpointLatency, EndpointLoad, Latencies},
    addr::Address,
    atomic,
};

/// Nanoseconds in a unit of latency: a shift is all that a program needs to convert the clock.
pub const UNIT: u32 = 1 << UNIT_SHIFT;
/// Its logarithm.
pub const UNIT_SHIFT: u32 = 10;
/// Buckets of [`Latencies`].
pub const BUCKETS: usize = 32;
/// Logarithm of the first bucket's end, in units.
const FIRST: u32 = 6;
/// Longer latencies count as this one: four seconds.
pub const LONGEST: u32 = 1 << 22;
/// A new latency counts for one part in so many, as a bit shift (RFC 6298's smoothed round-trip time).
const GAIN: u32 = 3;
/// Ticks after which what is known of an endpoint is old, so that one connection tries it again: five
/// seconds at least.
const OLD: u32 = 40;

/// The bucket of a latency in units: two for each power of two.
#[inline(always)]
pub fn bucket(latency: u32) -> usize {
    if latency < 1 << FIRST {
        return 0;
    }
    let log = 31 - latency.leading_zeros();
    let upper_half = latency >> (log - 1) & 1;
    let index = 2 * (log - FIRST) + upper_half + 1;
    (index as usize).min(BUCKETS - 1)
}

/// The least latency of a bucket, in units; its successor's is its end. The last bucket has none.
pub fn least(bucket: usize) -> u32 {
    match bucket.checked_sub(1) {
        None => 0,
        Some(step) => (2 + step as u32 % 2) << (FIRST - 1 + step as u32 / 2),
    }
}

/// When the first packet of a flow came, if this packet may be its endpoint's first answer; else 0.
/// `record` is the packet's direction. Whoever asks has to [`note`] the answer: the time is not kept.
#[inline(always)]
pub fn take<A: Address>(mut record: Record<A>) -> u32 {
    use flow_flag::{PICKED_UP, REPLY, SEEN};
    // SAFETY: records stay valid; if several CPUs do this at the same time, any of the values will do.
    let flow = unsafe { record.as_mut() };
    if flow.flags & (REPLY | SEEN | PICKED_UP) != REPLY {
        return 0;
    }
    core::mem::take(&mut flow.detail)
}

/// Notes how long an endpoint has taken since `began`, if the packet in its direction `reply` has turned
/// out to be an answer.
#[inline(always)]
pub fn note<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>, forward: Record<A>, began: u32) {
    if began == 0 || flags(reply) & flow_flag::SEEN == 0 {
        return;
    }
    // SAFETY: records stay valid, and neither of these fields changes.
    let flow = unsafe { forward.as_ref() };
    let latency = slots.stopwatch().wrapping_sub(began).min(LONGEST);
    count(slots.latencies(flow.service_id()), latency);
    if flow.detail != 0 {
        smooth(
            slots.endpoint_latency(flow.detail),
            latency.max(1),
            slots.now(),
        );
    }
}

#[inline(always)]
fn count(latencies: Option<NonNull<Latencies>>, latency: u32) {
    let Some(latencies) = latencies else {
        return;
    };
    // For the verifier, which does not see that no bucket is greater.
    let bucket = bucket(latency) & (BUCKETS - 1);
    // SAFETY: elements of maps stay; the word is only added to.
    unsafe { atomic::fetch_add(&raw mut (*latencies.as_ptr()).buckets[bucket], 1) };
}

/// Takes in one latency of an endpoint, at tick `now`. Where CPUs do this at the same time, one of them
/// is not taken in.
#[inline(always)]
fn smooth(endpoint: Option<NonNull<EndpointLatency>>, latency: u32, now: u32) {
    let Some(endpoint) = endpoint else {
        return;
    };
    let endpoint = endpoint.as_ptr();
    // SAFETY: elements of maps stay; words of which any value will do.
    unsafe {
        let smoothed = (&raw const (*endpoint).smoothed).read_volatile();
        let measured_at = (&raw const (*endpoint).measured_at).read_volatile();
        let is_known = smoothed != 0 && idle(measured_at, now) < OLD;
        let smoothed = match is_known {
            true => smoothed - (smoothed >> GAIN) + (latency >> GAIN),
            false => latency,
        };
        (&raw mut (*endpoint).smoothed).write_volatile(smoothed.max(1));
        if measured_at != now {
            (&raw mut (*endpoint).measured_at).write_volatile(now);
        }
    }
}

/// A latency without what is small beside it: down to the begin of its bucket, so that endpoints which
/// answer about equally soon are equals. Those of the first bucket are as long as it.
#[inline(always)]
fn rounded(latency: u32) -> u32 {
    let latency = latency.clamp(1 << FIRST, LONGEST);
    let log = 31 - latency.leading_zeros();
    latency & (u32::MAX << (log - 1))
}

/// What decides between two endpoints by latency.
#[derive(Clone, Copy)]
pub struct Standing {
    pub load: Option<NonNull<EndpointLoad>>,
    pub latency: Option<NonNull<EndpointLatency>>,
}

/// Whether a new connection should rather go to one endpoint than to another, at tick `now`: to that
/// whose smoothed latency, rounded, times the connections that it has open, is less for its weight. So a
/// slow endpoint gets fewer connections, and a fast one not all of them.
///
/// An endpoint that has not answered for a while is tried by one connection. Of one that has
/// never answered nothing is known, so connections decide alone: what does not answer keeps those
/// that it has.
#[inline(always)]
pub fn is_quicker(one: Standing, other: Standing, now: u32) -> bool {
    let (Some(first), Some(second)) = (one.known(), other.known()) else {
        return load::is_less(one.load, other.load);
    };
    if one.is_to_be_tried(now) {
        return true;
    }
    if other.is_to_be_tried(now) {
        return false;
    }
    one.cost(first) * load::weight(other.load) < other.cost(second) * load::weight(one.load)
}

impl Standing {
    /// The smoothed latency, if there is one.
    #[inline(always)]
    fn known(self) -> Option<u32> {
        // SAFETY: elements of maps stay; a word of which any value will do.
        let smoothed = self.latency.map_or(0, |latency| unsafe {
            (&raw const (*latency.as_ptr()).smoothed).read_volatile()
        });
        (smoothed != 0).then_some(smoothed)
    }

    /// Less than 2^54.
    #[inline(always)]
    fn cost(self, latency: u32) -> u64 {
        (u64::from(load::open(self.load)) + 1) * u64::from(rounded(latency))
    }

    /// Whether the latency is old, and this is the connection that finds out what it is now.
    #[inline(always)]
    fn is_to_be_tried(self, now: u32) -> bool {
        let Some(latency) = self.latency else {
            return false;
        };
        let latency = latency.as_ptr();
        // SAFETY: elements of maps stay; words of which any value will do, or changed by
        // compare-and-swap.
        unsafe {
            let tried_at = (&raw const (*latency).tried_at).read_volatile();
            idle((&raw const (*latency).measured_at).read_volatile(), now) >= OLD
                && idle(tried_at, now) >= OLD
                && atomic::compare_and_swap(&raw mut (*latency).tried_at, tried_at, now)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_begins_where_the_one_before_it_ends() {
        assert_eq!((least(0), least(1), least(2), least(3)), (0, 64, 96, 128));
        for index in 1..BUCKETS {
            let least = least(index);
            assert_eq!((bucket(least - 1), bucket(least)), (index - 1, index));
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
    }

    /// An endpoint with so many connections, of this weight and latency, measured at this tick.
    fn endpoint(open: i32, weight: u32, smoothed: u32, measured_at: u32) -> Element {
        let load = EndpointLoad { open, weight };
        let latency = EndpointLatency {
            smoothed,
            measured_at,
            tried_at: measured_at,
            pad: 0,
        };
        Element { load, latency }
    }

    struct Element {
        load: EndpointLoad,
        latency: EndpointLatency,
    }

    impl Element {
        fn standing(&mut self) -> Standing {
            Standing {
                load: Some((&mut self.load).into()),
                latency: Some((&mut self.latency).into()),
            }
        }

        fn is_quicker_than(&mut self, other: &mut Self, now: u32) -> bool {
            is_quicker(self.standing(), other.standing(), now)
        }
    }

    #[test]
    fn latency_times_connections_decides_for_their_weight() {
        let is_quicker = |(open, weight, latency), (others, other_weight, other_latency)| {
            let mut one = endpoint(open, weight, latency, 0);
            one.is_quicker_than(&mut endpoint(others, other_weight, other_latency, 0), 1)
        };
        assert!(is_quicker((0, 0, 127), (0, 0, 128)));
        assert!(
            !is_quicker((0, 0, 128), (0, 0, 191)),
            "none is before its like"
        );
        assert!(
            !is_quicker((0, 0, 1), (0, 0, 95)),
            "nobody feels the difference"
        );
        assert!(
            is_quicker((6, 1, 128), (0, 1, 1024)),
            "with eight times as many, if it is as much faster"
        );
        assert!(!is_quicker((7, 1, 128), (0, 1, 1024)));
        assert!(is_quicker((0, 2, 128), (0, 1, 128)) && !is_quicker((1, 2, 128), (0, 1, 128)));
        let most = (i32::MAX, 256, u32::MAX);
        assert!(!is_quicker(most, most), "and nothing overflows");
    }

    #[test]
    fn connections_decide_alone_while_an_endpoint_has_not_answered() {
        let mut new = endpoint(3, 0, 0, 0);
        assert!(new.is_quicker_than(&mut endpoint(4, 0, 1, 0), 1));
        assert!(!new.is_quicker_than(&mut endpoint(3, 0, 5000, 0), 1));
        assert!(!endpoint(4, 0, 1, 0).is_quicker_than(&mut new, 1));
    }

    #[test]
    fn one_connection_tries_an_endpoint_that_has_not_answered_for_long() {
        let mut slow = endpoint(0, 0, 5000, 0);
        let mut fast = endpoint(0, 0, 64, OLD);
        assert!(
            !slow.is_quicker_than(&mut fast, OLD - 1),
            "it is not yet time"
        );
        assert!(slow.is_quicker_than(&mut fast, OLD));
        assert!(!slow.is_quicker_than(&mut fast, OLD), "one is enough");
        assert!(!slow.is_quicker_than(&mut fast, 2 * OLD - 1), "for a while");
        fast.latency.measured_at = 2 * OLD;
        assert!(
            !fast.is_quicker_than(&mut slow, 2 * OLD),
            "whichever is asked about"
        );
    }

    #[test]
    fn latencies_are_smoothed_and_old_ones_forgotten() {
        let mut element = endpoint(0, 0, 0, 0).latency;
        let mut take = |latency, now| {
            smooth(Some((&mut element).into()), latency, now);
            element.smoothed
        };
        assert_eq!(take(800, 7), 800, "the first is all there is");
        assert_eq!(take(80, 8), 710);
        assert_eq!(take(8000, 9), 1622);
        assert_eq!(take(16, 9 + OLD), 16, "what was long ago says nothing");
        for _ in 0..99 {
            take(1, 60);
        }
        assert_ne!(take(0, 60), 0, "0 would mean that nothing is known");
    }
}
