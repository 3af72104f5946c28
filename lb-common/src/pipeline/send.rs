//! Where a packet of a flow goes, translated, and the next hop that its flow keeps.

use super::{answer::answer, halfway};
use crate::{
    abi::device_flag,
    addr::{Address, Family},
    answer::Message,
    flow::{
        Ethernet, Record, flow_flag,
        hop::{self, Hop, hop_flag},
        seats,
    },
    frame::Frame,
    opaque::settled,
    parse::{self, Fragment, Network},
    rewrite,
    tables::{NextHop, Tables},
    verdict::{Action, Reason, Verdict},
    work::Work,
};

/// Sends a packet of a flow on its way from an ingress hook.
#[inline(always)]
pub(super) fn send<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
    record: Record<A>,
    reason: Reason,
) -> Verdict {
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let reason = match reason {
        Reason::ToEndpoint if flow.has(flow_flag::REPLY) => Reason::ToClient,
        reason => reason,
    };
    let way = route(tables, frame, network, work, record);
    if let Some(stop) = way.stop() {
        return stop;
    }
    work.answerer = tables.config().node();
    work.message = match way {
        Way::Gone | Way::NoSeat | Way::Expired => {
            work.answerer = work.tuple.destination;
            Message::RESET
        }
        Way::TimeExceeded => Message::time_exceeded::<A>(),
        Way::Halfway => {
            return match halfway::enter(tables, frame, network, work, record) {
                true if T::ANY_DEVICE => Verdict::pass(reason),
                true => Verdict::pass(Reason::LaterHook),
                false => Verdict::drop(Reason::NotWritable),
            };
        }
        Way::TooBig => Message::too_big::<A>(kept_hop(tables, record).map_or(0, |hop| hop.mtu)),
        _ => {
            let whole = network.fragment != Fragment::Later;
            return match rewrite::translate(frame, network, flow, whole) {
                Some(()) => go(tables, frame, network, work, record, way, reason),
                None => Verdict::drop(Reason::NotWritable),
            };
        }
    };
    work.reason = way.reason();
    answer(tables, frame, network, work)
}

/// How a packet of a flow goes on from an ingress hook.
#[repr(u64)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Through the host's stack.
    Stack,
    /// To the flow's next hop.
    Hop,
    /// Out of the device of [`Work::hop`]; the kernel has to resolve the neighbour.
    Device,
    /// Untouched, since the host's stack must see it first.
    ReplyToStack,
    /// Not from this hook.
    LaterHook,
    NoRoute,
    /// Nowhere: the client is not told that its endpoint has refused the connection.
    Withheld,
    /// Nowhere: the endpoint is gone.
    Gone,
    /// Nowhere: the connection has run into a deadline.
    Expired,
    /// Nowhere: there was no seat for the connection at the end of its handshake.
    NoSeat,
    TimeExceeded,
    TooBig,
    /// Through the host's stack, which is to fragment it.
    Halfway,
}

impl Way {
    /// Returns its argument, which must be one of the ways by which [`go`] sends packets on. The
    /// verifier no longer knows which one.
    ///
    /// Linux 6.1 needs this after a call of another function. Its verifier then forgets that what
    /// follows depends on the ways that led there. It looks at one of them, and removes the code
    /// that only the others need.
    #[inline(always)]
    pub(super) fn settled(self, room: &mut u64) -> Self {
        const HOP: u64 = Way::Hop as u64;
        const DEVICE: u64 = Way::Device as u64;
        match settled(self as u64, room) {
            HOP => Self::Hop,
            DEVICE => Self::Device,
            _ => Self::Stack,
        }
    }

    /// The verdict on a packet that goes nowhere from here and gets no answer.
    #[inline(always)]
    pub(super) fn stop(self) -> Option<Verdict> {
        match self {
            Self::ReplyToStack | Self::LaterHook => Some(Verdict::pass(self.reason())),
            Self::NoRoute | Self::Withheld => Some(Verdict::drop(self.reason())),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn reason(self) -> Reason {
        match self {
            Self::ReplyToStack => Reason::ReplyToStack,
            Self::LaterHook => Reason::LaterHook,
            Self::Withheld => Reason::EndpointRefused,
            Self::Gone => Reason::EndpointGone,
            Self::Expired => Reason::DeadlineExceeded,
            Self::NoSeat => Reason::ConcurrencyLimit,
            Self::TimeExceeded => Reason::TimeExceeded,
            Self::TooBig | Self::Halfway => Reason::TooBig,
            _ => Reason::NoRoute,
        }
    }
}

#[inline(always)]
pub(super) fn route<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &F,
    network: &Network,
    work: &mut Work<A>,
    record: Record<A>,
) -> Way {
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    if flow.has(flow_flag::WITHHELD | flow_flag::GONE) {
        return match flow.flags & flow_flag::EXPIRED {
            flow_flag::EXPIRED => Way::Expired,
            flow_flag::WITHHELD => Way::Withheld,
            _ if seats::is_refused(record) => Way::NoSeat,
            _ => Way::Gone,
        };
    }
    if !flow.has(flow_flag::FORWARD) {
        return match flow.has(flow_flag::REPLY) {
            true => Way::ReplyToStack,
            false => Way::Stack,
        };
    }
    if network.ttl <= 1 {
        return Way::TimeExceeded;
    }
    if A::FAMILY == Family::V4 && network.fragment == Fragment::Later && work.halfway != 0 {
        return Way::Halfway;
    }
    let generation = hop::generation(tables.config().hop_generation, tables.now());
    let known = kept_hop(tables, record).is_some_and(|hop| hop.holds(flow.hop, generation));
    if !known {
        match find_hop(tables, network.protocol, work, record) {
            Way::Hop => {}
            way => return way,
        }
    }
    let Some(hop) = kept_hop(tables, record) else {
        return Way::LaterHook;
    };
    if !T::ANY_DEVICE && hop.flags & hop_flag::XDP == 0 {
        return Way::LaterHook;
    }
    if frame.wire_length(network) > u32::from(hop.mtu) {
        return match parse::may_be_fragmented::<A>(frame.packet(), network.offset) {
            true => Way::Halfway,
            false => Way::TooBig,
        };
    }
    Way::Hop
}

/// The next hop that a flow keeps. It may be no longer valid.
#[inline(always)]
fn kept_hop<A: Address, T: Tables<A>>(tables: &T, record: Record<A>) -> Option<&Hop> {
    // SAFETY: records stay valid until every program that can see them ends.
    let entry = tables.hop(hop::index(unsafe { record.as_ref() }.hop))?;
    // SAFETY: entries stay valid; one that is overwritten meanwhile costs this packet its way.
    Some(unsafe { entry.as_ref() })
}

/// Sends a translated packet the way found for it.
#[inline(always)]
pub(super) fn go<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &Work<A>,
    record: Record<A>,
    way: Way,
    reason: Reason,
) -> Verdict {
    let (action, ifindex, written) = match way {
        Way::Hop => {
            let Some(hop) = kept_hop(tables, record) else {
                return Verdict::drop(Reason::NoRoute);
            };
            let written = rewrite::decrement_ttl::<A, F>(frame, network)
                .and_then(|()| frame.set_ethernet(hop.ethernet, A::ETHERTYPE));
            (Action::Redirect, hop.ifindex, written)
        }
        Way::Device => {
            let decremented = rewrite::decrement_ttl::<A, F>(frame, network);
            let written = decremented.and_then(|()| match F::LINK_HEADER {
                // The kernel fills the addresses in, not the header.
                0 => frame.set_ethernet(Ethernet::default(), A::ETHERTYPE),
                _ => Some(()),
            });
            (Action::Resolve, work.hop.ifindex, written)
        }
        _ => (Action::Pass, 0, Some(())),
    };
    match written {
        Some(()) => Verdict {
            action,
            reason,
            ifindex,
        },
        None => Verdict::drop(Reason::NotWritable),
    }
}

/// Looks up the next hop of a flow's packets and keeps it in the flow: [`Way::Hop`], or why not.
/// Out of line: it is rare, and the stack is short.
#[inline(never)]
fn find_hop<A: Address, T: Tables<A>>(
    tables: &T,
    protocol: u8,
    work: &mut Work<A>,
    record: Record<A>,
) -> Way {
    // SAFETY: records stay valid until every program that can see them ends.
    let to = unsafe { &record.as_ref().rewrite };
    let known = tables.next_hop(protocol, &to.source, &to.destination, &mut work.hop);
    match known {
        NextHop::Known if keep_hop(tables, work, record) => Way::Hop,
        NextHop::None if T::ANY_DEVICE => Way::NoRoute,
        _ if T::ANY_DEVICE => Way::Device,
        _ => Way::LaterHook,
    }
}

/// Keeps a next hop in the flow and, if it depends on the endpoint only, there for flows to come.
/// Whether there was room for it. Out of line, so that the look-up before it has the stack to
/// itself.
#[inline(never)]
fn keep_hop<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    mut record: Record<A>,
) -> bool {
    let xdp = tables.device(work.hop.ifindex).flags & device_flag::XDP_TARGET != 0;
    work.hop.flags = if xdp { hop_flag::XDP } else { 0 };
    let now = tables.now();
    let generation = hop::generation(tables.config().hop_generation, now);
    let Some(kept) = hop::keep(tables, &work.hop, generation, now) else {
        return false;
    };
    // SAFETY: records stay valid; another CPU that does the same writes a number that holds as
    // well.
    let flow = unsafe { record.as_mut() };
    flow.hop = kept;
    let of_endpoint = flow.has(flow_flag::SOURCE_NAT) && !flow.has(flow_flag::REPLY);
    if of_endpoint
        && !flow.is_foreign()
        && let Some(shared) = tables.endpoint_memory(flow.detail)
    {
        // SAFETY: a word of a map's element, of which any value will do.
        unsafe { (&raw mut (*shared.as_ptr()).hop).write_volatile(kept) };
    }
    true
}

/// Translates an answer on its way out of the host's stack.
#[inline(always)]
pub(super) fn leave<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    record: Record<A>,
    reason: Reason,
) -> Verdict {
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    if !flow.has(flow_flag::REPLY) {
        return Verdict::pass(Reason::NotService);
    }
    if flow.has(flow_flag::WITHHELD) {
        return Verdict::drop(match flow.has(flow_flag::GONE) {
            true => Reason::DeadlineExceeded,
            false => Reason::EndpointRefused,
        });
    }
    let whole = network.fragment != Fragment::Later;
    match rewrite::translate(frame, network, flow, whole) {
        Some(()) => Verdict::pass(reason),
        None => Verdict::drop(Reason::NotWritable),
    }
}
