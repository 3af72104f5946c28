//! What each IP family has for itself.

use std::{collections::HashMap, net::SocketAddr};

use lb_common::{
    abi::Frontend,
    addr::{Address, Ip4, Ip6},
};

use super::{FlowTable, MemoryTables, shared::HalfOpen};

/// A family whose tables are in [`MemoryTables`].
pub trait Family: Address + Default {
    fn tables(tables: &MemoryTables) -> &FamilyTables<Self>;
}

impl Family for Ip4 {
    fn tables(tables: &MemoryTables) -> &FamilyTables<Self> {
        &tables.v4
    }
}

impl Family for Ip6 {
    fn tables(tables: &MemoryTables) -> &FamilyTables<Self> {
        &tables.v6
    }
}

/// One family's frontends and flows.
pub struct FamilyTables<A: Family> {
    /// By address and IP protocol number.
    pub(super) frontends: HashMap<(SocketAddr, u8), Frontend>,
    pub(super) flows: FlowTable<A>,
    pub(super) half_open: HalfOpen,
}

impl<A: Family> FamilyTables<A> {
    pub(super) fn new(flow_records: u32) -> Self {
        Self {
            frontends: HashMap::new(),
            flows: FlowTable::new(flow_records),
            half_open: HalfOpen::new(),
        }
    }
}
