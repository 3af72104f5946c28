//! Rules that connections need in addition to API Priority and Fairness, one by one.

use lb_admission::{
    level::ConnectionLimits,
    queueset::{Arrival, Expiry, Handle, Policy, Rejection, Shape, Verdict, Wait},
    seat_seconds::SeatSeconds,
};

use crate::support::{
    Grants, POLICIES, admit, arrive, kind, limited_set, queue_set, single_card_set as level,
};

const SECOND: u64 = 1_000_000_000;

#[test]
fn the_queue_charged_least_is_chosen_among_equals() {
    let mut set = limited_set(4, 4, 100, ConnectionLimits::default());
    let mut grants = Grants::default();
    let mut used = std::collections::BTreeSet::new();
    for number in 0..4 {
        arrive(&mut set, 5, 1, number);
        let dispatch = set.dispatch(number).unwrap();
        used.insert(set.queue_of_grant(&dispatch.grant));
        grants.keep(dispatch);
    }
    assert_eq!(used.len(), 4, "one each");
    // The one whose connection ended long ago has been charged least.
    let (handle, grant) = &grants.0[2];
    let (handle, queue) = (*handle, set.queue_of_grant(grant));
    set.finish(grants.take(handle), SECOND);
    let next = arrive(&mut set, 5, 1, 10 * SECOND);
    assert_eq!(set.queue_of(next), queue);
}

#[test]
fn a_full_queue_is_full_even_while_seats_are_free() {
    for (policy, full) in [(Policy::Connections, true), (Policy::Exact, false)] {
        let mut set = level(policy, 4);
        let mut grants = Grants::default();
        arrive(&mut set, 1, 2, 0);
        admit(&mut set, &mut grants, 0);
        // It is too wide for the free seats, and blocks the others.
        for width in [4, 1, 1] {
            arrive(&mut set, 1, width, 0);
        }
        assert_eq!(admit(&mut set, &mut grants, 0), []);
        assert_eq!(set.waits_for(1), Some(Wait::Width));
        let verdict = set.arrive(Arrival::connection(1, 1, 0, None), 0);
        assert_eq!(
            verdict == Verdict::Rejected(Rejection::QueueFull),
            full,
            "{policy:?}"
        );
    }
}

#[test]
fn what_a_waiter_held_up_goes_on_when_it_gives_up() {
    for (policy, admitted) in [(Policy::Connections, 1), (Policy::Exact, 0)] {
        let mut set = level(policy, 4);
        let mut grants = Grants::default();
        arrive(&mut set, 1, 2, 0);
        admit(&mut set, &mut grants, 0);
        let arrival = Arrival::connection(2, 4, 0, Some(SECOND));
        assert!(matches!(set.arrive(arrival, 0), Verdict::Queued(_)));
        assert_eq!(admit(&mut set, &mut grants, 0), []);
        arrive(&mut set, 2, 1, 0);
        assert_eq!(admit(&mut set, &mut grants, 0), []);
        assert_eq!(set.next_timer(), Some(SECOND));
        assert!(matches!(
            set.fire(2 * SECOND),
            Some((SECOND, Expiry::TimedOut(_)))
        ));
        let after = admit(&mut set, &mut grants, SECOND);
        assert_eq!(after.len(), admitted, "{policy:?}");
        assert_eq!(set.counters().rejections.time_out, 1);
    }
}

#[test]
fn a_waiter_that_the_node_has_no_room_for_is_refused() {
    for policy in POLICIES {
        let mut set = level(policy, 1);
        let mut grants = Grants::default();
        arrive(&mut set, 1, 1, 0);
        let admitted = admit(&mut set, &mut grants, 0);
        let waiter = arrive(&mut set, 2, 1, 0);
        assert!(set.refuse(waiter, 1));
        assert!(!set.refuse(waiter, 1), "only once");
        assert!(!set.refuse(admitted[0], 1), "it does not wait");
        assert_eq!((set.waiting(), set.seats_waiting()), (0, 0));
        let rejections = set.counters().rejections;
        assert_eq!(
            (rejections.queue_full, rejections.time_out),
            (1, 0),
            "{policy:?}"
        );
    }
}

#[test]
fn one_that_could_not_be_let_in_leaves_no_trace() {
    for policy in POLICIES {
        let mut set = level(policy, 4);
        let mut grants = Grants::default();
        let first = arrive(&mut set, 1, 2, 0);
        admit(&mut set, &mut grants, 0);
        set.finish(grants.take(first), SECOND);
        set.synchronise(2 * SECOND);
        let before = set.queues()[1].clone();
        let arrival = Arrival::connection(1, 2, SECOND, None);
        assert!(matches!(
            set.arrive(arrival, 2 * SECOND),
            Verdict::Queued(_)
        ));
        let dispatch = set.dispatch(2 * SECOND).unwrap();
        assert_eq!(set.seats_in_use(), 2);
        let entered = set.queues()[1].next_dispatch_r;
        set.abort(dispatch.grant, 2 * SECOND);
        let after = set.queues()[1].clone();
        assert_eq!(after.holds, before.holds, "{policy:?}");
        assert_eq!(
            set.seats_in_use(),
            0,
            "at once, although its seats would linger"
        );
        assert!(after.next_dispatch_r <= entered, "{policy:?}");
        assert!(set.is_empty());
        let counters = set.counters();
        assert_eq!((counters.dispatched, counters.aborted), (2, 1));
    }
}

#[test]
fn a_jail_without_queues_admits_nobody() {
    for (policy, admitted) in [(Policy::Connections, false), (Policy::Exact, true)] {
        let mut set = queue_set(&kind(0, 0, 0), policy);
        let verdict = set.arrive(Arrival::connection(1, 1, 0, None), 0);
        assert_eq!(
            matches!(verdict, Verdict::Admitted(_)),
            admitted,
            "{policy:?}"
        );
    }
}

#[test]
fn holding_seats_is_charged_for_while_they_are_held() {
    let mut set = level(Policy::Connections, 3);
    let mut grants = Grants::default();
    let many = [arrive(&mut set, 1, 1, 0), arrive(&mut set, 1, 1, 0)];
    arrive(&mut set, 2, 1, 0);
    assert_eq!(admit(&mut set, &mut grants, 0).len(), 3);
    let now = 10 * SECOND;
    set.synchronise(now);
    let queues = set.queues();
    let difference = queues[1].next_dispatch_r - queues[2].next_dispatch_r;
    assert_eq!(
        difference,
        SeatSeconds::new(1.0, now as i64),
        "two seats and one"
    );

    arrive(&mut set, 1, 1, now);
    let entitled = arrive(&mut set, 2, 1, now);
    set.finish(grants.take(many[0]), now);
    assert_eq!(admit(&mut set, &mut grants, now), [entitled]);
}

#[test]
fn debts_are_ten_seconds_of_a_fair_share_at_most() {
    let mut set = level(Policy::Connections, 4);
    let mut grants = Grants::default();
    let many: Vec<Handle> = (0..3).map(|_| arrive(&mut set, 1, 1, 0)).collect();
    arrive(&mut set, 2, 1, 0);
    assert_eq!(admit(&mut set, &mut grants, 0).len(), 4);
    let day = 24 * 3600 * SECOND;
    set.finish(grants.take(many[0]), day);
    set.limit_debts(day);
    let debt = set.queues()[1].next_dispatch_r - set.progress();
    assert_eq!(debt, SeatSeconds::new(2.0, 10 * SECOND as i64));
}

#[test]
fn connections_that_hold_seats_already_are_counted() {
    for policy in POLICIES {
        let mut set = level(policy, 2);
        let mut grants = Grants::default();
        let known = set.adopt(Arrival::connection(1, 2, 0, None), 0);
        assert_eq!((set.seats_in_use(), set.executing()), (2, 1));
        let waiting = arrive(&mut set, 2, 1, 1);
        assert_eq!(admit(&mut set, &mut grants, 1), [], "{policy:?}");
        set.finish(known, 2);
        assert_eq!(admit(&mut set, &mut grants, 2), [waiting], "{policy:?}");
    }
}

#[test]
fn counters_are_kept_for_each_schema() {
    let mut set = level(Policy::Connections, 2);
    let mut grants = Grants::default();
    let of_schema = |hash, schema, width| Arrival {
        schema,
        ..Arrival::connection(hash, width, 0, Some(SECOND))
    };
    for (hash, schema) in [(1, 0), (2, 2), (3, 2), (4, u32::MAX)] {
        let verdict = set.arrive(of_schema(hash, schema, 1), 0);
        assert!(matches!(verdict, Verdict::Queued(_)));
        admit(&mut set, &mut grants, 0);
    }
    let [first, second, third] = set.schemas() else {
        panic!("{:?}", set.schemas());
    };
    assert_eq!(
        (first.executing, first.dispatched, first.waiting),
        (1, 1, 0)
    );
    assert_eq!(*second, Default::default());
    let numbers = (
        third.executing,
        third.executing_seats,
        third.waiting,
        third.waiting_seats,
    );
    assert_eq!(numbers, (1, 1, 1, 1));
    while set.fire(SECOND).is_some() {}
    assert_eq!(set.schemas()[2].rejections.time_out, 1);
    let counters = set.counters();
    assert_eq!((counters.rejections.time_out, counters.dispatched), (2, 2));
}

#[test]
fn a_level_has_a_bounded_number_of_queues() {
    assert!(Shape::new(&kind(4096, 1, 50)).is_ok());
    assert!(Shape::new(&kind(4097, 1, 50)).is_err());
    assert!(Shape::new(&kind(u32::MAX, 1, 50)).is_err());
}

/// Progress is shifted long before it overflows, and no order changes.
#[test]
fn overflowing_progress_changes_no_order() {
    for policy in POLICIES {
        let mut set = level(policy, 1_000_000);
        let mut grants = Grants::default();
        let wide = arrive(&mut set, 1, 1_000_000, 0);
        assert_eq!(admit(&mut set, &mut grants, 0), [wide], "{policy:?}");
        let early = arrive(&mut set, 2, 1, 1);
        let late = arrive(&mut set, 3, 1, 1);
        // Three queues share a million seats, which would overflow within six days.
        let hour = 3600 * SECOND;
        let hours = 10 * 24;
        for number in 1..=hours {
            set.limit_debts(number * hour);
            assert!(set.progress() < SeatSeconds::from_units(u64::MAX / 4 * 3 + 3));
        }
        assert!(set.counters().epoch_advances > 0, "{policy:?}");
        let now = hours * hour;
        set.finish(grants.take(wide), now);
        assert_eq!(
            admit(&mut set, &mut grants, now),
            [early, late],
            "{policy:?}"
        );
    }
}
