//! The addresses that lead to service ports, written to the maps in batches.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use lb_common::{
    abi::{self, FrontendKey},
    addr::{self, Ip4, Ip6},
    parse,
};
use lb_datapath::maps::{Entries, Incomplete, Maps, WriteError};
use lb_objects::IpFamily;

pub use self::reserved::{Purpose, Reserved};
use self::{
    by_address::ByAddress,
    room::{Group, Room},
};
use super::{
    Key, NotProgrammed,
    verify::{Findings, Scan, wrong},
};
use crate::plan::{Frontend, FrontendKind, Rank};

mod by_address;
mod reserved;
mod room;

/// An address, port and protocol (by number), as `FRONTENDS4` and `FRONTENDS6` are keyed.
pub type Address = (SocketAddr, u8);

/// A service port's claim to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub address: Address,
    pub kind: FrontendKind,
}

/// A service port that claims addresses; the lesser one goes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    pub rank: Rank,
    pub key: Key,
}

/// The claims of a service port to addresses.
pub fn claims<'a>(
    key: &Key,
    frontends: impl IntoIterator<Item = &'a Frontend>,
) -> impl Iterator<Item = Claim> {
    let protocol = key.name.protocol.number();
    frontends.into_iter().map(move |frontend| Claim {
        address: (frontend.address, protocol),
        kind: frontend.kind,
    })
}

/// Who claims which address. Where several do, the lesser kind wins, then the lesser claimant: the
/// rest take over when the winner goes.
#[derive(Debug, Default)]
pub struct Frontends {
    claims: ByAddress<Claimants>,
    /// Addresses that several claim.
    contested: BTreeSet<Address>,
    /// Addresses that Services do not get, and those of them that are claimed.
    reserved: Reserved,
    barred: BTreeSet<Address>,
    /// What the maps hold.
    present: ByAddress<abi::Frontend>,
    /// Where the two may differ.
    changed: BTreeSet<Address>,
    /// How full the maps are, and who waits for room.
    room: Room,
    /// Claimed addresses that the kernel refused, with whose they are.
    refused: BTreeMap<Address, (Key, WriteError)>,
    /// Goes up with each change of who lacks addresses, as far as [`Room`] does not count it.
    revision: u64,
}

/// Who claims one address, in order. Hardly ever more than one, who has no list of its own then:
/// there are very many addresses.
#[derive(Debug)]
enum Claimants {
    One(Stake),
    Several(Vec<Stake>),
}

impl Claimants {
    fn as_slice(&self) -> &[Stake] {
        match self {
            Self::One(stake) => std::slice::from_ref(stake),
            Self::Several(stakes) => stakes,
        }
    }

    /// Adds a claim, or replaces the same one.
    fn add(&mut self, stake: Stake) {
        let stakes = self.as_slice();
        let place = stakes.binary_search_by(|known| known.order().cmp(&stake.order()));
        match (&mut *self, place) {
            (Self::One(known), Ok(_)) => *known = stake,
            (Self::Several(stakes), Ok(index)) => stakes[index] = stake,
            (Self::One(known), Err(index)) => {
                let mut stakes = vec![known.clone()];
                stakes.insert(index, stake);
                *self = Self::Several(stakes);
            }
            (Self::Several(stakes), Err(index)) => stakes.insert(index, stake),
        }
    }

    /// Removes a claim; whether none is left.
    fn remove(&mut self, kind: FrontendKind, claimant: &Claimant) -> bool {
        let is_it = |stake: &Stake| stake.order() == (kind, claimant);
        match self {
            Self::One(stake) => is_it(stake),
            Self::Several(stakes) => {
                stakes.retain(|stake| !is_it(stake));
                if let [last] = &**stakes {
                    *self = Self::One(last.clone());
                }
                false
            }
        }
    }
}

/// One service port's claim to an address, with the service's number and the address's class for
/// connection admission.
#[derive(Clone, Debug)]
struct Stake {
    kind: FrontendKind,
    claimant: Arc<Claimant>,
    id: u32,
    class: u16,
}

impl Stake {
    fn order(&self) -> (FrontendKind, &Claimant) {
        (self.kind, &self.claimant)
    }
}

impl Frontends {
    /// Takes over the entries in the maps, which nobody claims yet.
    pub fn read(maps: &Maps) -> Result<Self, WriteError> {
        let v4 = maps.frontends4.all()?.into_iter();
        let v4 = v4.map(|(key, value)| (address4(&key), value));
        let v6 = maps.frontends6.all()?.into_iter();
        let v6 = v6.map(|(key, value)| (address6(&key), value));
        let mut found = Self {
            present: v4.chain(v6).collect(),
            ..Self::default()
        };
        for (address, _) in found.present.iter() {
            found.room.occupy(&address);
        }
        Ok(found)
    }

    /// The service that an address leads to, as the maps have it.
    pub fn service_at(&self, address: &Address) -> Option<u32> {
        self.present.get(address).map(|entry| entry.service)
    }

    /// The class of an address that leads to this service, as the maps have it; 0 if it does not.
    pub fn class_at(&self, address: &Address, service: u32) -> u16 {
        let entry = self.present.get(address);
        let entry = entry.filter(|entry| entry.service == service);
        entry.map_or(0, |entry| entry.class)
    }

    /// The services that addresses lead to, as the maps have it.
    pub fn services(&self) -> impl Iterator<Item = u32> {
        self.present.iter().map(|(_, entry)| entry.service)
    }

    /// The classes of addresses, as the maps have it and as claims want it.
    pub fn classes(&self) -> impl Iterator<Item = u16> {
        let present = self.present.iter().map(|(_, entry)| entry.class);
        let claims = self.claims.iter().flat_map(|(_, claims)| claims.as_slice());
        present.chain(claims.map(|stake| stake.class))
    }

    /// Entries of `FRONTENDS4` and `FRONTENDS6`.
    pub fn entries(&self) -> [u32; 2] {
        self.room.used()
    }

    /// Another number if [`Self::lacking`] may say something else than before.
    pub fn revision(&self) -> u64 {
        self.revision + self.room.revision()
    }

    /// Looks again at all addresses that nobody claims and whose service `is_stale`.
    pub fn reconsider(&mut self, is_stale: impl Fn(u32) -> bool) {
        let stale = self
            .present
            .iter()
            .filter(|(address, entry)| !self.claims.contains(address) && is_stale(entry.service))
            .map(|(address, _)| address);
        self.changed.extend(stale);
    }

    /// Claims an address, or gives it another class; the maps have it after [`Self::flush`].
    pub fn stake(&mut self, claim: &Claim, claimant: &Arc<Claimant>, id: u32, class: u16) {
        self.changed.insert(claim.address);
        let stake = Stake {
            kind: claim.kind,
            claimant: claimant.clone(),
            id,
            class,
        };
        let is_contested = match self.claims.get_mut(&claim.address) {
            Some(claims) => {
                claims.add(stake);
                claims.as_slice().len() > 1
            }
            None => {
                self.claims.insert(&claim.address, Claimants::One(stake));
                false
            }
        };
        if is_contested {
            self.contested.insert(claim.address);
            self.revision += 1;
        }
        if self.reserved.purpose(&claim.address.0).is_some() {
            self.barred.insert(claim.address);
            self.revision += 1;
        }
    }

    /// Gives a claim up; the maps forget it at [`Self::flush`].
    pub fn give_up(&mut self, claim: &Claim, claimant: &Claimant) {
        self.changed.insert(claim.address);
        if let Some(claims) = self.claims.get_mut(&claim.address) {
            let is_empty = claims.remove(claim.kind, claimant);
            if self.contested.contains(&claim.address) || self.barred.contains(&claim.address) {
                self.revision += 1;
            }
            if claims.as_slice().len() < 2 {
                self.contested.remove(&claim.address);
            }
            if is_empty {
                self.claims.remove(&claim.address);
                self.barred.remove(&claim.address);
            }
        }
    }

    /// Has other addresses reserved; the maps follow at [`Self::flush`].
    pub fn reserve(&mut self, reserved: Reserved) {
        let before = mem::replace(&mut self.reserved, reserved);
        for address in before.differing(&self.reserved) {
            let is_reserved = self.reserved.purpose(&address).is_some();
            let address = (address, parse::TCP);
            if self.claims.contains(&address) {
                self.changed.insert(address);
                self.revision += 1;
                match is_reserved {
                    true => self.barred.insert(address),
                    false => self.barred.remove(&address),
                };
            }
        }
    }

    /// Service ports that lack addresses, and why: the maps have no room for them, the kernel
    /// refused them, another service port has them, or nobody gets them. One may be named several
    /// times.
    pub fn lacking(&self) -> impl Iterator<Item = (&Key, NotProgrammed)> {
        let refused = self.refused.values();
        let refused = refused.map(|(key, error)| (key, error.clone().into()));
        let lacking = self.room.waiting().chain(refused);
        lacking.chain(self.beaten()).chain(self.kept_away())
    }

    /// Whether an address that is claimed waits for room, or for the kernel.
    pub fn is_waiting(&self) -> bool {
        !self.refused.is_empty() || !self.room.is_enough()
    }

    /// Service ports that claim addresses which another Service has, once each.
    fn beaten(&self) -> impl Iterator<Item = (&Key, NotProgrammed)> {
        let mut beaten: BTreeMap<&Key, (Address, &Key, usize)> = BTreeMap::new();
        for address in &self.contested {
            let mut stakes = self.admissible(address);
            let Some(winner) = stakes.next() else {
                continue;
            };
            let winner = &winner.claimant.key;
            for loser in stakes.map(|loser| &loser.claimant.key) {
                if loser.name.service != winner.name.service {
                    let (.., addresses) = beaten.entry(loser).or_insert((*address, winner, 0));
                    *addresses += 1;
                }
            }
        }
        beaten
            .into_iter()
            .map(|(loser, ((address, _), winner, addresses))| {
                let taken = NotProgrammed::Taken {
                    address,
                    by: winner.name.service.clone(),
                    addresses,
                };
                (loser, taken)
            })
    }

    /// Service ports that claim addresses which are reserved, once each.
    fn kept_away(&self) -> impl Iterator<Item = (&Key, NotProgrammed)> {
        let mut kept_away: BTreeMap<&Key, (SocketAddr, Purpose, usize)> = BTreeMap::new();
        for address in &self.barred {
            for stake in stakes(&self.claims, address) {
                if let Some(purpose) = self.reserved.keeps(address, stake) {
                    let key = &stake.claimant.key;
                    let (.., addresses) = kept_away.entry(key).or_insert((address.0, purpose, 0));
                    *addresses += 1;
                }
            }
        }
        kept_away
            .into_iter()
            .map(|(key, (address, purpose, addresses))| {
                let reserved = NotProgrammed::Reserved {
                    address,
                    purpose,
                    addresses,
                };
                (key, reserved)
            })
    }

    /// The claims to an address that count, the winner's first.
    fn admissible<'a>(&'a self, address: &'a Address) -> impl Iterator<Item = &'a Stake> {
        admissible(&self.claims, &self.reserved, address)
    }

    /// Brings the maps into line with the claims, as far as there is room. An address changes hands
    /// in one write; where a service port moves to another address, the new one comes before the
    /// old one goes. Whether nothing leads any more to where it should not; what was refused is
    /// tried again by the next call.
    pub fn flush(&mut self, maps: &Maps) -> bool {
        if !self.refused.is_empty() {
            self.revision += 1;
        }
        self.changed
            .extend(mem::take(&mut self.refused).into_keys());
        let mut replaced = Vec::new();
        let mut added = Vec::new();
        let mut gone = Vec::new();
        for address in mem::take(&mut self.changed) {
            self.room.leave(&address);
            let present = self.present.get(&address);
            match (self.wanted(&address), present) {
                (Some(wanted), Some(present)) if wanted != *present => {
                    replaced.push((address, wanted));
                }
                (Some(_), None) => added.push(address),
                (None, Some(_)) => gone.push(address),
                _ => {}
            }
        }

        let all_replaced = self.insert(replaced, maps);
        self.add(added, maps);
        let removed = self.remove(gone, maps);
        self.readmit(maps);
        all_replaced && removed
    }

    /// Compares what the maps hold at an address with what was written. After a difference,
    /// [`Self::flush`] has them hold what they should.
    pub fn verify_address(&mut self, address: &Address, maps: &Maps, findings: &mut Findings) {
        let found = match (key4(address), key6(address)) {
            (Some(key), _) => maps.frontends4.get(&key),
            (_, Some(key)) => maps.frontends6.get(&key),
            (None, None) => return,
        };
        if let Some(found) = findings.read(found) {
            self.found(address, found, findings);
        }
    }

    /// The same for the next entries of a family's map, some of which nobody may have written.
    pub fn verify_part(
        &mut self,
        family: IpFamily,
        scan: &mut Scan,
        maps: &Maps,
        findings: &mut Findings,
    ) {
        let entries: Vec<_> = match family {
            IpFamily::V4 => {
                let part = scan.part(&*maps.frontends4, findings).into_iter();
                part.map(|(key, entry)| (address4(&key), entry)).collect()
            }
            IpFamily::V6 => {
                let part = scan.part(&*maps.frontends6, findings).into_iter();
                part.map(|(key, entry)| (address6(&key), entry)).collect()
            }
        };
        for (address, entry) in entries {
            let is_right = self.found(&address, Some(entry), findings);
            scan.right += usize::from(is_right);
        }
    }

    /// The addresses that the map of a family should have.
    pub fn addresses(&self, of: IpFamily) -> impl Iterator<Item = Address> {
        let present = self.present.iter().map(|(address, _)| address);
        present.filter(move |address| room::family(address) == of)
    }

    /// Takes over what the maps hold at an address, if it is not what was written. Returns whether
    /// it is.
    fn found(
        &mut self,
        address: &Address,
        found: Option<abi::Frontend>,
        findings: &mut Findings,
    ) -> bool {
        let map = match address.0.is_ipv4() {
            true => "FRONTENDS4",
            false => "FRONTENDS6",
        };
        let wrong = wrong(found.as_ref(), self.present.get(address));
        findings.compared(map, wrong, || {
            format!("{}, protocol {}", address.0, address.1)
        });
        if wrong.is_none() {
            return true;
        }
        self.changed.insert(*address);
        let before = match found {
            Some(entry) => self.present.insert(address, entry),
            None => self.present.remove(address),
        };
        match (before, found) {
            (None, Some(_)) => self.room.occupy(address),
            (Some(_), None) => self.room.vacate(address),
            _ => {}
        }
        false
    }

    /// Takes addresses out of full maps for those of essential Services, the youngest Services'
    /// first.
    pub fn make_way(&mut self, maps: &Maps) {
        for wanted in self.room.essential_waiting(maps) {
            let mut held: BTreeMap<Group, Vec<Address>> = BTreeMap::new();
            let present = self.present.iter().map(|(address, _)| address);
            for address in present.filter(|a| room::family(a) == wanted.family) {
                if let Some(group) = self.group(&address).filter(|group| !group.is_essential()) {
                    held.entry(group).or_default().push(address);
                }
            }
            let mut short = wanted.short;
            for (group, addresses) in held.into_iter().rev() {
                if short == 0 {
                    break;
                }
                tracing::warn!(
                    "{}: {} addresses make way for an essential Service",
                    group.key(),
                    addresses.len()
                );
                short = short.saturating_sub(addresses.len() as u32);
                self.remove(addresses.clone(), maps);
                self.room.wait(group, addresses);
            }
        }
        self.readmit(maps);
    }

    fn add(&mut self, addresses: Vec<Address>, maps: &Maps) {
        let groups = |address: &Address| {
            let winner = admissible(&self.claims, &self.reserved, address).next()?;
            Some(winner.group())
        };
        let admitted = self.room.admit(addresses, groups, maps);
        self.insert_wanted(admitted, maps);
    }

    /// Adds what waits for room, if some came free.
    fn readmit(&mut self, maps: &Maps) {
        let admitted = self.room.readmit(maps);
        self.insert_wanted(admitted, maps);
    }

    fn insert_wanted(&mut self, addresses: Vec<Address>, maps: &Maps) {
        let entries = addresses.into_iter();
        let entries = entries.filter_map(|address| Some((address, self.wanted(&address)?)));
        let entries = entries.collect();
        self.insert(entries, maps);
    }

    fn group(&self, address: &Address) -> Option<Group> {
        Some(self.admissible(address).next()?.group())
    }

    fn wanted(&self, address: &Address) -> Option<abi::Frontend> {
        Some(self.admissible(address).next()?.entry())
    }

    /// Inserts entries; what the kernel refuses is noted. Whether that was none.
    fn insert(&mut self, entries: Vec<(Address, abi::Frontend)>, maps: &Maps) -> bool {
        let (v4, v6) = entries
            .into_iter()
            .partition::<Vec<_>, _>(|((address, _), _)| address.is_ipv4());
        let mut all = true;
        for (entries, result) in [
            (&v4, insert(&*maps.frontends4, key4, &v4)),
            (&v6, insert(&*maps.frontends6, key6, &v6)),
        ] {
            let done = match &result {
                Ok(()) => entries.len(),
                Err(incomplete) => incomplete.done,
            };
            for (address, entry) in &entries[..done] {
                if self.present.insert(address, *entry).is_none() {
                    self.room.occupy(address);
                }
            }
            if let Err(Incomplete { error, .. }) = result {
                all = false;
                self.revision += 1;
                for (address, _) in &entries[done..] {
                    let winner = admissible(&self.claims, &self.reserved, address).next();
                    if let Some(stake) = winner {
                        let key = stake.claimant.key.clone();
                        self.refused.insert(*address, (key, error.clone()));
                    }
                }
            }
        }
        all
    }

    /// Removes entries; if the kernel refuses, they are up for the next flush.
    fn remove(&mut self, addresses: Vec<Address>, maps: &Maps) -> bool {
        let (v4, v6) = addresses
            .into_iter()
            .partition::<Vec<_>, _>(|(address, _)| address.is_ipv4());
        let removed4 = maps.frontends4.remove(&keys(key4, &v4));
        let removed6 = maps.frontends6.remove(&keys(key6, &v6));
        let mut all = true;
        for (addresses, removed) in [(v4, removed4), (v6, removed6)] {
            match removed {
                Ok(()) => {
                    for address in addresses {
                        if self.present.remove(&address).is_some() {
                            self.room.vacate(&address);
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        "cannot remove addresses that no longer lead to a Service: {error}"
                    );
                    self.changed.extend(addresses);
                    all = false;
                }
            }
        }
        all
    }
}

/// The claims to an address that it is not reserved from, in order: the first one has it.
fn admissible<'a>(
    claims: &'a ByAddress<Claimants>,
    reserved: &'a Reserved,
    address: &'a Address,
) -> impl Iterator<Item = &'a Stake> {
    let stakes = stakes(claims, address).iter();
    stakes.filter(move |stake| reserved.keeps(address, stake).is_none())
}

/// All claims to an address, in order.
fn stakes<'a>(claims: &'a ByAddress<Claimants>, address: &Address) -> &'a [Stake] {
    claims.get(address).map_or(&[], Claimants::as_slice)
}

impl Stake {
    /// What this address finds room together with.
    fn group(&self) -> Group {
        Group::new(self.kind, self.claimant.clone())
    }

    /// The value of the address's entry.
    fn entry(&self) -> abi::Frontend {
        abi::Frontend {
            service: self.id,
            kind: self.kind as u8,
            pad: 0,
            class: self.class,
        }
    }
}

fn insert<A>(
    map: &dyn Entries<FrontendKey<A>, abi::Frontend>,
    key: fn(&Address) -> Option<FrontendKey<A>>,
    entries: &[(Address, abi::Frontend)],
) -> Result<(), Incomplete> {
    let (keys, values): (Vec<_>, Vec<_>) = entries
        .iter()
        .filter_map(|(address, value)| Some((key(address)?, *value)))
        .unzip();
    match keys.is_empty() {
        true => Ok(()),
        false => map.insert(&keys, &values),
    }
}

fn keys<A>(
    key: fn(&Address) -> Option<FrontendKey<A>>,
    addresses: &[Address],
) -> Vec<FrontendKey<A>> {
    addresses.iter().filter_map(key).collect()
}

fn key4((address, protocol): &Address) -> Option<FrontendKey<Ip4>> {
    match address.ip() {
        IpAddr::V4(ip) => Some(frontend_key(ip.into(), address.port(), *protocol)),
        IpAddr::V6(_) => None,
    }
}

fn key6((address, protocol): &Address) -> Option<FrontendKey<Ip6>> {
    match address.ip() {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(frontend_key(ip.into(), address.port(), *protocol)),
    }
}

fn address4(key: &FrontendKey<Ip4>) -> Address {
    ((IpAddr::from(key.address), key.port).into(), key.protocol)
}

fn address6(key: &FrontendKey<Ip6>) -> Address {
    // Not `IpAddr::from`, which takes mapped addresses for IPv4.
    let ip = Ipv6Addr::from(key.address.octets);
    ((ip, key.port).into(), key.protocol)
}

fn frontend_key<A: addr::Address>(address: A, port: u16, protocol: u8) -> FrontendKey<A> {
    FrontendKey {
        address,
        port,
        protocol,
        sockets: u8::from(address.is_loopback()),
    }
}
