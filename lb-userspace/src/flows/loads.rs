//! The connections that endpoints have open: counted less for programs, and counted anew.

use std::{
    collections::{HashMap, HashSet},
    mem::offset_of,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
};

use lb_common::{abi::EndpointLoad, entries};
use lb_datapath::{Loaded, bpf::MappedArray};

use super::drift::Drifts;

/// `ENDPOINT_LOADS`, in which programs count as well: see [`lb_common::flow::load`].
#[derive(Clone, Debug)]
pub struct Loads(Arc<MappedArray<EndpointLoad>>);

impl Loads {
    /// The map of the programs in the kernel.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or mapped into memory.
    pub fn open(loaded: &Loaded) -> anyhow::Result<Self> {
        let map = MappedArray::new(&loaded.map("ENDPOINT_LOADS")?)?;
        Ok(Self::new(Arc::new(map)))
    }

    /// Loads in memory.
    pub fn new(elements: Arc<MappedArray<EndpointLoad>>) -> Self {
        Self(elements)
    }

    /// Loads of this process alone.
    pub fn in_memory() -> Self {
        Self::new(Arc::new(MappedArray::in_memory(
            entries::ENDPOINT_IDS as u32,
        )))
    }

    /// The connections that an endpoint has open, by its id, if they are counted.
    pub fn open_at(&self, endpoint: u32) -> u32 {
        let open = self.word(endpoint).map_or(0, |word| word.load(SeqCst));
        u32::try_from(open as i32).unwrap_or(0)
    }

    /// Counts a connection of an endpoint less.
    pub fn leave(&self, endpoint: u32) {
        if let Some(word) = self.word(endpoint) {
            word.fetch_sub(1, SeqCst);
        }
    }

    /// The number of an endpoint, which has an id above 0.
    fn word(&self, endpoint: u32) -> Option<&AtomicU32> {
        let is_one = endpoint != 0 && endpoint < self.0.len();
        is_one.then(|| self.0.u32_at(endpoint, offset_of!(EndpointLoad, open)))
    }

    /// All numbers that are not zero, by endpoint.
    fn all(&self) -> HashMap<u32, i32> {
        let elements = self.0.iter(1..self.0.len());
        let open = elements.map(|(endpoint, element)| (endpoint, element.open));
        open.filter(|(_, open)| *open != 0).collect()
    }
}

/// Compares what programs count with the flows that hold their seats, and corrects the difference.
/// There is one where an agent, or a program of another version, has opened or ended flows.
///
/// A difference counts if an endpoint's number was the same before a scan and after it, and two scans
/// in a row show it.
#[derive(Debug, Default)]
pub struct LoadRecount {
    /// `None` if nothing is counted: the map has many elements.
    before: Option<HashMap<u32, i32>>,
    drifts: Drifts<u32>,
}

impl LoadRecount {
    /// To be called before a scan, with whether a Service has, or has had, its connections counted.
    pub fn begin(&mut self, loads: &Loads, are_counted: bool) {
        self.before = are_counted.then(|| loads.all());
    }

    /// To be called after it; `held` are the flows that were seen to count, by endpoint.
    pub fn end(&mut self, loads: &Loads, held: &HashMap<u32, u32>) {
        self.drifts.begin();
        let Some(before) = self.before.take() else {
            return;
        };
        let after = loads.all();
        let endpoints: HashSet<u32> = after.keys().chain(held.keys()).copied().collect();
        let mut corrected = 0;
        for endpoint in endpoints {
            let number = |numbers: &HashMap<u32, i32>| numbers.get(&endpoint).copied().unwrap_or(0);
            let (before, open) = (number(&before), number(&after));
            let drift = i64::from(open) - i64::from(held.get(&endpoint).copied().unwrap_or(0));
            if before != open || drift == 0 {
                continue;
            }
            let certain = self.drifts.certain(endpoint, drift);
            if certain != 0
                && let Some(word) = loads.word(endpoint)
            {
                // Both are numbers of flows, of which a table has fewer than 2^31.
                word.fetch_sub(certain as i32 as u32, SeqCst);
                corrected += certain.abs();
            }
        }
        if corrected != 0 {
            tracing::info!(corrected, "corrected the numbers of endpoints' connections");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(open: i32) -> Loads {
        let loads = Loads::in_memory();
        loads.0.write(7, &EndpointLoad { open, weight: 0 });
        loads
    }

    #[test]
    fn what_two_scans_show_is_corrected() {
        let loads = counted(5);
        let mut recount = LoadRecount::default();
        let mut scan = |held: &[(u32, u32)]| {
            recount.begin(&loads, true);
            recount.end(&loads, &held.iter().copied().collect());
            loads.0.read(7).open
        };
        assert_eq!(scan(&[(7, 2)]), 5, "seen once");
        assert_eq!(scan(&[(7, 2)]), 2);
        assert_eq!(scan(&[(7, 3)]), 2);
        assert_eq!(scan(&[(7, 4)]), 3, "no more than both scans show");
        assert_eq!(scan(&[(7, 3)]), 3);
        assert_eq!((scan(&[]), scan(&[])), (3, 0), "nobody is left");
    }

    #[test]
    fn what_changes_during_a_scan_is_left_alone() {
        let loads = counted(5);
        let mut recount = LoadRecount::default();
        for _ in 0..3 {
            recount.begin(&loads, true);
            loads.leave(7);
            recount.end(&loads, &HashMap::new());
        }
        assert_eq!(loads.open_at(7), 2);
    }

    #[test]
    fn a_number_below_zero_is_corrected_and_read_as_none() {
        let loads = counted(-2);
        assert_eq!(loads.open_at(7), 0);
        let mut recount = LoadRecount::default();
        for _ in 0..2 {
            recount.begin(&loads, true);
            recount.end(&loads, &HashMap::from([(7, 1)]));
        }
        assert_eq!(loads.open_at(7), 1);
        // An endpoint that is not known is none.
        loads.leave(0);
        loads.leave(u32::MAX);
        assert_eq!((loads.open_at(0), loads.open_at(u32::MAX)), (0, 0));
    }
}
