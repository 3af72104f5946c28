//! The sizes of the maps, as they are decided at load.

use lb_common::{abi, entries, pipeline::RINGS};
use lb_datapath::Settings;

use crate::config::DatapathConfig;

/// Half-open flows of one service before the oldest gives way to the newest: at 100,000 spoofed
/// SYNs per second they leave every client 160 ms for its handshake.
pub(super) const HALF_OPEN: u32 = 16_384;

/// Records per flow: the two that it uses, and as many free ones, so that searches stay short.
pub(super) const RECORDS_PER_FLOW: u32 = 4;

/// The map whose size is [`Sizes::local_addresses`].
pub(super) const LOCAL_ADDRESSES: &str = "LOCAL_ADDRESSES";

/// The maps that hold Services, those that programs count in among them.
pub(super) const SERVICE_MAPS: [&str; 16] = [
    "SERVICES",
    "PLANS",
    "SERVICE_STATS",
    "SERVICE_SHORTAGES",
    "SERVICE_FLOWS",
    "SERVICE_LATENCIES",
    "FRONTENDS4",
    "FRONTENDS6",
    "CLUSTER_IPS",
    "ENDPOINTS",
    "ENDPOINT_STATES",
    "ENDPOINT_MEMORY",
    "ENDPOINT_LOADS",
    "ENDPOINT_LATENCIES",
    "MAGLEV",
    "SOURCE_RANGES",
];

/// Whether the elements of one of these maps are those of endpoints, by their ids.
pub(super) fn is_by_endpoint(map: &str) -> bool {
    matches!(
        map,
        "ENDPOINT_STATES" | "ENDPOINT_MEMORY" | "ENDPOINT_LOADS" | "ENDPOINT_LATENCIES"
    )
}

/// The setting that decides how many entries a map has, if one does.
pub(super) fn setting(map: &str) -> Option<&'static str> {
    Some(match map {
        LOCAL_ADDRESSES => "--local-address-table-size",
        "FRONTENDS4" | "FRONTENDS6" => "--address-table-size",
        "ENDPOINTS" => "--endpoint-table-size",
        _ if is_by_endpoint(map) => "--endpoint-table-size",
        "MAGLEV" => "--maglev-tables",
        "SOURCE_RANGES" => "--source-range-table-size",
        _ if SERVICE_MAPS.contains(&map) => "--service-port-table-size",
        _ => return None,
    })
}

/// Entries of [`SERVICE_MAPS`], in their order.
pub(super) type ServiceSizes = [u32; SERVICE_MAPS.len()];

/// How many entries maps have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Records of IPv4's flow table; IPv6's has half as many.
    pub slots: u32,
    pub local_addresses: u32,
    pub service_maps: ServiceSizes,
}

impl Sizes {
    /// As the settings ask for.
    pub fn wanted(config: &DatapathConfig) -> Self {
        let sizes = config.map_sizes;
        let elements = config.maglev_table_size.div_ceil(abi::MAGLEV_ROWS);
        let size = |map| match map {
            "FRONTENDS4" | "FRONTENDS6" => sizes.addresses,
            _ if is_by_endpoint(map) => sizes.endpoints,
            "MAGLEV" => match sizes.maglev_tables {
                Some(tables) => tables.saturating_mul(elements),
                None => entries::MAGLEV as u32,
            },
            "SOURCE_RANGES" => sizes.source_ranges,
            // While a service port has one in force, the next one is written.
            "PLANS" => 2 * sizes.service_ports,
            "ENDPOINTS" => 2 * sizes.endpoints,
            _ => sizes.service_ports,
        };
        Self {
            slots: slots(config.flow_table_size),
            local_addresses: config.local_address_table_size,
            service_maps: SERVICE_MAPS.map(size),
        }
    }

    /// The same with a flow table of `slots` records.
    pub fn with_slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// The same with other sizes of the maps of Services.
    pub fn with_service_maps(self, service_maps: ServiceSizes) -> Self {
        Self {
            service_maps,
            ..self
        }
    }

    /// What is decided at load.
    pub fn settings(&self) -> Settings<'static> {
        let settings = Settings::default()
            .max_entries(LOCAL_ADDRESSES, self.local_addresses)
            .max_entries("FLOWS4", self.slots)
            .max_entries("FLOWS6", self.slots / 2)
            .max_entries("HALF_OPEN4", RINGS * HALF_OPEN)
            .max_entries("HALF_OPEN6", RINGS * HALF_OPEN);
        let maps = SERVICE_MAPS.into_iter().zip(self.service_maps);
        maps.fold(settings, |settings, (map, entries)| {
            settings.max_entries(map, entries)
        })
    }
}

/// How many records the IPv4 flow table needs for `flows` flows.
fn slots(flows: u32) -> u32 {
    flows
        .saturating_mul(RECORDS_PER_FLOW)
        .clamp(1 << 10, 1 << 27)
        .next_power_of_two()
}
