//! A flow's record: everything that a packet of one direction needs, in one cache line for IPv4 and
//! two for IPv6.

use crate::{
    addr::Address,
    parse::{SCTP, TCP, Tuple, UDP},
};

/// Bits that the id of a service has in a record.
pub const SERVICE_BITS: u32 = 19;
/// The bit of [`Flow::service`] from which on there is something else. Earlier versions had ids of so many bits.
pub(super) const BESIDE_SERVICE: u32 = 20;

/// Element of `FLOWS4` and `FLOWS6`: one direction of a connection.
///
/// The record of the other direction is `peer`; they are made and removed together. [`tag`] says
/// what state the record is in and is the only field that changes hands between CPUs. The default
/// is a [`tag::CLEAN`] record, as the kernel makes them.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow<A> {
    /// State, generation and part of the hash; see [`tag`].
    pub tag: u32,
    /// When a packet last came, in ticks of the coarse clock; of a [`tag::DEAD`] record, when it
    /// died.
    pub last_seen: u32,
    /// The direction's packets as they arrive.
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
    /// [`flow_flag`]s.
    pub flags: u32,
    /// The direction's packets as they leave.
    pub rewrite: Rewrite<A>,
    /// Their next hop: index into `HOPS` and, in the upper half, the lower half of the entry's
    /// version. 0 means that it has not been looked up.
    pub hop: u32,
    /// TCP: the sequence number after the direction's latest segment. SCTP: the verification tag that
    /// the other direction's packets bear, as far as is known; else 0.
    pub next: u32,
    /// TCP: what that segment acknowledges of the other direction. SCTP: the verification tag of the
    /// direction's latest packet.
    pub acknowledged: u32,
    /// TCP: the window that it offers, before scaling.
    pub window: u16,
    /// TCP: what the direction's latest data acknowledged, its lower half; with [`flow_flag::MISFIT`],
    /// the tick since when, its lower half.
    pub mark: u16,
    /// In the client's direction, the endpoint id. In the endpoint's direction: until the
    /// endpoint has answered, when the client's first packet came, by [`super::latency`]. Then, of a
    /// TCP flow: until the connection has proved itself, the number of its first byte; later, the
    /// timestamp of the client's FIN, 0 if it had none. Of an SCTP flow: until it has proved itself, the
    /// tag that the endpoint wanted to see before it answered once more.
    pub detail: u32,
    /// Index of the other direction's record.
    pub peer: u32,
    /// Service id: [`Self::service_id`]. Above it, in the endpoint's direction, a part of the flow's
    /// [`Place`](super::place::Place), and in the client's, one of its
    /// [`Taker`](super::party::Taker).
    pub service: u32,
}

/// The addresses and ports that a packet leaves with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rewrite<A> {
    pub source: A,
    pub destination: A,
    pub source_port: u16,
    pub destination_port: u16,
}

/// Bits of [`Flow::flags`]. The lower half is what the direction's packets have shown so far, the
/// upper half does not change. Bits 24-30 and those of [`flow_flag::WIDTH`] are none:
/// they are parts of the same as bits of [`Flow::service`].
///
/// The first versions of node-lb kept a next hop in the record, where there are numbers now. Their
/// programs may use the same table, before or after ours, or at the same time while programs are
/// exchanged. They know the bits that say so here and keep the others, never set
/// [`flow_flag::NUMBERED`], and set [`flow_flag::OLD_HOP`] when they write their next hop: see
/// [`super::foreign`].
pub mod flow_flag {
    /// A packet of the direction came; for TCP and SCTP, the numbers of the record are valid. Known to old
    /// programs.
    pub const SEEN: u32 = 1 << 0;
    /// Its sender has ended its half of the connection. Known to old programs.
    pub const FIN: u32 = 1 << 1;
    /// Its sender has reset the connection. Known to old programs.
    pub const RST: u32 = 1 << 2;
    /// The other side has acknowledged the sender's end.
    pub const FIN_ACKED: u32 = 1 << 3;
    /// The sender did not know, when it ended, that the other side had ended too. So it may
    /// remember the connection (TIME-WAIT).
    pub const CLOSED_FIRST: u32 = 1 << 4;
    /// The next packet may change the connection's stage: look at it closely.
    pub const WATCH: u32 = 1 << 5;
    /// Segments have not fitted the numbers seen before, since [`super::Flow::mark`].
    pub const MISFIT: u32 = 1 << 6;
    /// The endpoint refused the connection, and the client was not told, because another endpoint
    /// may take it.
    pub const WITHHELD: u32 = 1 << 7;
    /// The endpoint is gone, or has left a service that asks for a reset: a side that still sends
    /// to the other one is reset.
    pub const GONE: u32 = 1 << 12;
    /// Of the client's direction: the flow takes its seats when its handshake is complete.
    pub const LATE: u32 = 1 << 13;
    /// Of the endpoint's direction: the numbers of three bits of the flow's
    /// [`Place`](super::super::place::Place), from the lowest on. They do not change.
    pub const WIDTH: [u32; 3] = [13, 15, 21];
    /// SCTP. Does not change.
    pub const SCTP: u32 = 1 << 14;
    /// Which protocol it is: TCP if it has none of these.
    pub const PROTOCOL: u32 = UDP | SCTP;
    /// Of both directions of a flow that has run into a [deadline](super::deadline): whoever sends is
    /// reset.
    pub const EXPIRED: u32 = GONE | WITHHELD;
    /// Of a half-open flow: its handshake was complete when there was no seat for it, so its client is
    /// reset.
    pub const REFUSED: u32 = GONE | RST;
    /// Where the direction's window scale (RFC 7323) begins.
    pub const SCALE_SHIFT: u32 = 8;
    /// Its four bits.
    pub const SCALE: u32 = 0xf << SCALE_SHIFT;

    /// Endpoint to client; otherwise client to endpoint. Known to old programs, as the next three.
    pub const REPLY: u32 = 1 << 16;
    /// UDP; otherwise TCP or SCTP.
    pub const UDP: u32 = 1 << 17;
    /// Packets are sent on from the hook they arrive at; otherwise they cross the host's stack.
    pub const FORWARD: u32 = 1 << 18;
    /// The client's address is replaced by the node's.
    pub const SOURCE_NAT: u32 = 1 << 19;
    /// An old program has kept its next hop here, over the numbers.
    pub const OLD_HOP: u32 = 1 << 20;
    /// That next hop can be reached from XDP.
    pub const OLD_XDP: u32 = 1 << 21;
    /// The flow began in the middle of a TCP connection, because its record had been lost.
    pub const PICKED_UP: u32 = 1 << 22;
    /// While the table's size changes: the flow has been copied, to this table or from it, and the
    /// other one has it, too, or had it.
    pub const COPIED: u32 = 1 << 23;
    /// The record has the fields that follow the addresses as [`super::Flow`] says.
    pub const NUMBERED: u32 = 1 << 31;
}

/// [`Flow::tag`]: bits 0-2 and 15 the state, 3-14 a generation that every claim raises, 16-31 the
/// upper bits of the tuple's hash or, of an `EVICTED` record, when it died.
///
/// ```text
/// CLEAN, TOMB, old DEAD or EVICTED ─claim─▶ BUSY ─publish─▶ HALF ─settle─▶ LIVE
/// HALF or LIVE ─kill─▶ DEAD, EVICTED or SWEPT ─▶ TOMB ─▶ CLEAN
/// ```
///
/// `HALF` is `LIVE` with bit 15 set, for programs that do not know of it; their generations have
/// that bit too, so that it means nothing in other states. In the endpoint's direction, which is
/// never `HALF`, `LIVE` with that bit set is `SEATED`; it may lose the bit, and get it again.
///
/// Programs make all steps up to `DEAD`, and claim a record that has been dead for
/// [`super::claim::GRACE`]. A flood of first packets would fill every table with such records: a
/// half-open flow that gives way to a newer one is `EVICTED`, and may be replaced after
/// [`super::claim::SHORT_GRACE`]. That one is measured on a finer clock, by the tag alone, since
/// packets of the flow that are still on their way may write any other word.
///
/// The agent makes the last two steps: `TOMB` after a grace period in which every program that may
/// still use the record has ended, and `CLEAN` when no search has to pass over it any more. Records
/// that the agent has ended itself are `SWEPT`, and programs never claim them: the kernel may stop
/// the agent for longer than any grace after it has read the clock, so it cannot say when the
/// record died.
pub mod tag {
    /// Free, and a search may end here.
    pub const CLEAN: u32 = 0;
    /// Free, but a search has to go on.
    pub const TOMB: u32 = 1;
    /// Claimed, being written.
    pub const BUSY: u32 = 2;
    /// In use.
    pub const LIVE: u32 = 3;
    /// No longer found, not yet free.
    pub const DEAD: u32 = 4;
    /// The same, for the agent to free.
    pub const SWEPT: u32 = 5;
    /// The same as `DEAD`, of a half-open flow that gave way to a newer one.
    pub const EVICTED: u32 = 6;
    /// In use, of a connection that has not proved itself: see [`super::super::Stage::Handshake`].
    /// Only the client's direction says so.
    pub const HALF: u32 = LIVE | UNPROVEN;

    /// In use, of the endpoint's direction of a flow that holds the seats of its place: see
    /// [`super::super::seats`].
    pub const SEATED: u32 = LIVE | UNPROVEN;

    /// What [`LIVE`] and [`HALF`] have in common, and all other states among themselves.
    pub const KIND: u32 = 0x7;
    const UNPROVEN: u32 = 1 << 15;
    const GENERATION: u32 = 0x7ff8;
    const GENERATION_STEP: u32 = 0x8;
    const HASH: u32 = 0xffff_0000;

    /// The state.
    #[inline(always)]
    pub fn state(tag: u32) -> u32 {
        match tag & KIND {
            LIVE => tag & (KIND | UNPROVEN),
            kind => kind,
        }
    }

    /// Whether the record is found: `LIVE` or `HALF`.
    #[inline(always)]
    pub fn in_use(tag: u32) -> bool {
        tag & KIND == LIVE
    }

    /// The same tag in another state.
    #[inline(always)]
    pub fn with_state(tag: u32, state: u32) -> u32 {
        tag & !(KIND | UNPROVEN) | state
    }

    /// The tag of a record that has died. It shows whether the record held seats.
    #[inline(always)]
    pub fn dead(tag: u32) -> u32 {
        tag & !KIND | DEAD
    }

    /// Whether a record of the endpoint's direction has died, by a program, with its seats.
    #[inline(always)]
    pub fn died_seated(tag: u32) -> bool {
        tag & UNPROVEN != 0 && matches!(tag & KIND, DEAD | EVICTED)
    }

    /// The tag of a record whose flow gives way at this
    /// [`moment`](super::super::slots::Slots::moment).
    #[inline(always)]
    pub fn evicted(tag: u32, moment: u64) -> u32 {
        (tag & !KIND | EVICTED) & !HASH | (moment as u32) << 16
    }

    /// How long before this moment an `EVICTED` record died, in the same unit: never more than it
    /// was, and less only where that is more than a quarter of an hour.
    #[inline(always)]
    pub fn since_eviction(tag: u32, moment: u64) -> u32 {
        (moment as u32).wrapping_sub(tag >> 16) & 0xffff
    }

    /// The tag of a free record after its claim for a tuple with this hash.
    #[inline(always)]
    pub fn claimed(free: u32, hash: u64) -> u32 {
        hashed(hash) | (free.wrapping_add(GENERATION_STEP) & GENERATION) | BUSY
    }

    /// Whether a record in use may be that of a tuple with this hash.
    #[inline(always)]
    pub fn may_be(tag: u32, hash: u64) -> bool {
        tag & (HASH | KIND) == hashed(hash) | LIVE
    }

    /// Whether a record is being written for what may be a tuple with this hash.
    #[inline(always)]
    pub fn may_become(tag: u32, hash: u64) -> bool {
        tag & (HASH | KIND) == hashed(hash) | BUSY
    }

    #[inline(always)]
    fn hashed(hash: u64) -> u32 {
        (hash >> 32) as u32 & HASH
    }
}

impl<A> Flow<A> {
    /// Id of the service.
    #[inline(always)]
    pub fn service_id(&self) -> u32 {
        self.service & ((1 << SERVICE_BITS) - 1)
    }
}

impl<A: Address> Flow<A> {
    /// Whether packets of `tuple` are this flow's.
    #[inline(always)]
    pub fn is(&self, tuple: &Tuple<A>) -> bool {
        self.source_port == tuple.source_port
            && self.destination_port == tuple.destination_port
            && self.source == tuple.source
            && self.destination == tuple.destination
            && self.protocol() == tuple.protocol
    }

    /// The direction's packets as they arrive.
    #[inline(always)]
    pub fn tuple(&self) -> Tuple<A> {
        Tuple {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol: self.protocol(),
            pad: [0; 3],
        }
    }

    /// IP protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        match self.flags & flow_flag::PROTOCOL {
            0 => TCP,
            flow_flag::SCTP => SCTP,
            _ => UDP,
        }
    }

    /// Whether a flag is set, or one of several.
    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The sequence numbers beyond [`Self::acknowledged`] that the direction's sender takes, at
    /// least one.
    #[inline(always)]
    pub fn open_window(&self) -> u32 {
        // RFC 7323, 2.3: the largest scale is 14.
        let scale = self.flags >> flow_flag::SCALE_SHIFT & 0xf;
        (u32::from(self.window) << scale) | 1
    }
}
