//! The smallest of many keys in logarithmic time: a tournament tree over the queues of a level.
//!
//! The leaves are the queues in order. Every node knows the winner among the leaves below it: the
//! one with the smallest key, of equals the first. There is one such tree for each set of
//! conditions that a winner may have to meet, all of the same shape; such a tree is a *lane*.

use std::ops::Range;

use super::connection::NONE;

/// Conditions that a leaf meets, as bits.
pub type Conditions = u8;

/// A leaf that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: u64,
    pub meets: Conditions,
}

/// The trees.
#[derive(Clone, Debug, Default)]
pub struct Tournament {
    /// A lane for each set of conditions.
    lanes: usize,
    /// How many leaves there is room for: a power of two.
    size: usize,
    entries: Vec<Option<Entry>>,
    /// Winners of each node, lane after lane. Node 1 is the root, and node n has the children 2n
    /// and 2n + 1.
    winners: Vec<u32>,
}

impl Tournament {
    /// Trees for the conditions of these bits.
    pub fn new(conditions: Conditions) -> Self {
        Self {
            lanes: usize::from(conditions) + 1,
            size: 0,
            entries: Vec::new(),
            winners: Vec::new(),
        }
    }

    /// Takes all leaves out, and makes room for so many.
    pub fn clear(&mut self, leaves: u32) {
        self.size = (leaves as usize).next_power_of_two();
        self.entries.clear();
        self.entries.resize(self.size, None);
        self.winners.clear();
        self.winners.resize(2 * self.size * self.lanes, NONE);
    }

    /// Changes many leaves, which must be in the tree: each match is decided once.
    pub fn set_many(&mut self, leaves: impl Iterator<Item = (u32, Option<Entry>)>) {
        for (leaf, entry) in leaves {
            self.entries[leaf as usize] = entry;
            for lane in 0..self.lanes {
                self.winners[(self.size + leaf as usize) * self.lanes + lane] =
                    self.seed(lane, leaf);
            }
        }
        for node in (1..self.size).rev() {
            for lane in 0..self.lanes {
                self.winners[node * self.lanes + lane] = self.play(lane, node);
            }
        }
    }

    /// Changes a leaf, or takes it out.
    pub fn set(&mut self, leaf: u32, entry: Option<Entry>) {
        let old = std::mem::replace(&mut self.entries[leaf as usize], entry);
        if old == entry {
            return;
        }
        for lane in 0..self.lanes {
            self.replay(lane, leaf);
        }
    }

    /// Decides a lane's matches from a leaf upwards, as far as they concern the leaf.
    fn replay(&mut self, lane: usize, leaf: u32) {
        let winner = self.seed(lane, leaf);
        let mut node = self.size + leaf as usize;
        let mut was = std::mem::replace(&mut self.winners[node * self.lanes + lane], winner);
        let mut concerned = was == leaf || winner == leaf;
        while node > 1 && concerned {
            node /= 2;
            let winner = self.play(lane, node);
            was = std::mem::replace(&mut self.winners[node * self.lanes + lane], winner);
            concerned = was == leaf || winner == leaf;
        }
    }

    /// A leaf as its own winner, if it takes part in a lane.
    fn seed(&self, lane: usize, leaf: u32) -> u32 {
        match self.entries[leaf as usize] {
            Some(entry) if usize::from(entry.meets) & lane == lane => leaf,
            _ => NONE,
        }
    }

    /// The winner of a node's match.
    fn play(&self, lane: usize, node: usize) -> u32 {
        self.better(self.winner(lane, 2 * node), self.winner(lane, 2 * node + 1))
    }

    /// The leaf with the smallest key among those that meet `conditions`. Of equals, the first
    /// after `last` in a circle.
    pub fn first(&self, conditions: Conditions, last: u32) -> Option<u32> {
        let next = (last as usize + 1).min(self.size);
        let lane = usize::from(conditions);
        let after = self.first_within(lane, next..self.size);
        let until = self.first_within(lane, 0..next);
        let first = self.better(after, until);
        (first != NONE).then_some(first)
    }

    /// What a leaf's entry is at present.
    pub fn entry(&self, leaf: u32) -> Option<Entry> {
        self.entries.get(leaf as usize).copied().flatten()
    }

    fn first_within(&self, lane: usize, leaves: Range<usize>) -> u32 {
        let (mut from, mut to) = (leaves.start + self.size, leaves.end + self.size);
        let (mut left, mut right) = (NONE, NONE);
        while from < to {
            if from % 2 == 1 {
                left = self.better(left, self.winner(lane, from));
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                right = self.better(self.winner(lane, to), right);
            }
            from /= 2;
            to /= 2;
        }
        self.better(left, right)
    }

    fn winner(&self, lane: usize, node: usize) -> u32 {
        self.winners[node * self.lanes + lane]
    }

    /// The one with the smaller key; of equals, the former.
    fn better(&self, former: u32, latter: u32) -> u32 {
        let key = |leaf: u32| self.entry(leaf).map(|entry| entry.key);
        match (key(former), key(latter)) {
            (Some(one), Some(other)) if other < one => latter,
            (None, Some(_)) => latter,
            _ => former,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same by looking at every leaf.
    fn scan(entries: &[Option<Entry>], conditions: Conditions, last: u32) -> Option<u32> {
        let number = entries.len() as u32;
        let circle = (1..=number).map(|step| (last + step) % number);
        let meets = |leaf: &u32| {
            entries[*leaf as usize].is_some_and(|entry| entry.meets & conditions == conditions)
        };
        // The first of equals.
        circle
            .filter(meets)
            .min_by_key(|&leaf| entries[leaf as usize].map(|entry| entry.key))
    }

    proptest! {
        #[test]
        fn winners_are_those_of_a_scan(
            leaves in 1..40_u32,
            changes in prop::collection::vec(
                (any::<u32>(), prop::option::weighted(0.7, (0..6_u64, 0..8_u8))),
                1..120,
            ),
            last in any::<u32>(),
            at_once in any::<bool>(),
        ) {
            let mut tree = Tournament::new(7);
            tree.clear(leaves);
            let mut entries = vec![None; leaves as usize];
            for (leaf, entry) in changes {
                let entry = entry.map(|(key, meets)| Entry { key, meets });
                let leaf = leaf % leaves;
                match at_once {
                    true => tree.set_many([(leaf, entry)].into_iter()),
                    false => tree.set(leaf, entry),
                }
                entries[leaf as usize] = entry;
                for conditions in 0..8 {
                    let last = last % leaves;
                    prop_assert_eq!(
                        tree.first(conditions, last),
                        scan(&entries, conditions, last)
                    );
                }
            }
        }
    }
}
