//! Checks what must hold when all threads are done.

use std::sync::{Arc, atomic::Ordering};

use lb_common::flow::{table, tag};

use crate::{
    sweeping::Sweeping,
    world::{BEGIN, Cpu, RECORDS, World, places},
};

/// Records what does not hold in a world in which nothing happens any more.
pub fn check(world: &Arc<World>) {
    // The last CPU's own table is the one that stays.
    let cpu = Cpu::new(world, world.setup.cpus - 1);
    let (mut flows, mut half_open) = (0, 0);
    for index in 0..RECORDS {
        let (seen, flow) = (world.tag(index), world.flow(index));
        if tag::state(seen) == tag::BUSY {
            world.violation(format!("the claim of record {index} was forgotten"));
        }
        if !tag::in_use(seen) {
            continue;
        }
        half_open += i32::from(tag::state(seen) == tag::HALF && !world.is_reply(index));
        flows += i32::from(!world.is_reply(index));
        if table::find(&cpu, &flow.tuple()) != world.record(index) {
            world.violation(format!(
                "the live record {index} is not found, or there are two"
            ));
        }
        let other = world.flow(flow.peer);
        let answers = &other.rewrite;
        let paired = tag::in_use(other.tag)
            && other.peer == index
            && (answers.source, answers.source_port) == (flow.destination, flow.destination_port)
            && (answers.destination, answers.destination_port) == (flow.source, flow.source_port)
            && world.is_reply(index) != world.is_reply(flow.peer);
        if !paired && !world.setup.leaves_halves {
            world.violation(format!("record {index} has lost its other direction"));
        }
    }
    let counted = world.half_open.load(Ordering::SeqCst);
    if counted != half_open {
        world.violation(format!("{half_open} half-open flows count as {counted}"));
    }
    let counted = world.flows.load(Ordering::SeqCst);
    // While the size changes, both tables contain the flow, and a CPU that ends it in one may not
    // know of the other.
    if counted != flows && world.setup.of_before == 0 {
        world.violation(format!("{flows} flows count as {counted}"));
    }
    check_seats(world);
    sweep_all(world);
}

/// The seats in use are those that flows hold, and were never more than the limit allows.
fn check_seats(world: &Arc<World>) {
    for (index, limit) in world.setup.limits.into_iter().enumerate() {
        let holds = |record: &u32| {
            let place = world.flow(*record).place();
            places(place).any(|place| place == index)
        };
        let held = (0..world.len()).filter(holds).count() as i32;
        let seats = world.counted(index);
        if seats.used() != held {
            let used = seats.used();
            world.violation(format!("{held} seats of limit {index} count as {used}"));
        }
        if limit != 0 && seats.recovered == 0 && seats.highest > limit {
            let highest = seats.highest;
            world.violation(format!(
                "{highest} seats of limit {index}, which is {limit}"
            ));
        }
    }
}

/// All flows end at some time, and all records can be used again.
fn sweep_all(world: &Arc<World>) {
    world.set_clock(BEGIN + 1_000);
    let mut sweeping = Sweeping::new(world);
    for _ in 0..8 {
        sweeping.pass();
    }
    let lost = (0..RECORDS).find(|index| tag::state(world.tag(*index)) != tag::CLEAN);
    if let Some(index) = lost {
        world.violation(format!("record {index} is lost: {:#x}", world.tag(index)));
    }
    // The flows of another table are not swept.
    let left = world.setup.limits.into_iter().enumerate();
    let mut left = left.filter(|(index, _)| world.counted(*index).used() != 0);
    if world.setup.of_before == 0
        && let Some((index, _)) = left.next()
    {
        world.violation(format!("a seat of limit {index} is lost"));
    }
    if world.half_open.load(Ordering::SeqCst) != 0 {
        world.violation("half-open flows are counted where there are none");
    }
}
