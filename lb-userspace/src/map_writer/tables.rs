//! Maglev lookup tables in the map. Plans with the same table share it. Services whose endpoints differ
//! in weight have them, whatever their algorithm is.

use std::{collections::HashMap, net::SocketAddr, ops::Range, sync::Arc};

use lb_common::abi::{MAGLEV_ROWS, MaglevRows};
use lb_datapath::maps::Maps;

use super::{maglev, ranges::Ranges, verify::Findings};

/// Stands for the first row of an empty set's table, which is never read.
pub const NO_TABLE: u32 = u32::MAX;

/// The tables that are in the map, and how many plans refer to each.
#[derive(Debug)]
pub struct LookupTables {
    elements: Ranges,
    by_content: HashMap<Arc<[u16]>, u32>,
    /// First row → contents and number of references.
    tables: HashMap<u32, (Arc<[u16]>, usize)>,
}

impl LookupTables {
    /// For an empty map of `elements` elements.
    pub fn new(elements: u32) -> Self {
        Self {
            elements: Ranges::new(0..elements),
            by_content: HashMap::new(),
            tables: HashMap::new(),
        }
    }

    /// How many tables of so many rows a map of so many elements has room for.
    pub fn room(elements: u32, rows: u32) -> u32 {
        elements / rows.div_ceil(MAGLEV_ROWS).max(1)
    }

    /// First row of the table for a set of endpoints and their weights, which gets one more
    /// reference; `None` if there is no room that leaves so many elements free.
    pub fn acquire(
        &mut self,
        (set, weights): (&[SocketAddr], &[u16]),
        offset: u16,
        rows: u32,
        reserve: u32,
        maps: &Maps,
    ) -> Option<u32> {
        let content = maglev::table(set, weights, offset, rows);
        if content.is_empty() {
            return Some(NO_TABLE);
        }
        if let Some(row) = self.by_content.get(content.as_slice()) {
            self.tables.get_mut(row)?.1 += 1;
            return Some(*row);
        }
        let element = self.elements.take_leaving(elements(&content), reserve)?;
        for (index, rows) in in_elements(element, &content) {
            maps.maglev.write(index, &rows);
        }
        let row = element * MAGLEV_ROWS;
        self.insert(row, content.into());
        Some(row)
    }

    /// Elements that are free.
    pub fn free(&self) -> u32 {
        self.elements.free()
    }

    /// Gives back a reference. The room of a table without references is free.
    pub fn release(&mut self, row: u32) {
        let Some((_, references)) = self.tables.get_mut(&row) else {
            return;
        };
        *references -= 1;
        if *references > 0 {
            return;
        }
        if let Some((content, _)) = self.tables.remove(&row) {
            if self.by_content.get(&content) == Some(&row) {
                self.by_content.remove(&content);
            }
            let element = row / MAGLEV_ROWS;
            self.elements.release(element..element + elements(&content));
        }
    }

    /// Takes over the table that a plan from before a restart refers to. Returns whether it is
    /// valid, that is without positions outside `positions`.
    pub fn adopt(&mut self, row: u32, rows: u32, positions: Range<u32>, maps: &Maps) -> bool {
        if row == NO_TABLE {
            return true;
        }
        let fits = |content: &[u16]| {
            content.len() == rows as usize
                && content
                    .iter()
                    .all(|position| positions.contains(&u32::from(*position)))
        };
        if let Some((content, references)) = self.tables.get_mut(&row) {
            let fits = fits(content);
            *references += usize::from(fits);
            return fits;
        }
        let element = row / MAGLEV_ROWS;
        let reserved = element..element.saturating_add(rows.div_ceil(MAGLEV_ROWS));
        if !row.is_multiple_of(MAGLEV_ROWS) || !self.elements.reserve(reserved.clone()) {
            return false;
        }
        let content: Vec<u16> = reserved
            .clone()
            .flat_map(|index| maps.maglev.read(index).positions)
            .take(rows as usize)
            .collect();
        if !fits(&content) {
            self.elements.release(reserved);
            return false;
        }
        self.insert(row, content.into());
        true
    }

    /// First rows of the tables.
    pub fn rows(&self) -> impl Iterator<Item = u32> {
        self.tables.keys().copied()
    }

    /// Compares a table with what was written, and mends it.
    pub fn verify(&self, row: u32, maps: &Maps, findings: &mut Findings) {
        let Some((content, _)) = self.tables.get(&row) else {
            return;
        };
        for (index, rows) in in_elements(row / MAGLEV_ROWS, content) {
            findings.element(
                "MAGLEV",
                &*maps.maglev,
                (index, &rows),
                &format_args!("table {row}"),
            );
        }
    }

    fn insert(&mut self, row: u32, content: Arc<[u16]>) {
        self.by_content.entry(content.clone()).or_insert(row);
        self.tables.insert(row, (content, 1));
    }
}

fn elements(content: &[u16]) -> u32 {
    (content.len() as u32).div_ceil(MAGLEV_ROWS)
}

/// A table as it is in the map, from an element on.
fn in_elements(first: u32, content: &[u16]) -> impl Iterator<Item = (u32, MaglevRows)> {
    let rows = content.chunks(MAGLEV_ROWS as usize).map(|rows| {
        let mut positions = [0; MAGLEV_ROWS as usize];
        positions[..rows.len()].copy_from_slice(rows);
        MaglevRows { positions }
    });
    (first..).zip(rows)
}
