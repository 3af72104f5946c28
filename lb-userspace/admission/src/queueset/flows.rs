//! The flows of a level, as numbers: what each holds and waits for. A flow is known by its hash.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use super::connection::NONE;

/// A flow that holds nothing and waits for nothing is remembered for so many nanoseconds: it may
/// come back and claim a first seat.
const MEMORY: u64 = 60_000_000_000;

/// One flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    hash: u64,
    /// Its connections: those that wait, hold seats, or whose seats linger.
    pub connections: u32,
    pub waiting: u32,
    /// Seats held, lingering ones included.
    pub seats: u64,
    /// Whether somebody else counts its seats.
    pub is_observed: bool,
    /// Whether it is in the list of idle flows, since when, and its neighbours there.
    is_idle: bool,
    idle_since: u64,
    older: u32,
    newer: u32,
}

/// All flows that hold or want something, and some that lately did.
#[derive(Clone, Debug)]
pub struct Flows {
    by_hash: HashMap<u64, u32, BuildHasherDefault<Mixer>>,
    places: Vec<Flow>,
    free: Vec<u32>,
    /// Ends of the list of idle flows.
    oldest: u32,
    newest: u32,
    idle: u32,
    /// The most idle flows that are remembered.
    most_idle: u32,
    /// Flows that wait and hold no seat.
    without_seat: u32,
}

impl Flows {
    /// No flows.
    pub fn new() -> Self {
        Self {
            by_hash: HashMap::default(),
            places: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
            idle: 0,
            most_idle: 0,
            without_seat: 0,
        }
    }

    /// A flow, if it is known.
    pub fn find(&self, hash: u64) -> Option<&Flow> {
        let place = *self.by_hash.get(&hash)?;
        Some(&self.places[place as usize])
    }

    /// Flows that could claim a first seat: those that wait for one, those that were here lately,
    /// and one that nobody knows yet. A level that knows a single flow expects no other one.
    pub fn claimants(&self) -> u32 {
        let unknown = u32::from(self.by_hash.len() > 1);
        self.idle + self.without_seat + unknown
    }

    /// Sets how many idle flows are remembered at most.
    pub fn remember(&mut self, most_idle: u32) {
        self.most_idle = most_idle;
        self.trim();
    }

    /// Forgets flows that have been idle for long. Returns whether there was one.
    pub fn expire(&mut self, now: u64) -> bool {
        let before = self.idle;
        while self.oldest != NONE
            && self.places[self.oldest as usize]
                .idle_since
                .saturating_add(MEMORY)
                <= now
        {
            self.forget_oldest();
        }
        self.idle < before
    }

    /// Changes a flow's numbers; a flow that is not known yet has none. Returns whether the flow
    /// waits and has become more entitled, because it holds less.
    pub fn change(&mut self, hash: u64, now: u64, change: impl FnOnce(&mut Flow)) -> bool {
        let place = match self.by_hash.get(&hash) {
            Some(&place) => place,
            None => self.add(hash),
        };
        let flow = &mut self.places[place as usize];
        let before = *flow;
        change(flow);
        let after = *flow;
        self.without_seat -= u32::from(before.lacks_seat());
        self.without_seat += u32::from(after.lacks_seat());
        match (after.is_idle, after.connections) {
            (false, 0) => self.list(place, now),
            (true, 1..) => self.unlist(place),
            _ => {}
        }
        self.trim();
        after.waiting > 0 && after.seats < before.seats
    }

    /// Lets go of a flow of which seats are observed and none waits: nobody says when they come back. One
    /// that holds no more of them than flows are remembered may soon hold none, and is taken for idle.
    pub fn let_go(&mut self, hash: u64, now: u64) {
        let Some(&place) = self.by_hash.get(&hash) else {
            return;
        };
        let flow = &mut self.places[place as usize];
        if !flow.is_observed || flow.waiting > 0 || flow.is_idle {
            return;
        }
        if flow.seats > self.most_idle.into() {
            return self.forget(place);
        }
        (flow.connections, flow.seats) = (0, 0);
        self.list(place, now);
        self.trim();
    }

    fn add(&mut self, hash: u64) -> u32 {
        let flow = Flow {
            hash,
            connections: 0,
            waiting: 0,
            seats: 0,
            is_observed: false,
            is_idle: false,
            idle_since: 0,
            older: NONE,
            newer: NONE,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place as usize] = flow;
                place
            }
            None => {
                self.places.push(flow);
                // Room for all of them, so that nothing is allocated while there are fewer. The
                // table cleans up in place if it is half empty.
                self.by_hash.reserve(2 * self.places.len());
                self.free.reserve(self.places.len());
                // There are no more flows than connections and reserved seats.
                self.places.len() as u32 - 1
            }
        };
        self.by_hash.insert(hash, place);
        place
    }

    fn trim(&mut self) {
        while self.idle > self.most_idle {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let place = self.oldest;
        if place == NONE {
            return;
        }
        self.unlist(place);
        self.forget(place);
    }

    fn forget(&mut self, place: u32) {
        self.by_hash.remove(&self.places[place as usize].hash);
        self.free.push(place);
    }

    fn list(&mut self, place: u32, now: u64) {
        let older = std::mem::replace(&mut self.newest, place);
        let flow = &mut self.places[place as usize];
        (flow.older, flow.newer) = (older, NONE);
        (flow.is_idle, flow.idle_since) = (true, now);
        match older {
            NONE => self.oldest = place,
            older => self.places[older as usize].newer = place,
        }
        self.idle += 1;
    }

    fn unlist(&mut self, place: u32) {
        let flow = &mut self.places[place as usize];
        flow.is_idle = false;
        let Flow { older, newer, .. } = *flow;
        match older {
            NONE => self.oldest = newer,
            older => self.places[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.places[newer as usize].older = older,
        }
        self.idle -= 1;
    }
}

impl Flow {
    fn lacks_seat(&self) -> bool {
        self.waiting > 0 && self.seats == 0
    }
}

/// Spreads hashes over a table. They are keyed hashes already, so nobody can aim at a place.
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &octet in bytes {
            self.write_u64(self.0 ^ u64::from(octet));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // An odd number near 2^64 divided by the golden ratio.
        let product = u128::from(number) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(flows: &mut Flows, hash: u64, now: u64) -> bool {
        flows.change(hash, now, |flow| {
            flow.connections += 1;
            flow.seats += 1;
        })
    }

    fn give_back(flows: &mut Flows, hash: u64, now: u64) -> bool {
        flows.change(hash, now, |flow| {
            flow.connections -= 1;
            flow.seats -= 1;
        })
    }

    #[test]
    fn those_that_could_claim_a_first_seat_are_counted() {
        let mut flows = Flows::new();
        flows.remember(3);
        take(&mut flows, 1, 0);
        assert_eq!(flows.claimants(), 0, "one flow alone");
        take(&mut flows, 2, 0);
        assert_eq!(flows.claimants(), 1, "somebody new may come");
        give_back(&mut flows, 1, 5);
        assert_eq!(flows.claimants(), 2, "or the one that left");
        let wait = |flow: &mut Flow| {
            flow.connections += 1;
            flow.waiting += 1;
        };
        flows.change(3, 6, wait);
        assert_eq!(flows.claimants(), 3, "or the one that waits");
        assert!(!flows.change(2, 6, wait));
        assert!(flows.change(2, 6, |flow| flow.seats -= 1));
        assert_eq!(flows.claimants(), 4);
        flows.expire(5 + MEMORY - 1);
        assert!(flows.find(1).is_some());
        flows.expire(5 + MEMORY);
        assert!(flows.find(1).is_none());
        assert_eq!(flows.claimants(), 3);
    }

    #[test]
    fn flows_that_others_count_are_remembered_only_without_many_seats() {
        let mut flows = Flows::new();
        flows.remember(3);
        for (hash, waiting, seats, is_known) in [
            (1, 1, 4, true),
            (2, 0, 4, false),
            (3, 0, 3, true),
            (4, 0, 0, true),
        ] {
            flows.change(hash, 0, |flow| {
                flow.connections = waiting + seats;
                flow.waiting = waiting;
                flow.seats = u64::from(seats);
                flow.is_observed = true;
            });
            flows.let_go(hash, 0);
            assert_eq!(flows.find(hash).is_some(), is_known, "{hash}");
        }
        assert_eq!(
            flows.claimants(),
            3,
            "two that may be back, and somebody new"
        );
        take(&mut flows, 5, 0);
        flows.let_go(5, 0);
        flows.let_go(6, 0);
        assert!(flows.find(5).is_some(), "this one is counted here");
        assert_eq!(flows.places.len(), 4, "places are used again");
        flows.expire(MEMORY);
        assert_eq!(flows.claimants(), 1, "those two have not come");
    }

    #[test]
    fn only_so_many_idle_flows_are_remembered() {
        let mut flows = Flows::new();
        flows.remember(2);
        for hash in 0..5 {
            take(&mut flows, hash, hash);
        }
        for hash in 0..5 {
            give_back(&mut flows, hash, 10);
        }
        let known: Vec<_> = (0..5).filter(|&hash| flows.find(hash).is_some()).collect();
        assert_eq!(known, [3, 4]);
        take(&mut flows, 3, 11);
        give_back(&mut flows, 3, 12);
        flows.remember(1);
        let known: Vec<_> = (0..5).filter(|&hash| flows.find(hash).is_some()).collect();
        assert_eq!(known, [3], "the last to leave is kept");
        assert_eq!(flows.places.len(), 5, "places are used again");
        take(&mut flows, 9, 13);
        assert_eq!(flows.places.len(), 5);
    }
}
