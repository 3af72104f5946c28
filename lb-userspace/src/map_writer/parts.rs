//! What service ports occupy in the maps, by element number.

use std::ops::Range;

/// Elements and references that a service port has, is about to have, or no longer has.
#[derive(Debug, Default)]
pub struct Parts {
    pub ids: Vec<u32>,
    pub plans: Vec<u32>,
    pub slots: Vec<Range<u32>>,
    pub endpoint_ids: Vec<u32>,
    /// First rows of lookup tables, once for each reference.
    pub lookup_tables: Vec<u32>,
    /// Numbers of sets, once for each reference.
    pub source_sets: Vec<u32>,
}

impl Parts {
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
            && self.plans.is_empty()
            && self.slots.is_empty()
            && self.endpoint_ids.is_empty()
            && self.lookup_tables.is_empty()
            && self.source_sets.is_empty()
    }

    /// Adds what `other` has.
    pub fn append(&mut self, mut other: Self) {
        self.ids.append(&mut other.ids);
        self.plans.append(&mut other.plans);
        self.slots.append(&mut other.slots);
        self.endpoint_ids.append(&mut other.endpoint_ids);
        self.lookup_tables.append(&mut other.lookup_tables);
        self.source_sets.append(&mut other.source_sets);
    }
}
