//! Rules that connections need in addition to API Priority and Fairness, one by one.

use lb_admission::{
    queueset::{Arrival, Expiry, Handle, Policy, QueueSet, Rejection, Verdict},
    seat_seconds::SeatSeconds,
};

use crate::support::{POLICIES, kind};

const SECOND: u64 = 1_000_000_000;

/// A level with so many seats, whose queues are chosen by hash alone.
fn level(policy: Policy, seats: u32) -> QueueSet {
    let mut set = QueueSet::new(&kind(8, 1, 3), policy, 0).unwrap();
    set.set_limit(seats, 0);
    set
}

fn arrive(set: &mut QueueSet, hash: u64, width: u32, now: u64) -> Handle {
    match set.arrive(Arrival::connection(hash, width, 0, None), now) {
        Verdict::Queued(handle) | Verdict::Admitted(handle) => handle,
        Verdict::Rejected(rejection) => panic!("{}", rejection.as_str()),
    }
}

/// Admits what can be admitted, and completes each handshake.
fn admit(set: &mut QueueSet, now: u64) -> Vec<Handle> {
    let mut admitted = Vec::new();
    while let Some(dispatch) = set.dispatch(now) {
        set.establish(dispatch.connection, now);
        admitted.push(dispatch.connection);
    }
    admitted
}

#[test]
fn a_queue_holds_at_most_half_the_seats() {
    let mut set = level(Policy::Connections, 5);
    let handles: Vec<Handle> = (0..3).map(|_| arrive(&mut set, 1, 1, 0)).collect();
    assert_eq!(admit(&mut set, 0), handles);
    let more = arrive(&mut set, 1, 1, 0);
    assert_eq!(admit(&mut set, 0), [], "3 of 5");
    let other = arrive(&mut set, 2, 1, 0);
    assert_eq!(admit(&mut set, 0), [other]);
    set.finish(handles[0], 1);
    assert_eq!(admit(&mut set, 1), [more]);
}

#[test]
fn the_last_seats_are_for_queues_without_any() {
    // 5 % of 40 are two seats.
    let mut set = level(Policy::Connections, 40);
    for hash in 0..4 {
        for _ in 0..10 {
            arrive(&mut set, hash, 1, 0);
            admit(&mut set, 0);
        }
    }
    assert_eq!((set.seats_in_use(), set.waiting()), (38, 2));
    let first = arrive(&mut set, 5, 1, 0);
    assert_eq!(admit(&mut set, 0), [first]);
    arrive(&mut set, 5, 1, 0);
    assert_eq!(admit(&mut set, 0), [], "it holds a seat now");
}

#[test]
fn half_open_connections_hold_a_part_of_the_seats() {
    // A quarter of 100.
    let mut set = level(Policy::Connections, 100);
    let mut half_open = Vec::new();
    for number in 0..30 {
        arrive(&mut set, number % 8, 1, 0);
        half_open.extend(set.dispatch(0).map(|dispatch| dispatch.connection));
    }
    assert_eq!(
        (half_open.len(), set.half_open_seats(), set.waiting()),
        (25, 25, 5)
    );
    assert!(set.establish(half_open[0], 1));
    assert!(set.dispatch(1).is_some());
    assert!(set.dispatch(1).is_none());
    assert!(
        set.finish(half_open[1], 2),
        "one that never completed frees its place too"
    );
    assert!(set.dispatch(2).is_some());
    assert!(set.dispatch(2).is_none());
}

#[test]
fn a_full_queue_is_full_even_while_seats_are_free() {
    for (policy, full) in [(Policy::Connections, true), (Policy::Exact, false)] {
        let mut set = level(policy, 4);
        arrive(&mut set, 1, 2, 0);
        admit(&mut set, 0);
        // It is too wide for the free seats, and blocks the others.
        for width in [4, 1, 1] {
            arrive(&mut set, 1, width, 0);
        }
        assert_eq!(admit(&mut set, 0), []);
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
        arrive(&mut set, 1, 2, 0);
        admit(&mut set, 0);
        let arrival = Arrival::connection(2, 4, 0, Some(SECOND));
        assert!(matches!(set.arrive(arrival, 0), Verdict::Queued(_)));
        assert_eq!(admit(&mut set, 0), []);
        arrive(&mut set, 2, 1, 0);
        assert_eq!(admit(&mut set, 0), []);
        assert_eq!(set.next_timer(), Some(SECOND));
        assert!(matches!(
            set.fire(2 * SECOND),
            Some((SECOND, Expiry::TimedOut(_)))
        ));
        assert_eq!(admit(&mut set, SECOND).len(), admitted, "{policy:?}");
        assert_eq!(set.counters().time_out, 1);
    }
}

#[test]
fn a_waiter_that_the_node_has_no_room_for_is_refused() {
    for policy in POLICIES {
        let mut set = level(policy, 1);
        arrive(&mut set, 1, 1, 0);
        let admitted = admit(&mut set, 0);
        let waiter = arrive(&mut set, 2, 1, 0);
        assert!(set.refuse(waiter, 1));
        assert!(!set.refuse(waiter, 1), "only once");
        assert!(!set.refuse(admitted[0], 1), "it does not wait");
        assert_eq!((set.waiting(), set.seats_waiting()), (0, 0));
        let counters = set.counters();
        assert_eq!(
            (counters.queue_full, counters.time_out),
            (1, 0),
            "{policy:?}"
        );
    }
}

#[test]
fn a_jail_without_queues_admits_nobody() {
    for (policy, admitted) in [(Policy::Connections, false), (Policy::Exact, true)] {
        let mut set = QueueSet::new(&kind(0, 0, 0), policy, 0).unwrap();
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
    let many = [arrive(&mut set, 1, 1, 0), arrive(&mut set, 1, 1, 0)];
    arrive(&mut set, 2, 1, 0);
    assert_eq!(admit(&mut set, 0).len(), 3);
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
    set.finish(many[0], now);
    assert_eq!(admit(&mut set, now), [entitled]);
}

#[test]
fn debts_do_not_last_for_ever() {
    let mut set = level(Policy::Connections, 4);
    let many = [arrive(&mut set, 1, 1, 0), arrive(&mut set, 1, 1, 0)];
    arrive(&mut set, 2, 1, 0);
    assert_eq!(admit(&mut set, 0).len(), 3);
    let day = 24 * 3600 * SECOND;
    set.finish(many[0], day);
    set.limit_debts(day);
    let debt = set.queues()[1].next_dispatch_r - set.progress();
    assert_eq!(debt, SeatSeconds::new(4.0, 600 * SECOND as i64));
}

#[test]
fn connections_that_hold_seats_already_are_counted() {
    for policy in POLICIES {
        let mut set = level(policy, 2);
        let known = set.adopt(Arrival::connection(1, 2, 0, None), 0).unwrap();
        assert_eq!((set.seats_in_use(), set.executing()), (2, 1));
        let waiting = arrive(&mut set, 2, 1, 1);
        assert_eq!(admit(&mut set, 1), [], "{policy:?}");
        assert!(set.finish(known, 2));
        assert_eq!(admit(&mut set, 2), [waiting], "{policy:?}");
    }
}

#[test]
fn borrowed_seats_are_told() {
    let mut set = level(Policy::Connections, 2);
    set.set_nominal(1);
    arrive(&mut set, 1, 1, 0);
    arrive(&mut set, 2, 1, 0);
    let borrowed: Vec<bool> = std::iter::from_fn(|| set.dispatch(0))
        .map(|dispatch| dispatch.borrowed)
        .collect();
    assert_eq!(borrowed, [false, true]);
}

/// Progress is shifted long before it overflows, and no order changes.
#[test]
fn overflowing_progress_changes_no_order() {
    for policy in POLICIES {
        let mut set = level(policy, 1_000_000);
        let wide = arrive(&mut set, 1, 1_000_000, 0);
        assert_eq!(admit(&mut set, 0), [wide], "{policy:?}");
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
        set.finish(wide, now);
        assert_eq!(admit(&mut set, now), [early, late], "{policy:?}");
    }
}
