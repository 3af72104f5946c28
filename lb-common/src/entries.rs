//! How many entries maps have.

/// Of `FRONTENDS4` and `FRONTENDS6` each.
pub const FRONTENDS: usize = 131_072;
pub const SERVICES: usize = 65_536;
/// Twice as many as there are services: each has one in force while the next is written.
pub const PLANS: usize = 2 * SERVICES;
pub const ENDPOINTS: usize = 2 * ENDPOINT_IDS;
/// Of `ENDPOINT_STATES` and `ENDPOINT_MEMORY` each.
pub const ENDPOINT_IDS: usize = 524_288;
pub const MAGLEV: usize = 1_048_576;
pub const SOURCE_RANGES: usize = 65_536;
pub const LOCAL_ADDRESSES: usize = 4_096;
/// As many as there are services: each has one ClusterIP at most.
pub const CLUSTER_IPS: usize = SERVICES;
/// Of `DEVICES`, `WAYS_BACK` and `TUNNEL_SOURCES` each.
pub const DEVICES: usize = 65_536;
/// A power of two.
pub const HOPS: usize = 16_384;
pub const SEATS: usize = crate::flow::limit::LIMITS;
pub const LEVELS: usize = crate::flow::limit::LEVEL_NUMBERS;
pub const FLOW_SCHEMAS: usize = 8_192;
pub const LEVEL_QUEUES: usize = LEVELS;
pub const QUEUES: usize = crate::flow::queue::QUEUES;
/// Bytes.
pub const WAITERS: usize = 1 << 20;
pub const PARTIES: usize = crate::flow::party::PARTIES;
pub const DESTINATION_CLASSES: usize = 65_536;
pub const SOURCE_CLASSES: usize = 65_536;
pub const DECISIONS: usize = 131_072;
