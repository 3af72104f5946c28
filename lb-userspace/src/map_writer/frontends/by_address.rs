//! Something for each of very many addresses.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use super::Address;

/// A map from addresses, in which one takes 20 bytes instead of 36.
#[derive(Debug)]
pub struct ByAddress<V>(HashMap<Packed, V>);

/// The same as an [`Address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Packed {
    /// IPv4 as mapped to IPv6.
    ip: [u8; 16],
    port: u16,
    protocol: u8,
    /// A mapped address itself is another one.
    is_v4: bool,
}

impl<V> Default for ByAddress<V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<V> ByAddress<V> {
    pub fn get(&self, address: &Address) -> Option<&V> {
        self.0.get(&address.into())
    }

    pub fn get_mut(&mut self, address: &Address) -> Option<&mut V> {
        self.0.get_mut(&address.into())
    }

    pub fn contains(&self, address: &Address) -> bool {
        self.0.contains_key(&address.into())
    }

    /// Returns what was there before.
    pub fn insert(&mut self, address: &Address, value: V) -> Option<V> {
        self.0.insert(address.into(), value)
    }

    /// Returns what was there.
    pub fn remove(&mut self, address: &Address) -> Option<V> {
        self.0.remove(&address.into())
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Address, &V)> {
        self.0.iter().map(|(packed, value)| (packed.into(), value))
    }
}

impl<V> FromIterator<(Address, V)> for ByAddress<V> {
    fn from_iter<I: IntoIterator<Item = (Address, V)>>(all: I) -> Self {
        let all = all.into_iter();
        Self(
            all.map(|(address, value)| ((&address).into(), value))
                .collect(),
        )
    }
}

impl From<&Address> for Packed {
    fn from((address, protocol): &Address) -> Self {
        let (ip, is_v4) = match address.ip() {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped(), true),
            IpAddr::V6(v6) => (v6, false),
        };
        Self {
            ip: ip.octets(),
            port: address.port(),
            protocol: *protocol,
            is_v4,
        }
    }
}

impl From<&Packed> for Address {
    fn from(packed: &Packed) -> Self {
        let v6 = Ipv6Addr::from(packed.ip);
        let v4 = v6.to_ipv4_mapped().filter(|_| packed.is_v4);
        let ip = v4.map_or(IpAddr::V6(v6), IpAddr::V4);
        (SocketAddr::new(ip, packed.port), packed.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_another_one() {
        let text = [
            "10.0.0.1:80",
            "[::ffff:10.0.0.1]:80",
            "10.0.0.1:81",
            "[fd00::1]:80",
        ];
        let mut addresses: Vec<Address> = text.map(|text| (text.parse().unwrap(), 6)).to_vec();
        addresses.push((addresses[0].0, 17));
        let mut all: ByAddress<_> = addresses.iter().copied().zip(0..).collect();
        for (number, address) in addresses.iter().enumerate() {
            assert_eq!(all.get(address), Some(&number));
        }
        let mut found: Vec<_> = all.iter().map(|(address, _)| address).collect();
        found.sort_unstable();
        addresses.sort_unstable();
        assert_eq!(found, addresses);
        assert!(all.insert(&addresses[0], 7).is_some());
        assert_eq!(all.remove(&addresses[0]), Some(7));
        assert!(!all.contains(&addresses[0]));
    }
}
