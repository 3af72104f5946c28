//! The connections that wait, and room for their SYNs.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use lb_admission::{
    controller::LevelId,
    parking::{Parked, Parking, ParkingLimits},
    queueset::Handle,
    schema::Ingress,
};

use super::syn::{Connection, Syn};

/// How many octets may be kept.
const LIMITS: ParkingLimits = ParkingLimits {
    node: 64 << 20,
    level: 16 << 20,
    source: 1 << 20,
};

/// A connection that waits.
#[derive(Debug)]
pub struct Waiting {
    pub syn: Syn,
    /// The device that its SYN came by.
    pub ifindex: u32,
    /// Numbers of its flow schema and its priority level.
    pub schema: u32,
    pub level: u32,
    /// Index of the queue in which programs count it.
    pub queue: u32,
    pub party: u64,
    /// Seats that it takes.
    pub seats: u32,
    /// Whether its client is a pod or the node.
    pub is_inside: bool,
    /// Since when it waits, and until when at the latest.
    pub since: u64,
    pub until: u64,
}

impl Waiting {
    /// For how long it has waited.
    pub fn waited(&self, now: u64) -> Duration {
        Duration::from_nanos(now - self.since)
    }
}

/// Those who wait.
pub struct Room {
    by_place: HashMap<(LevelId, Handle), (Box<Waiting>, Parked)>,
    by_connection: HashMap<Connection, (LevelId, Handle)>,
    /// How many wait at each level, by the level's number.
    levels: HashMap<u32, u32>,
    parking: Parking,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            by_place: HashMap::new(),
            by_connection: HashMap::new(),
            levels: HashMap::new(),
            parking: Parking::new(LIMITS),
        }
    }
}

impl Room {
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// The numbers of the levels at which somebody waits.
    pub fn levels(&self) -> Vec<u32> {
        self.levels.keys().copied().collect()
    }

    /// How many wait at a level.
    pub fn waiting(&self, level: u32) -> u32 {
        self.levels.get(&level).copied().unwrap_or(0)
    }

    /// How many wait in a queue.
    pub fn waiting_in(&self, level: u32, queue: u32) -> u32 {
        let there = |waiting: &&Waiting| waiting.level == level && waiting.queue == queue;
        self.iter().filter(there).count() as u32
    }

    /// Everybody who waits, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.by_place.values().map(|(waiting, _)| &**waiting)
    }

    /// Where those wait who do at a level, by its number.
    pub fn places(&self, level: u32) -> Vec<(LevelId, Handle)> {
        let all = self.by_place.iter();
        let there = all.filter(|(_, (waiting, _))| waiting.level == level);
        there.map(|(place, _)| *place).collect()
    }

    /// The parties that wait, with their levels and the seats of each connection.
    pub fn flows(&self) -> BTreeSet<(u32, u64, u32)> {
        let of = |waiting: &Waiting| (waiting.level, waiting.party, waiting.seats);
        self.iter().map(of).collect()
    }

    /// Who waits with this SYN's addresses and ports.
    pub fn find(&mut self, syn: &Syn) -> Option<&mut Waiting> {
        let place = self.by_connection.get(&syn.connection)?;
        let (waiting, _) = self.by_place.get_mut(place)?;
        Some(waiting)
    }

    /// Where it waits.
    pub fn place(&self, syn: &Syn) -> Option<(LevelId, Handle)> {
        self.by_connection.get(&syn.connection).copied()
    }

    /// Takes a connection in. Returns it if there is no room for its SYN.
    pub fn enter(
        &mut self,
        level: LevelId,
        connection: Handle,
        waiting: Box<Waiting>,
    ) -> Result<(), Box<Waiting>> {
        let ingress = match waiting.is_inside {
            true => Ingress::Pod,
            false => Ingress::External,
        };
        let octets = (waiting.syn.bytes.len() + size_of::<Waiting>()) as u32;
        let client = waiting.syn.connection.client.ip();
        let Ok(parked) = self.parking.park(level, ingress, client, octets) else {
            return Err(waiting);
        };
        let place = (level, connection);
        *self.levels.entry(waiting.level).or_default() += 1;
        self.by_connection.insert(waiting.syn.connection, place);
        self.by_place.insert(place, (waiting, parked));
        Ok(())
    }

    /// Lets a connection out.
    pub fn leave(&mut self, level: LevelId, connection: Handle) -> Option<Box<Waiting>> {
        let (waiting, parked) = self.by_place.remove(&(level, connection))?;
        self.parking.leave(parked);
        self.by_connection.remove(&waiting.syn.connection);
        if let Some(number) = self.levels.get_mut(&waiting.level) {
            *number -= 1;
            if *number == 0 {
                self.levels.remove(&waiting.level);
            }
        }
        Some(waiting)
    }
}
