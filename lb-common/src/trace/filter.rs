//! Which packets are logged.

use super::{Headers, Known, Trail};
use crate::{
    addr::{Address, Family, Ip6},
    opaque::rolled,
};

/// The only element of `TRACE`: what is asked of programs that trace, and what they have done.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// When to fall silent, in nanoseconds of `CLOCK_MONOTONIC`: an agent that was killed cannot
    /// say so any more.
    pub until: u64,
    /// Packets compared with the filter.
    pub seen: u64,
    /// Lines written, or meant to be: those for which the ring had no room are missing there.
    pub lines: u64,
    /// Packets logged; with the latest of several CPUs at once a few more than `limit`.
    pub taken: u32,
    /// How many may be.
    pub limit: u32,
    pub filter: Filter,
}

/// Service ports that a [`Filter`] may name.
pub const FILTER_SERVICES: usize = 16;

/// Which packets are logged: those that agree with all of it. Zero agrees with everything.
///
/// Addresses and ports are compared with those of the connection that a packet belongs to, so that
/// answers match as well.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The client's network.
    pub from: Ip6,
    /// The network of the frontend or of the endpoint.
    pub to: Ip6,
    /// Bits of the above that count, in the family's own length.
    pub from_prefix: u32,
    pub to_prefix: u32,
    /// The client's port.
    pub from_port: u16,
    /// The frontend's port, or the endpoint's.
    pub to_port: u16,
    /// Number of the family that networks are of, plus one.
    pub family: u32,
    /// IP protocol number; that of ICMP stands for ICMPv6 as well.
    pub protocol: u32,
    /// Number of the [`Reason`], plus one.
    pub reason: u32,
    /// Service ids.
    pub services: [u32; FILTER_SERVICES],
}

impl Filter {
    /// Whether a packet is to be logged.
    #[inline(always)]
    pub fn matches<A: Address>(&self, trail: &Trail<A>) -> bool {
        if self.reason != 0 && self.reason != trail.reason + 1 {
            return false;
        }
        let protocol = u32::from(trail.tuple.protocol);
        let is_icmp = protocol == u32::from(A::ICMP) && self.protocol == ICMP;
        let has_protocol = trail.headers != Headers::None && (protocol == self.protocol || is_icmp);
        if self.protocol != 0 && !has_protocol {
            return false;
        }
        self.has_service(trail.service) && self.has_connection(trail)
    }

    #[inline(always)]
    fn has_service(&self, service: u32) -> bool {
        let mut none_named = true;
        for index in rolled(FILTER_SERVICES) {
            let named = self.services.get(index).copied().unwrap_or(0);
            if named != 0 && named == service {
                return true;
            }
            none_named &= named == 0;
        }
        none_named
    }

    #[inline(always)]
    fn has_connection<A: Address>(&self, trail: &Trail<A>) -> bool {
        let any_address = self.family == 0;
        if any_address && self.from_port == 0 && self.to_port == 0 {
            return true;
        }
        if trail.headers == Headers::None || !any_address && self.family != family_number(A::FAMILY)
        {
            return false;
        }
        let c = &trail.connection;
        let sent = (c.client, c.client_port);
        let frontend = (c.frontend, c.frontend_port);
        if self.is_from(sent) && (self.is_to(frontend) || self.is_to((c.endpoint, c.endpoint_port)))
        {
            return true;
        }
        // Which side has opened what is no connection of ours is not known.
        trail.flow == Known::No && self.is_from(frontend) && self.is_to(sent)
    }

    #[inline(always)]
    fn is_from<A: Address>(&self, (address, port): (A, u16)) -> bool {
        is_in(address, port, self.from, self.from_prefix, self.from_port)
    }

    #[inline(always)]
    fn is_to<A: Address>(&self, (address, port): (A, u16)) -> bool {
        is_in(address, port, self.to, self.to_prefix, self.to_port)
    }
}

/// Protocol number of ICMP for IPv4.
const ICMP: u32 = 1;

/// [`Filter::family`] for networks of a family.
pub const fn family_number(family: Family) -> u32 {
    family as u32 + 1
}

#[inline(always)]
fn is_in<A: Address>(address: A, port: u16, network: Ip6, prefix: u32, wanted: u16) -> bool {
    (wanted == 0 || port == wanted) && address.within(A::from_mapped(network), prefix)
}
