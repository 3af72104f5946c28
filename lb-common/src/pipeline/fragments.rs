//! Later fragments, which have no ports, follow the first one's flow.

use crate::{
    abi::FragmentKey,
    addr::Address,
    flow::{Record, record::look, tag},
    parse::{Network, Tuple},
    tables::Tables,
    work::Work,
};

/// The live flow that a later fragment belongs to.
#[inline(never)]
pub(super) fn fragment_flow<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    network: &Network,
) -> Option<Record<A>> {
    work.fragment = fragment_key(&work.tuple, network);
    let (seen, record) = look(tables.slot(tables.fragment(&work.fragment)?)?);
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
    // SAFETY: live records stay valid until every program that can see them ends.
    let Some(peer) = tables.slot(unsafe { record.as_ref() }.peer) else {
        return;
    };
    work.fragment = fragment_key(&work.tuple, network);
    // SAFETY: records stay valid until every program that can see them ends. Its peer's peer is the
    // record itself.
    tables.remember_fragment(&work.fragment, unsafe { peer.as_ref() }.peer);
}

#[inline(always)]
fn fragment_key<A: Address>(tuple: &Tuple<A>, network: &Network) -> FragmentKey {
    FragmentKey {
        source: tuple.source.to_mapped(),
        destination: tuple.destination.to_mapped(),
        id: network.id,
        protocol: u32::from(network.protocol),
    }
}
