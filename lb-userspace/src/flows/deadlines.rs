//! Which connections have run into a deadline of their flow schema.
//!
//! Records say when a packet last came, not when a connection began, nor when there was data last: a
//! client that only asks from time to time whether its server is still there would never be idle. So
//! each pass compares the numbers in the records with those of the pass before. An agent that starts
//! knows of no pass before, and measures from the latest packet on.

use std::{
    collections::HashMap,
    mem::{offset_of, take},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use lb_common::{
    abi::FlowSchema,
    addr::Address,
    flow::{
        Deadline, Flow, Stage,
        deadline::{DEADLINES, awaits_endpoint},
        flow_flag,
        stage::idle,
        tag,
        tcp::after,
    },
};
use lb_datapath::bpf::MappedArray;

use super::records::{Connection, which};

/// The deadlines of flow schemas, and what is known of the connections that have some.
#[derive(Debug)]
pub struct Deadlines {
    schemas: Arc<MappedArray<FlowSchema>>,
    /// By the index of the endpoint's direction.
    clocks: HashMap<u32, Clock>,
    /// Those of the pass before that this pass has not met yet.
    before: HashMap<u32, Clock>,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    /// In ticks; 0 means never.
    after: [u32; DEADLINES],
    is_audited: bool,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// [`which`] flow it is.
    which: u32,
    /// The tick at which it began.
    begun: u32,
    /// The tick of its latest data.
    moved: u32,
    /// The tick at which one side ended.
    ended: Option<u32>,
    /// The sequence numbers after the data of each direction, the client's first.
    next: [u32; 2],
    /// Whether it has been counted without being ended.
    is_counted: bool,
}

impl Rule {
    const NONE: [u32; DEADLINES] = [0; DEADLINES];

    fn limit(&self, deadline: Deadline) -> u32 {
        self.after[deadline as usize]
    }

    /// Whether connections have more than a deadline of the handshake.
    fn concerns_open(&self) -> bool {
        self.after[1..] != Self::NONE[1..]
    }
}

impl Deadlines {
    /// Those in `FLOW_SCHEMAS`.
    pub fn new(schemas: Arc<MappedArray<FlowSchema>>) -> Self {
        Self {
            schemas,
            clocks: HashMap::new(),
            before: HashMap::new(),
        }
    }

    /// To be called before a pass. What the pass does not ask about is forgotten.
    pub fn begin_pass(&mut self) {
        self.before = take(&mut self.clocks);
    }

    /// Whether a flow is to be asked about, whose client's direction this is. For handshakes, that is for
    /// those that hold seats.
    pub fn concern<A: Address>(&self, forward: &Flow<A>) -> bool {
        let is_open = tag::state(forward.tag) == tag::LIVE || forward.has(flow_flag::UDP);
        is_open && self.rule(forward).is_some_and(|rule| rule.concerns_open())
    }

    /// The deadline that a connection has run into at tick `now`, and that it is to be ended for. `reply`
    /// is the index of its endpoint's direction.
    pub fn passed<A: Address>(
        &mut self,
        reply: u32,
        connection: &Connection<A>,
        now: u32,
    ) -> Option<Deadline> {
        let rule = self.rule(&connection.forward)?;
        if rule.after == Rule::NONE {
            return None;
        }
        let before = self.before.remove(&reply);
        let same = before.filter(|clock| clock.which == which(connection.reply.tag));
        let mut clock = same.unwrap_or_else(|| Clock::start(connection));
        clock.follow(connection);
        let passed = clock.passed(connection, &rule, now);
        let ends = passed.filter(|_| !rule.is_audited);
        if let Some(deadline) = passed
            && ends.is_none()
            && !clock.is_counted
        {
            clock.is_counted = true;
            self.count(&connection.forward, deadline);
        }
        self.clocks.insert(reply, clock);
        ends
    }

    /// Counts a flow, whose client's direction this is, at its schema.
    pub fn count<A: Address>(&self, forward: &Flow<A>, deadline: Deadline) {
        let schema = forward.taker().schema();
        if schema < self.schemas.len() {
            let offset = offset_of!(FlowSchema, expired) + 8 * deadline as usize;
            self.schemas.u64_at(schema, offset).fetch_add(1, Relaxed);
        }
    }

    fn rule<A: Address>(&self, forward: &Flow<A>) -> Option<Rule> {
        let schema = forward.taker().schema();
        if schema == 0 || schema >= self.schemas.len() {
            return None;
        }
        let word = |offset| self.schemas.u32_at(schema, offset).load(Relaxed);
        let deadlines = offset_of!(FlowSchema, deadlines);
        Some(Rule {
            after: Deadline::ALL.map(|deadline| word(deadlines + 4 * deadline as usize)),
            is_audited: word(offset_of!(FlowSchema, is_audited)) != 0,
        })
    }
}

impl Clock {
    /// Of a connection that has not been met before.
    fn start<A: Address>(connection: &Connection<A>) -> Self {
        let seen = connection.last_seen();
        Self {
            which: which(connection.reply.tag),
            begun: seen,
            moved: seen,
            ended: None,
            next: Self::next(connection),
            is_counted: false,
        }
    }

    fn next<A: Address>(connection: &Connection<A>) -> [u32; 2] {
        [connection.forward.next, connection.reply.next]
    }

    /// Notes what has happened since the pass before.
    fn follow<A: Address>(&mut self, connection: &Connection<A>) {
        let seen = connection.last_seen();
        let mut has_moved = connection.forward.has(flow_flag::PROTOCOL);
        for (known, next) in self.next.iter_mut().zip(Self::next(connection)) {
            if after(next, *known) {
                *known = next;
                has_moved = true;
            }
        }
        if has_moved {
            // No later than that.
            self.moved = seen;
        }
        self.ended = match connection.stage() {
            Stage::HalfClosed => self.ended.or(Some(seen)),
            _ => None,
        };
    }

    fn passed<A: Address>(
        &self,
        connection: &Connection<A>,
        rule: &Rule,
        now: u32,
    ) -> Option<Deadline> {
        let passed = |deadline: Deadline, since: u32, limit: u32| {
            (limit != 0 && idle(since, now) > limit).then_some(deadline)
        };
        let of = |deadline, since| passed(deadline, since, rule.limit(deadline));
        let is_udp = connection.forward.has(flow_flag::UDP);
        match connection.stage() {
            Stage::Closed => return None,
            Stage::Unreplied | Stage::Handshake if !is_udp => {
                return of(Deadline::Handshake, self.begun);
            }
            _ => {}
        }
        let lifetime = self.varied(rule.limit(Deadline::Lifetime));
        let side = match awaits_endpoint(&connection.forward, &connection.reply) {
            true => Deadline::ServerIdle,
            false => Deadline::ClientIdle,
        };
        passed(Deadline::Lifetime, self.begun, lifetime).or_else(|| match self.ended {
            Some(ended) => of(Deadline::HalfClose, ended),
            None => of(side, self.moved),
        })
    }

    /// A number of ticks, up to a tenth more or less: always the same for a flow. Connections that began
    /// together do not end together then.
    fn varied(&self, ticks: u32) -> u32 {
        // The upper half is a hash of the flow's addresses.
        let share = u64::from(self.which >> 16);
        let tenth = u64::from(ticks / 10);
        ticks - tenth as u32 + ((2 * tenth * share) >> 16) as u32
    }
}
