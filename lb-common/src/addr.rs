//! IPv4 and IPv6 addresses, and what differs between the families.

use core::hash::{Hash, Hasher};

use crate::packet::Plain;

/// An address of either family; the packet pipeline is generic over it.
pub trait Address: Plain + PartialEq + 'static {
    /// The family.
    const FAMILY: Family;
    /// EtherType of its packets.
    const ETHERTYPE: u16;
    /// Protocol number of its control messages (ICMP, ICMPv6).
    const ICMP: u8;
    /// ICMP's type for an unreachable destination and the code for an unreachable port
    /// (RFC 792, RFC 4443).
    const PORT_UNREACHABLE: (u8, u8);
    /// ICMP's type and code for what an administrator has prohibited (RFC 1812, RFC 4443).
    const PROHIBITED: (u8, u8);
    /// ICMP's type and code for an exceeded time to live.
    const TIME_EXCEEDED: (u8, u8);
    /// ICMP's type and code for a packet that does not fit the next link.
    const TOO_BIG: (u8, u8);
    /// Length of the fixed header in bytes.
    const HEADER: usize;
    /// Offsets of source and destination address in the fixed header.
    const OFFSETS: (usize, usize);

    /// The address as two numbers to hash; bytes in memory order.
    fn halves(self) -> (u64, u64);
    /// Sum of its 32-bit words, not folded (RFC 1071).
    fn sum(self) -> u64;
    /// The address as IPv6, IPv4 in its mapped form (RFC 4291, 2.5.5.2).
    fn to_mapped(self) -> Ip6;
    /// The inverse of [`Address::to_mapped`]; the other family's addresses give nonsense.
    fn from_mapped(mapped: Ip6) -> Self;
    /// Whether packets from the address can come from another host: it is not unspecified,
    /// loopback, multicast or broadcast (RFC 1122, 3.2.1.3; RFC 4291, 2.5 and 2.7).
    fn is_source(self) -> bool;
    /// Whether it is in `127.0.0.0/8`, or `::1`.
    fn is_loopback(self) -> bool;
    /// Whether the first `prefix` bits equal those of `network`.
    fn within(self, network: Self, prefix: u32) -> bool;
}

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// An IPv4 address, octets in network order.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct Ip4 {
    pub octets: [u8; 4],
}

/// An IPv6 address, octets in network order.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, Eq)]
pub struct Ip6 {
    pub octets: [u8; 16],
}

// SAFETY: octets only, no padding.
unsafe impl Plain for Ip4 {}
// SAFETY: octets only, no padding.
unsafe impl Plain for Ip6 {}

impl Ip4 {
    /// The octets as one word in memory order.
    #[inline(always)]
    fn word(self) -> u32 {
        u32::from_ne_bytes(self.octets)
    }
}

// Comparing words keeps LLVM from comparing byte by byte.
impl PartialEq for Ip4 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        self.word() == other.word()
    }
}

impl Hash for Ip4 {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.octets.hash(state);
    }
}

impl Address for Ip4 {
    const FAMILY: Family = Family::V4;
    const ETHERTYPE: u16 = 0x0800;
    const ICMP: u8 = 1;
    const PORT_UNREACHABLE: (u8, u8) = (3, 3);
    const PROHIBITED: (u8, u8) = (3, 13);
    const TIME_EXCEEDED: (u8, u8) = (11, 0);
    const TOO_BIG: (u8, u8) = (3, 4);
    const HEADER: usize = 20;
    const OFFSETS: (usize, usize) = (12, 16);

    #[inline(always)]
    fn halves(self) -> (u64, u64) {
        (u64::from(self.word()), 0)
    }

    #[inline(always)]
    fn sum(self) -> u64 {
        u64::from(self.word())
    }

    #[inline(always)]
    fn to_mapped(self) -> Ip6 {
        let [a, b, c, d] = self.octets;
        Ip6 {
            octets: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d],
        }
    }

    #[inline(always)]
    fn from_mapped(mapped: Ip6) -> Self {
        let o = mapped.octets;
        Self {
            octets: [o[12], o[13], o[14], o[15]],
        }
    }

    #[inline(always)]
    fn is_source(self) -> bool {
        let [first, ..] = self.octets;
        !matches!(first, 0 | 127 | 224..=239) && self.word() != u32::MAX
    }

    #[inline(always)]
    fn is_loopback(self) -> bool {
        self.octets[0] == 127
    }

    #[inline(always)]
    fn within(self, network: Self, prefix: u32) -> bool {
        let difference = u32::from_be(self.word() ^ network.word());
        same_prefix(difference, prefix)
    }
}

impl Ip6 {
    /// The octets as words in memory order.
    #[inline(always)]
    fn words(self) -> [u32; 4] {
        // SAFETY: any bytes are valid words. Put together byte by byte, LLVM would load them so.
        unsafe { core::mem::transmute(self.octets) }
    }
}

impl PartialEq for Ip6 {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.words(), other.words());
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }
}

impl Hash for Ip6 {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.octets.hash(state);
    }
}

impl Address for Ip6 {
    const FAMILY: Family = Family::V6;
    const ETHERTYPE: u16 = 0x86dd;
    const ICMP: u8 = 58;
    const PORT_UNREACHABLE: (u8, u8) = (1, 4);
    const PROHIBITED: (u8, u8) = (1, 1);
    const TIME_EXCEEDED: (u8, u8) = (3, 0);
    const TOO_BIG: (u8, u8) = (2, 0);
    const HEADER: usize = 40;
    const OFFSETS: (usize, usize) = (8, 24);

    #[inline(always)]
    fn halves(self) -> (u64, u64) {
        let [a, b, c, d] = self.words();
        (
            u64::from(a) << 32 | u64::from(b),
            u64::from(c) << 32 | u64::from(d),
        )
    }

    #[inline(always)]
    fn sum(self) -> u64 {
        let [a, b, c, d] = self.words();
        u64::from(a) + u64::from(b) + u64::from(c) + u64::from(d)
    }

    #[inline(always)]
    fn to_mapped(self) -> Ip6 {
        self
    }

    #[inline(always)]
    fn from_mapped(mapped: Ip6) -> Self {
        mapped
    }

    #[inline(always)]
    fn is_source(self) -> bool {
        let [a, b, c, d] = self.words().map(u32::from_be);
        a >> 24 != 0xff && (a | b | c != 0 || d > 1)
    }

    #[inline(always)]
    fn is_loopback(self) -> bool {
        self.words() == [0, 0, 0, 1_u32.to_be()]
    }

    #[inline(always)]
    fn within(self, network: Self, prefix: u32) -> bool {
        let (a, b) = (self.words(), network.words());
        same_prefix(u32::from_be(a[0] ^ b[0]), prefix)
            && same_prefix(u32::from_be(a[1] ^ b[1]), prefix.saturating_sub(32))
            && same_prefix(u32::from_be(a[2] ^ b[2]), prefix.saturating_sub(64))
            && same_prefix(u32::from_be(a[3] ^ b[3]), prefix.saturating_sub(96))
    }
}

/// Whether the upper `prefix` bits (32 at most) of a difference are zero.
#[inline(always)]
fn same_prefix(difference: u32, prefix: u32) -> bool {
    match prefix {
        0 => true,
        1..=31 => difference >> (32 - prefix) == 0,
        _ => difference == 0,
    }
}

#[cfg(feature = "user")]
mod convert {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::{Address, Ip4, Ip6};

    impl From<Ipv4Addr> for Ip4 {
        fn from(address: Ipv4Addr) -> Self {
            Self {
                octets: address.octets(),
            }
        }
    }

    impl From<Ipv6Addr> for Ip6 {
        fn from(address: Ipv6Addr) -> Self {
            Self {
                octets: address.octets(),
            }
        }
    }

    /// IPv4 in its mapped form.
    impl From<IpAddr> for Ip6 {
        fn from(address: IpAddr) -> Self {
            match address {
                IpAddr::V4(v4) => Ip4::from(v4).to_mapped(),
                IpAddr::V6(v6) => v6.into(),
            }
        }
    }

    impl From<Ip4> for IpAddr {
        fn from(address: Ip4) -> Self {
            Ipv4Addr::from(address.octets).into()
        }
    }

    /// Mapped addresses become IPv4.
    impl From<Ip6> for IpAddr {
        fn from(address: Ip6) -> Self {
            Ipv6Addr::from(address.octets).to_canonical()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let address = Ip4 {
            octets: [10, 1, 2, 3],
        };
        let network = Ip4 {
            octets: [10, 0, 0, 0],
        };
        for (prefix, inside) in [(0, true), (8, true), (15, true), (16, false), (32, false)] {
            assert_eq!(address.within(network, prefix), inside, "/{prefix}");
        }
        let mut near = [0; 16];
        near[9] = 1;
        let (a, b) = (Ip6 { octets: near }, Ip6 { octets: [0; 16] });
        for (prefix, inside) in [(0, true), (64, true), (79, true), (80, false), (128, false)] {
            assert_eq!(a.within(b, prefix), inside, "/{prefix}");
        }
    }

    /// If an attacker could choose an octet that the hash leaves out, all its flows would have one
    /// place in the table.
    #[test]
    fn halves_hold_every_octet() {
        let v6 = |at: usize| {
            let mut octets = [0; 16];
            octets[at] = 1;
            Ip6 { octets }.halves()
        };
        let v4 = |at: usize| {
            let mut octets = [0; 4];
            octets[at] = 1;
            Ip4 { octets }.halves()
        };
        for (one, other) in (0..16).flat_map(|one| (0..one).map(move |other| (one, other))) {
            assert_ne!(v6(one), v6(other));
            assert!(one > 3 || v4(one) != v4(other));
        }
    }

    #[test]
    fn mapped_and_back() {
        let address = Ip4 {
            octets: [192, 0, 2, 1],
        };
        assert_eq!(Ip4::from_mapped(address.to_mapped()), address);
    }
}
