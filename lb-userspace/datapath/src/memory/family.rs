//! What exists once for each IP family.

use std::{hash::Hash, sync::Arc};

use lb_common::{
    abi::{Frontend, FrontendKey},
    addr::{Address, Ip4, Ip6},
    flow::slots::Slots as _,
};

use super::{FlowTable, MemoryTables, shared::HalfOpen, storage::Table};

/// A family with tables in [`MemoryTables`].
pub trait Family: Address + Default + Eq + Hash {
    /// The family's tables.
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
    pub(super) frontends: Arc<Table<FrontendKey<A>, Frontend>>,
    pub(super) flows: FlowTable<A>,
    /// The old table, while the size changes.
    pub(super) former: Option<FlowTable<A>>,
    pub(super) half_open: HalfOpen,
}

impl<A: Family> FamilyTables<A> {
    pub(super) fn new(frontends: Arc<Table<FrontendKey<A>, Frontend>>, flow_records: u32) -> Self {
        Self {
            frontends,
            flows: FlowTable::new(flow_records),
            former: None,
            half_open: HalfOpen::new(),
        }
    }

    /// Number of records in the old table.
    pub(super) fn former_len(&self) -> u32 {
        self.former.as_ref().map_or(0, |former| former.mask() + 1)
    }

    /// Puts an empty table of another size beside the present one.
    pub(super) fn resize(&mut self, flow_records: u32) {
        let mut next = FlowTable::new(flow_records);
        next.secret = self.flows.secret;
        self.former = Some(std::mem::replace(&mut self.flows, next));
    }
}
