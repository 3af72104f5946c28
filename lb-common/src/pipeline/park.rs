//! Has a connection wait for a seat: its SYN goes to the agent, which keeps it.

use super::admit::refuse;
use crate::{
    addr::Address,
    flow::{
        party::party,
        queue::{count_refused, enter, leave},
    },
    frame::Frame,
    tables::Tables,
    verdict::Reason,
    work::Work,
};

/// Hands the SYN of a connection to the agent. If it cannot wait, [`Work::refusal`] and [`Work::reason`]
/// say so.
#[inline(never)]
pub(super) fn park<A: Address, T: Tables<A>, F: Frame>(tables: &T, frame: &F, work: &mut Work<A>) {
    if !is_parked(tables, frame, work) {
        refuse(tables, work, Reason::QueueFull);
        tables.count_refusal(work.frontend.service_or_none(), Reason::QueueFull);
    }
}

/// Whether a connection waits now.
#[inline(always)]
fn is_parked<A: Address, T: Tables<A>, F: Frame>(tables: &T, frame: &F, work: &Work<A>) -> bool {
    let level = work.seats.level();
    let (Some(schema), Some(queues)) =
        (tables.flow_schema(work.schema), tables.level_queues(level))
    else {
        return false;
    };
    // SAFETY: elements of maps stay; words that the agent stores one by one.
    let (by, length) = unsafe {
        (
            (&raw const (*schema.as_ptr()).rule.by).read_volatile(),
            (&raw const (*queues.as_ptr()).length).read_volatile(),
        )
    };
    let service = work.frontend.service_or_none();
    let party = party(by, work.taker, &work.tuple.source, service, tables.secret());
    let index = tables.shortest_queue(level, party);
    if let Some(queue) = tables.queue(index)
        && enter(queues, queue, length)
    {
        if tables.park(frame, work, party, index) {
            return true;
        }
        leave(queues, queue);
    }
    count_refused(queues);
    false
}
