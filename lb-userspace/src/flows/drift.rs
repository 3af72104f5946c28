//! How far numbers that programs count are from what a pass has seen.

use std::{collections::HashMap, hash::Hash};

/// What the latest two passes have shown to be wrong, of things identified by `K`. Only what both show
/// is certain: a program may have been between the record and the number when one of them began or
/// ended.
#[derive(Debug)]
pub struct Drifts<K> {
    earlier: HashMap<K, i64>,
    latest: HashMap<K, i64>,
}

impl<K> Default for Drifts<K> {
    fn default() -> Self {
        Self {
            earlier: HashMap::new(),
            latest: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash> Drifts<K> {
    /// To be called after each pass, before [`Self::certain`].
    pub fn begin(&mut self) {
        self.earlier = std::mem::take(&mut self.latest);
    }

    /// By how much a number is wrong for certain; `drift` is what this pass shows, and not zero.
    pub fn certain(&mut self, whose: K, drift: i64) -> i64 {
        let again = self.earlier.get(&whose).copied().unwrap_or(0);
        if again.signum() != drift.signum() {
            self.latest.insert(whose, drift);
            return 0;
        }
        drift.abs().min(again.abs()) * drift.signum()
    }
}
