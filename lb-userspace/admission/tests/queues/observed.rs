//! Levels whose connections somebody else lets in and counts.

use lb_admission::{
    level::ConnectionLimits,
    queueset::{Arrival, Handle, Holds, Policy, QueueSet, Rejection, Shape, Verdict, Wait},
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

/// A connection of a flow arrives in a queue that somebody else has chosen.
fn arrive_in(set: &mut QueueSet, queue: u32, hash: u64) -> Handle {
    match set.arrive_in(queue, Arrival::connection(hash, 1, 0, None), 0) {
        Verdict::Queued(handle) => handle,
        verdict => panic!("{verdict:?}"),
    }
}

#[test]
fn others_may_choose_queues_as_long_as_they_exist() {
    let mut set = level(Policy::Connections, 10);
    for (queue, expected) in [(5, 5), (7, 7), (8, 1), (u32::MAX, 1)] {
        let waits = arrive_in(&mut set, queue, 1);
        assert_eq!(set.queue_of(waits), Some(expected), "{queue}");
    }
    for _ in 0..2 {
        arrive_in(&mut set, 5, 1);
    }
    let verdict = set.arrive_in(5, Arrival::connection(1, 1, 0, None), 0);
    assert_eq!(verdict, Verdict::Rejected(Rejection::QueueFull));

    // Two are left of before, which are dealt to nobody.
    set.configure(Shape::new(&kind(6, 1, 3)).unwrap(), 0);
    assert_eq!((set.deck_size(), set.queue_count()), (6, 8));
    let waits = arrive_in(&mut set, 7, 3);
    assert_eq!(set.queue_of(waits), Some(3));

    let mut set = queue_set(&kind(0, 0, 0), Policy::Connections);
    set.set_limit(1, 0);
    let arrival = Arrival::connection(1, 1, 0, None);
    assert!(matches!(set.arrive_in(3, arrival, 0), Verdict::Admitted(_)));
    let full = Verdict::Rejected(Rejection::ConcurrencyLimit);
    assert_eq!(set.arrive_in(3, arrival, 0), full);
}

/// A flow that gave seats back comes first at once, whatever queue it waits in.
#[test]
fn a_flow_is_found_in_queues_that_others_chose() {
    let mut set = level(Policy::Connections, 10);
    let mut held = Holds::default();
    held.take(8, 0);
    held.executing = 8;
    set.observe(0, held, 0);
    for (hash, queue, seats) in [(1, 5, 6), (2, 6, 5), (3, 4, 0)] {
        set.observe_flow(hash, seats, seats.into(), 0);
        arrive_in(&mut set, queue, hash);
    }
    for (now, queue) in [(0, 4), (1, 5), (2, 6)] {
        let dispatch = set.dispatch(now).unwrap();
        assert_eq!(set.queue_of_grant(&dispatch.grant), Some(queue));
        set.abort(dispatch.grant, now);
        set.observe_flow(1, 1, 1, now);
    }
}

#[test]
fn who_is_handed_over_is_counted_until_the_next_observation() {
    let mut set = level(Policy::Connections, 2);
    arrive(&mut set, 1, 1, 0);
    arrive(&mut set, 1, 1, 0);
    for seats in [1, 2] {
        let admitted = set.dispatch(0).unwrap();
        set.hand_over(admitted.grant, 0);
        assert_eq!((set.seats_in_use(), set.half_open_seats()), (seats, 0));
        assert_eq!(set.queues()[1].holds.seats, seats);
    }
    let of_schema = set.schemas()[0];
    assert_eq!((of_schema.dispatched, of_schema.executing), (2, 0));
    assert_eq!(of_schema.executing_seats, 0);

    // They are counted at another queue.
    let mut held = Holds::default();
    held.take(2, 0);
    held.executing = 2;
    set.observe(1, Holds::default(), SECOND);
    set.observe(3, held, SECOND);
    assert_eq!((set.seats_in_use(), set.executing()), (2, 2));
}

#[test]
fn seats_and_charges_outlive_the_queues_they_were_observed_in() {
    let mut set = level(Policy::Connections, 10);
    let mut held = Holds::default();
    held.take(4, 0);
    held.executing = 4;
    set.observe(2, held, 0);
    let waits = arrive_in(&mut set, 7, 1);
    set.synchronise(SECOND);
    let charged = set.queues()[2].next_dispatch_r;
    set.configure(Shape::new(&kind(4, 1, 3)).unwrap(), SECOND);
    set.observe_anew(SECOND);
    assert_eq!((set.deck_size(), set.queue_count()), (4, 4));
    assert_eq!((set.seats_in_use(), set.executing()), (4, 4));
    assert_eq!(set.queues()[2].next_dispatch_r, charged);
    assert_eq!(set.queue_of(waits), Some(3), "the last one");
    // All four are known as those in no queue.
    set.observe_without_queue(Holds::default(), 2 * SECOND);
    assert_eq!((set.seats_in_use(), set.executing()), (0, 0));
}

#[test]
fn evicted_connections_leave_nothing_behind() {
    let mut set = level(Policy::Connections, 0);
    set.observe_flow(1, 3, 3, 0);
    let waiting = [(1, 0), (1, 1), (2, 2)].map(|(hash, now)| arrive(&mut set, hash, 1, now));
    assert_eq!(set.evict(3), waiting);
    assert!(set.is_empty());
    assert_eq!(set.seats_waiting(), 0);
    assert_eq!(set.counters().rejections.all(), 0);
    assert_eq!(set.schemas()[0].waiting, 0);
}
