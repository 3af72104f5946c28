//! The connections of each party: counted less for programs, and counted anew.

use std::{
    collections::{HashMap, HashSet},
    mem::offset_of,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::SeqCst},
};

use lb_common::{
    abi::FlowSchema,
    addr::Address,
    flow::{
        Flow,
        limit::patience,
        party::{self, ANY, Members, NO_ROOM, PARTIES},
        seats::{party_of, ports_there},
        tag,
    },
};
use lb_datapath::{Loaded, bpf::MappedArray};

use super::{drift::Drifts, pressure::Signs, queues::Queues, stats::PartyCount};

/// `PARTIES`, in which programs count as well, and the rules of flow schemas: see
/// [`lb_common::flow::party`].
#[derive(Debug)]
pub struct Parties {
    elements: Arc<MappedArray<u64>>,
    schemas: Arc<MappedArray<FlowSchema>>,
    queues: Queues,
    pressed: Mutex<Signs<u64>>,
}

/// The most parties that are pressed. Whoever forges the addresses of many must leave room for others to
/// be counted.
const MOST_PRESSED: usize = PARTIES / 8;

impl Parties {
    /// The maps of the programs in the kernel.
    ///
    /// # Errors
    ///
    /// If they cannot be opened or mapped into memory.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        Ok(Self::new(
            Arc::new(MappedArray::new(&loaded.map("PARTIES")?)?),
            Arc::new(MappedArray::new(&loaded.map("FLOW_SCHEMAS")?)?),
            Queues::open(loaded)?,
        ))
    }

    /// Parties in memory, and the schemas whose they are.
    pub fn new(
        elements: Arc<MappedArray<u64>>,
        schemas: Arc<MappedArray<FlowSchema>>,
        queues: Queues,
    ) -> Self {
        Self {
            elements,
            schemas,
            queues,
            pressed: Mutex::default(),
        }
    }

    /// Parties of this process alone, without rules.
    pub fn in_memory() -> Self {
        Self::new(
            Arc::new(MappedArray::in_memory(PARTIES as u32)),
            Arc::new(MappedArray::in_memory(
                lb_common::entries::FLOW_SCHEMAS as u32,
            )),
            Queues::in_memory(),
        )
    }

    /// The flow schemas whose parties they are.
    pub fn schemas(&self) -> Arc<MappedArray<FlowSchema>> {
        self.schemas.clone()
    }

    /// Whether a flow schema counts its parties, or something of such a schema is left.
    pub fn are_counted(&self) -> bool {
        self.have_rules() || self.all().any(is_used)
    }

    /// Whether a flow schema counts its parties.
    fn have_rules(&self) -> bool {
        let most = offset_of!(FlowSchema, rule.most);
        (1..self.schemas.len()).any(|schema| self.schemas.u32_at(schema, most).load(SeqCst) != 0)
    }

    /// The party of a flow by its client's direction, and how many connections it may have; `None` if
    /// it is not counted.
    pub fn of<A: Address>(&self, forward: &Flow<A>, secret: [u64; 2]) -> Option<(u64, u32)> {
        let rule = self.schema_of(forward)?.rule;
        let party = party_of(forward, rule, secret);
        (party != 0).then_some((party, rule.most))
    }

    /// The schema that has taken a flow, by its client's direction.
    fn schema_of<A>(&self, forward: &Flow<A>) -> Option<FlowSchema> {
        let schema = forward.taker().schema();
        (schema != 0 && schema < self.schemas.len()).then(|| self.schemas.read(schema))
    }

    /// For how many ticks the seats of a flow linger after its end, by its client's direction. Those of one that
    /// has not proved itself do not.
    pub fn linger<A>(&self, forward: &Flow<A>) -> u32 {
        match tag::state(forward.tag) == tag::HALF {
            true => 0,
            false => self
                .schema_of(forward)
                .map_or(0, |schema| schema.seats.linger().div_ceil(8)),
        }
    }

    /// The queues of levels.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Index of the queue that is charged for a flow of a party, by its client's direction, if there is
    /// one.
    pub fn queue_of<A: Address>(&self, forward: &Flow<A>, party: u64) -> Option<u32> {
        let level = self.schema_of(forward)?.seats.level();
        let (card, ports) = (forward.taker().card(), ports_there(forward));
        self.queues.charged(level, party, card, ports)
    }

    /// Counts the party of a flow less whose client's direction this is, or was, and its queue is charged
    /// no longer for its seats.
    pub fn leave<A: Address>(&self, forward: &Flow<A>, width: u32, secret: [u64; 2]) {
        if let Some((party, _)) = self.of(forward, secret) {
            party::leave(|index| self.elements.pointer(index), party);
            if let Some(queue) = self.queue_of(forward, party) {
                self.queues.give_back(queue, width as i32);
            }
        }
    }

    /// The connections of a party.
    pub fn connections(&self, party: u64) -> u32 {
        party::connections(|index| self.elements.pointer(index), party)
    }

    /// Decides at tick `now` which parties are pressed: those with too many slow handshakes, now or a
    /// short while ago. In a level that is pressed itself, none need be. Returns whether there is one.
    pub fn press(
        &self,
        now: u32,
        counted: &HashMap<u64, PartyCount>,
        is_level_pressed: impl Fn(u32) -> bool,
    ) -> bool {
        let before: HashSet<_> = self
            .all()
            .filter(|members| members.is_pressed)
            .map(|members| members.party)
            .collect();
        let has_too_many = |(_, count): &(&u64, &PartyCount)| {
            count.slow_handshakes > patience(count.most) && !is_level_pressed(count.level)
        };
        let flooded = counted.iter().filter(has_too_many);
        let flooded: HashSet<_> = flooded.map(|(party, _)| *party).collect();
        let mut pressed = self.pressed();
        for party in &before {
            if !pressed.press(*party, true, flooded.contains(party), now) {
                self.mark(*party, false);
            }
        }
        let mut flows = 0;
        for party in flooded.difference(&before) {
            if pressed.len() >= MOST_PRESSED {
                break;
            }
            pressed.press(*party, false, true, now);
            match self.mark(*party, true) {
                true => flows += 1,
                false => pressed.forget(party),
            }
        }
        if flows != 0 {
            tracing::info!(
                flows,
                "many handshakes stay open: connections of these flows take their seats at their end"
            );
        }
        pressed.len() != 0
    }

    fn mark(&self, party: u64, is_pressed: bool) -> bool {
        party::press(|index| self.elements.pointer(index), party, is_pressed)
    }

    /// Whether a party is pressed.
    pub fn is_pressed(&self, party: u64) -> bool {
        self.pressed().contains(&party)
    }

    // Whole after each change, so a thread that panicked leaves nothing half done.
    fn pressed(&self) -> MutexGuard<'_, Signs<u64>> {
        self.pressed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each element says.
    fn all(&self) -> impl Iterator<Item = Members> + '_ {
        let elements = self.elements.iter(0..self.elements.len());
        elements.map(|(index, element)| Members::read(index, element))
    }

    /// Changes what an element counts, if that is still `seen`.
    fn set(&self, index: u32, seen: u32, connections: u32) {
        let word = self.elements.u64_at(index, 0);
        let before = word.load(SeqCst);
        if Members::read(index, before).connections == seen {
            let after = before - u64::from(seen) + u64::from(connections);
            // If a program counts meanwhile, the next scan shows whether it is right.
            let _ = word.compare_exchange(before, after, SeqCst, SeqCst);
        }
    }

    /// Counts so many connections of a party more.
    fn add(&self, party: u64, connections: u32) {
        for _ in 0..connections {
            if party::join(|index| self.elements.pointer(index), party, ANY) == NO_ROOM {
                return;
            }
        }
    }
}

fn is_used(members: Members) -> bool {
    members.connections != 0 || members.is_pressed
}

/// Compares what programs count with the flows of each party that hold seats, and corrects the
/// difference. There is one when the rule for parties changes, because other flows belong together
/// then, and where an agent, or a program of another version, has ended flows.
///
/// A difference counts if an element was the same before a scan and after it, and two scans in a row
/// show it.
#[derive(Debug, Default)]
pub struct PartyRecount {
    /// Empty if nothing is counted.
    before: Vec<Members>,
    /// Of elements and, without an element, of parties.
    drifts: Drifts<(Option<u32>, u64)>,
    /// Whether nothing was counted at the latest scan. Without a rule, it stays so.
    is_over: bool,
}

impl PartyRecount {
    /// To be called before a scan. Returns whether the scan has to count parties.
    pub fn begin(&mut self, parties: &Parties) -> bool {
        self.is_over = match self.is_over {
            true => !parties.have_rules(),
            false => !parties.are_counted(),
        };
        self.before = match self.is_over {
            true => Vec::new(),
            false => parties.all().collect(),
        };
        !self.is_over
    }

    /// To be called after it, with what it has counted.
    pub fn end(&mut self, parties: &Parties, counted: &HashMap<u64, PartyCount>) {
        self.drifts.begin();
        if self.before.is_empty() {
            return;
        }
        let seated = counted.iter().map(|(party, count)| (*party, count.seated));
        let mut held: HashMap<_, _> = seated.filter(|(_, seated)| *seated != 0).collect();
        let mut corrected = 0;
        for (index, (before, after)) in (0..).zip(self.before.iter().zip(parties.all())) {
            let Members {
                party, connections, ..
            } = after;
            if connections == 0 {
                if before.connections != 0 {
                    // It became free, perhaps behind the scan.
                    held.remove(&before.party);
                }
                continue;
            }
            // If two elements count the same party, the first one stays.
            let held = held.remove(&party).unwrap_or(0);
            let drift = i64::from(connections) - i64::from(held);
            if *before != after || drift == 0 {
                continue;
            }
            let certain = self.drifts.certain((Some(index), party), drift);
            corrected += certain.abs();
            if certain != 0 {
                let right = (i64::from(connections) - certain).max(0);
                parties.set(index, connections, right as u32);
            }
        }
        for (party, connections) in held {
            let certain = self.drifts.certain((None, party), -i64::from(connections));
            corrected += certain.abs();
            parties.add(party, certain.unsigned_abs() as u32);
        }
        if corrected != 0 {
            tracing::info!(corrected, "corrected the numbers of connections of parties");
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::flow::party::{FULL, HANDSHAKE, JOINED, LATER};

    use super::*;

    const ONE: u64 = 0x8123_4560_0001_2340;
    const OTHER: u64 = 0x8123_4570_0001_2340;

    fn counted() -> Parties {
        let parties = Parties::in_memory();
        parties.add(ONE, 3);
        parties.add(OTHER, 1);
        parties
    }

    fn counts(seated: [(u64, u32); 2]) -> HashMap<u64, PartyCount> {
        let count = |(party, seated)| {
            let count = PartyCount {
                seated,
                ..PartyCount::default()
            };
            (party, count)
        };
        seated.into_iter().map(count).collect()
    }

    #[test]
    fn what_two_scans_show_is_corrected() {
        let parties = counted();
        let mut recount = PartyRecount::default();
        let mut scan = |one, other| {
            recount.begin(&parties);
            recount.end(&parties, &counts([(ONE, one), (OTHER, other)]));
            (parties.connections(ONE), parties.connections(OTHER))
        };
        assert_eq!(scan(3, 1), (3, 1));
        assert_eq!(scan(1, 1), (3, 1), "seen once");
        assert_eq!(scan(3, 1), (3, 1), "and gone");
        assert_eq!(scan(1, 2), (3, 1));
        assert_eq!(scan(2, 3), (2, 2), "no more than both scans show");
        assert_eq!((scan(2, 0), scan(2, 0)), ((2, 2), (2, 0)));
        assert_eq!((scan(2, 5), scan(2, 5)), ((2, 0), (2, 5)), "no element");
        assert_eq!((scan(0, 0), scan(0, 0)), ((2, 5), (0, 0)));
        assert!(!parties.are_counted());
    }

    #[test]
    fn a_party_that_changes_meanwhile_is_left_alone() {
        let parties = counted();
        let mut recount = PartyRecount::default();
        for _ in 0..4 {
            recount.begin(&parties);
            parties.add(ONE, 1);
            recount.end(&parties, &counts([(ONE, 1), (OTHER, 1)]));
        }
        assert_eq!(parties.connections(ONE), 7);
    }

    #[test]
    fn of_two_elements_for_a_party_one_stays() {
        let parties = counted();
        let own = parties.all().position(|members| members.party == ONE);
        let second = own.unwrap() as u32 + 2;
        let element = parties.elements.u64_at(own.unwrap() as u32, 0).load(SeqCst);
        parties.elements.u64_at(second, 0).store(element, SeqCst);
        let counted = |all: &Parties| -> u32 {
            let own = all.all().filter(|members| members.party == ONE);
            own.map(|members| members.connections).sum()
        };
        assert_eq!(counted(&parties), 6);
        let mut recount = PartyRecount::default();
        for _ in 0..2 {
            recount.begin(&parties);
            recount.end(&parties, &counts([(ONE, 6), (OTHER, 1)]));
        }
        assert_eq!(
            (parties.connections(ONE), parties.connections(OTHER)),
            (6, 1)
        );
        assert_eq!(
            parties.elements.u64_at(second, 0).load(SeqCst) & 0xf_ffff,
            0
        );
    }

    #[test]
    fn a_party_with_many_slow_handshakes_is_pressed_for_a_while() {
        let parties = counted();
        let slow = |slow_handshakes| {
            let count = PartyCount {
                slow_handshakes,
                most: 8,
                ..PartyCount::default()
            };
            HashMap::from([(ONE, count)])
        };
        assert!(!parties.press(1, &slow(2), |_| false));
        assert!(parties.press(2, &slow(3), |_| false));
        assert!(parties.is_pressed(ONE) && !parties.is_pressed(OTHER));
        assert!(parties.press(200, &slow(0), |_| false), "not yet");
        // Its connections end, and it stays pressed.
        for _ in 0..3 {
            party::leave(|index| parties.elements.pointer(index), ONE);
        }
        assert_eq!(parties.connections(ONE), 0);
        let join = |most| party::join(|index| parties.elements.pointer(index), ONE, most);
        assert_eq!(join(1 | HANDSHAKE), LATER);
        assert_eq!((join(1), join(1 | HANDSHAKE)), (JOINED, FULL));
        // As another agent sees it.
        let elements = parties.elements.clone();
        let parties = Parties::new(elements, parties.schemas.clone(), Queues::in_memory());
        assert!(parties.press(300, &slow(0), |_| false));
        assert!(!parties.press(556, &slow(0), |_| false));
        assert_eq!(
            (parties.is_pressed(ONE), join(2 | HANDSHAKE)),
            (false, JOINED)
        );
    }

    #[test]
    fn forged_clients_beyond_number_leave_room_for_others() {
        let parties = Parties::in_memory();
        let flood = |first: u64, level| {
            let count = PartyCount {
                slow_handshakes: 1,
                most: 2,
                level,
                ..PartyCount::default()
            };
            // Of one home each, as hashes are.
            let party = |number: u64| 1 << 63 | number << 24 | ((number * 8) % PARTIES as u64);
            let numbers = first..first + PARTIES as u64 / 2;
            HashMap::from_iter(numbers.map(|number| (party(number), count)))
        };
        assert!(!parties.press(1, &flood(0, 9), |level| level == 9));
        assert!(!parties.are_counted());
        for now in 1..=4 {
            assert!(parties.press(now, &flood(u64::from(now) << 20, 9), |_| false));
            let used = parties.all().filter(|members| is_used(*members)).count();
            assert_eq!(
                (used, parties.pressed().len()),
                (MOST_PRESSED, MOST_PRESSED)
            );
        }
        assert!(!parties.press(4 + 256, &HashMap::new(), |_| false));
        assert!(!parties.are_counted());
        assert_eq!(parties.pressed().len(), 0);
    }
}
