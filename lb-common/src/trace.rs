//! Tracing: what is noted of a packet on its way, and which packets are logged.
//!
//! Only programs that trace note anything ([`Tables::TRACES`](crate::tables::Tables::TRACES)); in
//! all others the compiler leaves this out. At the end of its way, a packet's [`Trail`] is compared
//! with the [`Filter`], and the steps of those that match are logged.

use crate::{
    abi::FrontendKey,
    addr::{Address, Family, Ip6},
    flow::{Flow, Record, Rewrite, flow_flag, slots::Slots},
    opaque::rolled,
    parse::Tuple,
    tables::Services,
    verdict::{Action, Hook, Reason, Verdict},
    work::Work,
};

/// The only element of `TRACE`: what is asked of programs that trace, and what they have done.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// When to fall silent, in nanoseconds of `CLOCK_MONOTONIC`: an agent that was killed cannot
    /// say so any more.
    pub until: u64,
    /// Packets compared with the filter.
    pub seen: u64,
    /// Lines written, or meant to be: those for which the ring had no room are missing there.
    pub lines: u64,
    /// Packets logged; with the latest of several CPUs at once a few more than `limit`.
    pub taken: u32,
    /// How many may be.
    pub limit: u32,
    pub filter: Filter,
}

/// Service ports that a [`Filter`] may name.
pub const FILTER_SERVICES: usize = 16;

/// Which packets are logged: those that agree with all of it. Zero agrees with everything.
///
/// Addresses and ports are compared with those of the connection that a packet belongs to, so that
/// answers match as well.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The client's network.
    pub from: Ip6,
    /// The network of the frontend or of the endpoint.
    pub to: Ip6,
    /// Bits of the above that count, in the family's own length.
    pub from_prefix: u32,
    pub to_prefix: u32,
    /// The client's port.
    pub from_port: u16,
    /// The frontend's port, or the endpoint's.
    pub to_port: u16,
    /// Number of the family that networks are of, plus one.
    pub family: u32,
    /// IP protocol number; that of ICMP stands for ICMPv6 as well.
    pub protocol: u32,
    /// Number of the [`Reason`], plus one.
    pub reason: u32,
    /// Service ids.
    pub services: [u32; FILTER_SERVICES],
}

/// What is noted of a packet on its way through a hook, and of its connection at the end.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Trail<A> {
    /// What identifies the packet, as it arrived.
    pub tuple: Tuple<A>,
    /// When it was looked at, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
    pub headers: Headers,
    pub flow: Known,
    /// Index of the record of the flow's other direction.
    peer: u32,
    /// [`flow_flag`]s of the packet's direction.
    pub flags: u32,
    /// Service id, 0 if it is to none.
    pub service: u32,
    /// TCP header flags.
    pub segment_flags: u32,
    /// A [`Hook`].
    pub hook: u32,
    /// The device that the packet came by, or leaves by at egress; 0 for sockets.
    pub ifindex: u32,
    /// An [`Action`] and a [`Reason`].
    pub action: u32,
    pub reason: u32,
    /// The device to leave by, if that is decided.
    pub leaves_by: u32,
    /// The packet as it leaves.
    pub rewrite: Rewrite<A>,
    pub connection: Connection<A>,
}

/// A connection: who opened it, to where, and who serves it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Connection<A> {
    pub client: A,
    pub frontend: A,
    pub endpoint: A,
    pub client_port: u16,
    pub frontend_port: u16,
    pub endpoint_port: u16,
    pub pad: u16,
}

/// Which of a packet's addresses a line is about.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Source,
    Destination,
    Endpoint,
    /// As the packet leaves.
    NewSource,
    NewDestination,
}

impl Place {
    /// All of them, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::Source,
        Self::Destination,
        Self::Endpoint,
        Self::NewSource,
        Self::NewDestination,
    ];
}

/// How much of a packet's headers could be read.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headers {
    #[default]
    None,
    Addresses,
    Ports,
}

/// Whether a packet belongs to a flow.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known {
    #[default]
    No,
    Found,
    /// The packet has opened it.
    Opened,
}

impl<A: Address> Trail<A> {
    /// Forgets the packet before.
    #[inline(always)]
    pub fn start(&mut self) {
        self.headers = Headers::None;
        self.flow = Known::No;
    }

    /// Notes the flow that a packet belongs to.
    // Out of line: what it keeps would be on the hook's stack, for which Linux 6.1 has no room.
    #[inline(never)]
    pub fn note_flow(&mut self, record: Record<A>, known: Known) {
        // SAFETY: records stay valid until every program that can see them ends.
        self.peer = unsafe { record.as_ref() }.peer;
        self.flow = known;
    }

    /// Notes how a packet's way ended; `work` is what is known of it.
    #[inline(always)]
    pub fn end(work: &mut Work<A>, hook: Hook, ifindex: u32, verdict: Verdict) {
        let trail = &mut work.trail;
        trail.tuple = work.tuple;
        trail.segment_flags = 0;
        match trail.headers {
            Headers::Ports => trail.segment_flags = u32::from(work.segment.flags),
            // These are an earlier packet's.
            _ => (trail.tuple.source_port, trail.tuple.destination_port) = (0, 0),
        }
        trail.service = work.frontend.service_or_none();
        trail.hook = hook as u32;
        trail.ifindex = ifindex;
        trail.action = verdict.action as u32;
        trail.reason = verdict.reason as u32;
        trail.leaves_by = verdict.ifindex;
    }

    /// Notes what a socket's `connect` or `sendmsg` asks for. It knows no flow.
    #[inline(always)]
    pub fn start_of_socket(&mut self, tuple: &Tuple<A>) {
        self.tuple = *tuple;
        self.headers = Headers::Ports;
        self.segment_flags = 0;
        self.flow = Known::No;
        self.hook = Hook::Socket as u32;
        self.ifindex = 0;
        self.leaves_by = 0;
        self.connection = Connection::to(tuple);
    }

    /// Notes what was decided about it.
    #[inline(always)]
    pub fn end_of_socket(&mut self, verdict: Verdict, endpoint: Option<(A, u16)>) {
        self.action = verdict.action as u32;
        self.reason = verdict.reason as u32;
        if let Some(endpoint) = endpoint {
            (self.connection.endpoint, self.connection.endpoint_port) = endpoint;
        }
    }

    /// Whether it is known who serves the connection.
    #[inline(always)]
    pub fn has_endpoint(&self) -> bool {
        self.flow != Known::No || self.reason == Reason::SocketTranslated as u32
    }

    /// Looks up what is known of the connection.
    #[inline(always)]
    pub fn resolve<S: Slots<A> + Services<A>>(&mut self, slots: &S) {
        if self.hook == Hook::Socket as u32 {
            let key = FrontendKey {
                address: self.tuple.destination,
                port: self.tuple.destination_port,
                protocol: self.tuple.protocol,
                pad: 0,
            };
            self.service = slots.frontend(&key).map_or(0, |frontend| frontend.service);
            return;
        }
        if self.flow != Known::No
            && let Some(peer) = slots.slot(self.peer)
            // SAFETY: records stay valid until every program that can see them ends.
            && let Some(record) = slots.slot(unsafe { peer.as_ref() }.peer)
        {
            // SAFETY: as for the peer.
            let flow = unsafe { record.as_ref() };
            self.flags = flow.flags;
            self.service = flow.service_id();
            self.rewrite = flow.rewrite;
            self.connection = Connection::of(flow);
            return;
        }
        self.flow = Known::No;
        self.connection = Connection::to(&self.tuple);
    }

    /// Whether the packet leaves with other addresses than it came with.
    #[inline(always)]
    pub fn is_rewritten(&self) -> bool {
        let reasons = [
            Reason::Opened,
            Reason::ToEndpoint,
            Reason::ToClient,
            Reason::FollowedFragment,
        ];
        let ends = [Action::Drop as u32, Action::Answer as u32];
        !ends.contains(&self.action) && reasons.iter().any(|reason| *reason as u32 == self.reason)
    }
}

impl<A: Address> Connection<A> {
    fn of(flow: &Flow<A>) -> Self {
        let rewrite = &flow.rewrite;
        if flow.has(flow_flag::REPLY) {
            return Self {
                client: rewrite.destination,
                frontend: rewrite.source,
                endpoint: flow.source,
                client_port: rewrite.destination_port,
                frontend_port: rewrite.source_port,
                endpoint_port: flow.source_port,
                pad: 0,
            };
        }
        Self {
            client: flow.source,
            frontend: flow.destination,
            endpoint: rewrite.destination,
            client_port: flow.source_port,
            frontend_port: flow.destination_port,
            endpoint_port: rewrite.destination_port,
            pad: 0,
        }
    }

    /// That of a packet that belongs to no flow.
    fn to(tuple: &Tuple<A>) -> Self {
        Self {
            client: tuple.source,
            frontend: tuple.destination,
            endpoint: tuple.destination,
            client_port: tuple.source_port,
            frontend_port: tuple.destination_port,
            endpoint_port: tuple.destination_port,
            pad: 0,
        }
    }
}

impl Filter {
    /// Whether a packet is to be logged.
    #[inline(always)]
    pub fn matches<A: Address>(&self, trail: &Trail<A>) -> bool {
        if self.reason != 0 && self.reason != trail.reason + 1 {
            return false;
        }
        let protocol = u32::from(trail.tuple.protocol);
        let is_icmp = protocol == u32::from(A::ICMP) && self.protocol == ICMP;
        let has_protocol = trail.headers != Headers::None && (protocol == self.protocol || is_icmp);
        if self.protocol != 0 && !has_protocol {
            return false;
        }
        self.has_service(trail.service) && self.has_connection(trail)
    }

    #[inline(always)]
    fn has_service(&self, service: u32) -> bool {
        let mut none_named = true;
        for index in rolled(FILTER_SERVICES) {
            let named = self.services.get(index).copied().unwrap_or(0);
            if named != 0 && named == service {
                return true;
            }
            none_named &= named == 0;
        }
        none_named
    }

    #[inline(always)]
    fn has_connection<A: Address>(&self, trail: &Trail<A>) -> bool {
        let any_address = self.family == 0;
        if any_address && self.from_port == 0 && self.to_port == 0 {
            return true;
        }
        if trail.headers == Headers::None || !any_address && self.family != family_number(A::FAMILY)
        {
            return false;
        }
        let c = &trail.connection;
        let sent = (c.client, c.client_port);
        let frontend = (c.frontend, c.frontend_port);
        if self.is_from(sent) && (self.is_to(frontend) || self.is_to((c.endpoint, c.endpoint_port)))
        {
            return true;
        }
        // Which side has opened what is no connection of ours is not known.
        trail.flow == Known::No && self.is_from(frontend) && self.is_to(sent)
    }

    #[inline(always)]
    fn is_from<A: Address>(&self, (address, port): (A, u16)) -> bool {
        is_in(address, port, self.from, self.from_prefix, self.from_port)
    }

    #[inline(always)]
    fn is_to<A: Address>(&self, (address, port): (A, u16)) -> bool {
        is_in(address, port, self.to, self.to_prefix, self.to_port)
    }
}

/// Protocol number of ICMP for IPv4.
const ICMP: u32 = 1;

/// [`Filter::family`] for networks of a family.
pub const fn family_number(family: Family) -> u32 {
    family as u32 + 1
}

#[inline(always)]
fn is_in<A: Address>(address: A, port: u16, network: Ip6, prefix: u32, wanted: u16) -> bool {
    (wanted == 0 || port == wanted) && address.within(A::from_mapped(network), prefix)
}
