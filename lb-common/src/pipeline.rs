//! A packet's way through node-lb: parse → flow → (service → select → record) → rewrite → forward.
//!
//! The same source runs in the kernel, in tests and behind `explain`. The first packet of a
//! connection pays for the service lookup, the choice of an endpoint and two flow records; every
//! later one finds its record and has all it needs.

use core::num::NonZeroUsize;

use crate::{
    abi::{Endpoint, FragmentKey, config_flag, device_flag, endpoint_flag},
    addr::Address,
    answer::{self, Message},
    flow::{
        Flow, Hop, Rewrite, flow_flag,
        table::{self, Claim, Record, Refused},
        tag, tcp,
    },
    frame::Frame,
    opaque::rolled,
    parse::{self, ETHERNET, Fragment, Network, TCP, Tuple, UDP, tcp_flag},
    rewrite, select,
    service::{self, Decision, Route},
    tables::{NextHop, Tables},
    verdict::{Action, Reason, Verdict},
};

/// Ports tried for source NAT before a connection is given up.
const SNAT_TRIES: usize = 8;
/// Distance between them: odd and large, so that they land far from each other.
const SNAT_STRIDE: u32 = 7919;

/// Room to work on a packet, kept off the stack, which the kernel limits to 512 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Work<A> {
    /// What identifies the packet.
    pub tuple: Tuple<A>,
    /// What identifies another packet: one quoted, or the answers to come.
    pub other: Tuple<A>,
    /// Who an answer comes from, and what it says.
    pub answerer: A,
    pub message: Message,
    pub fragment: FragmentKey,
    /// For [`Network::settled`].
    pub memory: u64,
    /// The device of [`Way::Device`].
    pub ifindex: u32,
    /// Why a record could not be claimed.
    pub refused: Refused,
    /// Why no flow was opened.
    pub refusal: Refusal,
    pub reason: Reason,
}

/// Decides about a packet that arrives on a device, and rewrites it.
#[inline(always)]
pub fn ingress<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    work: &mut Work<A>,
) -> Verdict {
    let Some(network) = network(frame, work) else {
        return Verdict::pass(Reason::Malformed);
    };
    match Kind::of::<A>(&network) {
        Kind::Ports => {}
        Kind::Icmp => return icmp_error::<A, T, F, true>(tables, frame, &network, work),
        Kind::Other => return Verdict::pass(Reason::OtherProtocol),
        Kind::LaterFragment => {
            let Some(record) = fragment_flow(tables, work, &network) else {
                return Verdict::pass(Reason::UnknownFragment);
            };
            return send(
                tables,
                frame,
                &network,
                work,
                record,
                Reason::FollowedFragment,
            );
        }
    }
    let Some(tcp_flags) = ports(frame, work, &network) else {
        return Verdict::pass(Reason::Malformed);
    };
    let mut reason = Reason::ToEndpoint;
    let record = match table::find(tables, &work.tuple) {
        Some(record) if !reopens(tables, record, tcp_flags) => record,
        _ => {
            reason = Reason::Opened;
            match open(tables, frame.ifindex(), work, tcp_flags) {
                Some(record) => record,
                None => return refuse(tables, frame, &network, work),
            }
        }
    };
    if F::MAY_BE_PARTIAL && rewrite::looks_partial(frame, &network, &work.tuple) {
        return Verdict::pass(Reason::PartialChecksum);
    }
    touch(tables, record, tcp_flags);
    if network.fragment == Fragment::First {
        remember_fragment(tables, work, &network, record);
    }
    send(tables, frame, &network, work, record, reason)
}

/// Translates an answer that leaves the host's stack, and drops what the node's own sockets must not
/// reach. Everything else goes on its way.
#[inline(always)]
pub fn egress<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    work: &mut Work<A>,
) -> Verdict {
    let Some(network) = network(frame, work) else {
        return Verdict::pass(Reason::Malformed);
    };
    match Kind::of::<A>(&network) {
        Kind::Ports => {}
        Kind::Icmp => return icmp_error::<A, T, F, false>(tables, frame, &network, work),
        Kind::Other => return Verdict::pass(Reason::OtherProtocol),
        Kind::LaterFragment => {
            let Some(record) = fragment_flow(tables, work, &network) else {
                return Verdict::pass(Reason::UnknownFragment);
            };
            return leave(frame, &network, record, Reason::FollowedFragment);
        }
    }
    let Some(tcp_flags) = ports(frame, work, &network) else {
        return Verdict::pass(Reason::Malformed);
    };
    let Some(record) = table::find(tables, &work.tuple) else {
        return match unopened(tables, work) {
            Some(reason) => Verdict::drop(reason),
            None => Verdict::pass(Reason::NotService),
        };
    };
    touch(tables, record, tcp_flags);
    if network.fragment == Fragment::First {
        remember_fragment(tables, work, &network, record);
    }
    leave(frame, &network, record, Reason::ToClient)
}

/// What a packet is to node-lb.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// TCP or UDP, with ports.
    Ports,
    /// Part of an IP packet without its transport header.
    LaterFragment,
    Icmp,
    Other,
}

impl Kind {
    #[inline(always)]
    fn of<A: Address>(network: &Network) -> Self {
        if network.fragment == Fragment::Later {
            Self::LaterFragment
        } else if network.protocol == TCP || network.protocol == UDP {
            Self::Ports
        } else if network.protocol == A::ICMP {
            Self::Icmp
        } else {
            Self::Other
        }
    }
}

/// Reads the network header; the addresses go to [`Work::tuple`].
#[inline(always)]
fn network<A: Address, F: Frame>(frame: &F, work: &mut Work<A>) -> Option<Network> {
    let packet = frame.packet();
    let (source, destination) = parse::addresses(packet, ETHERNET)?;
    let network = parse::network::<A>(packet, ETHERNET)?.settled(&mut work.memory);
    work.tuple.source = source;
    work.tuple.destination = destination;
    work.tuple.protocol = network.protocol;
    Some(network)
}

/// Reads the ports into [`Work::tuple`], and the TCP flags.
#[inline(always)]
fn ports<A: Address, F: Frame>(frame: &F, work: &mut Work<A>, network: &Network) -> Option<u8> {
    let packet = frame.packet();
    let transport = parse::transport(packet, network.payload, network.protocol, false)?;
    work.tuple.source_port = transport.source_port;
    work.tuple.destination_port = transport.destination_port;
    Some(transport.flags)
}

/// What becomes of a packet that opens no flow.
#[repr(u32)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Refusal {
    /// None of our business.
    #[default]
    Pass,
    /// The client is told.
    Reject,
    Drop,
}

/// Opens the flow of a connection's first packet. If there is none, [`Work::refusal`] and
/// [`Work::reason`] say why.
#[inline(never)]
fn open<A: Address, T: Tables<A>>(
    tables: &T,
    ifindex: u32,
    work: &mut Work<A>,
    tcp_flags: u8,
) -> Option<Record<A>> {
    let (service, reason) = match service::decide(tables, &work.tuple, ifindex) {
        Decision::Pass => {
            work.refusal = Refusal::Pass;
            work.reason = Reason::NotService;
            return None;
        }
        // A reset opens nothing; its connection is gone here, perhaps the kernel knows it.
        Decision::Forward(_) if tcp_flags & tcp_flag::RST != 0 => {
            work.refusal = Refusal::Pass;
            work.reason = Reason::StrayReset;
            return None;
        }
        Decision::Forward(route) => {
            work.refusal = Refusal::Drop;
            if let Some(record) = insert(tables, work, &route) {
                return Some(record);
            }
            (route.plan.service, work.reason)
        }
        Decision::Reject(service, reason) => {
            work.refusal = Refusal::Reject;
            (service, reason)
        }
        Decision::Drop(service, reason) => {
            work.refusal = Refusal::Drop;
            (service, reason)
        }
    };
    work.reason = reason;
    tables.count_refusal(service, reason);
    None
}

/// The verdict on a packet that opened no flow.
#[inline(always)]
fn refuse<A: Address, T: Tables<A>, F: Frame>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
) -> Verdict {
    match work.refusal {
        Refusal::Pass => Verdict::pass(work.reason),
        Refusal::Drop => Verdict::drop(work.reason),
        Refusal::Reject => {
            work.answerer = work.tuple.destination;
            work.message = Message::port_unreachable::<A>();
            answer(tables, frame, network, work)
        }
    }
}

/// Why a packet of no flow must not leave the node.
#[inline(never)]
fn unopened<A: Address, T: Tables<A>>(tables: &T, work: &Work<A>) -> Option<Reason> {
    match service::decide(tables, &work.tuple, 0) {
        Decision::Drop(_, reason) => Some(reason),
        _ => None,
    }
}

/// Picks an endpoint and records the flow, both directions or none; [`Work::reason`] says why none.
#[inline(always)]
fn insert<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    route: &Route,
) -> Option<Record<A>> {
    let config = tables.config();
    let plan = route.plan;
    work.reason = Reason::NotProgrammed;
    let endpoint = tables.endpoint(select::pick(tables, plan, route.policy, &work.tuple)?)?;
    let source_nat = route.source_nat(&work.tuple, endpoint);
    work.other = Tuple {
        source: A::from_mapped(endpoint.address),
        destination: if source_nat {
            config.node()
        } else {
            work.tuple.source
        },
        source_port: endpoint.port,
        destination_port: work.tuple.source_port,
        protocol: work.tuple.protocol,
        pad: [0; 3],
    };
    if work.other.destination.sum() == 0 {
        work.reason = Reason::NoNodeAddress;
        return None;
    }
    let Some(forward) = table::claim(tables, &work.tuple, &mut work.refused) else {
        if work.refused == Refused::Full {
            work.reason = Reason::FlowTableFull;
            return None;
        }
        // Another CPU has just opened it.
        work.reason = Reason::InsertRace;
        return table::find_rarely(tables, &work.tuple);
    };
    let Some(reply) = claim_reply(tables, work, source_nat) else {
        forward.release();
        work.reason = match work.refused {
            Refused::Full => Reason::FlowTableFull,
            _ => Reason::SnatPortsExhausted,
        };
        return None;
    };
    let flags = rewrite::protocol_flag(work.tuple.protocol)
        | if source_nat { flow_flag::SOURCE_NAT } else { 0 }
        | if bypasses(config.flags, endpoint, source_nat) {
            flow_flag::FORWARD
        } else {
            0
        };
    let now = tables.ticks();
    let (mut there, mut back) = (forward.record(), reply.record());
    // SAFETY: claimed records are their claimer's alone until they are published.
    unsafe {
        write(there.as_mut(), &work.tuple, &work.other, flags);
        write(
            back.as_mut(),
            &work.other,
            &work.tuple,
            flags | flow_flag::REPLY,
        );
        let (there, back) = (there.as_mut(), back.as_mut());
        core::mem::swap(&mut there.peer, &mut back.peer);
        there.last_seen = now;
        back.last_seen = now;
        there.service = plan.service;
        back.service = plan.service;
    }
    reply.publish();
    forward.publish();
    tables.count_connection(plan.service, endpoint.id);
    Some(there)
}

/// Claims the record of the answers in [`Work::other`], with a port that no other flow to the
/// endpoint uses.
#[inline(always)]
fn claim_reply<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    source_nat: bool,
) -> Option<Claim<A>> {
    let config = tables.config();
    let spread = table::hash(&work.tuple, tables.secret()) as u32 >> 8;
    for attempt in rolled(SNAT_TRIES) {
        // A client whose address is kept keeps its port too, unless the same client's port already
        // goes to the same endpoint by way of another frontend.
        if source_nat || attempt != 0 {
            let offset = spread.wrapping_add((attempt as u32).wrapping_mul(SNAT_STRIDE));
            let offset = offset.checked_rem(config.snat_count).unwrap_or(0);
            work.other.destination_port = config.snat_first.wrapping_add(offset) as u16;
        }
        if let Some(claim) = table::claim(tables, &work.other, &mut work.refused) {
            return Some(claim);
        }
        if work.refused == Refused::Full {
            return None;
        }
    }
    None
}

/// Fills a claimed record for packets of `tuple`; `opposite` are the packets that they answer.
#[inline(always)]
fn write<A: Address>(flow: &mut Flow<A>, tuple: &Tuple<A>, opposite: &Tuple<A>, flags: u16) {
    flow.source = tuple.source;
    flow.destination = tuple.destination;
    flow.source_port = tuple.source_port;
    flow.destination_port = tuple.destination_port;
    flow.seen = 0;
    flow.hop_generation = 0;
    flow.flags = flags;
    flow.rewrite = Rewrite {
        source: opposite.destination,
        destination: opposite.source,
        source_port: opposite.destination_port,
        destination_port: opposite.source_port,
    };
    flow.hop = Hop::default();
}

/// Whether a flow's packets go past the host's stack in both directions. Those with source NAT must:
/// the stack takes no packet from the node's own address. What crosses it is what others may have to
/// translate too (a masquerade for destinations outside the cluster), and what the host itself
/// serves.
#[inline(always)]
fn bypasses(config_flags: u32, endpoint: &Endpoint, source_nat: bool) -> bool {
    if endpoint.flags & endpoint_flag::HOST != 0 {
        return false;
    }
    source_nat
        || config_flags & config_flag::BYPASS != 0
            && endpoint.flags & (endpoint_flag::LOCAL | endpoint_flag::IN_CLUSTER) != 0
}

/// Sends a packet of a flow on its way from an ingress hook.
#[inline(always)]
fn send<A: Address, T: Tables<A>, F: Frame>(
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
enum Way {
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
    fn stop(self) -> Option<Verdict> {
        match self {
            Self::ReplyToStack | Self::LaterHook => Some(Verdict::pass(self.reason())),
            Self::NoRoute => Some(Verdict::drop(Reason::NoRoute)),
            _ => None,
        }
    }

    #[inline(always)]
    fn reason(self) -> Reason {
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
fn route<A: Address, T: Tables<A>, F: Frame>(
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
    let generation = tables.config().hop_generation as u8;
    if !flow.has(flow_flag::HOP) || flow.hop_generation != generation {
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
fn go<A: Address, F: Frame>(
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
    let generation = tables.config().hop_generation as u8;
    let xdp = tables.device_flags(hop.ifindex) & device_flag::XDP_TARGET != 0;
    // SAFETY: as in `route`. Another CPU that does the same writes the same; one that reads takes
    // the hop only once the generation, written last, says that it is whole.
    unsafe {
        let flow = record.as_ptr();
        let flags =
            (*flow).flags & !flow_flag::XDP | flow_flag::HOP | if xdp { flow_flag::XDP } else { 0 };
        (*flow).hop = hop;
        (&raw mut (*flow).flags).write_volatile(flags);
        (&raw mut (*flow).hop_generation).write_volatile(generation);
    }
}

/// Translates an answer on its way out of the host's stack.
#[inline(always)]
fn leave<A: Address, F: Frame>(
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

/// Handles an ICMP error about a packet of a flow; other ICMP is not ours.
#[inline(never)]
fn icmp_error<A: Address, T: Tables<A>, F: Frame, const INGRESS: bool>(
    tables: &T,
    frame: &mut F,
    network: &Network,
    work: &mut Work<A>,
) -> Verdict {
    let packet = frame.packet();
    match packet.load::<u8>(network.payload) {
        Some(icmp_type) if parse::is_icmp_error::<A>(icmp_type) => {}
        _ => return Verdict::pass(Reason::OtherProtocol),
    }
    let Some(quoted) = quoted(frame, network.payload + 8, work) else {
        return Verdict::pass(Reason::OtherProtocol);
    };
    let Some(record) = table::find_rarely(tables, &work.other) else {
        return Verdict::pass(Reason::NotService);
    };
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let way = match INGRESS {
        true => route(tables, frame, network, work, record),
        false if flow.has(flow_flag::REPLY) => Way::Stack,
        false => return Verdict::pass(Reason::NotService),
    };
    if let Some(stop) = way.stop() {
        return stop;
    }
    // No ICMP error about an ICMP error (RFC 1122, 3.2.2).
    if matches!(way, Way::TimeExceeded | Way::TooBig) {
        return Verdict::drop(way.reason());
    }
    match rewrite::translate_error(frame, network, &work.tuple, quoted.get(), flow) {
        Some(()) => go(frame, network, work, flow, way, Reason::IcmpError),
        None => Verdict::drop(Reason::NotWritable),
    }
}

/// Reads the packet that an ICMP error quotes: the offset of its transport header. What identifies
/// the packets that it is an answer to goes to [`Work::other`].
#[inline(never)]
fn quoted<A: Address, F: Frame>(frame: &F, at: usize, work: &mut Work<A>) -> Option<NonZeroUsize> {
    let packet = frame.packet();
    let (source, destination) = parse::addresses::<A>(packet, at)?;
    let network = parse::network::<A>(packet, at)?.settled(&mut work.memory);
    let portless = network.fragment == Fragment::Later;
    if network.protocol != TCP && network.protocol != UDP || portless {
        return None;
    }
    let ports = parse::transport(packet, network.payload, network.protocol, true)?;
    work.other = Tuple {
        source: destination,
        destination: source,
        source_port: ports.destination_port,
        destination_port: ports.source_port,
        protocol: network.protocol,
        pad: [0; 3],
    };
    NonZeroUsize::new(network.payload)
}

/// Answers a packet with ICMP, within the rate limit: from [`Work::answerer`], for [`Work::reason`].
#[inline(never)]
fn answer<A: Address, T: Tables<A>, F: Frame>(
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

/// Whether a packet on a found flow opens a new connection instead; the old flow is gone then.
#[inline(always)]
fn reopens<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, tcp_flags: u8) -> bool {
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    if !tcp::opens(tcp_flags) || flow.has(flow_flag::REPLY) {
        return false;
    }
    let Some(peer) = tables.slot(flow.peer) else {
        return false;
    };
    // SAFETY: as above; peers live and die together.
    let reply = unsafe { peer.as_ref() }.seen;
    if !tcp::Stage::of(flow.seen, reply).may_reopen() {
        return false;
    }
    // Whoever takes the forward record out of sight takes the other one too.
    if table::kill(record) {
        table::kill(peer);
    }
    true
}

/// Notes what a packet shows of its connection. Writes only what changes.
#[inline(always)]
fn touch<A: Address, T: Tables<A>>(tables: &T, record: Record<A>, tcp_flags: u8) {
    // SAFETY: live records stay valid; these fields may be written by several CPUs at once and any
    // of the values will do.
    unsafe {
        let flow = record.as_ptr();
        let seen = (*flow).seen | tcp::bits(tcp_flags);
        if (*flow).seen != seen {
            (*flow).seen = seen;
        }
        let now = tables.ticks();
        if (*flow).last_seen != now {
            (*flow).last_seen = now;
        }
    }
}

/// The live flow that a later fragment belongs to.
#[inline(never)]
fn fragment_flow<A: Address, T: Tables<A>>(
    tables: &T,
    work: &mut Work<A>,
    network: &Network,
) -> Option<Record<A>> {
    work.fragment = fragment_key(&work.tuple, network);
    let record = tables.slot(tables.fragment(&work.fragment)?)?;
    let alive = tag::state(table::read_tag(record)) == tag::LIVE;
    // SAFETY: live records stay valid until every program that can see them ends.
    let flow = unsafe { record.as_ref() };
    let tuple = &work.tuple;
    let same = flow.source == tuple.source && flow.destination == tuple.destination;
    (alive && same).then_some(record)
}

/// Notes the flow of a first fragment, for the later ones.
#[inline(never)]
fn remember_fragment<A: Address, T: Tables<A>>(
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
    // SAFETY: as above. Its peer's peer is the record itself.
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
