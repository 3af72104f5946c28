//! Answers to packets that go nowhere.

use crate::{
    addr::Address,
    answer,
    frame::Frame,
    parse::{Fragment, Network},
    tables::Tables,
    verdict::{Reason, Verdict},
    work::Work,
};

/// Answers a packet with ICMP, a RST or an ABORT, within the rate limit: from [`Work::answerer`], for
/// [`Work::reason`].
#[inline(never)]
pub(super) fn answer<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &Work<A>,
) -> Verdict {
    if network.fragment == Fragment::Later {
        return Verdict::drop(work.reason);
    }
    if !tables.may_answer() {
        return Verdict::drop(Reason::AnswerRateLimited);
    }
    match answer::build(
        frame,
        network,
        &work.message,
        &work.answerer,
        &work.tuple.source,
    ) {
        Some(()) => Verdict::answer(work.reason),
        None => Verdict::drop(work.reason),
    }
}
