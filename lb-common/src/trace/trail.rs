//! What is noted of a packet on its way.

use crate::{
    addr::Address,
    flow::{Flow, Record, Rewrite, flow_flag},
    parse::Tuple,
    verdict::{Action, Hook, Reason, Verdict},
};

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
    pub(crate) peer: u32,
    /// [`flow_flag`]s of the packet's direction.
    pub flags: u32,
    /// Service id, 0 if it is to none.
    pub service: u32,
    /// Number of the flow schema that takes the connection that the packet asks for; 0 if none does, or
    /// it asks for none.
    pub schema: u32,
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

    /// Notes what a socket's `connect` or `sendmsg` asks for. It knows no flow.
    #[inline(always)]
    pub fn start_of_socket(&mut self, tuple: &Tuple<A>) {
        self.tuple = *tuple;
        self.headers = Headers::Ports;
        self.segment_flags = 0;
        self.flow = Known::No;
        self.schema = 0;
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
    /// The connection that a flow is of.
    pub(crate) fn of(flow: &Flow<A>) -> Self {
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
    pub(crate) fn to(tuple: &Tuple<A>) -> Self {
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
