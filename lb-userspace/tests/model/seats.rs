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

/// Limits are pressed, and two clients complete their handshakes, for which there is one seat. The
/// proof of one of them comes twice.
pub fn late() -> Scenario {
    Scenario {
        setup: limited(3, [2, 1]),
        preemptions: 2,
        threads: |world| {
            world.press();
            for number in 0..2 {
                let packets = [Kind::First, Kind::Answer];
                before(world, &packets.map(|kind| (client(number), kind)));
            }
            vec![
                cpu(world, 0, &[(0, Kind::Proof)]),
                cpu(world, 1, &[(1, Kind::Proof)]),
                cpu(world, 2, &[(0, Kind::Proof)]),
            ]
        },
        end: |_| {},
    }
}

#[test]
fn the_last_seat_is_taken_once_at_the_end_of_a_handshake() {
    late().holds();
}

/// Limits are pressed, and the proof of a client comes twice.
pub fn proved_twice() -> Scenario {
    Scenario {
        setup: limited(2, [2, 2]),
        threads: |world| {
            world.press();
            let packets = [Kind::First, Kind::Answer];
            before(world, &packets.map(|kind| (client(0), kind)));
            let proof = |number| cpu(world, number, &[(0, Kind::Proof)]);
            vec![proof(0), proof(1)]
        },
        end: |world| {
            if world.counted(1).used() != 1 {
                world.violation("the connection has no seat");
            }
        },
        ..late()
    }
}

#[test]
fn a_handshake_that_is_complete_twice_takes_one_seat() {
    proved_twice().holds();
}

/// Limits come under pressure at the moment at which a handshake is complete, so the agent takes
/// the flow's seats away.
pub fn pressed_in_between() -> Scenario {
    Scenario {
        setup: limited(2, [2, 2]),
        preemptions: 2,
        threads: |world| {
            before(
                world,
                &[(client(0), Kind::First), (client(0), Kind::Answer)],
            );
            world.press();
            vec![
                cpu(world, 0, &[(0, Kind::Proof), (0, Kind::Reset)]),
                cpu(world, 1, &[(0, Kind::Data)]),
                sweeper(world, 1),
            ]
        },
        end: |_| {},
    }
}

#[test]
fn a_handshake_that_is_complete_as_pressure_begins_has_its_seat_once() {
    pressed_in_between().holds();
}
