//! The queues of priority levels: where in `QUEUES` each level has its own.

use std::mem::offset_of;

use lb_admission::level::Queuing;
use lb_common::flow::queue::{LevelQueues, Queue};
use lb_datapath::maps::Maps;

use crate::map_writer::ranges::Ranges;

/// Gives each level the queues that it asks for; `wanted` are the levels' numbers and their queues.
/// Others have none. A level with as many queues as before keeps them, and who waits there.
pub fn write(wanted: &[(u32, Queuing)], maps: &Maps) {
    let has_as_many =
        |(level, queuing): &(u32, Queuing)| maps.level_queues.read(*level).number == queuing.queues;
    let (kept, added): (Vec<_>, Vec<_>) = wanted.iter().copied().partition(has_as_many);
    let mut free = Ranges::new(0..maps.queues.len());
    let keeps = kept.iter().all(|(level, _)| {
        let LevelQueues { first, number, .. } = maps.level_queues.read(*level);
        free.reserve(first..first.saturating_add(number))
    });
    let ranges = added.iter().map(|(_, queuing)| free.take(queuing.queues));
    match ranges.collect::<Option<Vec<_>>>().filter(|_| keeps) {
        Some(ranges) => {
            clear(
                |level| kept.iter().all(|(number, _)| *number != level),
                maps,
            );
            place(added.into_iter().zip(ranges), maps);
        }
        // What is free is in pieces. All together fit, since a configuration has no more queues.
        None => {
            clear(|_| true, maps);
            let ranges = wanted.iter().scan(0, |end, (_, queuing)| {
                let first = *end;
                *end += queuing.queues;
                Some(first)
            });
            place(wanted.iter().copied().zip(ranges), maps);
        }
    }
    for (level, queuing) in kept {
        write_shape(level, queuing, maps);
    }
}

/// Takes their queues from levels, by the levels' numbers, and waits until no program uses them.
fn clear(is_without: impl Fn(u32) -> bool, maps: &Maps) {
    let all = (0..maps.level_queues.len()).filter(|level| is_without(*level));
    let used: Vec<_> = all
        .filter(|level| maps.level_queues.read(*level).number != 0)
        .collect();
    for level in &used {
        publish(*level, offset_of!(LevelQueues, number), 0, maps);
    }
    if !used.is_empty() {
        (maps.grace)();
    }
}

/// Gives levels without queues new ones, in which nobody waits and to which no seat is charged.
fn place(levels: impl Iterator<Item = ((u32, Queuing), u32)>, maps: &Maps) {
    for ((level, queuing), first) in levels {
        for index in first..first.saturating_add(queuing.queues) {
            maps.queues.write(index, &Queue::default());
        }
        publish(level, offset_of!(LevelQueues, waiting), 0, maps);
        publish(level, offset_of!(LevelQueues, overrun), 0, maps);
        publish(level, offset_of!(LevelQueues, first), first, maps);
        write_shape(level, queuing, maps);
        let number = offset_of!(LevelQueues, number);
        publish(level, number, queuing.queues, maps);
    }
}

fn write_shape(level: u32, queuing: Queuing, maps: &Maps) {
    let (length, hand) = (queuing.queue_length_limit, queuing.hand_size);
    publish(level, offset_of!(LevelQueues, length), length, maps);
    publish(level, offset_of!(LevelQueues, hand), hand, maps);
}

fn publish(level: u32, offset: usize, value: u32, maps: &Maps) {
    maps.level_queues.publish(level, offset, value);
}
