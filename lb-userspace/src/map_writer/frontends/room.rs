//! How full `FRONTENDS4` and `FRONTENDS6` are, and who waits for room in them.
//!
//! A service port's addresses of one kind find room together or not at all: that is something users
//! understand. In a map that is short of room, ClusterIPs of essential Services go first, then all
//! other ClusterIPs, then the rest; among these, Services that existed before. What is in stays. A
//! part of each map is kept for those that go first.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use lb_datapath::maps::Maps;
use lb_objects::IpFamily;

use super::{Address, Claimant};
use crate::{
    map_writer::{Key, NotProgrammed, reserve},
    plan::FrontendKind,
};

/// Of a map, the part that only ClusterIPs get: one in so many.
const FOR_CLUSTER_IPS: u32 = 4;

/// A service port's addresses of one kind; the lesser group goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    class: Class,
    claimant: Arc<Claimant>,
    kind: FrontendKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// ClusterIPs of essential Services.
    Essential,
    ClusterIp,
    Other,
}

impl Group {
    pub fn new(kind: FrontendKind, claimant: Arc<Claimant>) -> Self {
        let class = match kind {
            FrontendKind::ClusterIp if claimant.rank.is_essential() => Class::Essential,
            FrontendKind::ClusterIp => Class::ClusterIp,
            _ => Class::Other,
        };
        Self {
            class,
            claimant,
            kind,
        }
    }

    pub fn is_essential(&self) -> bool {
        self.class == Class::Essential
    }

    pub fn key(&self) -> &Key {
        &self.claimant.key
    }

    /// How many entries there may be in the group's map, of so many, once it is in.
    fn limit(&self, capacity: u32) -> u32 {
        let for_essential = reserve(capacity);
        capacity
            - match self.class {
                Class::Essential => 0,
                Class::ClusterIp => for_essential,
                Class::Other => for_essential + capacity / FOR_CLUSTER_IPS,
            }
    }
}

/// Entries in the maps by family, and addresses without room.
#[derive(Debug, Default)]
pub struct Room {
    used: [u32; 2],
    /// Whether entries have gone since the waiting were tried last.
    freed: [bool; 2],
    waiting: BTreeMap<Group, BTreeSet<Address>>,
    groups: HashMap<Address, Group>,
    /// Goes up with each change of who waits.
    revision: u64,
}

/// Entries that essential Services lack in a family's map.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    pub family: IpFamily,
    pub short: u32,
}

impl Room {
    pub fn used(&self) -> [u32; 2] {
        self.used
    }

    /// An address is in its map now.
    pub fn occupy(&mut self, address: &Address) {
        self.used[family(address) as usize] += 1;
    }

    /// An address is not in its map any more.
    pub fn vacate(&mut self, address: &Address) {
        let family = family(address) as usize;
        self.used[family] -= 1;
        self.freed[family] = true;
    }

    /// Another number if [`Self::waiting`] may say something else than before.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether nobody waits for room.
    pub fn is_enough(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Service ports whose addresses of some kind find no room.
    pub fn waiting(&self) -> impl Iterator<Item = (&Key, NotProgrammed)> {
        self.waiting.iter().map(|(group, addresses)| {
            let key = group.key();
            let no_room = NotProgrammed::Frontends {
                kind: group.kind,
                wanted: addresses.len(),
                family: key.family,
            };
            (key, no_room)
        })
    }

    /// Addresses are to wait.
    pub fn wait(&mut self, group: Group, addresses: impl IntoIterator<Item = Address>) {
        self.revision += 1;
        let waiting = self.waiting.entry(group.clone()).or_default();
        for address in addresses {
            waiting.insert(address);
            self.groups.insert(address, group.clone());
        }
    }

    /// Takes an address out of those that wait.
    pub fn leave(&mut self, address: &Address) {
        let Some(group) = self.groups.remove(address) else {
            return;
        };
        self.revision += 1;
        // The rest of its group may fit now.
        self.freed[family(address) as usize] = true;
        if let Some(waiting) = self.waiting.get_mut(&group) {
            waiting.remove(address);
            if waiting.is_empty() {
                self.waiting.remove(&group);
            }
        }
    }

    /// Those of the addresses for which there is room, and what has waited for the rest of its
    /// group. The others wait.
    pub fn admit(
        &mut self,
        addresses: Vec<Address>,
        group: impl Fn(&Address) -> Option<Group>,
        maps: &Maps,
    ) -> Vec<Address> {
        let capacity = capacities(maps);
        let mut wanted = [0; 2];
        for address in &addresses {
            wanted[family(address) as usize] += 1;
        }
        let fits = |f: usize| self.used[f] + wanted[f] <= limit_of_all(capacity[f]);
        if self.waiting.is_empty() && fits(0) && fits(1) {
            return addresses;
        }
        let mut groups: BTreeMap<Group, BTreeSet<Address>> = BTreeMap::new();
        for address in addresses {
            if let Some(group) = group(&address) {
                groups.entry(group).or_default().insert(address);
            }
        }
        for (group, addresses) in &mut groups {
            addresses.extend(self.take_waiting(group));
        }
        let mut used = self.used;
        self.choose(groups, &mut used, capacity)
    }

    /// What has waited and has room now.
    pub fn readmit(&mut self, maps: &Maps) -> Vec<Address> {
        let freed = std::mem::take(&mut self.freed);
        if self.waiting.is_empty() || freed == [false; 2] {
            return Vec::new();
        }
        let capacity = capacities(maps);
        let mut used = self.used;
        let mut admitted = Vec::new();
        // A group at a time: those for which there is still no room cost nothing.
        let mut fitting = Vec::new();
        for (group, addresses) in &self.waiting {
            let f = group.key().family as usize;
            let after = used[f] + addresses.len() as u32;
            if freed[f] && after <= group.limit(capacity[f]) {
                used[f] = after;
                fitting.push(group.clone());
            }
        }
        for group in fitting {
            admitted.extend(self.take_waiting(&group));
        }
        admitted
    }

    /// What essential Services lack.
    pub fn essential_waiting(&self, maps: &Maps) -> Vec<Short> {
        let capacity = capacities(maps);
        let lacks = |family: IpFamily| {
            let groups = self.waiting.iter();
            let essential = groups.take_while(|(group, _)| group.is_essential());
            let wanted: usize = essential
                .filter(|(group, _)| group.key().family == family)
                .map(|(_, addresses)| addresses.len())
                .sum();
            let free = capacity[family as usize].saturating_sub(self.used[family as usize]);
            Short {
                family,
                short: (wanted as u32).saturating_sub(free),
            }
        };
        let short = [IpFamily::V4, IpFamily::V6].map(lacks).into_iter();
        short.filter(|short| short.short > 0).collect()
    }

    fn choose(
        &mut self,
        groups: BTreeMap<Group, BTreeSet<Address>>,
        used: &mut [u32; 2],
        capacity: [u32; 2],
    ) -> Vec<Address> {
        let mut admitted = Vec::new();
        for (group, addresses) in groups {
            let f = group.key().family as usize;
            let after = used[f] + addresses.len() as u32;
            if after <= group.limit(capacity[f]) {
                used[f] = after;
                admitted.extend(addresses);
            } else {
                self.wait(group, addresses);
            }
        }
        admitted
    }

    fn take_waiting(&mut self, group: &Group) -> BTreeSet<Address> {
        let waiting = self.waiting.remove(group).unwrap_or_default();
        self.revision += u64::from(!waiting.is_empty());
        for address in &waiting {
            self.groups.remove(address);
        }
        waiting
    }
}

/// The family whose map has an address.
pub fn family((address, _): &Address) -> IpFamily {
    IpFamily::of(address.ip())
}

fn capacities(maps: &Maps) -> [u32; 2] {
    [maps.frontends4.capacity(), maps.frontends6.capacity()]
}

/// Up to so many entries there is room for everybody.
fn limit_of_all(capacity: u32) -> u32 {
    capacity - reserve(capacity) - capacity / FOR_CLUSTER_IPS
}
