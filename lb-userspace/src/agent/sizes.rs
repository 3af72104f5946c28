//! The sizes of the flow tables, and of maps that depend on them.

use lb_common::pipeline::RINGS;
use lb_datapath::Settings;

/// Half-open flows of one service before the oldest gives way to the newest: at 100,000 spoofed
/// SYNs per second they leave every client 160 ms for its handshake.
pub(super) const HALF_OPEN: u32 = 16_384;

/// Records per flow: the two that it uses, and as many free ones, so that searches stay short.
pub(super) const RECORDS_PER_FLOW: u32 = 4;

/// The map whose size is [`local_addresses`](super::kernel::Kernel::start)'s.
pub(super) const LOCAL_ADDRESSES: &str = "LOCAL_ADDRESSES";

/// What is decided at load: the sizes of maps, for so many records of IPv4's flow table and so many
/// addresses of the node.
pub(super) fn sizes(slots: u32, local_addresses: u32) -> Settings<'static> {
    Settings::default()
        .max_entries(LOCAL_ADDRESSES, local_addresses)
        .max_entries("FLOWS4", slots)
        .max_entries("FLOWS6", slots / 2)
        .max_entries("HALF_OPEN4", RINGS * HALF_OPEN)
        .max_entries("HALF_OPEN6", RINGS * HALF_OPEN)
}

/// How many records the IPv4 flow table needs for `flows` flows.
pub(super) fn slots(flows: u32) -> u32 {
    flows
        .saturating_mul(RECORDS_PER_FLOW)
        .clamp(1 << 10, 1 << 27)
        .next_power_of_two()
}
