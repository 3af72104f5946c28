//! The addresses that lead to service ports, written to the maps in batches.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use lb_common::{
    abi::{self, FrontendKey},
    addr::{Ip4, Ip6},
    parse,
};
use lb_datapath::maps::{Entries, Incomplete, Maps, WriteError};
use lb_objects::Protocol;

use super::Key;
use crate::plan::{Frontend, FrontendKind};

/// An address, a port and a protocol number: the key of `FRONTENDS4` and `FRONTENDS6`.
pub type Address = (SocketAddr, u8);

/// A service port's claim to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub address: Address,
    pub kind: FrontendKind,
}

/// The claims of a service port to addresses.
pub fn claims<'a>(
    key: &Key,
    frontends: impl IntoIterator<Item = &'a Frontend>,
) -> impl Iterator<Item = Claim> {
    let protocol = match key.name.protocol {
        Protocol::Tcp => parse::TCP,
        Protocol::Udp => parse::UDP,
        Protocol::Sctp => parse::SCTP,
    };
    frontends.into_iter().map(move |frontend| Claim {
        address: (frontend.address, protocol),
        kind: frontend.kind,
    })
}

/// Which service ports claim which address. If several claim one, the lesser kind has it, then the
/// lesser name. The others take over when that one goes.
#[derive(Debug, Default)]
pub struct Frontends {
    claims: HashMap<Address, Claimants>,
    /// What the maps hold.
    present: HashMap<Address, abi::Frontend>,
    /// Addresses where maps and claims may differ.
    changed: BTreeSet<Address>,
    /// Claimed addresses that the maps refused, with the service port and the error.
    refused: BTreeMap<Address, (Key, WriteError)>,
}

/// The claimants of one address in order, with the services' numbers. There is hardly ever more
/// than one, and a map would need ten times the memory.
type Claimants = Vec<((FrontendKind, Key), u32)>;

impl Frontends {
    /// Takes over the entries in the maps, which have no claims yet.
    pub fn read(maps: &Maps) -> Result<Self, WriteError> {
        let v4 = maps.frontends4.all()?.into_iter().map(|(key, value)| {
            let ip = IpAddr::from(key.address);
            (((ip, key.port).into(), key.protocol), value)
        });
        let v6 = maps.frontends6.all()?.into_iter().map(|(key, value)| {
            // Not `IpAddr::from`, which turns mapped addresses into IPv4.
            let ip = Ipv6Addr::from(key.address.octets);
            (((ip, key.port).into(), key.protocol), value)
        });
        Ok(Self {
            present: v4.chain(v6).collect(),
            ..Self::default()
        })
    }

    /// The service that an address leads to in the maps.
    pub fn service_at(&self, address: &Address) -> Option<u32> {
        self.present.get(address).map(|entry| entry.service)
    }

    /// Whether the maps hold exactly what a claim asks for.
    pub fn holds(&self, claim: &Claim, id: u32) -> bool {
        self.present.get(&claim.address) == Some(&entry(id, claim.kind))
    }

    /// The services that addresses lead to in the maps.
    pub fn services(&self) -> impl Iterator<Item = u32> {
        self.present.values().map(|entry| entry.service)
    }

    /// Reconsiders all addresses without a claim that lead to a service for which `is_stale` holds.
    pub fn reconsider(&mut self, is_stale: impl Fn(u32) -> bool) {
        let stale = self
            .present
            .iter()
            .filter(|(address, entry)| {
                !self.claims.contains_key(*address) && is_stale(entry.service)
            })
            .map(|(address, _)| *address);
        self.changed.extend(stale);
    }

    /// Claims an address. The maps have it after [`Self::flush`].
    pub fn stake(&mut self, claim: &Claim, key: &Key, id: u32) {
        self.changed.insert(claim.address);
        let claims = self.claims.entry(claim.address);
        let claims = claims.or_insert_with(|| Vec::with_capacity(1));
        let claimant = (claim.kind, key.clone());
        match claims.binary_search_by(|(known, _)| known.cmp(&claimant)) {
            Ok(index) => claims[index].1 = id,
            Err(index) => claims.insert(index, (claimant, id)),
        }
    }

    /// Gives up a claim. The maps forget it at [`Self::flush`].
    pub fn give_up(&mut self, claim: &Claim, key: &Key) {
        self.changed.insert(claim.address);
        if let Some(claims) = self.claims.get_mut(&claim.address) {
            claims.retain(|((kind, known), _)| (*kind, known) != (claim.kind, key));
            if claims.is_empty() {
                self.claims.remove(&claim.address);
            }
        }
    }

    /// Service ports that lack an address because the maps refused it, with the error.
    pub fn refused(&self) -> impl Iterator<Item = (&Key, &WriteError)> {
        self.refused.values().map(|(key, error)| (key, error))
    }

    /// Makes the maps equal to the claims. An address passes from one service port to another in
    /// one write. If a service port moves to another address, the new one is written before the old
    /// one is removed. Returns whether no address leads any more to where it should not. What was
    /// refused is tried again by the next call.
    pub fn flush(&mut self, maps: &Maps) -> bool {
        self.changed
            .extend(mem::take(&mut self.refused).into_keys());
        let mut replaced = Vec::new();
        let mut added = Vec::new();
        let mut gone = Vec::new();
        for address in mem::take(&mut self.changed) {
            let present = self.present.get(&address);
            match (self.wanted(&address), present) {
                (Some(wanted), Some(present)) if wanted != *present => {
                    replaced.push((address, wanted));
                }
                (Some(wanted), None) => added.push((address, wanted)),
                (None, Some(_)) => gone.push(address),
                _ => {}
            }
        }

        let not_replaced = self.insert(replaced, maps);
        let mut not_added = self.insert(added, maps);
        let removed = self.remove(gone, maps);
        if !not_added.is_empty() {
            // There may be room now.
            let again = not_added.into_iter().map(|(entry, _)| entry).collect();
            not_added = self.insert(again, maps);
        }
        let all_left = removed && not_replaced.is_empty();
        for ((address, _), error) in not_replaced.into_iter().chain(not_added) {
            if let Some((_, key)) = self.holder(&address) {
                let key = key.clone();
                self.refused.insert(address, (key, error));
            }
        }
        all_left
    }

    fn holder(&self, address: &Address) -> Option<&(FrontendKind, Key)> {
        let (claimant, _) = self.claims.get(address)?.first()?;
        Some(claimant)
    }

    fn wanted(&self, address: &Address) -> Option<abi::Frontend> {
        let ((kind, _), id) = self.claims.get(address)?.first()?;
        Some(entry(*id, *kind))
    }

    /// Inserts the entries that there is room for, and returns the rest.
    fn insert(
        &mut self,
        entries: Vec<(Address, abi::Frontend)>,
        maps: &Maps,
    ) -> Vec<((Address, abi::Frontend), WriteError)> {
        let (v4, v6) = entries
            .into_iter()
            .partition::<Vec<_>, _>(|((address, _), _)| address.is_ipv4());
        let mut rest = Vec::new();
        for (entries, result) in [
            (&v4, insert(&*maps.frontends4, key4, &v4)),
            (&v6, insert(&*maps.frontends6, key6, &v6)),
        ] {
            let done = match &result {
                Ok(()) => entries.len(),
                Err(incomplete) => incomplete.done,
            };
            self.present.extend(entries[..done].iter().copied());
            if let Err(Incomplete { error, .. }) = result {
                let missing = entries[done..].iter().copied();
                rest.extend(missing.map(|entry| (entry, error.clone())));
            }
        }
        rest
    }

    /// Removes entries. If the kernel refuses, the next flush tries again.
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
                        self.present.remove(&address);
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

/// The value of an address's entry.
fn entry(service: u32, kind: FrontendKind) -> abi::Frontend {
    abi::Frontend {
        service,
        kind: kind as u8,
        pad: [0; 3],
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

fn frontend_key<A>(address: A, port: u16, protocol: u8) -> FrontendKey<A> {
    FrontendKey {
        address,
        port,
        protocol,
        pad: 0,
    }
}
