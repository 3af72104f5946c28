//! Contiguous ranges of an array, handed out and given back.

use std::{collections::BTreeMap, ops::Range};

/// Which parts of an array are free. The first range that fits is used, so that what is in use
/// stays together.
#[derive(Debug)]
pub struct Ranges {
    /// Start → end of each free range; no two touch.
    free: BTreeMap<u32, u32>,
    /// Elements in all of them.
    count: u32,
}

impl Ranges {
    /// All of `range` is free.
    pub fn new(range: Range<u32>) -> Self {
        let mut ranges = Self {
            free: BTreeMap::new(),
            count: 0,
        };
        ranges.release(range);
        ranges
    }

    /// Takes `count` contiguous elements; `None` if no free range is that long. For a count of zero
    /// nothing is taken, and the returned position has no meaning.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        if count == 0 {
            return Some(0);
        }
        let (start, end) = self
            .free
            .iter()
            .map(|(start, end)| (*start, *end))
            .find(|(start, end)| end - start >= count)?;
        self.free.remove(&start);
        if start + count < end {
            self.free.insert(start + count, end);
        }
        self.count -= count;
        Some(start)
    }

    /// As [`Self::take`], if so many elements stay free.
    pub fn take_leaving(&mut self, count: u32, reserve: u32) -> Option<u32> {
        let is_enough = count == 0 || self.count >= count.saturating_add(reserve);
        is_enough.then(|| self.take(count)).flatten()
    }

    /// Takes a range known to be in use already; whether all of it was free.
    pub fn reserve(&mut self, range: Range<u32>) -> bool {
        if range.is_empty() {
            return true;
        }
        let around = self
            .free
            .range(..=range.start)
            .next_back()
            .map(|(s, e)| (*s, *e));
        let Some((start, end)) = around.filter(|(_, end)| range.end <= *end) else {
            return false;
        };
        self.free.remove(&start);
        if start < range.start {
            self.free.insert(start, range.start);
        }
        if range.end < end {
            self.free.insert(range.end, end);
        }
        self.count -= range.len() as u32;
        true
    }

    /// Gives a range back.
    pub fn release(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        self.count += range.len() as u32;
        let (mut start, mut end) = (range.start, range.end);
        if let Some((before, until)) = self.free.range(..start).next_back().map(|(s, e)| (*s, *e))
            && until == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(after) = self.free.remove(&end) {
            end = after;
        }
        self.free.insert(start, end);
    }

    /// Number of free elements.
    pub fn free(&self) -> u32 {
        self.count
    }
}

/// Numbers, handed out one by one. Each is reused as late as possible, because a flow or a client's
/// affinity that still holds an old number should not meet another object under it.
#[derive(Debug)]
pub struct Numbers {
    ranges: Ranges,
    next: u32,
    range: Range<u32>,
}

impl Numbers {
    /// All of `range` is free.
    pub fn new(range: Range<u32>) -> Self {
        Self {
            ranges: Ranges::new(range.clone()),
            next: range.start,
            range,
        }
    }

    /// Takes a number; `None` if all are in use.
    pub fn take(&mut self) -> Option<u32> {
        let after = self.ranges.free.range(..=self.next).next_back();
        let number = match after {
            Some((_, end)) if self.next < *end => self.next,
            _ => {
                let mut later = self.ranges.free.range(self.next..);
                let first = self.ranges.free.keys().next();
                later.next().map(|(start, _)| start).or(first).copied()?
            }
        };
        self.ranges.reserve(number..number + 1);
        self.next = if number + 1 < self.range.end {
            number + 1
        } else {
            self.range.start
        };
        Some(number)
    }

    /// As [`Self::take`], if so many numbers stay free.
    pub fn take_leaving(&mut self, reserve: u32) -> Option<u32> {
        (self.ranges.free() > reserve)
            .then(|| self.take())
            .flatten()
    }

    /// Takes a number known to be in use already; whether it was free.
    pub fn reserve(&mut self, number: u32) -> bool {
        let taken = self.range.contains(&number) && self.ranges.reserve(number..number + 1);
        if taken && number >= self.next && number + 1 < self.range.end {
            self.next = number + 1;
        }
        taken
    }

    /// Numbers that are free.
    pub fn free(&self) -> u32 {
        self.ranges.free()
    }

    /// Gives a number back.
    pub fn release(&mut self, number: u32) {
        self.ranges.release(number..number + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_disjoint_and_come_together_again() {
        let mut ranges = Ranges::new(0..100);
        let a = ranges.take(40).unwrap();
        let b = ranges.take(40).unwrap();
        assert_eq!((a, b), (0, 40));
        assert_eq!(ranges.take(30), None);
        ranges.release(a..a + 40);
        assert_eq!(ranges.free(), 60);
        assert_eq!(ranges.take(41), None, "the free parts do not touch");
        ranges.release(b..b + 40);
        assert_eq!(ranges.take(100), Some(0));
    }

    #[test]
    fn reserving_splits_a_free_range() {
        let mut ranges = Ranges::new(0..10);
        assert!(ranges.reserve(3..6));
        assert!(!ranges.reserve(5..7), "part of it is in use");
        assert_eq!(ranges.take(4), Some(6));
        assert_eq!(ranges.take(3), Some(0));
        assert_eq!(ranges.free(), 0);
    }

    #[test]
    fn numbers_are_reused_last() {
        let mut numbers = Numbers::new(1..4);
        assert_eq!(numbers.take(), Some(1));
        numbers.release(1);
        assert_eq!(numbers.take(), Some(2));
        assert_eq!(numbers.take(), Some(3));
        assert_eq!(numbers.take(), Some(1));
        assert_eq!(numbers.take(), None);
        numbers.release(2);
        assert_eq!(numbers.take(), Some(2));
    }

    #[test]
    fn numbers_in_use_are_not_handed_out() {
        let mut numbers = Numbers::new(1..5);
        assert!(numbers.reserve(2));
        assert!(!numbers.reserve(2));
        let taken: Vec<_> = std::iter::from_fn(|| numbers.take()).collect();
        assert_eq!(taken, [3, 4, 1]);
    }
}
