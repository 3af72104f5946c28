//! The queues of priority levels: where in `QUEUES` each level has its own.

use std::mem::offset_of;

use lb_admission::level::Queuing;
use lb_common::flow::queue::{LevelQueues, Queue};
use lb_datapath::maps::Maps;

use crate::map_writer::ranges::Ranges;

/// Gives each level the queues that it asks for; `wanted` are the levels' numbers and their queues.
/// Others have none. A level with as many queues as before keeps them, and who waits there.
pub fn write(wanted: &[(u32, Queuing)], maps: &Maps) {
    for level in 0..maps.level_queues.len() {
        let is_kept = wanted.iter().any(|(number, queuing)| {
            *number == level && maps.level_queues.read(level).number == queuing.queues
        });
        if !is_kept && maps.level_queues.read(level).number != 0 {
            publish(level, offset_of!(LevelQueues, number), 0, maps);
        }
    }
    let mut free = Ranges::new(0..maps.queues.len());
    let mut added = Vec::new();
    for &(level, queuing) in wanted {
        let known = maps.level_queues.read(level);
        let own = known.first..known.first.saturating_add(known.number);
        match known.number != 0 && free.reserve(own) {
            true => write_shape(level, queuing, maps),
            false => added.push((level, queuing)),
        }
    }
    let fits = |&(level, queuing): &(u32, Queuing)| {
        let first = free.take(queuing.queues);
        first.map(|first| (level, queuing, first))
    };
    match added.iter().map(fits).collect::<Option<Vec<_>>>() {
        Some(placed) => placed
            .into_iter()
            .for_each(|(level, queuing, first)| place(level, queuing, first, maps)),
        // What is free is in pieces. All together fit, since a configuration has no more queues.
        None => {
            let mut first = 0;
            for &(level, queuing) in wanted {
                place(level, queuing, first, maps);
                first += queuing.queues;
            }
        }
    }
}

/// Gives a level new queues, in which nobody waits and to which no seat is charged.
fn place(level: u32, queuing: Queuing, first: u32, maps: &Maps) {
    publish(level, offset_of!(LevelQueues, number), 0, maps);
    (maps.grace)();
    for index in first..first.saturating_add(queuing.queues) {
        maps.queues.write(index, &Queue::default());
    }
    publish(level, offset_of!(LevelQueues, waiting), 0, maps);
    publish(level, offset_of!(LevelQueues, first), first, maps);
    write_shape(level, queuing, maps);
    publish(level, offset_of!(LevelQueues, number), queuing.queues, maps);
}

fn write_shape(level: u32, queuing: Queuing, maps: &Maps) {
    let length = queuing.queue_length_limit;
    publish(level, offset_of!(LevelQueues, length), length, maps);
    publish(
        level,
        offset_of!(LevelQueues, hand),
        queuing.hand_size,
        maps,
    );
}

fn publish(level: u32, offset: usize, value: u32, maps: &Maps) {
    maps.level_queues.publish(level, offset, value);
}
