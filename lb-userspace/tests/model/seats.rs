//! Scenarios about seats: limits of connections, reached while flows come and go.

use crate::{
    checker::Scenario,
    packets::Kind,
    scenarios::{assert_flows, before, client, closed, copy_rest, cpu, sweeper},
    world::{BEGIN, Setup},
};

/// A setup in which so many connections are allowed on the node and for the Service. Connections
/// that are refused get no answer here.
fn limited(cpus: usize, limits: [u32; 2]) -> Setup {
    Setup {
        limits,
        loses_packets: true,
        ..Setup::of(cpus)
    }
}

/// Two clients want the last seat, and the SYN of one of them comes twice.
pub fn last() -> Scenario {
    Scenario {
        setup: limited(3, [2, 1]),
        preemptions: 2,
        threads: |world| {
            vec![
                cpu(world, 0, &[(0, Kind::First)]),
                cpu(world, 1, &[(1, Kind::First)]),
                cpu(world, 2, &[(0, Kind::First)]),
            ]
        },
        end: |world| {
            // At the same moment both may be refused.
            if world.live() > 2 {
                assert_flows(world, 1);
            }
        },
    }
}

#[test]
fn the_last_seat_is_taken_once() {
    last().holds();
}

/// The node's limit is reached first: the seat of the Service is given back.
pub fn of_both() -> Scenario {
    Scenario {
        setup: limited(2, [1, 2]),
        ..last()
    }
}

#[test]
fn seats_of_the_node_and_of_the_service_are_taken_together() {
    Scenario {
        threads: |world| {
            vec![
                cpu(world, 0, &[(0, Kind::First)]),
                cpu(world, 1, &[(1, Kind::First)]),
            ]
        },
        ..of_both()
    }
    .holds();
}

/// The endpoint refuses a connection on two CPUs while the sweeper finds the flow over.
pub fn over_twice() -> Scenario {
    Scenario {
        setup: limited(2, [2, 2]),
        preemptions: 2,
        threads: |world| {
            before(world, &[(client(0), Kind::First)]);
            world.set_clock(BEGIN + 25);
            let refusal = |number| cpu(world, number, &[(0, Kind::Refusal)]);
            vec![refusal(0), refusal(1), sweeper(world, 1)]
        },
        end: |_| {},
    }
}

#[test]
fn a_connection_that_is_over_gives_its_seat_back_once() {
    over_twice().holds();
}

/// The SYN of a closed flow arrives again on two CPUs, while the sweeper finds the flow over. The
/// flow still holds the only seat.
pub fn reopened() -> Scenario {
    Scenario {
        setup: limited(2, [1, 1]),
        preemptions: 2,
        threads: |world| {
            closed(world, client(0), 15);
            let syn = |number| cpu(world, number, &[(0, Kind::First)]);
            vec![syn(0), syn(1), sweeper(world, 1)]
        },
        end: |_| {},
    }
}

#[test]
fn a_flow_that_is_replaced_gives_its_seat_to_the_next() {
    reopened().holds();
}

/// The client resets its connection and the endpoint goes on, while the sweeper believes the reset
/// because the endpoint has been silent, and a SYN begins a new connection.
pub fn taken_again() -> Scenario {
    Scenario {
        setup: limited(2, [2, 2]),
        preemptions: 2,
        threads: |world| {
            before(
                world,
                &[
                    (client(0), Kind::First),
                    (client(0), Kind::Answer),
                    (client(0), Kind::Proof),
                    (client(0), Kind::Reset),
                ],
            );
            world.set_clock(BEGIN + 9);
            vec![
                cpu(world, 0, &[(0, Kind::Data), (0, Kind::Reset)]),
                cpu(world, 1, &[(0, Kind::First)]),
                sweeper(world, 1),
            ]
        },
        end: |_| {},
    }
}

#[test]
fn an_endpoint_that_goes_on_has_its_seat_again() {
    taken_again().holds();
}

/// While the table's size changes, a flow is copied on two CPUs, and ends on the third, which does
/// not know the copy.
pub fn copied() -> Scenario {
    Scenario {
        setup: Setup {
            of_before: 1,
            ..limited(3, [2, 2])
        },
        preemptions: 2,
        threads: |world| {
            before(world, &[(client(0), Kind::First)]);
            vec![
                cpu(world, 0, &[(0, Kind::Refusal)]),
                cpu(world, 1, &[(0, Kind::Refusal)]),
                cpu(world, 2, &[(0, Kind::Answer)]),
            ]
        },
        end: copy_rest,
    }
}

#[test]
fn a_flow_that_is_copied_takes_its_seat_along() {
    copied().holds();
}
