//! One pass over a flow table: ends flows that are over, and frees records.
//!
//! A record's tag passes from one state to the next by compare-and-swap on the exact word that was
//! seen. The tag contains a generation that every claim raises, so a record that was freed and
//! claimed meanwhile is noticed.
//!
//! - `LIVE` or `HALF` → `SWEPT`, for both directions of a flow, the forward one first: whoever ends
//!   that one, program or sweeper, ends the other too. Programs write `DEAD`, which others may
//!   claim after a while. The sweeper cannot use it, because it may be delayed and then writes an
//!   old time.
//! - `DEAD`, `EVICTED` or `SWEPT` → `TOMB` after a *grace period*, in which every program that was
//!   running has returned: none of them uses the record any more. A dead record stays while its
//!   other direction is live, so that no other flow's takes its place, unless a program has to take
//!   it.
//! - A stale UDP flow loses only its forward record. Answers to what the client sent before may be
//!   under way. They are rewritten until the other record is ended as one without its other
//!   direction.
//! - `BUSY` → `TOMB` if the claim is the same before and after a grace period: no program will
//!   publish it any more.
//! - A live record without its other direction is ended if that is so before and after a grace
//!   period: every program that was ending the pair has returned. While the other direction is
//!   being written, a program publishes the pair.
//! - `TOMB` → `CLEAN` if no live record's search passes over it, and it was the same tomb before
//!   the grace period. This is safe for the following reason. A claim takes the *first* free record
//!   on its way, so it passes only over occupied records. A program that passed over the record
//!   when it was occupied started before the record became a tomb. So it has returned before this
//!   pass began, and what it claimed was seen in this pass. A program that started later either
//!   takes this tomb, which makes the swap fail, or a record before it. A record that is seen
//!   `BUSY` is looked at again at the end of the pass. If it is still being written, it is unknown
//!   what its claim passed over, and nothing is cleaned in this pass. Dead records are not searched
//!   for, so they do not count.

use std::{
    collections::HashMap,
    marker::PhantomData,
    mem::offset_of,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use lb_common::{
    addr::Address,
    flow::{
        Flow, Stage, Timeouts, flow_flag, foreign,
        place::Place,
        seats::{is_client_of, is_provisional},
        stage::idle,
        table::{self, GROUP, GROUPS},
        tag,
        tcp::PATIENCE,
    },
};
use nix::time::{ClockId, clock_gettime};

use super::{
    ageing::{expired, may_have_expired},
    deadlines::Deadlines,
    parties::Parties,
    pass::{Bitmap, Findings, Pass, Sighting},
    records::{Connection, Records, other_direction, which},
    reset::Reset,
    stale::Staleness,
    stats::{Counted, Removed, ServiceCounts, TableStats},
};

/// Tombs slow searches down. They are many if there is more than one in so many records.
const MANY_TOMBS: usize = 32;
/// If tombs are few, they are cleaned only in every so many passes: finding out which searches pass
/// over them costs a hash per flow.
const CLEANING_PASSES: u64 = 16;
/// A function that changes the numbers of a service's flows by `Counted`.
pub type Count = Box<dyn Fn(u32, Counted) + Send>;
/// A function that gives back the seats of a place, and counts the connections of an endpoint less; 0
/// means that the flow is counted at none.
pub type GiveBack = Box<dyn Fn(Place, u32) + Send>;

/// How many ticks an endpoint has been silent when its client's RST counts: a second at least.
const SILENT: u32 = 9;

/// How many ticks both sides have been silent in a handshake that is slow: less than the second after which
/// either of them repeats what is not answered.
const STUCK: u32 = 4;

/// How many ticks after it was first seen a handshake is slow that is still open: nearly the pause between
/// two passes. A SYN that is sent again, by its client or by an attacker, does not make it younger.
const SLOW: u32 = 7;

/// How often both sides of a connection that has run into a deadline are reset: a reset may be lost.
const RESETS: u32 = 3;
/// The most such connections that are reset in one pass.
const MOST_RESET: usize = 1000;
/// The most that wait for it. Sides of further ones learn of the deadline when they send.
const MOST_EXPIRED: usize = 100_000;

/// A flow table, and what the latest pass found that the next step needs.
///
/// A pass is [`Self::scan`], a grace period if [`Self::needs_grace`], and [`Self::release`].
pub struct TableSweeper<A, R> {
    records: R,
    /// Number of records less one.
    mask: u32,
    secret: [u64; 2],
    /// From so many half-open flows of a service on, no handshake may get old.
    many_half_open: u32,
    passes: u64,
    latest: Findings,
    dead: Vec<Sighting>,
    /// The handshakes of the latest pass, each by the index of its endpoint's direction and the tag of its
    /// client's, with the tick at which they were first seen.
    handshakes: HashMap<Sighting, u32>,
    /// Whether a live record had no other half. The next pass then looks for such records.
    has_orphan: bool,
    count: Count,
    give_back: GiveBack,
    deadlines: Deadlines,
    /// Endpoints' directions of TCP flows that have run into a deadline, and how often their sides have
    /// been reset.
    expired: Vec<(Sighting, u32)>,
    parties: Arc<Parties>,
    address: PhantomData<fn() -> A>,
}

impl<A: Address, R: Records<A>> TableSweeper<A, R> {
    /// `mask` and `secret` are those with which programs search the table. `None` if the table is
    /// too small for the mask.
    pub fn new(
        records: R,
        mask: u32,
        secret: [u64; 2],
        count: Count,
        give_back: GiveBack,
        parties: Arc<Parties>,
    ) -> Option<Self> {
        let fits =
            mask < records.len() && (mask + 1).is_power_of_two() && mask >= GROUPS * GROUP - 1;
        fits.then(|| Self {
            records,
            mask,
            secret,
            many_half_open: u32::MAX,
            passes: 0,
            latest: Findings::default(),
            dead: Vec::new(),
            handshakes: HashMap::new(),
            has_orphan: false,
            count,
            give_back,
            deadlines: Deadlines::new(parties.schemas()),
            expired: Vec::new(),
            parties,
            address: PhantomData,
        })
    }

    /// Sets how many half-open flows a service may have before newer ones replace the oldest. Then no
    /// handshake may get old enough to be slow. Real clients have a part of the places, so half of
    /// them are a sign of that.
    #[must_use]
    pub fn with_half_open_budget(self, flows: u32) -> Self {
        Self {
            many_half_open: flows.div_ceil(2),
            ..self
        }
    }

    /// Looks at every record, ends flows that are over at tick `now`, and cleans tombs.
    pub fn scan(
        &mut self,
        now: u32,
        timeouts: &Timeouts,
        services: &mut ServiceCounts,
        removed: &mut Removed,
    ) -> TableStats {
        let start = cpu_time();
        self.passes += 1;
        self.dead.clear();
        self.deadlines.begin_pass();
        let passed = self.cleans(self.passes).then(|| Bitmap::new(self.mask));
        let mut pass = Pass::new(self.mask, now, *timeouts, services, removed, passed);
        for index in 0..=self.mask {
            let sighting = self.look(index);
            match tag::state(sighting.tag) {
                tag::CLEAN => {}
                tag::TOMB => pass.found.tombs.push(sighting),
                state => {
                    pass.stats.occupied += 1;
                    match state {
                        tag::LIVE | tag::HALF => self.visit(sighting, &mut pass),
                        tag::BUSY => pass.found.busy.push(sighting),
                        _ if self.has_live_half(index) => {}
                        _ => self.dead.push(sighting),
                    }
                }
            }
        }
        for reply in std::mem::take(&mut pass.found.unseated) {
            self.seat_again(reply);
        }
        let mut shaking_hands = std::mem::take(&mut pass.found.shaking_hands);
        let handshakes = std::mem::take(&mut self.handshakes);
        let mut seen = HashMap::with_capacity(shaking_hands.len());
        // Those that hold seats are for `unseat_handshakes`.
        shaking_hands.retain(|reply| {
            self.handshake(*reply).is_some_and(|connection| {
                let sighting = Sighting::of(*reply, &connection.forward);
                let first_seen = handshakes.get(&sighting).copied().unwrap_or(pass.now);
                seen.insert(sighting, first_seen);
                let silence = idle(connection.last_seen(), pass.now);
                let is_slow = match connection.stage() {
                    // As long as it keeps its seats, or would keep them.
                    Stage::Closed => silence < SILENT || !connection.reply.place().is_none(),
                    _ => {
                        silence >= STUCK
                            || idle(first_seen, pass.now) >= SLOW
                            || pass.half_open(&connection) >= self.many_half_open
                    }
                };
                if is_slow {
                    let place = connection.reply.own_place();
                    pass.count_slow(place);
                    if pass.counts_parties()
                        && let Some(party) = self.party(&connection.forward)
                    {
                        pass.count_slow_of(party, place.level());
                    }
                }
                !connection.reply.place().is_none()
            })
        });
        self.handshakes = seen;
        self.end_late_handshakes(&mut shaking_hands, pass.now);
        pass.found.shaking_hands = shaking_hands;
        for reply in std::mem::take(&mut pass.found.closed) {
            self.release_closed(reply, pass.now);
        }
        for reply in std::mem::take(&mut pass.bound) {
            self.end_late(reply, pass.now);
        }
        pass.count_members();
        let all_known = self.settle_claims(&mut pass);
        self.has_orphan = pass.has_orphan();
        if let Some(passed) = pass.passed.filter(|_| all_known) {
            self.clean(&passed);
        }
        self.latest = pass.found;
        let mut stats = pass.stats;
        stats.tombs = u32::try_from(self.latest.tombs.len()).unwrap_or(u32::MAX);
        stats.scan = cpu_time().saturating_sub(start);
        stats
    }

    /// Whether [`Self::release`], or the next pass, needs a grace period.
    pub fn needs_grace(&self) -> bool {
        let compares = !self.latest.busy.is_empty() || !self.latest.unpaired.is_empty();
        !self.dead.is_empty() || compares || self.cleans(self.passes + 1)
    }

    /// Frees the records that the latest [`Self::scan`] found dead or ended. A grace period must
    /// have passed since.
    pub fn release(&mut self) {
        for dead in &self.dead {
            self.advance(*dead, tag::TOMB);
        }
        self.dead.clear();
    }

    /// Ends stale flows. For UDP, answers still pass until two passes have found that they have no
    /// flow any more. For TCP and SCTP, the client is told when it sends again.
    pub fn end_stale(&self, stale: &impl Staleness, removed: &mut Removed) {
        for index in 0..=self.mask {
            let sighting = self.look(index);
            if !tag::in_use(sighting.tag) {
                continue;
            }
            let flow = self.records.read(index);
            if flow.has(flow_flag::REPLY) || !stale.concerns(flow.service_id()) {
                continue;
            }
            let Some(connection) = Connection::new(&self.records, index, &flow) else {
                continue;
            };
            let over = stale.confirm(flow.service_id(), connection.endpoint());
            if over.is_none() {
                continue;
            }
            match flow.has(flow_flag::UDP) {
                true if self.end_forward(&connection).is_some() => {
                    // The client's next flow is not to be refused because of this one.
                    self.unseat(connection.forward.peer, &connection.reply);
                    removed.stale_udp += 1;
                }
                true => {}
                false if self.disown(sighting, &flow) => {
                    self.unseat(connection.forward.peer, &connection.reply);
                    removed.reset_tcp += 1;
                }
                false => {}
            }
        }
    }

    /// Marks a TCP or SCTP flow, so that its client is told that the endpoint is gone when it sends again.
    /// Returns whether the mark is new.
    fn disown(&self, seen: Sighting, flow: &Flow<A>) -> bool {
        !flow.has(flow_flag::GONE) && self.mark_lost(seen, flow, flow_flag::GONE)
    }

    /// Sets flags by which the sender of a direction's next packet is reset. Returns whether they are set.
    fn mark_lost(&self, seen: Sighting, flow: &Flow<A>, mark: u32) -> bool {
        let is_same = || which(self.look(seen.index).tag) == which(seen.tag);
        if flow.is_foreign() || !is_same() {
            return false;
        }
        let flags = self.records.flags(seen.index);
        flags.fetch_or(mark | flow_flag::WATCH, Ordering::SeqCst);
        // If this thread was delayed, another flow may have taken the record meanwhile.
        let same = is_same();
        if !same {
            flags.fetch_and(!mark, Ordering::SeqCst);
        }
        same
    }

    /// Ends a flow that has run into a deadline; `index` is that of its endpoint's direction. A TCP
    /// connection keeps its records, by which both sides are reset when they send again: without them
    /// it would be taken for one that was lost. So does an SCTP association, whose sides send by
    /// themselves to see whether the other one is there.
    fn end_late(&mut self, index: u32, now: u32) {
        let reply = self.records.read(index);
        let Some(connection) = Connection::new(&self.records, index, &reply) else {
            return;
        };
        let forward = &connection.forward;
        if forward.has(flow_flag::GONE) {
            // It is being ended.
            return;
        }
        let Some(deadline) = self.deadlines.passed(index, &connection, now) else {
            return;
        };
        let is_ended = if forward.has(flow_flag::UDP) {
            let both = self.end(&connection);
            let is_ended = both.is_some();
            self.dead.extend(both.into_iter().flatten().flatten());
            is_ended
        } else {
            let seen = Sighting::of(reply.peer, forward);
            let is_marked = self.mark_lost(seen, forward, flow_flag::EXPIRED);
            if is_marked {
                let answers = Sighting::of(index, &reply);
                self.mark_lost(answers, &reply, flow_flag::EXPIRED);
                self.unseat(index, &reply);
                if !forward.has(flow_flag::SCTP) && self.expired.len() < MOST_EXPIRED {
                    self.expired.push((answers, 0));
                }
            }
            is_marked
        };
        if is_ended {
            self.deadlines.count(forward, deadline);
        }
    }

    /// The resets that are due of both sides of connections that have run into a deadline: of each one in
    /// three passes, and of no more than a thousand connections in one. After that, a connection is
    /// closed, so its records become free.
    pub fn resets(&mut self) -> Vec<Reset> {
        let later = self.expired.split_off(self.expired.len().min(MOST_RESET));
        let due = std::mem::replace(&mut self.expired, later);
        let mut resets = Vec::new();
        for (seen, times) in due {
            let reply = self.records.read(seen.index);
            let connection = Connection::new(&self.records, seen.index, &reply);
            let Some(connection) = connection.filter(|_| which(reply.tag) == which(seen.tag))
            else {
                continue;
            };
            resets.extend(Reset::both(&connection));
            match times + 1 {
                RESETS => drop(self.mark_lost(seen, &reply, flow_flag::RST)),
                times => self.expired.push((seen, times)),
            }
        }
        resets
    }

    /// Gives back the seats of flows whose handshakes have taken too long, and leaves those flows out of
    /// `shaking_hands`. They take seats once their handshakes are complete.
    fn end_late_handshakes(&mut self, shaking_hands: &mut Vec<u32>, now: u32) {
        shaking_hands.retain(|reply| {
            let Some(connection) = self.handshake(*reply) else {
                return true;
            };
            let deadline = self.deadlines.passed(*reply, &connection, now);
            if let Some(deadline) = deadline {
                self.unseat_until_proved(*reply, &connection);
                self.deadlines.count(&connection.forward, deadline);
            }
            deadline.is_none()
        });
    }

    /// Has a flow take its seats at the end of its handshake, and not now.
    fn unseat_until_proved(&self, reply: u32, connection: &Connection<A>) {
        let forward = self.records.flags(connection.reply.peer);
        forward.fetch_or(flow_flag::LATE, Ordering::SeqCst);
        self.unseat(reply, &connection.reply);
    }

    /// Looks at a live record.
    fn visit(&mut self, sighting: Sighting, pass: &mut Pass<'_>) {
        let flow = self.records.read(sighting.index);
        if flow.tag != sighting.tag {
            // A program has just ended it, and will end the other direction.
            return;
        }
        if let Some(passed) = &mut pass.passed {
            self.mark(passed, sighting.index, &flow);
        }
        if flow.is_foreign() {
            self.adopt(sighting, &flow, pass.now);
            pass.stats.adopted += 1;
        }
        if may_have_expired(&pass.timeouts, &flow, pass.now)
            && self.expire(sighting.index, &flow, pass)
        {
            return;
        }
        pass.count(sighting.index, &flow);
        if flow.place().counts_at_endpoint()
            && let Some(forward) = self.client_of(&flow)
        {
            pass.count_open(forward.detail);
        }
        if !flow.has(flow_flag::REPLY) && self.deadlines.concern(&flow) {
            pass.bound.push(flow.peer);
        }
        if pass.counts_parties() && !flow.has(flow_flag::REPLY) {
            let parties = &self.parties;
            pass.members.extend(
                self.party(&flow)
                    .map(|(party, _)| (flow.peer, party, parties.queue_of(&flow, party))),
            );
        }
        if self.has_orphan && self.is_alone(sighting.index, &flow) {
            self.unpaired(sighting, pass);
        }
    }

    /// Converts a record that programs of another version have written (see [`foreign`]). If the
    /// client has had no answer so far, it still has to prove itself.
    fn adopt(&self, seen: Sighting, flow: &Flow<A>, now: u32) {
        let Sighting { index, tag } = seen;
        let store = |offset, value| {
            self.records
                .word(index, offset)
                .store(value, Ordering::Relaxed)
        };
        store(offset_of!(Flow<A>, hop), 0);
        store(offset_of!(Flow<A>, next), 0);
        store(offset_of!(Flow<A>, acknowledged), 0);
        let since = (now as u16).wrapping_sub(PATIENCE);
        store(offset_of!(Flow<A>, window), u32::from(since) << 16);
        store(offset_of!(Flow<A>, detail), 0);
        let set = |index, flags| _ = self.records.flags(index).fetch_or(flags, Ordering::SeqCst);
        let answers = other_direction(&self.records, index, flow)
            .filter(|answers| answers.has(flow_flag::REPLY) && !answers.has(flow_flag::SEEN));
        self.records
            .flags(index)
            .fetch_and(!foreign::OURS, Ordering::SeqCst);
        if answers.is_some() && self.advance(seen, tag::HALF).is_some() {
            let more = Counted {
                flows: 0,
                half_open: 1,
            };
            (self.count)(flow.service_id(), more);
            if !flow.has(flow_flag::UDP) {
                // Its numbers are unknown, so the first ones that answer them count as proof.
                set(flow.peer, flow_flag::SEEN);
                set(index, flow_flag::SEEN | flow_flag::PICKED_UP);
            }
        } else if tag::state(tag) == tag::HALF && flow.place().is_none() {
            // In the other version, that bit was part of the generation.
            self.advance(seen, tag::LIVE);
        }
        set(index, foreign::adopted(flow.flags));
    }

    /// Ends the flow of which a record is one direction, if it is over. Returns whether it is gone.
    fn expire(&mut self, index: u32, flow: &Flow<A>, pass: &mut Pass<'_>) -> bool {
        let Some(connection) = Connection::new(&self.records, index, flow) else {
            return false;
        };
        if !expired(&pass.timeouts, &connection, pass.now) {
            return false;
        }
        let Some(both) = self.end(&connection) else {
            // A program has just ended it.
            return true;
        };
        let both = both.into_iter().flatten();
        // Records that lie ahead are found dead later in this pass.
        self.dead.extend(both.filter(|dead| dead.index <= index));
        pass.uncount(index, flow);
        let (protocol, stage) = (connection.protocol(), connection.stage());
        pass.removed.expired.add(protocol, stage);
        true
    }

    /// Handles a live record without its other direction: it is ended if it was so in the previous
    /// pass.
    fn unpaired(&mut self, sighting: Sighting, pass: &mut Pass<'_>) {
        let again = self.latest.unpaired.binary_search(&sighting).is_ok();
        if !again {
            pass.found.unpaired.push(sighting);
        } else if let Some(dead) = self.kill(sighting, &self.records.read(sighting.index)) {
            self.dead.push(dead);
            pass.removed.orphans += 1;
        }
    }

    /// Whether a live record has no other direction, and none that is being written. Otherwise a
    /// flow that is seen as it begins and as it ends would be taken for one that never had both.
    fn is_alone(&self, index: u32, flow: &Flow<A>) -> bool {
        // In this order: what is not being written now has been published.
        let is_written =
            flow.peer < self.records.len() && tag::state(self.look(flow.peer).tag) == tag::BUSY;
        !is_written && other_direction(&self.records, index, flow).is_none()
    }

    /// Whether the other direction of the dead record at `index` is still live.
    fn has_live_half(&self, index: u32) -> bool {
        let flow = self.records.read(index);
        other_direction(&self.records, index, &flow).is_some()
    }

    /// Looks again at records that were being written. Returns whether the state of all of them is
    /// known now.
    fn settle_claims(&self, pass: &mut Pass<'_>) -> bool {
        let mut all_known = true;
        for busy in &pass.found.busy {
            let now = self.look(busy.index);
            match tag::state(now.tag) {
                tag::LIVE | tag::HALF => {
                    if let Some(passed) = &mut pass.passed {
                        self.mark(passed, now.index, &self.records.read(now.index));
                    }
                }
                tag::BUSY => {
                    let leaked = self.latest.busy.binary_search(&now).is_ok();
                    if leaked && self.advance(now, tag::TOMB).is_some() {
                        pass.removed.leaked_claims += 1;
                    } else {
                        all_known = false;
                    }
                }
                _ => {}
            }
        }
        all_known
    }

    /// Whether pass number `pass` cleans the tombs of the previous one.
    fn cleans(&self, pass: u64) -> bool {
        let tombs = self.latest.tombs.len();
        let many = tombs > self.mask as usize / MANY_TOMBS;
        many || tombs != 0 && pass.is_multiple_of(CLEANING_PASSES)
    }

    /// Cleans those tombs of the previous pass that no search passes over.
    fn clean(&self, passed: &Bitmap) {
        let unneeded = |tomb: &&Sighting| !passed.contains(tomb.index);
        for tomb in self.latest.tombs.iter().filter(unneeded) {
            self.advance(*tomb, tag::CLEAN);
        }
    }

    /// Marks the records that a search for a flow passes over.
    fn mark(&self, passed: &mut Bitmap, index: u32, flow: &Flow<A>) {
        let hash = table::hash(&flow.tuple(), self.secret);
        let way = (0..GROUP * GROUPS).map(|step| table::position(hash, self.mask, step));
        for before in way.take_while(|position| *position != index) {
            passed.insert(before);
        }
    }

    fn look(&self, index: u32) -> Sighting {
        Sighting {
            index,
            tag: self.records.tag(index).load(Ordering::Acquire),
        }
    }

    /// Ends both directions of a flow, the forward one first, and returns their new states. `None`
    /// if a program, or another sweeper, has ended it.
    fn end(&self, connection: &Connection<A>) -> Option<[Option<Sighting>; 2]> {
        let dead = self.end_forward(connection)?;
        let Connection { forward, reply } = connection;
        let answers = self.kill(Sighting::of(forward.peer, reply), reply);
        Some([Some(dead), answers])
    }

    /// Ends the client's direction of a flow, if it is still as it was seen.
    fn end_forward(&self, connection: &Connection<A>) -> Option<Sighting> {
        let Connection { forward, reply } = connection;
        let dead = self.kill(Sighting::of(reply.peer, forward), forward)?;
        let fewer = Counted {
            flows: -1,
            half_open: -i32::from(tag::state(forward.tag) == tag::HALF),
        };
        (self.count)(forward.service_id(), fewer);
        Some(dead)
    }

    /// Ends a record, if it is still as it was seen but for its seats. Returns its new state.
    /// `flow` is the record as it was seen.
    fn kill(&self, mut seen: Sighting, flow: &Flow<A>) -> Option<Sighting> {
        loop {
            if let Some(dead) = self.advance(seen, tag::SWEPT) {
                self.give_back(seen, flow);
                return Some(dead);
            }
            let now = self.look(seen.index);
            let is_same = tag::in_use(now.tag)
                && tag::with_state(now.tag, tag::LIVE) == tag::with_state(seen.tag, tag::LIVE);
            if !is_same || !flow.has(flow_flag::REPLY) {
                return None;
            }
            // A program has taken its seats out, or taken them again.
            seen = now;
        }
    }

    /// Gives back the seats of the endpoint's direction of a flow, if it still holds them.
    fn unseat(&self, index: u32, reply: &Flow<A>) {
        let seen = self.look(index);
        let held = tag::state(seen.tag) == tag::SEATED
            && tag::with_state(seen.tag, tag::LIVE) == tag::with_state(reply.tag, tag::LIVE);
        if held && self.advance(seen, tag::LIVE).is_some() {
            self.give_back(seen, reply);
        }
    }

    /// Gives back the seats of a flow that is closed; `index` is that of its endpoint's direction.
    /// If only its client has reset it, the endpoint must be silent, too. Seats that linger do so since
    /// the flow's last packet.
    fn release_closed(&self, index: u32, now: u32) {
        let reply = self.records.read(index);
        let Some(connection) = Connection::new(&self.records, index, &reply) else {
            return;
        };
        let flags = (connection.forward.flags, reply.flags);
        let silence = match is_provisional(flags.0, flags.1) {
            true => SILENT,
            false => 0,
        };
        let silence = silence.max(self.parties.linger(&connection.forward));
        if connection.stage() == Stage::Closed && idle(reply.last_seen, now) >= silence {
            self.unseat(index, &reply);
        }
    }

    /// The party of a flow by its client's direction, and how many connections it may have.
    fn party(&self, forward: &Flow<A>) -> Option<(u64, u32)> {
        self.parties.of(forward, self.secret)
    }

    /// Gives back the seats of flows in their handshakes, if one of their limits, or their party, is
    /// pressed. They take them once their handshakes are complete.
    pub fn unseat_handshakes(&self, is_pressed: impl Fn(u32) -> bool) {
        for reply in &self.latest.shaking_hands {
            if let Some(connection) = self.handshake(*reply)
                && (connection
                    .reply
                    .place()
                    .limits()
                    .any(|(limit, _)| is_pressed(limit))
                    || self.is_party_pressed(&connection.forward))
            {
                self.unseat_until_proved(*reply, &connection);
            }
        }
    }

    fn is_party_pressed(&self, forward: &Flow<A>) -> bool {
        let party = self.party(forward);
        party.is_some_and(|(party, _)| self.parties.is_pressed(party))
    }

    /// The TCP connection whose endpoint's direction is at an index, if it is in its handshake, or if
    /// only its client has ended that: the host whose address was forged answers with a reset.
    fn handshake(&self, reply: u32) -> Option<Connection<A>> {
        let connection = Connection::new(&self.records, reply, &self.records.read(reply))?;
        let Connection { forward, reply } = &connection;
        let is_open = match connection.stage() {
            Stage::Unreplied | Stage::Handshake => true,
            Stage::Closed => {
                tag::state(forward.tag) == tag::HALF && is_provisional(forward.flags, reply.flags)
            }
            Stage::Established | Stage::HalfClosed => false,
        };
        (is_open && !forward.has(flow_flag::UDP)).then_some(connection)
    }

    /// Has an established flow take its seats with its endpoint's next packet. It proved itself at
    /// the moment at which they were given back, or while the table's size changed.
    fn seat_again(&self, index: u32) {
        let reply = self.records.read(index);
        if !reply.has(flow_flag::WATCH) && !reply.own_place().is_none() {
            let flags = self.records.flags(index);
            flags.fetch_or(flow_flag::WATCH, Ordering::SeqCst);
        }
    }

    /// Gives back the seats of a record that had this tag until a moment ago.
    fn give_back(&self, seen: Sighting, flow: &Flow<A>) {
        let place = Flow {
            tag: seen.tag,
            ..*flow
        }
        .place();
        if place.is_none() {
            return;
        }
        let forward = self.client_of(flow);
        let endpoint = match &forward {
            Some(forward) if place.counts_at_endpoint() => forward.detail,
            _ => 0,
        };
        (self.give_back)(place, endpoint);
        if place.level() != 0
            && let Some(forward) = &forward
        {
            self.parties.leave(forward, place.width(), self.secret);
        }
    }

    /// The client's direction of a flow, which may have ended, by the endpoint's.
    fn client_of(&self, reply: &Flow<A>) -> Option<Flow<A>> {
        let forward = (reply.peer < self.records.len()).then(|| self.records.read(reply.peer));
        forward.filter(|forward| is_client_of(forward, reply))
    }

    /// Moves a record to another state, if it is still as it was seen. Returns its new state.
    fn advance(&self, seen: Sighting, state: u32) -> Option<Sighting> {
        let next = tag::with_state(seen.tag, state);
        let tag = self.records.tag(seen.index);
        tag.compare_exchange(seen.tag, next, Ordering::SeqCst, Ordering::SeqCst)
            .ok()?;
        Some(Sighting { tag: next, ..seen })
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    // Every kernel has this clock.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
