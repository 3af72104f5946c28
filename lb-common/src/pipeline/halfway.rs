//! IPv4 packets that are too big for the next link, and may be fragmented.
//!
//! Only the host's stack fragments packets, and it takes none from outside with an address of the
//! node's own as their source. So such a packet gets its new destination where it arrives and its new
//! source where it leaves, and goes through the stack with what both sides really have. A token leads
//! from one hook to the other: fragments keep it, and it outlasts source NAT by other rules.

use super::{
    fragments::{HALFWAY, fragment_key, index},
    note,
};
use crate::{
    abi::FragmentKey,
    addr::{Address, Ip6},
    flow::{Record, flow_flag, record::look, tag},
    frame::Frame,
    parse::{self, Fragment, Network},
    rewrite,
    tables::Tables,
    trace::Known,
    verdict::Reason,
    work::Work,
};

/// The bits of a flow's index that its token has.
const TOKEN: u32 = 0x7fff;

/// Sends a packet of a flow into the stack, from a hook that can give it a token; the others leave it
/// untouched, but tell its later fragments. Whether it could be translated.
#[inline(never)]
pub(super) fn enter<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
    record: Record<A>,
) -> bool {
    let Some(index) = index(tables, record) else {
        return false;
    };
    if network.fragment == Fragment::First {
        // Connection tracking puts fragments together, so all have to go the same way.
        work.fragment = fragment_key(&work.tuple, network);
        tables.remember_fragment(&work.fragment, index | HALFWAY);
    }
    if !T::ANY_DEVICE {
        return true;
    }
    let token = (index & TOKEN) as u16;
    work.fragment = token_key(token);
    tables.remember_fragment(&work.fragment, index);
    frame.give_token(token);
    let whole = network.fragment != Fragment::Later;
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    rewrite::translate_destination(frame, network, flow, whole).is_some()
}

/// Completes the translation of a packet that leaves the stack. False if it is none of these;
/// otherwise [`Work::reason`] says what has become of it.
#[inline(never)]
pub(super) fn leave<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
    token: u16,
) -> bool {
    try_leave(tables, frame, network, work, token).is_some()
}

#[inline(always)]
fn try_leave<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
    token: u16,
) -> Option<()> {
    work.fragment = token_key(token);
    let (seen, record) = look(tables.slot(tables.fragment(&work.fragment)?)?);
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let to = &flow.rewrite;
    let whole = network.fragment != Fragment::Later;
    work.tuple.destination_port = to.destination_port;
    if whole {
        let ports = parse::ports(frame.packet(), network.payload)?;
        work.tuple.source_port = ports.source;
        work.tuple.destination_port = ports.destination;
    }
    // Flows may share a token.
    let is_of_flow = tag::in_use(seen)
        && to.destination == work.tuple.destination
        && to.destination_port == work.tuple.destination_port
        && flow.protocol() == network.protocol;
    if !is_of_flow {
        return None;
    }
    note::flow(tables, work, record, Known::Found);
    work.reason = match flow.has(flow_flag::REPLY) {
        _ if !whole => Reason::FollowedFragment,
        true => Reason::ToClient,
        false => Reason::ToEndpoint,
    };
    if rewrite::translate_source(frame, network, &work.tuple, flow, whole).is_none() {
        work.reason = Reason::NotWritable;
    }
    Some(())
}

/// Key of a token in `FRAGMENTS`. No flow has these addresses.
#[inline(always)]
fn token_key(token: u16) -> FragmentKey {
    FragmentKey {
        source: Ip6::default(),
        destination: Ip6::default(),
        id: token.into(),
        protocol: 0,
    }
}
