//! Where a packet of a flow goes, translated, and the next hop that its flow keeps.

use super::{Work, icmp::answer};
use crate::{
    abi::device_flag,
    addr::Address,
    answer::Message,
    flow::{Flow, Hop, flow_flag, table::Record},
    frame::Frame,
    parse::{Fragment, Network},
    rewrite,
    tables::{NextHop, Tables},
    verdict::{Action, Reason, Verdict},
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
    work.message = match way {
        Way::TimeExceeded => Message::time_exceeded::<A>(),
        Way::TooBig => Message::too_big::<A>(flow.hop.mtu),
        _ => {
            let whole = network.fragment != Fragment::Later;
            return match rewrite::translate(frame, network, flow, whole) {
                Some(()) => go(frame, network, work, flow, way, reason),
                None => Verdict::drop(Reason::NotWritable),
            };
        }
    };
    work.answerer = tables.config().node();
    work.reason = way.reason();
    answer(tables, frame, network, work)
}

/// How a packet of a flow goes on from an ingress hook.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Through the host's stack.
    Stack,
    /// To the flow's next hop.
    Hop,
    /// Out of the device in [`Work::ifindex`], whose neighbour the kernel has to resolve.
    Device,
    /// Untouched, since the host's stack must see it first.
    ReplyToStack,
    /// Not from this hook.
    LaterHook,
    NoRoute,
    TimeExceeded,
    TooBig,
}

impl Way {
    /// The verdict on a packet that goes nowhere from here and gets no answer.
    #[inline(always)]
    pub(super) fn stop(self) -> Option<Verdict> {
        match self {
            Self::ReplyToStack | Self::LaterHook => Some(Verdict::pass(self.reason())),
            Self::NoRoute => Some(Verdict::drop(Reason::NoRoute)),
            _ => None,
        }
    }

    #[inline(always)]
    pub(super) fn reason(self) -> Reason {
        match self {
            Self::ReplyToStack => Reason::ReplyToStack,
            Self::LaterHook => Reason::LaterHook,
            Self::TimeExceeded => Reason::TimeExceeded,
            Self::TooBig => Reason::TooBig,
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
    if !flow.has(flow_flag::FORWARD) {
        return match flow.has(flow_flag::REPLY) {
            true => Way::ReplyToStack,
            false => Way::Stack,
        };
    }
    if network.ttl <= 1 {
        return Way::TimeExceeded;
    }
    let generation = tables.config().hop_generation as u16;
    if !flow.has(flow_flag::HOP) || flow.hop.generation != generation {
        match find_hop(tables, network.protocol, work, record) {
            Way::Hop => {}
            way => return way,
        }
    }
    if !T::ANY_DEVICE && !flow.has(flow_flag::XDP) {
        return Way::LaterHook;
    }
    let headers = (network.payload - network.offset) as u32;
    if frame.wire_length(network.length, headers) > u32::from(flow.hop.mtu) {
        return Way::TooBig;
    }
    Way::Hop
}

/// Sends a translated packet the way found for it.
#[inline(always)]
pub(super) fn go<A: Address, F: Frame>(
    frame: &mut F,
    network: &Network,
    work: &Work<A>,
    flow: &Flow<A>,
    way: Way,
    reason: Reason,
) -> Verdict {
    let packet = frame.packet();
    let (action, ifindex, written) = match way {
        Way::Hop => (
            Action::Redirect,
            flow.hop.ifindex,
            rewrite::decrement_ttl::<A>(packet, network)
                .and_then(|()| packet.store(0, flow.hop.ethernet)),
        ),
        Way::Device => (
            Action::Resolve,
            work.ifindex,
            rewrite::decrement_ttl::<A>(packet, network),
        ),
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

/// Looks up the next hop of a flow's packets and keeps it in the flow: [`Way::Hop`], or why not. Out of
/// line: it is rare, and the stack is short.
#[inline(never)]
fn find_hop<A: Address, T: Tables<A>>(
    tables: &T,
    protocol: u8,
    work: &mut Work<A>,
    record: Record<A>,
) -> Way {
    // SAFETY: live records stay valid until every program that can see them ends.
    let to = unsafe { &record.as_ref().rewrite };
    match tables.next_hop(protocol, &to.source, &to.destination) {
        NextHop::Known(hop) => {
            remember_hop(tables, record, hop);
            Way::Hop
        }
        NextHop::Unresolved(ifindex) if T::ANY_DEVICE => {
            work.ifindex = ifindex;
            Way::Device
        }
        NextHop::None if T::ANY_DEVICE => Way::NoRoute,
        _ => Way::LaterHook,
    }
}

/// Keeps a next hop in the flow.
#[inline(always)]
fn remember_hop<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, hop: Hop) {
    let generation = tables.config().hop_generation as u16;
    let xdp = tables.device_flags(hop.ifindex) & device_flag::XDP_TARGET != 0;
    // SAFETY: as in `route`. Another CPU that does the same writes the same; one that reads takes
    // the hop only once the generation, written last, says that it is whole.
    unsafe {
        let flow = record.as_ptr();
        let flags =
            (*flow).flags & !flow_flag::XDP | flow_flag::HOP | if xdp { flow_flag::XDP } else { 0 };
        (*flow).hop = Hop {
            generation: generation.wrapping_sub(1),
            ..hop
        };
        (&raw mut (*flow).flags).write_volatile(flags);
        (&raw mut (*flow).hop.generation).write_volatile(generation);
    }
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
    let whole = network.fragment != Fragment::Later;
    match rewrite::translate(frame, network, flow, whole) {
        Some(()) => Verdict::pass(reason),
        None => Verdict::drop(Reason::NotWritable),
    }
}
