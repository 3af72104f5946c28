//! The Internet checksum: incremental updates (RFC 1624) and sums (RFC 1071).
//!
//! One's complement sums do not depend on byte order, so everything here works on words as they
//! lie in memory.

use crate::opaque::computed;

/// A change to bytes that a checksum covers, as an unfolded sum of `new - old`.
#[derive(Clone, Copy, Default)]
pub struct Difference(u64);

impl Difference {
    /// The change from one sum of 32-bit words to another.
    ///
    /// `words` is how many words `old` sums up (16 at most).
    #[inline(always)]
    pub fn between(old: u64, new: u64, words: u64) -> Self {
        Self(computed(new + (words * 0xffff_ffff - old)))
    }

    /// The change of one 16-bit field; both values in memory order.
    #[inline(always)]
    pub fn field(old: u16, new: u16) -> Self {
        Self(u64::from(new) + u64::from(!old))
    }

    /// Both changes together.
    #[inline(always)]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The checksum after the change; both in memory order (RFC 1624, equation 3).
    #[inline(always)]
    pub fn apply(self, checksum: u16) -> u16 {
        !fold(self.0 + u64::from(!checksum))
    }

    /// The change as the 32-bit sum that the kernel's checksum helpers take.
    #[inline(always)]
    pub fn to_u32(self) -> u32 {
        let once = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        ((once & 0xffff_ffff) + (once >> 32)) as u32
    }
}

/// Folds a sum of 16- or 32-bit words to 16 bits.
#[inline(always)]
pub fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(words: &[u32]) -> u16 {
        !fold(words.iter().map(|w| u64::from(*w)).sum())
    }

    #[test]
    fn incremental_equals_recomputed() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 32) as u32
        };
        for _ in 0..10_000 {
            let before = [random(), random(), random()];
            let mut after = before;
            after[1] = random();
            after[2] = random();
            let old = u64::from(before[1]) + u64::from(before[2]);
            let new = u64::from(after[1]) + u64::from(after[2]);
            let difference = Difference::between(old, new, 2);
            assert_eq!(difference.apply(checksum(&before)), checksum(&after));
            let kernel = fold(u64::from(difference.to_u32()) + u64::from(!checksum(&before)));
            assert_eq!(!kernel, checksum(&after));
        }
    }
}
