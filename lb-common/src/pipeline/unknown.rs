//! Packets that leave the node for an address of Services, untranslated: they are to a port that no
//! Service has there, or to no Service at all.
//!
//! They are looked at where they leave, as by a rule in netfilter's forward and output chains:
//! whatever else on this node has a use for such an address has translated them by then. Those to
//! an unknown port of a ClusterIP are refused when they come in already, if their protocol is translated.

use super::answer::answer;
use crate::{
    addr::Address,
    answer::Message,
    frame::Frame,
    parse::{Network, tcp_flag},
    service,
    tables::Tables,
    verdict::{Reason, Verdict},
    work::Work,
};

/// The verdict on a packet of no flow that must not leave; [`Work::reason`] is what
/// [`service::unknown`] says. Not inlined, so that there is one such function for the verifier.
#[inline(never)]
pub(super) fn keep_back<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
) -> Verdict {
    if !frame.may_be_kept_back() {
        return Verdict::pass(Reason::NotService);
    }
    if work.reason != Reason::UnknownPort {
        return Verdict::drop(work.reason);
    }
    work.answerer = work.tuple.destination;
    work.message = Message::port_unreachable::<A>();
    answer(tables, frame, network, work)
}

/// Whether a packet that leaves, of a protocol that is not translated, is for [`keep_back`].
#[inline(always)]
pub(super) fn is_unknown<A: Address, T: Tables<A>>(tables: &T, work: &mut Work<A>) -> bool {
    match service::unknown(tables, &work.tuple, tcp_flag::SYN) {
        Some(reason) => {
            work.reason = reason;
            true
        }
        None => false,
    }
}
