//! The end of a connection's wait for a seat, as the agent decides it.

use super::{
    Kind, admit, network,
    open::{open, refuse},
    transport,
};
use crate::{
    addr::Address,
    flow::tcp,
    frame::Frame,
    parse::Network,
    tables::Tables,
    verdict::{Reason, Verdict},
    work::Work,
};

/// Opens the flow of a connection that has its turn; the frame is its SYN, and `card` says which one of its
/// party's hand the queue is in which it waited. Returns what has become of it:
/// it has a flow with [`Reason::Opened`] and [`Reason::ToEndpoint`], and there is no seat for it with
/// [`Reason::Parked`].
///
/// The SYN itself still has to go its way, where it finds the flow.
#[inline(always)]
pub fn let_in<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &F,
    work: &mut Work<A>,
    card: u32,
) -> Reason {
    if syn(tables, frame, work).is_none() {
        return Reason::Malformed;
    }
    work.has_turn = card << 1 | 1;
    work.reason = Reason::ToEndpoint;
    let _ = open(tables, frame, work);
    work.reason
}

/// Tells the client of a connection that it is refused, for this reason; the frame is its SYN, and
/// `schema` the number of the flow schema that has taken it.
#[inline(always)]
pub fn turn_away<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    work: &mut Work<A>,
    schema: u32,
    reason: Reason,
) -> Verdict {
    let Some(network) = syn(tables, frame, work) else {
        return Verdict::pass(Reason::Malformed);
    };
    work.schema = schema;
    admit::refuse(tables, work, reason);
    refuse(tables, frame, &network, work)
}

/// Reads the headers of a SYN.
#[inline(always)]
fn syn<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &F,
    work: &mut Work<A>,
) -> Option<Network> {
    let network = network(frame, work)?;
    if Kind::of::<A>(tables.config(), &network) != Kind::Ports {
        return None;
    }
    transport(frame, work, &network)?;
    tcp::opens(work.segment.flags).then_some(network)
}
