//! Limits of Services: which element of `SEATS` each has, all of its ports and both families
//! together. It stays the Service's while flows hold seats of it, also without the limit.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    mem::offset_of,
    sync::{Arc, PoisonError, RwLock},
};

use super::{
    Budget, Key, NotProgrammed,
    owners::{Owners, owner},
    verify::{Findings, wrong},
};
use crate::{config::Resource, plan::Plan};
use lb_common::flow::{
    Seats,
    limit::{NODE, limit_flag, patience},
};
use lb_datapath::maps::{Elements, Maps};
use lb_objects::ObjectName;

/// The limits of Services that are in force, for those who read what is counted of them.
#[derive(Debug, Default)]
pub struct Limited(RwLock<BTreeMap<ObjectName, Limit>>);

/// The limit of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Index in `SEATS`.
    pub index: u32,
    /// The most connections; 0 means that they are only counted.
    pub most: u32,
    /// Whether they do not count against the node's limit.
    pub long_running: bool,
}

impl Limited {
    /// All of them, in the order of names.
    pub fn all(&self) -> Vec<(ObjectName, Limit)> {
        let limits = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let all = limits.iter();
        all.map(|(name, limit)| (name.clone(), *limit)).collect()
    }

    fn set(&self, name: &ObjectName, limit: Option<Limit>) {
        // Whole after each change, so a thread that panicked leaves nothing half done.
        let mut limits = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match limit {
            Some(limit) => drop(limits.insert(name.clone(), limit)),
            None => drop(limits.remove(name)),
        }
    }
}

/// Who has which element.
#[derive(Debug)]
pub(super) struct SeatBook {
    held: HashMap<ObjectName, Held>,
    owners: Owners,
    limited: Arc<Limited>,
}

#[derive(Debug)]
struct Held {
    index: u32,
    rule: Rule,
    /// The service ports that refer to it.
    ports: HashSet<Key>,
}

/// What decides about connections in an element of `SEATS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rule {
    limit: u32,
    flags: u32,
}

impl SeatBook {
    /// Of a map that holds nothing.
    pub fn new(maps: &Maps) -> Self {
        Self {
            held: HashMap::new(),
            owners: Owners::new(NODE + 1..maps.seats.len()),
            limited: Arc::default(),
        }
    }

    /// Tells those who read the limits of an earlier book.
    pub fn share(&mut self, limited: Arc<Limited>) {
        self.limited = limited;
    }

    /// Takes over what the map holds.
    pub fn inherit(&mut self, maps: &Maps) {
        self.owners.inherit(|index| maps.seats.read(index).owner);
    }

    /// To be called when every Service is known: limits that are nobody's any more are lifted.
    pub fn finish_adoption(&mut self, maps: &Maps) {
        for index in self.owners.finish_adoption() {
            Rule::default().publish(&*maps.seats, index);
        }
    }

    /// Compares the limits with what was written, and writes again what differs.
    pub fn verify(&self, maps: &Maps, findings: &mut Findings) {
        for (name, Held { index, rule, .. }) in &self.held {
            let Seats {
                limit,
                flags,
                owner,
                ..
            } = maps.seats.read(*index);
            let written = (*rule, owner_of(name));
            let wrong = wrong(Some(&(Rule { limit, flags }, owner)), Some(&written));
            if wrong.is_some() {
                let (rule, owner) = written;
                maps.seats
                    .write_word(*index, offset_of!(Seats, owner), owner);
                rule.publish(&*maps.seats, *index);
            }
            findings.compared("SEATS", wrong, || format!("{index} of {name}"));
        }
    }

    /// The limits in force, for others to read.
    pub fn limited(&self) -> Arc<Limited> {
        self.limited.clone()
    }

    /// Puts the limit of a service port's Service in force: the index of its element, 0 if it needs
    /// none.
    ///
    /// # Errors
    ///
    /// If there is no room for it, or its namespace has as many as it may have.
    pub fn assign(
        &mut self,
        key: &Key,
        plan: &Plan,
        maps: &Maps,
        budget: &mut Budget,
    ) -> Result<u32, NotProgrammed> {
        if !plan.is_counted() {
            self.give_up(key, maps, budget);
            return Ok(0);
        }
        let name = &key.name.service;
        let index = match self.held.get(name) {
            Some(held) => held.index,
            None => {
                let resource = Resource::ConnectionLimits;
                budget.allows((key, plan.rank), resource, 0, 1)?;
                let index = self.find(name, maps);
                let index = index.ok_or(NotProgrammed::Limits(maps.seats.len()))?;
                budget.change(key, resource, 0, 1);
                index
            }
        };
        let held = self.held.entry(name.clone()).or_insert_with(|| Held {
            index,
            rule: Rule::default(),
            ports: HashSet::new(),
        });
        held.ports.insert(key.clone());
        held.rule = Rule {
            limit: plan.max_connections,
            flags: patience_flags(plan.max_connections_per_endpoint),
        };
        held.rule.publish(&*maps.seats, index);
        let limit = Limit {
            index,
            most: plan.max_connections,
            long_running: plan.long_running,
        };
        self.limited.set(name, Some(limit));
        Ok(index)
    }

    /// Notes that a service port needs no limit any more.
    pub fn give_up(&mut self, key: &Key, maps: &Maps, budget: &mut Budget) {
        let name = &key.name.service;
        let Some(held) = self.held.get_mut(name) else {
            return;
        };
        held.ports.remove(key);
        if !held.ports.is_empty() {
            return;
        }
        if let Some(Held { index, .. }) = self.held.remove(name) {
            Rule::default().publish(&*maps.seats, index);
            self.owners.retire(owner_of(name), index);
            budget.change(key, Resource::ConnectionLimits, 1, 0);
        }
        self.limited.set(name, None);
    }

    /// An element for a Service that has none: the one that it had, or one of which no flow holds a
    /// seat.
    fn find(&mut self, name: &ObjectName, maps: &Maps) -> Option<u32> {
        let owner = owner_of(name);
        // No program takes seats by a plan that has been replaced.
        let found = self.owners.find(owner, &maps.grace, |index| {
            maps.seats.read(index).used() != 0
        })?;
        if found.is_new {
            let unused = Seats {
                owner,
                ..Seats::default()
            };
            maps.seats.write(found.index, &unused);
        }
        Some(found.index)
    }
}

/// How an element names a Service.
fn owner_of(name: &ObjectName) -> u64 {
    owner(&name.to_string())
}

impl Rule {
    /// Puts it in force; the default lifts the limit. Who is within it stays.
    fn publish(self, seats: &dyn Elements<Seats>, index: u32) {
        seats.publish(index, offset_of!(Seats, limit), self.limit);
        seats.publish(index, offset_of!(Seats, flags), self.flags);
    }
}

/// Where each endpoint has a limit, forged handshakes must not fill a single one for long. 0 means that none
/// has.
fn patience_flags(most: u32) -> u32 {
    const MOST: u32 = u32::MAX >> limit_flag::PATIENCE_SHIFT;
    let handshakes = match most {
        0 => 0,
        most => patience(most).clamp(1, MOST),
    };
    handshakes << limit_flag::PATIENCE_SHIFT
}
