//! Sets of rules, one bit each.

/// Bits in a word: the number of rules that one step compares.
pub const WORD: usize = u64::BITS as usize;

/// A set of rules. Sets that are compared have the same number of words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bits(Box<[u64]>);

impl Bits {
    /// The rules that satisfy a condition.
    pub fn of<T>(rules: &[T], holds: impl Fn(&T) -> bool) -> Self {
        let word = |rules: &[T]| {
            let bits = rules.iter().enumerate();
            bits.fold(0, |word, (bit, rule)| word | u64::from(holds(rule)) << bit)
        };
        Self(rules.chunks(WORD).map(word).collect())
    }

    /// The rules of both sets.
    pub fn or(&self, other: &Self) -> Self {
        let words = self.0.iter().zip(&other.0);
        Self(words.map(|(one, other)| one | other).collect())
    }

    /// The words, the first rule in the lowest bit of the first.
    pub fn words(&self) -> &[u64] {
        &self.0
    }
}
