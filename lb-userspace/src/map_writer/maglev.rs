//! Maglev lookup tables (Eisenbud et al., NSDI 2016, section 3.4).

use std::{
    hash::Hasher,
    net::{IpAddr, SocketAddr},
};

use siphasher::sip::SipHasher13;

/// A lookup table with `rows` rows (a prime): each row holds an endpoint's position in `endpoints`,
/// plus `offset`. It depends only on the set of addresses and their `weights`, which are empty if all
/// are the same: so it is the same on all nodes and after a restart. It is empty for an empty set.
///
/// Each endpoint has rows in proportion to its weight, and at least one if there are enough.
pub fn table(endpoints: &[SocketAddr], weights: &[u16], offset: u16, rows: u32) -> Vec<u16> {
    if endpoints.is_empty() || rows == 0 {
        return Vec::new();
    }
    // The filling order decides which endpoint gets a contested row: by address, not by class.
    let mut order: Vec<usize> = (0..endpoints.len()).collect();
    order.sort_unstable_by_key(|position| endpoints[*position]);
    let most = weights
        .iter()
        .max()
        .map_or(1, |most| u32::from(*most).max(1));
    let weight = |position: usize| {
        weights
            .get(position)
            .map_or(most, |own| u32::from(*own).max(1))
    };
    let mut preferences: Vec<Preference> = order
        .iter()
        .map(|position| Preference::new(&endpoints[*position], rows, most - weight(*position)))
        .collect();

    let mut table = vec![u16::MAX; rows as usize];
    let mut filled = 0;
    loop {
        for (preference, position) in preferences.iter_mut().zip(&order) {
            // Whoever has the greatest weight takes a row in each round.
            preference.credit += weight(*position);
            if preference.credit < most {
                continue;
            }
            preference.credit -= most;
            let row = loop {
                let row = preference.next();
                if table[row] == u16::MAX {
                    break row;
                }
            };
            table[row] = offset + *position as u16;
            filled += 1;
            if filled == rows {
                return table;
            }
        }
    }
}

/// An endpoint's permutation of the rows.
struct Preference {
    next: u64,
    skip: u64,
    rows: u64,
    /// What it has saved up for its next row.
    credit: u32,
}

impl Preference {
    fn new(endpoint: &SocketAddr, rows: u32, credit: u32) -> Self {
        let rows = u64::from(rows);
        Self {
            next: hash(endpoint, 0x6f66_6673_6574) % rows,
            skip: hash(endpoint, 0x736b_6970) % (rows - 1).max(1) + 1,
            rows,
            credit,
        }
    }

    fn next(&mut self) -> usize {
        let row = self.next;
        self.next = (self.next + self.skip) % self.rows;
        row as usize
    }
}

/// SipHash of the octets with a fixed key: the same on every node and in every version.
fn hash(endpoint: &SocketAddr, salt: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(0x6e6f_6465_2d6c_6221, salt);
    match endpoint.ip() {
        IpAddr::V4(v4) => hasher.write(&v4.octets()),
        IpAddr::V6(v6) => hasher.write(&v6.octets()),
    }
    hasher.write(&endpoint.port().to_be_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u32 = 16_381;

    fn endpoints(count: u16) -> Vec<SocketAddr> {
        (0..count)
            .map(|n| SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 80)))
            .collect()
    }

    #[test]
    fn rows_are_shared_evenly() {
        let table = table(&endpoints(100), &[], 7, ROWS);
        let mut counts = [0; 100];
        for position in &table {
            counts[usize::from(*position) - 7] += 1;
        }
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(most - least <= 2, "{least}..{most}");
    }

    #[test]
    fn one_endpoint_less_moves_few_rows() {
        let before = endpoints(50);
        let after: Vec<_> = before
            .iter()
            .copied()
            .filter(|e| *e != before[20])
            .collect();
        let (old, new) = (table(&before, &[], 0, ROWS), table(&after, &[], 0, ROWS));
        let moved = (0..ROWS as usize)
            .filter(|row| {
                let was = before[usize::from(old[*row])];
                was != before[20] && was != after[usize::from(new[*row])]
            })
            .count();
        assert!(
            moved < ROWS as usize / 20,
            "{moved} rows of other endpoints moved"
        );
    }

    #[test]
    fn the_order_of_endpoints_does_not_matter() {
        let forward = endpoints(9);
        let backward: Vec<_> = forward.iter().rev().copied().collect();
        let (a, b) = (
            table(&forward, &[], 0, ROWS),
            table(&backward, &[], 0, ROWS),
        );
        let same = (0..ROWS as usize)
            .all(|row| forward[usize::from(a[row])] == backward[usize::from(b[row])]);
        assert!(same);
    }

    #[test]
    fn rows_are_shared_by_weight() {
        let mut weights = [1; 20];
        (weights[3], weights[7]) = (4, 256);
        let mut counts = [0; 20];
        for position in table(&endpoints(20), &weights, 0, ROWS) {
            counts[usize::from(position)] += 1;
        }
        let sum: u32 = weights.iter().map(|weight| u32::from(*weight)).sum();
        for (count, weight) in counts.iter().zip(weights) {
            let share = ROWS as f64 * f64::from(weight) / f64::from(sum);
            assert!(
                (f64::from(*count) - share).abs() <= 2.0,
                "{count} of {share}"
            );
        }
    }

    #[test]
    fn the_lightest_endpoint_has_a_row_if_there_are_enough() {
        let mut weights = [1; 10];
        weights[4] = 2560; // while others start slowly
        let table = table(&endpoints(10), &weights, 0, 13);
        assert!(
            (0..10).all(|position| table.contains(&position)),
            "{table:?}"
        );
    }

    #[test]
    fn the_same_weight_for_all_is_as_good_as_none() {
        let endpoints = endpoints(9);
        let plain = table(&endpoints, &[], 0, ROWS);
        assert_eq!(table(&endpoints, &[7; 9], 0, ROWS), plain);
    }

    #[test]
    fn another_weight_of_one_endpoint_moves_few_rows_of_others() {
        let endpoints = endpoints(20);
        let mut weights = [4; 20];
        weights[5] = 8;
        let before = table(&endpoints, &[], 0, ROWS);
        let after = table(&endpoints, &weights, 0, ROWS);
        let moved = before.iter().zip(&after);
        let moved = moved.filter(|(was, is)| was != is && **is != 5).count();
        assert!(moved < ROWS as usize / 20, "{moved} rows");
    }

    #[test]
    fn an_empty_set_has_no_table() {
        assert!(table(&[], &[], 0, ROWS).is_empty());
    }
}
