//! Levels whose connections somebody else lets in and counts.

use lb_admission::{
    level::ConnectionLimits,
    queueset::{Arrival, Holds, Policy, Rejection, Verdict, Wait},
    seat_seconds::SeatSeconds,
};

use crate::support::{
    Grants, admit, arrive, kind, limited_set, queue_set, single_card_set as level,
};

const SECOND: u64 = 1_000_000_000;

/// Queues whose connections somebody else lets in.
#[test]
fn queues_follow_numbers_that_others_count() {
    let mut set = level(Policy::Connections, 10);
    let mut grants = Grants::default();
    let mut flood = Holds::default();
    let mut quiet = Holds::default();
    for _ in 0..8 {
        flood.take(1, 0);
        flood.executing += 1;
    }
    quiet.take(2, 0);
    quiet.executing = 1;
    set.observe(1, flood, 0);
    set.observe(2, quiet, 0);
    assert_eq!((set.seats_in_use(), set.executing()), (10, 9));
    arrive(&mut set, 1, 1, 1);
    let entitled = arrive(&mut set, 2, 1, 1);
    assert_eq!(admit(&mut set, &mut grants, 1), []);
    assert_eq!(set.waits_for(1), Some(Wait::Seat));

    // One ended, and another one came and went unseen: both are charged.
    let now = 3 * SECOND;
    flood.release(1, 0, now);
    flood.take(1, SECOND);
    flood.release(1, SECOND, 2 * SECOND);
    flood.executing -= 1;
    let before = set.queues()[1].next_dispatch_r;
    set.observe(1, flood, now);
    let charged = set.queues()[1].next_dispatch_r - before;
    assert_eq!(charged, SeatSeconds::new(8.0 * 3.0 + 1.0, SECOND as i64));
    assert_eq!(admit(&mut set, &mut grants, now), [entitled]);
    assert_eq!(set.seats_in_use(), 10);

    // What the flow holds beside its waiters counts for its limit and for first seats.
    set.observe_flow(1, 7, 7, now);
    // One queue is empty now; one does not exist.
    set.observe(1, Holds::default(), now);
    set.observe(100, quiet, now);
    assert_eq!(set.seats_in_use(), 3);
}

#[test]
fn a_level_without_queues_follows_numbers_that_others_count() {
    let mut set = queue_set(&kind(0, 0, 0), Policy::Connections);
    set.set_limit(3, 0);
    let mut holds = Holds::default();
    holds.take(3, 0);
    holds.executing = 3;
    set.observe_without_queue(holds, 0);
    let verdict = set.arrive(Arrival::connection(1, 1, 0, None), 0);
    assert_eq!(verdict, Verdict::Rejected(Rejection::ConcurrencyLimit));
    holds.release(2, 0, SECOND);
    holds.executing = 1;
    set.observe_without_queue(holds, SECOND);
    assert_eq!((set.seats_in_use(), set.executing()), (1, 1));
    let verdict = set.arrive(Arrival::connection(1, 1, 0, None), SECOND);
    assert!(matches!(verdict, Verdict::Admitted(_)));
}

#[test]
fn a_flow_is_full_by_numbers_that_others_count() {
    let limits = ConnectionLimits {
        max_connections_per_flow: Some(5),
        ..ConnectionLimits::default()
    };
    let mut set = limited_set(8, 1, 100, limits);
    for (connections, is_full) in [(4, false), (4, true), (3, false), (0, false)] {
        set.observe_flow(1, connections, u64::from(connections), 0);
        let verdict = set.arrive(Arrival::connection(1, 1, 0, None), 0);
        let refused = verdict == Verdict::Rejected(Rejection::FlowLimit);
        assert_eq!(refused, is_full, "{connections}");
    }
}
