//! Seats: which flows hold one, and of which limits.
//!
//! Which [limits](super::limit) a flow counts against is its [`Place`], in the record of its
//! endpoint's direction, and does not change. Whether it holds its seats at the moment is a bit of
//! that record's tag: [`tag::SEATED`]. Whoever takes the bit out, by the compare-and-swap that ends
//! the record or by one for the bit alone, gives the seats back. So they are given back once,
//! whoever ends the flow.
//!
//! Seats are taken before the bit is set, and given back after it was taken out. So there are never
//! fewer in use than bits.
//!
//! A TCP connection takes its seats with its SYN, because its endpoint pays from then on. While a limit
//! [is pressed](super::limit::is_pressed), it takes them at the end of its handshake.

use super::{
    Flow, Record, Stage, flow_flag,
    limit::{give, take_anyway},
    load,
    party::{self, PartyRule, Taker, party},
    place::Place,
    queue,
    record::{self, in_order, kill_if, read_tag, set},
    slots::Slots,
    tag,
};
use crate::{
    addr::Address,
    opaque::{choose, mask_if_negative, rolled},
    parse::UDP,
};

/// Seats that are kept for parties without any are for those with fewer connections than that.
const FEW: u32 = 4;

/// How often to try to end a record whose seat others take out, or take again, at the same moment.
const ATTEMPTS: usize = 4;

/// How a flow begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With a SYN or an INIT.
    Handshake,
    /// With the SYN of a connection that has waited for a seat, and has its turn.
    Turn,
    /// With a datagram.
    Datagram,
    /// With a packet of a connection in progress, whose flow was lost.
    Midway,
}

impl Start {
    /// Of a flow whose first packet has this protocol and `opens` a connection or not.
    #[inline(always)]
    pub fn of(protocol: u8, opens: bool) -> Self {
        match protocol {
            UDP => Self::Datagram,
            _ if opens => Self::Handshake,
            _ => Self::Midway,
        }
    }
}

/// The seats that a new flow asks for: its [`Place`], and how it asks.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked(u32);

impl Asked {
    /// No limit concerns the flow.
    pub const NOTHING: Self = Self(0);
    const EXEMPT: u32 = 1 << 24;
    const RECOVERED: u32 = 1 << 25;
    const HANDSHAKE: u32 = 1 << 26;
    const TURN: u32 = 1 << 27;
    const KEPT: u32 = 1 << 28;

    /// Asks for the seats of a place. An exempt flow is let in when there is no seat, too, and is
    /// not counted then. One that was lost while its connection was in progress gets its seats
    /// whatever the limits are. One that begins with a handshake may have to take them later.
    #[inline(always)]
    pub fn new(place: Place, is_exempt: bool, start: Start) -> Self {
        let exempt = if is_exempt { Self::EXEMPT } else { 0 };
        let start = match start {
            Start::Handshake => Self::HANDSHAKE,
            Start::Turn => Self::HANDSHAKE | Self::TURN,
            Start::Datagram => 0,
            Start::Midway => Self::RECOVERED,
        };
        Self(place.number() | exempt | start)
    }

    /// Asks for the seats of a place at the end of a handshake, or of a flow that began without one.
    #[inline(always)]
    pub fn late(place: Place, is_exempt: bool, is_recovered: bool) -> Self {
        let start = match is_recovered {
            true => Start::Midway,
            false => Start::Datagram,
        };
        Self::new(place, is_exempt, start)
    }

    /// From the number that [`Self::number`] gives.
    #[inline(always)]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub fn number(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub fn is_nothing(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub fn is_exempt(self) -> bool {
        self.0 & Self::EXEMPT != 0
    }

    #[inline(always)]
    pub fn is_recovered(self) -> bool {
        self.0 & Self::RECOVERED != 0
    }

    #[inline(always)]
    pub fn is_handshake(self) -> bool {
        self.0 & Self::HANDSHAKE != 0
    }

    /// Whether it has waited for a seat, and others do not come before it.
    #[inline(always)]
    pub fn has_turn(self) -> bool {
        self.0 & Self::TURN != 0
    }

    /// The same, perhaps for one of the seats that are kept for parties without any.
    #[inline(always)]
    #[must_use]
    pub fn of_kept(self, is_kept: bool) -> Self {
        Self(self.0 | if is_kept { Self::KEPT } else { 0 })
    }

    /// Whether it asks for one of those.
    #[inline(always)]
    pub fn is_of_kept(self) -> bool {
        self.0 & Self::KEPT != 0
    }

    /// The most connections that its party may have for that, which are so many otherwise. A client may
    /// begin its next connection before the last one has ended, so there may be a [few](FEW).
    #[inline(always)]
    pub fn most(self, otherwise: u32) -> u32 {
        let is_otherwise = mask_if_negative(i64::from(self.0 & Self::KEPT) - 1);
        choose(is_otherwise, otherwise, otherwise.min(FEW))
    }

    #[inline(always)]
    pub fn place(self) -> Place {
        Place::from_u32(self.0)
    }
}

impl<A> Flow<A> {
    /// Whether the connection is over with its first answer, if this is the endpoint's direction of a
    /// UDP flow.
    #[inline(always)]
    pub fn is_dns(&self) -> bool {
        const DNS: u16 = 53;
        self.rewrite.source_port == DNS
    }

    /// The limits that the flow counts against now, if this is its endpoint's direction.
    #[inline(always)]
    pub fn place(&self) -> Place {
        match tag::state(self.tag) == tag::SEATED {
            true => self.own_place(),
            false => Place::NONE,
        }
    }

    /// The limits that the flow counts against while it has its seats, if this is its endpoint's
    /// direction.
    #[inline(always)]
    pub fn own_place(&self) -> Place {
        match self.flags & flow_flag::REPLY != 0 {
            true => Place::read(self.service, self.flags),
            false => Place::NONE,
        }
    }
}

/// The place in the record of a flow's endpoint's direction.
#[inline(always)]
pub fn place_of<A: Address>(reply: Record<A>) -> Place {
    // SAFETY: records stay valid, and this does not change while they are in use.
    let service = unsafe { reply.as_ref() }.service;
    Place::read(service, record::flags(reply))
}

/// Gives back the seats of a place.
#[inline(always)]
pub fn give_back<A: Address, S: Slots<A>>(slots: &S, place: Place) {
    if place.service() != 0
        && let Some(seats) = slots.seats(place.service())
    {
        give(seats, 1);
    }
    if place.has_shared()
        && let Some(seats) = slots.seats(place.shared())
    {
        give(seats, place.width());
    }
}

/// Ends the endpoint's direction of a flow at tick `now`, and gives back its seats if it holds
/// them. Returns whether this call ended it. Its party and its endpoint are left to [`leave_ended`],
/// for which more of the stack may be needed than is left here.
#[inline(never)]
pub fn kill<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>, now: u32) -> bool {
    for _ in rolled(ATTEMPTS) {
        let seen = read_tag(reply);
        if !tag::in_use(seen) {
            return false;
        }
        if kill_if(reply, seen, now) {
            left(slots, reply, seen);
            return true;
        }
    }
    false
}

/// Counts the party of a flow less, and its endpoint's connections, if the flow had its seats. The
/// caller has ended it; this is the index of either direction.
#[inline(always)]
pub fn leave_ended<A: Address, S: Slots<A>>(slots: &S, index: u32) {
    let Some(record) = slots.slot(index) else {
        return;
    };
    // SAFETY: records stay valid, also after their end.
    let flow = unsafe { record.as_ref() };
    let reply = match flow.has(flow_flag::REPLY) {
        true => Some(record),
        false => slots.slot(flow.peer),
    };
    if let Some(reply) = reply
        && tag::died_seated(read_tag(reply))
    {
        depart(slots, reply, place_of(reply));
    }
}

/// [`kill`] for a half-open flow that gives way at this moment, likewise without its party and endpoint.
#[inline(never)]
pub fn evict<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>, moment: u64) {
    for _ in rolled(ATTEMPTS) {
        let seen = read_tag(reply);
        if !tag::in_use(seen) {
            return;
        }
        if record::evict_if(reply, seen, moment) {
            return left(slots, reply, seen);
        }
    }
}

/// Gives back the seats of a record that this CPU has just ended, and that had this tag.
#[inline(always)]
fn left<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>, seen: u32) {
    if tag::state(seen) == tag::SEATED {
        // A dead record keeps its fields.
        give_back(slots, place_of(reply));
    }
}

/// Gives back the seats of a flow, whose endpoint's direction is `reply`, and counts its party less, and
/// its endpoint's connections.
#[inline(always)]
fn leave<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>) {
    let place = place_of(reply);
    give_back(slots, place);
    depart(slots, reply, place);
}

/// Counts the party of a flow that had the seats of this place less, and its endpoint's connections.
#[inline(always)]
fn depart<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>, place: Place) {
    let (forward, ports) = client_of(reply);
    if place.level() != 0 {
        part(slots, place, forward, ports);
    }
    if place.counts_at_endpoint() {
        slots.leave_endpoint(forward, ports);
    }
}

/// The index of a flow's client's direction, and the [ports](ports_of) by which it is recognised.
#[inline(always)]
pub fn client_of<A: Address>(reply: Record<A>) -> (u32, u32) {
    // SAFETY: records stay valid, also after their end.
    let back = unsafe { reply.as_ref() };
    (back.peer, ports_of(back.source_port, back.destination_port))
}

/// An endpoint's port and the one that it answers to.
#[inline(always)]
fn ports_of(endpoint: u16, client: u16) -> u32 {
    u32::from(endpoint) | u32::from(client) << 16
}

/// The [ports](ports_of) by the record of a flow's client's direction.
#[inline(always)]
pub fn ports_there<A>(forward: &Flow<A>) -> u32 {
    let to = &forward.rewrite;
    ports_of(to.destination_port, to.source_port)
}

/// Whether the directions of a flow, which may have ended, still belong together.
pub fn is_client_of<A>(forward: &Flow<A>, reply: &Flow<A>) -> bool {
    ports_there(forward) == ports_of(reply.source_port, reply.destination_port)
}

/// The party of a flow, whose client's direction this is, by the rule of the schema that has taken it;
/// 0 if none is counted.
#[inline(always)]
pub fn party_of<A: Address>(forward: &Flow<A>, rule: PartyRule, secret: [u64; 2]) -> u64 {
    let taker = forward.taker();
    if rule.most == 0 || taker.schema() == 0 {
        return 0;
    }
    let service = forward.service_id();
    party(rule.by, taker, &forward.source, service, secret)
}

/// The party of a flow by the index of its client's direction, and who has taken it; 0 if none is
/// counted, or if that direction has other [ports](ports_of): in another table, or after the flow's
/// end, the record may be another flow's.
#[inline(always)]
fn party_at<A: Address, S: Slots<A>>(slots: &S, forward: u32, ports: u32) -> (u64, Taker) {
    let Some(forward) = slots.slot(forward) else {
        return (0, Taker::default());
    };
    // SAFETY: records stay valid, also after their end.
    let there = unsafe { forward.as_ref() };
    let taker = there.taker();
    let Some(schema) = slots.flow_schema(taker.schema()) else {
        return (0, taker);
    };
    // SAFETY: elements of maps stay; words that the agent stores one by one.
    let rule = unsafe { (&raw const (*schema.as_ptr()).rule).read_volatile() };
    match ports_there(there) == ports {
        true => (party_of(there, rule, slots.secret()), taker),
        false => (0, taker),
    }
}

/// Counts a flow in its party, if that has less than `most`: an answer of [`party::join`], beside the
/// party and its card if the flow is to be [charged](queue::charge) to a queue now. See [`party_at`]
/// for `forward` and `ports`.
#[inline(always)]
pub fn join_party<A: Address, S: Slots<A>>(slots: &S, forward: u32, ports: u32, most: u32) -> u64 {
    let (party, taker) = party_at(slots, forward, ports);
    if party == 0 {
        return party::JOINED;
    }
    let joined = party::join(|index| slots.party(index), party, most);
    match matches!(joined, party::JOINED | party::NO_ROOM) && queue::are_used(slots, taker.schema())
    {
        true => joined | party | card_of(taker),
        false => joined,
    }
}

/// Counts a flow's party less. Returns the party and its card if its queue is to be charged no longer,
/// else 0.
#[inline(always)]
pub fn leave_party<A: Address, S: Slots<A>>(slots: &S, forward: u32, ports: u32) -> u64 {
    let (party, taker) = party_at(slots, forward, ports);
    if party == 0 {
        return 0;
    }
    party::leave(|index| slots.party(index), party);
    match queue::are_used(slots, taker.schema()) {
        true => party | card_of(taker),
        false => 0,
    }
}

/// Counts a connection without a flow in its party, if that has less than `most`: an answer of
/// [`party::join`].
#[inline(always)]
pub fn enter_party<A: Address, S: Slots<A>>(slots: &S, party: u64, most: u32) -> u64 {
    party::join(|index| slots.party(index), party, most)
}

/// Counts the connections of a flow's endpoint less. See [`party_at`] for `forward` and `ports`.
#[inline(always)]
pub fn leave_endpoint<A: Address, S: Slots<A>>(slots: &S, forward: u32, ports: u32) {
    let Some(forward) = slots.slot(forward) else {
        return;
    };
    // SAFETY: records stay valid, also after their end.
    let there = unsafe { forward.as_ref() };
    if ports_there(there) == ports {
        load::leave(slots.endpoint_load(there.detail));
    }
}

/// A [`Taker::card`] as it is beside a party.
#[inline(always)]
fn card_of(taker: Taker) -> u64 {
    u64::from(taker.card()) << party::CARD_SHIFT
}

/// Which limit is in the way of a connection.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Service = 1,
    /// The node's, or that of a priority level.
    Shared,
    /// That of a priority level, for whose seats connections wait; or some wait already.
    Queue,
}

impl Full {
    /// From its number; others mean that none is in the way.
    #[inline(always)]
    pub fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Service),
            2 => Some(Self::Shared),
            3 => Some(Self::Queue),
            _ => None,
        }
    }
}

/// The answer of [`party::join`] in one of [`join_party`] to a flow of a priority level, whose seats are
/// charged to its queue if need be.
#[inline(always)]
pub fn charged<A: Address, S: Slots<A>>(slots: &S, place: Place, ports: u32, joined: u64) -> u64 {
    slots.charge(place, joined & !party::ANSWERS, ports, false);
    joined & party::ANSWERS
}

/// Counts the party of a flow of a priority level less, and its queue is charged no longer.
#[inline(always)]
pub fn part<A: Address, S: Slots<A>>(slots: &S, place: Place, forward: u32, ports: u32) {
    let party = slots.leave_party(forward, ports);
    slots.charge(place, party, ports, true);
}

/// Takes the seat's bit out of the endpoint's direction of a flow. Returns whether it was there:
/// then the caller has the seats.
#[inline(always)]
pub fn take_out<A: Address>(reply: Record<A>) -> bool {
    let seen = read_tag(reply);
    // In another version's tag, the bit may mean something else.
    tag::state(seen) == tag::SEATED
        && !place_of(reply).is_none()
        && record::advance(reply, seen, tag::LIVE)
}

/// Gives back the seats of a flow whose endpoint's direction is `reply`, if it still holds them.
#[inline(always)]
pub fn release<A: Address, S: Slots<A>>(slots: &S, reply: Record<A>) {
    if take_out(reply) {
        leave(slots, reply);
    }
}

/// Gives back the seats of a flow whose connection is over, and which has just lost them: those of its level
/// when they have lingered. Those of one that has not proved itself do not: its client may be forged.
#[inline(always)]
fn end<A: Address, S: Slots<A>>(slots: &S, forward: Record<A>, reply: Record<A>) {
    let place = place_of(reply);
    let at_once = match tag::state(read_tag(forward)) {
        tag::HALF => place,
        // SAFETY: records stay valid, and what is read does not change while they are in use.
        _ => slots.linger(place, unsafe { forward.as_ref() }.taker().schema()),
    };
    give_back(slots, at_once);
    depart(slots, reply, place);
}

/// Brings a flow's seats up to date with what its packets have shown: a connection that is over
/// gives them back, and one that seemed to be over takes them again when its endpoint goes on.
///
/// A client's RST may be forged, and the endpoint may not obey it. So the seats stay until the
/// endpoint is silent, too, which the agent notices. `from_endpoint` says whose packet it is.
#[inline(never)]
pub fn follow<A: Address, S: Slots<A>>(
    slots: &S,
    record: Record<A>,
    peer: Record<A>,
    from_endpoint: bool,
) {
    let (forward, reply) = in_order(record, peer);
    let (there, back) = (record::flags(forward), record::flags(reply));
    let is_udp = there & flow_flag::UDP != 0;
    if is_udp || Stage::of(tag::LIVE, there, back) == Stage::Closed {
        let is_over = match is_udp {
            // SAFETY: records stay valid, and what is read does not change while they are in use.
            true => back & flow_flag::SEEN != 0 && unsafe { reply.as_ref() }.is_dns(),
            false => !is_provisional(there, back),
        };
        if is_over && take_out(reply) {
            end(slots, forward, reply);
        }
    } else if tag::state(read_tag(reply)) == tag::LIVE
        && !may_be_copy(slots, back)
        && !is_yet_to_take(forward)
        // Whoever goes on is about to be reset. A client's own reset, which its endpoint need not obey,
        // takes the mark from its direction alone.
        && (there | back) & flow_flag::GONE == 0
    {
        match from_endpoint {
            true => take_again(slots, forward, reply),
            // The endpoint's next packet shows that it goes on.
            false => set(reply, flow_flag::WATCH),
        }
    }
}

/// Whether a flow, whose client's direction this is, takes its seats at the end of its handshake.
#[inline(always)]
pub fn is_yet_to_take<A: Address>(forward: Record<A>) -> bool {
    record::flags(forward) & flow_flag::LATE != 0 && tag::state(read_tag(forward)) == tag::HALF
}

/// Whether a direction is the client's of a flow for which there was no seat at the end of its
/// handshake.
#[inline(always)]
pub fn is_refused<A: Address>(record: Record<A>) -> bool {
    use flow_flag::{REFUSED, REPLY};
    record::flags(record) & (REFUSED | REPLY) == REFUSED
        && tag::state(read_tag(record)) == tag::HALF
}

/// Whether the seats of a flow with these flags may be with its record in another table.
#[inline(always)]
pub fn may_be_copy<A: Address, S: Slots<A>>(slots: &S, flags: u32) -> bool {
    slots.other_mask() != 0 && flags & flow_flag::COPIED != 0
}

/// Whether a connection is over only because its client has reset it. These are the flags of its
/// directions.
#[inline(always)]
pub fn is_provisional(forward: u32, reply: u32) -> bool {
    use flow_flag::{FIN_ACKED, GONE, RST};
    reply & RST == 0 && forward & reply & FIN_ACKED == 0 && forward & GONE == 0
}

/// Takes the seats of a flow's place again, whatever the limits are.
#[inline(always)]
fn take_again<A: Address, S: Slots<A>>(slots: &S, forward: Record<A>, reply: Record<A>) {
    let seen = read_tag(reply);
    let place = place_of(reply);
    if tag::state(seen) != tag::LIVE || place.is_none() {
        return;
    }
    if place.service() != 0
        && let Some(seats) = slots.seats(place.service())
    {
        take_anyway(seats, 1);
    }
    if place.has_shared()
        && let Some(seats) = slots.seats(place.shared())
    {
        take_anyway(seats, place.width());
    }
    if !record::advance(reply, seen, tag::SEATED) {
        return give_back(slots, place);
    }
    if place.level() != 0 {
        let (forward, ports) = client_of(reply);
        let joined = slots.join_party(forward, ports, party::ANY);
        charged(slots, place, ports, joined);
    }
    if place.counts_at_endpoint() {
        // SAFETY: records stay valid, and this does not change while they are in use.
        slots.enter_endpoint(unsafe { forward.as_ref() }.detail, 0);
    }
}
