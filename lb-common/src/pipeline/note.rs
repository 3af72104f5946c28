//! What is noted of a packet for programs that trace; nothing at all in others.

use crate::{
    addr::Address,
    flow::Record,
    tables::Tables,
    trace::{Headers, Known},
    work::{Addressed, Work},
};

/// Forgets what was noted of the packet before.
#[inline(always)]
pub(super) fn start<A: Address, T: Tables<A>>(_tables: &T, work: &mut Work<A>) {
    if T::TRACES {
        work.trail.start();
        work.frontend = Addressed::to(None);
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
