//! Elements that keep the name of whose they are.
//!
//! So a later agent finds them, and who loses one and gets it again has what was counted there. An
//! element becomes another one's only when nobody uses it any more.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::Hasher as _,
    ops::Range,
};

use siphasher::sip::SipHasher13;

/// The elements of a map that nobody has at the moment.
#[derive(Debug)]
pub struct Owners {
    /// Indexes by the owners that their elements name.
    known: HashMap<u64, u32>,
    /// The same indexes, those first that have not been had for longest.
    retired: VecDeque<u32>,
    /// Indexes that nobody has ever had.
    unused: VecDeque<u32>,
    /// Whether what an earlier agent left may be another one's.
    adopted: bool,
}

/// An element for somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub index: u32,
    /// Whether it has to be written: it was nobody's, or another one's.
    pub is_new: bool,
}

impl Owners {
    /// Of a map in which these elements are nobody's.
    pub fn new(indexes: Range<u32>) -> Self {
        Self {
            known: HashMap::new(),
            retired: VecDeque::new(),
            unused: indexes.collect(),
            adopted: true,
        }
    }

    /// Takes over what the map holds: `owner` tells whose an element is, 0 for nobody's.
    pub fn inherit(&mut self, owner: impl Fn(u32) -> u64) {
        for index in std::mem::take(&mut self.unused) {
            match owner(index) {
                0 => self.unused.push_back(index),
                owner => {
                    self.known.insert(owner, index);
                    self.retired.push_back(index);
                }
            }
        }
        self.adopted = false;
    }

    /// To be called when everybody has found their own. Returns the indexes that are nobody's any
    /// more.
    pub fn finish_adoption(&mut self) -> impl Iterator<Item = u32> {
        self.adopted = true;
        self.retired.iter().copied()
    }

    /// Whether there is an element that an owner had, and that has become nobody else's.
    pub fn has(&self, owner: u64) -> bool {
        self.known.contains_key(&owner)
    }

    /// An element for an owner that has none: the one that it had, or a free one.
    ///
    /// If there is none, those are made free that were others' and of which `is_used` does not hold.
    /// Programs that may still use them have ended after `grace`.
    pub fn find(
        &mut self,
        owner: u64,
        grace: impl FnOnce(),
        is_used: impl Fn(u32) -> bool,
    ) -> Option<Found> {
        if let Some(index) = self.known.remove(&owner) {
            self.retired.retain(|retired| *retired != index);
            return Some(Found {
                index,
                is_new: false,
            });
        }
        if self.unused.is_empty() {
            self.reclaim(grace, is_used);
        }
        let index = self.unused.pop_front()?;
        Some(Found {
            index,
            is_new: true,
        })
    }

    /// Notes that an owner does not need its element any more.
    pub fn retire(&mut self, owner: u64, index: u32) {
        self.known.insert(owner, index);
        self.retired.push_back(index);
    }

    fn reclaim(&mut self, grace: impl FnOnce(), is_used: impl Fn(u32) -> bool) {
        if !self.adopted || self.retired.is_empty() {
            return;
        }
        grace();
        let all = std::mem::take(&mut self.retired);
        let (used, free): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|i| is_used(*i));
        let used_ones: HashSet<_> = used.iter().collect();
        self.known.retain(|_, known| used_ones.contains(known));
        (self.retired, self.unused) = (used, free);
    }
}

/// How an element names an owner; never 0.
pub fn owner(name: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(name.as_bytes());
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_back_to_their_owners() {
        let mut owners = Owners::new(1..3);
        let find = |owners: &mut Owners, owner, used: &[u32]| {
            let found = owners.find(owner, || {}, |index| used.contains(&index));
            found.map(|found| (found.index, found.is_new))
        };
        assert_eq!(find(&mut owners, 7, &[]), Some((1, true)));
        assert_eq!(find(&mut owners, 8, &[]), Some((2, true)));
        assert_eq!(find(&mut owners, 9, &[]), None);
        owners.retire(7, 1);
        owners.retire(8, 2);
        assert_eq!(find(&mut owners, 7, &[]), Some((1, false)));
        owners.retire(7, 1);
        assert_eq!(find(&mut owners, 9, &[1, 2]), None, "both are used");
        assert_eq!(find(&mut owners, 9, &[1]), Some((2, true)));
        assert_eq!(find(&mut owners, 8, &[1]), None, "its element is another's");
        assert_eq!(find(&mut owners, 7, &[1]), Some((1, false)));
    }

    #[test]
    fn what_an_earlier_agent_left_is_kept_until_everybody_is_known() {
        let mut owners = Owners::new(1..3);
        owners.inherit(|index| u64::from(index) * 10);
        assert_eq!(owners.find(7, || {}, |_| false), None);
        let found = owners.find(20, || {}, |_| false).map(|found| found.index);
        assert_eq!(found, Some(2));
        assert_eq!(owners.finish_adoption().collect::<Vec<_>>(), [1]);
        let found = owners.find(7, || {}, |_| false);
        assert_eq!(
            found,
            Some(Found {
                index: 1,
                is_new: true
            })
        );
    }
}
