//! What is noted of a packet for programs that trace; nothing at all in others.

use crate::{
    addr::Address,
    flow::{Record, slots::Slots},
    service,
    tables::{Services, Tables},
    trace::{Connection, Headers, Known, Trail},
    verdict::Hook,
    work::{Addressed, Work},
};

/// Forgets what was noted of the packet before.
#[inline(always)]
pub(super) fn start<A: Address, T: Tables<A>>(_tables: &T, work: &mut Work<A>) {
    if T::TRACES {
        work.trail.start();
        work.frontend = Addressed::to(None);
        work.schema = 0;
    }
}

/// Notes how much of the headers could be read.
#[inline(always)]
pub(super) fn headers<A: Address, T: Tables<A>>(_tables: &T, work: &mut Work<A>, read: Headers) {
    if T::TRACES {
        work.trail.headers = read;
    }
}

/// Notes the flow that the packet belongs to, or whose packet it quotes.
#[inline(always)]
pub(super) fn flow<A: Address, T: Tables<A>>(
    _tables: &T,
    work: &mut Work<A>,
    record: Record<A>,
    known: Known,
) {
    if T::TRACES {
        work.trail.note_flow(record, known);
    }
}

/// Notes the connection that the packet belongs to, at the end of its way: who opened it, to which
/// Service, and who serves it.
#[inline(always)]
pub fn connection<A: Address, T: Slots<A> + Services<A>>(tables: &T, trail: &mut Trail<A>) {
    if trail.hook == Hook::Socket as u32 {
        let key = service::key(&trail.tuple, true);
        trail.service = tables.frontend(&key).map_or(0, |frontend| frontend.service);
        return;
    }
    if trail.flow != Known::No
        && let Some(peer) = tables.slot(trail.peer)
        // SAFETY: records stay valid until every program that can see them ends.
        && let Some(record) = tables.slot(unsafe { peer.as_ref() }.peer)
    {
        // SAFETY: records stay valid until every program that can see them ends.
        let flow = unsafe { record.as_ref() };
        trail.flags = flow.flags;
        trail.service = flow.service_id();
        trail.rewrite = flow.rewrite;
        trail.connection = Connection::of(flow);
        return;
    }
    trail.flow = Known::No;
    trail.connection = Connection::to(&trail.tuple);
}
