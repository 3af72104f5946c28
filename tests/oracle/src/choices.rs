//! Random or given choices.

/// Numbers that decide: random ones, or those that a fuzzer chooses.
pub struct Choices<'a>(Source<'a>);

enum Source<'a> {
    /// SplitMix64 (Steele et al., OOPSLA 2014).
    Seed(u64),
    /// Given bytes. After them, zeros follow.
    Bytes(&'a [u8]),
}

impl<'a> Choices<'a> {
    /// An endless sequence of pseudo-random numbers. The same seed gives the same sequence.
    pub fn of_seed(seed: u64) -> Self {
        Self(Source::Seed(seed))
    }

    /// Each choice takes a byte, or eight if there is more to choose from.
    pub fn of_bytes(bytes: &'a [u8]) -> Self {
        Self(Source::Bytes(bytes))
    }

    /// Whether the given bytes are used up, so that what follows is chosen by nobody.
    pub fn is_over(&self) -> bool {
        matches!(self.0, Source::Bytes([]))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        match &mut self.0 {
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = *state;
                z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ z >> 31
            }
            Source::Bytes(_) => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        match self.0 {
            Source::Bytes(_) if end <= 1 << 8 => usize::from(self.byte()) % end,
            _ => (self.number() % end as u64) as usize,
        }
    }

    /// True on average once in `times` calls.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn of<'c, T>(&mut self, choices: &'c [T]) -> &'c T {
        &choices[self.below(choices.len())]
    }

    fn byte(&mut self) -> u8 {
        match &mut self.0 {
            Source::Seed(_) => self.number() as u8,
            Source::Bytes(bytes) => match bytes.split_off_first() {
                Some(byte) => *byte,
                None => 0,
            },
        }
    }
}
