//! The memory of a flow table.

use std::{cell::UnsafeCell, ptr::NonNull};

use lb_common::flow::{
    Flow, Record, Timeouts,
    record::read_tag,
    slots::Slots,
    steps::Plain,
    table::{GROUP, GROUPS},
    tag,
};

use super::Family;

/// Flow records that any number of threads search and claim.
pub struct FlowTable<A> {
    records: Box<[UnsafeCell<Flow<A>>]>,
    /// Secret of the hash. If it changes, no record is found any more.
    pub secret: [u64; 2],
}

// SAFETY: threads reach records as packets on several CPUs do: the tag, accessed atomically, says
// whose a record is (see `lb_common::flow::tag`).
unsafe impl<A: Send + Sync> Sync for FlowTable<A> {}

impl<A: Family> FlowTable<A> {
    /// A table of free records. Their number is rounded up to a power of two that the pipeline can
    /// use.
    pub fn new(records: u32) -> Self {
        let records = records.next_power_of_two().max(GROUPS * GROUP);
        Self {
            records: (0..records).map(|_| UnsafeCell::default()).collect(),
            secret: [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
        }
    }

    /// The live records. Changes that other threads make meanwhile may be visible or not.
    pub fn live(&self) -> impl Iterator<Item = Flow<A>> {
        let records = self
            .records
            .iter()
            .filter_map(|record| NonNull::new(record.get()));
        records
            .filter(|record| tag::in_use(read_tag(*record)))
            // SAFETY: live records keep what identifies them; the rest may be of any moment.
            .map(|record| unsafe { record.read_volatile() })
    }

    /// Makes all records free, as in a new table.
    pub(super) fn clear(&mut self) {
        self.records
            .iter_mut()
            .for_each(|record| *record.get_mut() = Flow::default());
    }

    /// Makes dead records free again.
    pub fn bury_dead(&mut self) {
        for record in &mut self.records {
            let tag = &mut record.get_mut().tag;
            if matches!(tag::state(*tag), tag::DEAD | tag::EVICTED) {
                *tag = tag::with_state(*tag, tag::TOMB);
            }
        }
    }
}

impl<A> Plain for FlowTable<A> {}

// SAFETY: the records live, unmoved and aligned, as long as the table.
unsafe impl<A: Family> Slots<A> for FlowTable<A> {
    fn mask(&self) -> u32 {
        self.records.len() as u32 - 1
    }

    fn slot(&self, index: u32) -> Option<Record<A>> {
        let record = self.records.get(index as usize)?;
        NonNull::new(record.get())
    }

    fn secret(&self) -> [u64; 2] {
        self.secret
    }

    fn now(&self) -> u32 {
        0
    }

    /// A table on its own has no timeouts: nothing in it ever ends.
    fn timeouts(&self) -> Option<&Timeouts> {
        None
    }

    fn count_half_open(&self, _service: u32, _change: i32) {}

    fn count_flows(&self, _service: u32, _change: i32) {}
}
