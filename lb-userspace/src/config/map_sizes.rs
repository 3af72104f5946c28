//! How much the maps that hold Services have room for.

use lb_common::entries;

/// What there is room for. The maps that it takes have more entries, which [`crate::agent`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSizes {
    /// Ports of Services, in each family. One less, because number 0 stands for none.
    pub service_ports: u32,
    /// Addresses of Services times ports, in each family.
    pub addresses: u32,
    /// Endpoints times ports. One less, because number 0 stands for none.
    pub endpoints: u32,
    /// Maglev tables; `None` means as many as [`entries::MAGLEV`] elements hold, whatever their size.
    pub maglev_tables: Option<u32>,
    /// Networks of loadBalancerSourceRanges.
    pub source_ranges: u32,
}

impl MapSizes {
    /// Those of all versions that cannot change them.
    pub const DEFAULT: Self = Self {
        service_ports: entries::SERVICES as u32,
        addresses: entries::FRONTENDS as u32,
        endpoints: entries::ENDPOINT_IDS as u32,
        maglev_tables: None,
        source_ranges: entries::SOURCE_RANGES as u32,
    };
}
