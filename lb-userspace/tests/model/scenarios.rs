//! The scenarios: packets, sweeper and clock in a table of few records.

use std::sync::{Arc, LazyLock};

use lb_common::{
    addr::Ip4,
    flow::{claim::SHORT_GRACE, flow_flag, table, tag},
    parse::{TCP, UDP},
    pipeline::{Copied, copy_slot},
};

use crate::{
    checker::{Scenario, Thread},
    packets::{Client, Kind},
    sweeping::Sweeping,
    world::{BEGIN, Cpu, RECORDS, SECRET, Setup, World},
};

/// Where the searches for all clients' packets start, and those for their answers.
const HOME: u32 = 0;
const ANSWERS: u32 = 16;

/// One of several TCP clients that share their groups of records.
pub fn client(number: usize) -> Client {
    static CLIENTS: LazyLock<Vec<Client>> =
        LazyLock::new(|| Client::at(TCP, HOME, ANSWERS).take(4).collect());
    CLIENTS[number]
}

/// The same for UDP.
fn udp_client() -> Client {
    static CLIENT: LazyLock<Client> =
        LazyLock::new(|| Client::at(UDP, HOME, ANSWERS).next().unwrap());
    *CLIENT
}

/// Handles packets one after the other, before the scenario starts.
pub fn before(world: &Arc<World>, packets: &[(Client, Kind)]) {
    let cpu = Cpu::new(world, 0);
    for (client, kind) in packets {
        cpu.receive(*client, *kind);
    }
}

/// Opens a flow and resets it, so many ticks before the scenario starts.
pub fn closed(world: &Arc<World>, client: Client, ticks: u32) {
    before(world, &[(client, Kind::First), (client, Kind::Reset)]);
    world.set_clock(BEGIN + ticks);
}

/// A CPU that handles packets one after the other.
pub fn cpu(world: &Arc<World>, number: usize, packets: &'static [(usize, Kind)]) -> Thread {
    let cpu = Cpu::new(world, number);
    Box::new(move || {
        for (number, kind) in packets {
            cpu.receive(client(*number), *kind);
        }
    })
}

/// A CPU that handles a packet of the UDP client.
fn udp_cpu(world: &Arc<World>, number: usize, kind: Kind) -> Thread {
    let cpu = Cpu::new(world, number);
    Box::new(move || _ = cpu.receive(udp_client(), kind))
}

/// A thread that makes the agent's passes.
pub fn sweeper(world: &Arc<World>, passes: usize) -> Thread {
    let mut sweeping = Sweeping::new(world);
    Box::new(move || (0..passes).for_each(|_| sweeping.pass()))
}

/// A thread that advances the clock in steps of some eighths of a tick.
fn clock(world: &Arc<World>, steps: usize, eighths: u32) -> Thread {
    let world = world.clone();
    Box::new(move || (0..steps).for_each(|_| world.pass_time(eighths)))
}

/// The same SYN on three CPUs at once.
pub fn one_syn() -> Scenario {
    Scenario {
        setup: Setup::of(3),
        preemptions: 2,
        threads: |world| {
            let syn = |number| cpu(world, number, &[(0, Kind::First)]);
            vec![syn(0), syn(1), syn(2)]
        },
        end: |world| assert_flows(world, 1),
    }
}

#[test]
fn a_syn_on_three_cpus_opens_one_flow() {
    one_syn().holds();
}

/// Two clients with records in the same places; one of them is on two CPUs.
pub fn neighbours() -> Scenario {
    Scenario {
        setup: Setup::of(3),
        preemptions: 2,
        threads: |world| {
            vec![
                cpu(world, 0, &[(0, Kind::First)]),
                cpu(world, 1, &[(1, Kind::First)]),
                cpu(world, 2, &[(0, Kind::First)]),
            ]
        },
        end: |world| assert_flows(world, 2),
    }
}

#[test]
fn clients_with_the_same_places_get_a_flow_each() {
    neighbours().holds();
}

/// A SYN arrives twice while the sweeper frees a record in its way.
pub fn place_freed() -> Scenario {
    Scenario {
        setup: Setup::of(2),
        preemptions: 2,
        threads: |world| {
            // The flow is over, but a dead record of this tick cannot be claimed.
            closed(world, client(1), 15);
            let syn = |number| cpu(world, number, &[(0, Kind::First)]);
            vec![syn(0), syn(1), sweeper(world, 1)]
        },
        end: |world| assert_flows(world, 1),
    }
}

#[test]
fn a_record_that_is_freed_is_not_claimed_beside_another() {
    place_freed().holds();
}

/// A SYN arrives twice while another client's claim of the first place is given back, because a
/// third party is claiming the record of that client's answers.
pub fn claim_released() -> Scenario {
    Scenario {
        setup: Setup {
            loses_packets: true,
            ..Setup::of(3)
        },
        preemptions: 3,
        threads: |world| {
            let answers = table::hash(&client(1).answers(), SECRET);
            world.set_tag(ANSWERS, tag::claimed(tag::CLEAN, answers));
            vec![
                cpu(world, 0, &[(0, Kind::First)]),
                cpu(world, 1, &[(1, Kind::First)]),
                cpu(world, 2, &[(0, Kind::First)]),
            ]
        },
        end: |world| {
            world.set_tag(ANSWERS, tag::with_state(world.tag(ANSWERS), tag::TOMB));
            assert_flows(world, 1);
        },
    }
}

#[test]
fn a_claim_that_is_given_back_leaves_one_flow() {
    claim_released().holds();
}

/// The SYN of a closed flow arrives again on two CPUs, while the sweeper finds the flow over.
pub fn reopened() -> Scenario {
    Scenario {
        setup: Setup::of(2),
        preemptions: 2,
        threads: |world| {
            closed(world, client(0), 15);
            let syn = |number| cpu(world, number, &[(0, Kind::First)]);
            vec![syn(0), syn(1), sweeper(world, 1)]
        },
        end: |world| assert_flows(world, 1),
    }
}

#[test]
fn a_closed_flow_is_ended_once() {
    reopened().holds();
}

/// A handshake completes on two CPUs, while the sweeper finds the flow over.
pub fn settled() -> Scenario {
    Scenario {
        setup: Setup::of(2),
        preemptions: 2,
        threads: |world| {
            before(
                world,
                &[(client(0), Kind::First), (client(0), Kind::Answer)],
            );
            world.set_clock(BEGIN + 25);
            let proof = |number| cpu(world, number, &[(0, Kind::Proof)]);
            vec![proof(0), proof(1), sweeper(world, 1)]
        },
        end: |world| assert_flows(world, 1),
    }
}

#[test]
fn a_handshake_is_settled_once() {
    settled().holds();
}

/// A flood: each new flow ends the previous one, which is just proving itself.
pub fn pressed() -> Scenario {
    Scenario {
        setup: Setup {
            pressed: true,
            loses_packets: true,
            ..Setup::of(3)
        },
        preemptions: 2,
        threads: |world| {
            before(
                world,
                &[(client(0), Kind::First), (client(0), Kind::Answer)],
            );
            vec![
                cpu(world, 0, &[(0, Kind::Proof)]),
                cpu(world, 1, &[(1, Kind::First)]),
                cpu(world, 2, &[(2, Kind::First)]),
            ]
        },
        end: |_| {},
    }
}

#[test]
fn half_open_flows_give_way_once() {
    pressed().holds();
}

/// The same while time passes: another flow claims the records of a flow that gave way, while
/// packets of the latter are on other CPUs.
pub fn evicted() -> Scenario {
    Scenario {
        setup: Setup {
            pressed: true,
            loses_packets: true,
            time_passes: true,
            ..Setup::of(3)
        },
        preemptions: 2,
        threads: |world| {
            before(world, &[(client(0), Kind::First)]);
            vec![
                cpu(world, 0, &[(1, Kind::First)]),
                cpu(world, 1, &[(0, Kind::Answer)]),
                cpu(world, 2, &[(2, Kind::First)]),
                clock(world, 2, SHORT_GRACE),
            ]
        },
        end: |_| {},
    }
}

#[test]
fn the_record_of_an_evicted_flow_is_claimed_after_its_grace() {
    evicted().holds();
}

/// Without the agent: a flow is reopened, and as time passes others claim its dead record, while
/// its packets are on other CPUs.
pub fn reclaimed() -> Scenario {
    Scenario {
        setup: Setup {
            time_passes: true,
            ..Setup::of(3)
        },
        preemptions: 2,
        threads: |world| {
            closed(world, client(0), 0);
            vec![
                cpu(world, 0, &[(0, Kind::First)]),
                cpu(world, 1, &[(0, Kind::Answer)]),
                cpu(world, 2, &[(1, Kind::First)]),
                clock(world, 3, 8),
            ]
        },
        end: |world| assert_flows(world, 2),
    }
}

#[test]
fn a_dead_record_is_claimed_after_its_grace() {
    reclaimed().holds();
}

/// The sweeper is delayed after it has read the clock. Then it ends a flow while packets of the
/// flow are under way, and another flow wants its place.
pub fn held_up() -> Scenario {
    Scenario {
        setup: Setup::of(2),
        preemptions: 2,
        threads: |world| {
            closed(world, client(0), 20);
            let mut sweeping = Sweeping::new(world);
            vec![
                cpu(world, 0, &[(0, Kind::Answer)]),
                cpu(world, 1, &[(1, Kind::First)]),
                Box::new(move || sweeping.pass_at(BEGIN + 15)),
            ]
        },
        end: |_| {},
    }
}

#[test]
fn a_sweeper_that_was_held_up_keeps_the_grace() {
    held_up().holds();
}

/// The sweeper frees a record and makes it clean, while a client's search passes over it.
pub fn cleaned() -> Scenario {
    Scenario {
        setup: Setup::of(2),
        preemptions: 2,
        threads: |world| {
            closed(world, client(1), 15);
            vec![
                cpu(world, 0, &[(0, Kind::First), (0, Kind::Answer)]),
                cpu(world, 1, &[(2, Kind::First)]),
                sweeper(world, 3),
            ]
        },
        end: |world| assert_flows(world, 2),
    }
}

#[test]
fn a_record_is_clean_only_if_no_search_passes_over_it() {
    cleaned().holds();
}

/// The endpoint of a UDP flow no longer serves: the agent ends the flow, and lets answers pass for
/// a while.
pub fn stale() -> Scenario {
    Scenario {
        setup: Setup {
            replaced: true,
            leaves_halves: true,
            ..Setup::of(3)
        },
        preemptions: 2,
        threads: |world| {
            before(
                world,
                &[(udp_client(), Kind::First), (udp_client(), Kind::Answer)],
            );
            let mut sweeping = Sweeping::new(world);
            vec![
                udp_cpu(world, 0, Kind::First),
                udp_cpu(world, 1, Kind::First),
                udp_cpu(world, 2, Kind::Answer),
                Box::new(move || {
                    sweeping.end_stale();
                    (0..2).for_each(|_| sweeping.pass());
                }),
            ]
        },
        end: |_| {},
    }
}

#[test]
fn a_stale_udp_flow_moves_to_an_endpoint_that_serves() {
    stale().holds();
}

/// While the table's size changes, packets of one flow meet programs with either table, which copy
/// the flow at the same time.
pub fn copied() -> Scenario {
    Scenario {
        setup: Setup {
            of_before: 1,
            ..Setup::of(3)
        },
        preemptions: 2,
        threads: |world| {
            before(
                world,
                &[(client(0), Kind::First), (client(0), Kind::Answer)],
            );
            vec![
                cpu(world, 0, &[(0, Kind::Answer)]),
                cpu(world, 1, &[(0, Kind::Proof)]),
                cpu(world, 2, &[(0, Kind::Answer)]),
            ]
        },
        end: |world| {
            copy_rest(world);
            assert_flows(world, 1);
        },
    }
}

#[test]
fn a_flow_is_copied_once() {
    copied().holds();
}

/// A program with the old table ends a closed flow for a new one with its addresses, while others
/// with the new table copy it.
pub fn replaced() -> Scenario {
    Scenario {
        setup: Setup {
            of_before: 1,
            ..Setup::of(3)
        },
        preemptions: 2,
        threads: |world| {
            closed(world, client(0), 0);
            vec![
                cpu(world, 0, &[(0, Kind::First)]),
                cpu(world, 1, &[(0, Kind::Answer)]),
                cpu(world, 2, &[(0, Kind::Answer)]),
            ]
        },
        end: |world| {
            copy_rest(world);
            assert_flows(world, 1);
            let is_old = |index: &u32| {
                tag::in_use(world.tag(*index)) && world.flow(*index).has(flow_flag::RST)
            };
            if let Some(index) = (0..RECORDS).find(is_old) {
                world.violation(format!("record {index} is of the flow that was replaced"));
            }
        },
    }
}

#[test]
fn a_flow_that_is_replaced_leaves_no_copy() {
    replaced().holds();
}

/// Copies what is left in the old table, as the agent does when no program opens flows there any
/// more.
pub fn copy_rest(world: &Arc<World>) {
    let cpu = Cpu::new(world, world.setup.cpus - 1);
    for index in 0..RECORDS {
        if copy_slot::<Ip4, _>(&cpu, index) == Copied::Left {
            world.violation(format!("record {index} of before finds no place"));
        }
    }
}

/// Asserts that there are so many flows at the end.
pub fn assert_flows(world: &World, flows: usize) {
    let found = world.live();
    if found != 2 * flows {
        world.violation(format!("{found} live records of {flows} flows"));
    }
}
