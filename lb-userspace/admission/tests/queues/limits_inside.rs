//! Limits inside a level, and what may be borrowed from others.

use lb_admission::{
    level::ConnectionLimits,
    queueset::{Arrival, Handle, Holds, Policy, Rejection, Verdict, Wait},
};

use crate::support::{Grants, admit, arrive, limited_set, single_card_set as level};

const SECOND: u64 = 1_000_000_000;

#[test]
fn one_queue_uses_all_seats() {
    for queues in [1, 8] {
        let mut set = limited_set(queues, 1, 100, ConnectionLimits::default());
        let mut grants = Grants::default();
        for _ in 0..101 {
            arrive(&mut set, 1, 1, 0);
        }
        assert_eq!(
            admit(&mut set, &mut grants, 0).len(),
            100,
            "{queues} queues"
        );
    }
}

#[test]
fn a_flow_has_so_many_connections_at_most() {
    let limits = ConnectionLimits {
        max_connections_per_flow: Some(3),
        ..ConnectionLimits::default()
    };
    let of_level = (limits, u32::MAX);
    let of_schema = (ConnectionLimits::default(), 3);
    for (queues, (limits, most_of_flow)) in
        [(0, of_level), (8, of_level), (0, of_schema), (8, of_schema)]
    {
        let mut set = limited_set(queues, queues.min(2), 5, limits);
        let connection = |hash| Arrival {
            most_of_flow,
            ..Arrival::connection(hash, 1, 0, None)
        };
        let mut grants = Grants::default();
        let mut held = Vec::new();
        let mut verdicts = Vec::new();
        for hash in [1, 1, 1, 1, 2] {
            let verdict = set.arrive(connection(hash), 0);
            admit(&mut set, &mut grants, 0);
            verdicts.push(match verdict {
                Verdict::Rejected(rejection) => rejection.as_str(),
                Verdict::Admitted(grant) => {
                    held.push(grant);
                    ""
                }
                Verdict::Queued(_) => "",
            });
        }
        assert_eq!(verdicts, ["", "", "", "flow-limit", ""], "{queues} queues");
        held.extend(grants.0.into_iter().map(|(_, grant)| grant));
        assert_eq!(held.len(), 4);
        set.finish(held.remove(0), 1);
        let verdict = set.arrive(connection(1), 1);
        assert!(!matches!(verdict, Verdict::Rejected(_)), "{verdict:?}");
        assert_eq!(set.counters().rejections.flow_limit, 1);
    }

    // Those that wait count too.
    let mut set = limited_set(8, 2, 1, limits);
    for _ in 0..3 {
        arrive(&mut set, 1, 1, 0);
    }
    let verdict = set.arrive(Arrival::connection(1, 1, 0, None), 0);
    assert_eq!(verdict, Verdict::Rejected(Rejection::FlowLimit));
}

#[test]
fn the_last_seats_are_for_flows_without_any() {
    // 5 % of 40 are two seats, but only somebody unknown could claim one.
    let mut set = limited_set(4, 1, 40, ConnectionLimits::default());
    let mut grants = Grants::default();
    for hash in 0..4 {
        for _ in 0..10 {
            arrive(&mut set, hash, 1, 0);
            admit(&mut set, &mut grants, 0);
        }
    }
    assert_eq!((set.seats_in_use(), set.waiting()), (39, 1));
    assert_eq!(set.waits_for(3), Some(Wait::FirstSeats));
    // The queue of this flow holds seats, but the flow does not.
    let first = arrive(&mut set, 4, 1, 0);
    assert_eq!(admit(&mut set, &mut grants, 0), [first]);
    assert_eq!(set.waits_for(3), Some(Wait::Seat));
    arrive(&mut set, 4, 1, 0);
    set.finish(grants.0.remove(0).1, 1);
    assert_eq!(admit(&mut set, &mut grants, 1), [], "it holds a seat now");
}

#[test]
fn a_flow_alone_leaves_no_seat_to_others_that_do_not_exist() {
    let mut set = level(Policy::Connections, 40);
    let mut grants = Grants::default();
    for _ in 0..41 {
        arrive(&mut set, 1, 1, 0);
        admit(&mut set, &mut grants, 0);
    }
    assert_eq!((set.seats_in_use(), set.waiting()), (40, 1));
    // As soon as there is a second one, a third may come.
    set.finish(grants.0.remove(0).1, 1);
    let second = arrive(&mut set, 2, 1, 1);
    assert_eq!(admit(&mut set, &mut grants, 1), [second]);
    set.finish(grants.0.remove(0).1, 2);
    assert_eq!(admit(&mut set, &mut grants, 2), []);
    let third = arrive(&mut set, 3, 1, 2);
    assert_eq!(admit(&mut set, &mut grants, 2), [third]);
}

#[test]
fn half_open_connections_hold_a_part_of_the_seats_and_each_queue_its_own() {
    // A quarter of 100, and of them three for each queue.
    let mut set = limited_set(8, 1, 100, ConnectionLimits::default());
    let mut half_open = Vec::new();
    for _ in 0..30 {
        arrive(&mut set, 1, 1, 0);
        half_open.extend(set.dispatch(0).map(|dispatch| dispatch.grant));
    }
    assert_eq!(
        (half_open.len(), set.half_open_seats(), set.waiting()),
        (25, 25, 5)
    );
    assert_eq!(set.waits_for(1), Some(Wait::HalfOpen));
    let mut others = Vec::new();
    for _ in 0..4 {
        arrive(&mut set, 2, 1, 0);
        others.extend(set.dispatch(0).map(|dispatch| dispatch.grant));
    }
    assert_eq!((others.len(), set.half_open_seats()), (3, 28));
    assert_eq!(set.waits_for(2), Some(Wait::HalfOpen));
    assert!(set.establish(&mut others[0], 1));
    assert!(!set.establish(&mut others[0], 1), "only once");
    let dispatch = set.dispatch(1).unwrap();
    assert_eq!(
        set.queue_of_grant(&dispatch.grant),
        Some(2),
        "not the flood"
    );
    assert!(set.dispatch(1).is_none());
    // One that never completed frees its place too.
    for grant in half_open.drain(..4) {
        set.finish(grant, 2);
    }
    let dispatch = set.dispatch(2).unwrap();
    assert_eq!(set.queue_of_grant(&dispatch.grant), Some(1));
    assert!(set.dispatch(2).is_none());
}

#[test]
fn the_queue_that_can_be_served_is_chosen() {
    // A flow may use both queues, which have eight half-open places each.
    let limits = ConnectionLimits {
        max_half_open_seats: Some(16),
        ..ConnectionLimits::default()
    };
    let held = |seats: u32, half_open: u64| Holds {
        executing: seats,
        seats: u64::from(seats),
        half_open,
        ..Holds::default()
    };
    for (half_open, chosen) in [(12, 1), (0, 0)] {
        let mut set = limited_set(2, 2, 100, limits);
        set.observe(0, held(12, half_open), 0);
        set.observe(1, held(30, 4), 0);
        let handle = arrive(&mut set, 1, 1, 0);
        assert_eq!(set.queue_of(handle), Some(chosen), "{half_open}");
        assert!(set.dispatch(0).is_some());
    }
}

#[test]
fn above_nominal_only_queues_whose_holds_are_short_get_seats() {
    let mut set = level(Policy::Connections, 10);
    let mut grants = Grants::default();
    set.set_nominal(2);
    // One connection may borrow without proof.
    let tunnels: Vec<Handle> = (0..3).map(|_| arrive(&mut set, 1, 1, 0)).collect();
    assert_eq!(admit(&mut set, &mut grants, 0), tunnels);
    let borrowed: Vec<bool> = grants
        .0
        .iter()
        .map(|(_, grant)| grant.is_borrowed())
        .collect();
    assert_eq!(borrowed, [false, false, true]);
    let quick = arrive(&mut set, 2, 1, 0);
    assert_eq!(
        admit(&mut set, &mut grants, 0),
        [],
        "nothing has come back yet"
    );
    assert_eq!(set.waits_for(2), Some(Wait::Lending));
    // A connection of the other queue comes and goes, and again.
    set.finish(grants.take(tunnels[0]), SECOND);
    assert_eq!(admit(&mut set, &mut grants, SECOND), [quick]);
    set.finish(grants.take(quick), 2 * SECOND);
    assert_eq!(set.borrowed_released(), 1);
    let now = 20 * SECOND;
    let third = arrive(&mut set, 1, 1, now);
    assert_eq!(
        admit(&mut set, &mut grants, now),
        [third],
        "its own and one seat"
    );
    let more: Vec<Handle> = (0..3).map(|_| arrive(&mut set, 2, 1, now)).collect();
    arrive(&mut set, 1, 1, now);
    assert_eq!(
        admit(&mut set, &mut grants, now),
        more,
        "the short ones alone"
    );
    assert_eq!(set.waits_for(1), Some(Wait::Lending));
}
