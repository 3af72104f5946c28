//! Later fragments, which have no ports, follow the first one's flow.

use crate::{
    abi::FragmentKey,
    addr::Address,
    flow::{Record, record::look, tag},
    parse::{Network, Tuple},
    tables::Tables,
    work::Work,
};

/// Bit of a flow's index in `FRAGMENTS`: the first fragment has gone [half-way](super::halfway).
pub(super) const HALFWAY: u32 = 1 << 31;

/// The live flow that a later fragment belongs to.
#[inline(never)]
pub(super) fn fragment_flow<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    network: &Network,
) -> Option<Record<A>> {
    work.fragment = fragment_key(&work.tuple, network);
    let found = tables.fragment(&work.fragment)?;
    work.halfway = found & HALFWAY;
    let (seen, record) = look(tables.slot(found & !HALFWAY)?);
    let alive = tag::in_use(seen);
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let tuple = &work.tuple;
    let same = flow.source == tuple.source && flow.destination == tuple.destination;
    (alive && same).then_some(record)
}

/// Notes the flow of a first fragment, for the later ones.
#[inline(never)]
pub(super) fn remember_fragment<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    network: &Network,
    record: Record<A>,
) {
    if let Some(index) = index(tables, record) {
        work.fragment = fragment_key(&work.tuple, network);
        tables.remember_fragment(&work.fragment, index);
    }
}

/// Index of a live record.
#[inline(always)]
pub(super) fn index<A: Address, T: Tables<A>>(tables: &T, record: Record<A>) -> Option<u32> {
    // SAFETY: records stay valid until every program that can see them ends.
    let peer = tables.slot(unsafe { record.as_ref() }.peer)?;
    // SAFETY: as above. Its peer's peer is the record itself.
    Some(unsafe { peer.as_ref() }.peer)
}

#[inline(always)]
pub(super) fn fragment_key<A: Address>(tuple: &Tuple<A>, network: &Network) -> FragmentKey {
    FragmentKey {
        source: tuple.source.to_mapped(),
        destination: tuple.destination.to_mapped(),
        id: network.id,
        protocol: u32::from(network.protocol),
    }
}
