//! What is known of a packet on its way.

use crate::{
    abi::{Device, FragmentKey, Frontend, FrontendKind},
    addr::Address,
    answer::Message,
    flow::{
        Hop,
        claim::Refused,
        party::Taker,
        place::LevelSeats,
        seats::{Asked, Start},
    },
    parse::{Segment, Tuple},
    trace::{Headers, Trail},
    verdict::{Hook, Reason, Verdict},
};

/// Room to work on a packet, kept off the stack, which the kernel limits to 512 bytes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Work<A> {
    /// What identifies the packet.
    pub tuple: Tuple<A>,
    /// What identifies another packet: one quoted, or the answers to come.
    pub other: Tuple<A>,
    /// Hashes of the two in the flow table, while a flow is being opened.
    pub hash: u64,
    pub other_hash: u64,
    /// What a TCP packet says of its connection.
    pub segment: Segment,
    /// Who an answer comes from, and what it says.
    pub answerer: A,
    pub message: Message,
    pub fragment: FragmentKey,
    /// Not 0 if the packet is a later fragment, and the first one has gone through the stack half
    /// translated.
    pub halfway: u32,
    /// Memory for `settled` numbers, see module `opaque`.
    pub memory: u64,
    /// A next hop that was looked up; the device that leads there, if the neighbour is not known.
    pub hop: Hop,
    /// What is special about the device that the packet came by, if it opens a flow.
    pub device: Device,
    /// What the packet is addressed to, if it opens a flow.
    pub frontend: Addressed,
    /// The flow schema that takes the connection, by its number, if the packet opens a flow; 0 means none.
    /// And what it takes of its priority level.
    pub schema: u32,
    pub seats: LevelSeats,
    /// The same schema, and where the source is; and how many connections a party of it may have, 0 if
    /// they are not counted.
    pub taker: Taker,
    pub most: u32,
    /// A flow that is being opened.
    pub opening: Opening,
    /// Not 0 if the connection has waited for a seat, and has its turn: bit 0 is set, and above it is its
    /// queue's [card](Taker::card). Only the agent's program, which has room of its own, sets it.
    pub has_turn: u32,
    /// Id of an endpoint that a connection has left; 0 means none.
    pub avoided: u32,
    /// Why a record could not be claimed.
    pub refused: Refused,
    /// Why no flow was opened.
    pub refusal: Refusal,
    pub reason: Reason,
    /// What programs that trace note of it.
    pub trail: Trail<A>,
}

impl<A: Address> Work<A> {
    /// How the flow begins that the packet opens, which may be a SYN.
    #[inline(always)]
    pub fn start(&self, opens: bool) -> Start {
        match Start::of(self.tuple.protocol, opens) {
            Start::Handshake if self.has_turn != 0 => Start::Turn,
            start => start,
        }
    }

    /// Completes the trail at the end of the packet's way.
    #[inline(always)]
    pub fn end_trail(&mut self, hook: Hook, ifindex: u32, verdict: Verdict) {
        let trail = &mut self.trail;
        trail.tuple = self.tuple;
        trail.segment_flags = 0;
        match trail.headers {
            Headers::Ports => trail.segment_flags = u32::from(self.segment.flags),
            // These are an earlier packet's.
            _ => (trail.tuple.source_port, trail.tuple.destination_port) = (0, 0),
        }
        trail.service = self.frontend.service_or_none();
        trail.schema = self.schema;
        trail.hook = hook as u32;
        trail.ifindex = ifindex;
        trail.action = verdict.action as u32;
        trail.reason = verdict.reason as u32;
        trail.leaves_by = verdict.ifindex;
    }
}

/// The frontend that a packet is addressed to, if there is one: service id and, above it, the kind and
/// its class for connection admission; negative if not.
#[repr(transparent)]
#[derive(Clone, Copy, Default)]
pub struct Addressed(i64);

impl Addressed {
    #[inline(always)]
    pub(crate) fn to(frontend: Option<Frontend>) -> Self {
        Self(match frontend {
            Some(Frontend {
                service,
                kind,
                class,
                ..
            }) => i64::from(service) | i64::from(kind) << 32 | i64::from(class) << 40,
            None => -1,
        })
    }

    /// To a ClusterIP, but to none of its ports.
    pub(crate) const UNKNOWN_PORT: Self = Self(-2);

    #[inline(always)]
    pub(crate) fn is_unknown_port(self) -> bool {
        self.0 == Self::UNKNOWN_PORT.0
    }

    /// Whether the packet is addressed to a frontend.
    #[inline(always)]
    pub fn is_some(self) -> bool {
        self.0 >= 0
    }

    #[inline(always)]
    pub(crate) fn service(self) -> u32 {
        self.0 as u32
    }

    /// The service's id, 0 if there is none.
    #[inline(always)]
    pub(crate) fn service_or_none(self) -> u32 {
        match self.is_some() {
            true => self.service(),
            false => 0,
        }
    }

    /// Index into `DESTINATION_CLASSES`.
    #[inline(always)]
    pub(crate) fn class(self) -> u32 {
        u32::from((self.0 >> 40) as u16)
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> FrontendKind {
        FrontendKind::from_u8((self.0 >> 32) as u8)
    }
}

/// A flow that is being opened, between the two steps of that, which the verifier checks one after
/// the other.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Opening {
    /// Index of the client's record, which is claimed.
    pub(crate) forward: u32,
    /// Endpoint id.
    pub(crate) endpoint: u32,
    /// Service id.
    pub(crate) service: u32,
    /// The most connections that the endpoint may have; 0 means no limit.
    pub(crate) most: u32,
    /// [`flow_flag`](crate::flow::flow_flag)s of both directions.
    pub(crate) flags: u32,
    /// The seats that it asks for.
    pub(crate) asked: Asked,
}

/// What happens to a packet that opens no flow.
#[repr(u32)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Refusal {
    /// node-lb leaves it alone.
    #[default]
    Pass,
    /// The client is told.
    Reject,
    Drop,
    /// The connection has to wait for a seat.
    Park,
}
