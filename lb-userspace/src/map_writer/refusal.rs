//! Why a service port is not in the maps as it should be.

use std::net::SocketAddr;

use lb_datapath::maps::WriteError;
use lb_objects::{IpFamily, ObjectName};
use thiserror::Error;

use super::{budget::Scope, frontends::Purpose};
use crate::{config::Resource, plan::FrontendKind};

/// Why a service port is not, or not completely, in the maps. What was there before stays in force,
/// but for endpoints that have gone.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NotProgrammed {
    #[error("no service number is free: SERVICES has {0} entries")]
    Services(u32),
    #[error("no plan number is free: PLANS has {0} entries")]
    Plans(u32),
    #[error("no room for {wanted} endpoints: ENDPOINTS has {free} of {size} slots free")]
    Endpoints { wanted: u32, free: u32, size: u32 },
    #[error("no endpoint number is free: ENDPOINT_STATES has {0} entries")]
    EndpointStates(u32),
    /// Its connections are not limited.
    #[error(
        "its limit of connections is not in force: SEATS is full, it has {0} entries, one for the \
         node and each limited Service"
    )]
    Limits(u32),
    /// Its endpoints are picked at random.
    #[error(
        "no room for a Maglev lookup table of {rows} rows: MAGLEV is full; endpoints are picked at \
         random, without weights"
    )]
    Maglev { rows: u32 },
    /// Its endpoints are picked at random.
    #[error(
        "{0} endpoints are too many for Maglev lookup tables, which take {max}; they are picked at \
         random, without weights",
        max = u16::MAX
    )]
    TooManyForMaglev(usize),
    /// Its addresses of one kind find no room.
    #[error("no room for {wanted} addresses of kind {}: {} is full", kind.name(), frontends(*family))]
    Frontends {
        kind: FrontendKind,
        wanted: usize,
        family: IpFamily,
    },
    /// It, or what it has of something, is over a limit.
    #[error(
        "its {} are over the limit: it wants {wanted}, and a {} may have {limit} \
         (--{}-limits)", resource.name(), scope.name(), scope.name().to_lowercase()
    )]
    Limit {
        scope: Scope,
        resource: Resource,
        wanted: u32,
        limit: u32,
    },
    /// Another Service has some of its addresses.
    #[error("Service {by}, which goes first, has {address}{}", and_more(*addresses))]
    Taken {
        /// One of them.
        address: SocketAddr,
        by: ObjectName,
        /// How many they are, with this one.
        addresses: usize,
    },
    /// Some of its addresses are kept for others than Services.
    #[error("{address} is {}, and not for Services{}", purpose.name(), and_more(*addresses))]
    Reserved {
        /// One of them.
        address: SocketAddr,
        purpose: Purpose,
        /// How many they are, with this one.
        addresses: usize,
    },
    /// Its source ranges found no room, or the kernel refused an address.
    #[error(transparent)]
    Map(#[from] WriteError),
}

/// The same for all refusals that one thing mends: as metrics have it, and Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    MapFull,
    ServiceLimit,
    NamespaceLimit,
    /// Everything is in, but endpoints are picked at random, without weights.
    NoMaglevTable,
    AddressTaken,
    AddressReserved,
}

impl Reason {
    pub const ALL: [Self; 6] = [
        Self::MapFull,
        Self::ServiceLimit,
        Self::NamespaceLimit,
        Self::NoMaglevTable,
        Self::AddressTaken,
        Self::AddressReserved,
    ];

    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MapFull => "map-full",
            Self::ServiceLimit => "service-limit",
            Self::NamespaceLimit => "namespace-limit",
            Self::NoMaglevTable => "no-maglev-table",
            Self::AddressTaken => "address-taken",
            Self::AddressReserved => "address-reserved",
        }
    }

    /// The reason of an Event about it.
    pub fn event(self) -> &'static str {
        match self {
            Self::MapFull => "ServiceNotProgrammed",
            Self::ServiceLimit | Self::NamespaceLimit => "ServiceOverLimit",
            Self::NoMaglevTable => "NoMaglevTable",
            Self::AddressTaken => "ServiceAddressTaken",
            Self::AddressReserved => "ServiceAddressReserved",
        }
    }

    /// What the node's operator can do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::MapFull => "delete what fills the map, or set a larger size for it",
            Self::ServiceLimit => {
                "use fewer addresses, ports, endpoints or source ranges, or raise --service-limits"
            }
            Self::NamespaceLimit => {
                "delete Services of its namespace that nobody needs, or raise --namespace-limits"
            }
            Self::NoMaglevTable => {
                "remove the annotations for Maglev or weights from some Services, or set a smaller \
                 --maglev-table-size"
            }
            Self::AddressTaken => "give one of the two Services another address",
            Self::AddressReserved => "give the Service another address or port",
        }
    }

    /// For the Service's owner: without numbers, and the same on every node.
    pub fn note(self) -> &'static str {
        match self {
            Self::MapFull => {
                "not, or not wholly, programmed: a map is full; it is tried again when there is room"
            }
            Self::ServiceLimit => {
                "not wholly programmed: it wants more addresses, ports, endpoints, source ranges or Maglev \
                 tables than one Service may have"
            }
            Self::NamespaceLimit => {
                "not, or not wholly, programmed: its namespace wants more Services, addresses, endpoints, source \
                 ranges, Maglev tables or connection limits than one may have"
            }
            Self::NoMaglevTable => {
                "endpoints are picked at random, without weights: there is no Maglev table for it; one is made \
                 when there is room"
            }
            Self::AddressTaken => {
                "an address that it claims is another Service's, which existed before or has it as an \
                 address of a kind that goes first"
            }
            Self::AddressReserved => {
                "an address and port that it claims is where nodes reach the API server, or where node-lb \
                 itself listens: it does not get that one"
            }
        }
    }
}

impl NotProgrammed {
    /// What kind of trouble it is.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Services(_)
            | Self::Plans(_)
            | Self::Endpoints { .. }
            | Self::EndpointStates(_)
            | Self::Limits(_)
            | Self::Frontends { .. }
            | Self::Map(_) => Reason::MapFull,
            Self::Limit {
                resource: Resource::MaglevTables,
                ..
            }
            | Self::Maglev { .. }
            | Self::TooManyForMaglev(_) => Reason::NoMaglevTable,
            Self::Limit {
                scope: Scope::Service,
                ..
            } => Reason::ServiceLimit,
            Self::Limit {
                scope: Scope::Namespace,
                ..
            } => Reason::NamespaceLimit,
            Self::Taken { .. } => Reason::AddressTaken,
            Self::Reserved { .. } => Reason::AddressReserved,
        }
    }

    /// Whether all it lacks is a Maglev table.
    pub fn is_about_maglev(&self) -> bool {
        self.reason() == Reason::NoMaglevTable
    }

    /// Whether it lacks what others may give back.
    pub fn is_shortage(&self) -> bool {
        match self {
            Self::Maglev { .. } => true,
            _ => self.reason() == Reason::MapFull,
        }
    }
}

/// The map of a family's addresses.
fn frontends(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "FRONTENDS4",
        IpFamily::V6 => "FRONTENDS6",
    }
}

/// Besides the address that is named.
fn and_more(addresses: usize) -> String {
    match addresses {
        0 | 1 => String::new(),
        more => format!(" and {} more of its addresses", more - 1),
    }
}
