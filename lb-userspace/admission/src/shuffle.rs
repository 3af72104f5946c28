//! Shuffle sharding: every flow is dealt a small hand of a level's queues, so that a heavy and a
//! light flow rarely share all of their queues (KEP-1040, "Assignment of requests to queues").

use std::ops::{Deref, DerefMut};

use thiserror::Error;

/// Bits of a flow's hash that dealing may use. The bits that are left keep hands close to uniform.
pub const MAX_HASH_BITS: u32 = 60;
/// The largest number of queues to deal from.
pub const MAX_DECK_SIZE: i32 = 1 << 26;
/// A larger hand never fits in [`MAX_HASH_BITS`].
const MAX_HAND_SIZE: usize = 15;

/// Deals hands of queues to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealer {
    deck_size: u32,
    hand_size: u32,
}

/// Distinct queue numbers, in the order they were dealt.
#[derive(Clone, Copy, Debug)]
pub struct Hand {
    cards: [u32; MAX_HAND_SIZE],
    size: usize,
}

/// Why no hand of a size can be dealt from a deck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DealerError {
    #[error("deckSize {deck_size} or handSize {hand_size} is not positive")]
    NotPositive { deck_size: i32, hand_size: i32 },
    #[error("handSize {hand_size} is greater than deckSize {deck_size}")]
    HandExceedsDeck { deck_size: i32, hand_size: i32 },
    #[error("deckSize {deck_size} is impractically large")]
    DeckTooLarge { deck_size: i32 },
    #[error(
        "required entropy bits of deckSize {deck_size} and handSize {hand_size} is greater than {MAX_HASH_BITS}"
    )]
    TooMuchEntropy { deck_size: i32, hand_size: i32 },
}

/// Bits of the hash that a hand uses, rounded up. Both sizes must be positive.
pub fn required_entropy_bits(deck_size: i32, hand_size: i32) -> u32 {
    (f64::from(deck_size).log2() * f64::from(hand_size)).ceil() as u32
}

impl Dealer {
    /// Deals hands of `hand_size` out of `deck_size` queues.
    ///
    /// # Errors
    /// If the sizes make no sense, or a hand uses more bits of the hash than it may.
    pub fn new(deck_size: i32, hand_size: i32) -> Result<Self, DealerError> {
        let (Ok(deck), Ok(hand)) = (u32::try_from(deck_size), u32::try_from(hand_size)) else {
            return Err(DealerError::NotPositive {
                deck_size,
                hand_size,
            });
        };
        if deck == 0 || hand == 0 {
            return Err(DealerError::NotPositive {
                deck_size,
                hand_size,
            });
        }
        if hand > deck {
            return Err(DealerError::HandExceedsDeck {
                deck_size,
                hand_size,
            });
        }
        if deck_size > MAX_DECK_SIZE {
            return Err(DealerError::DeckTooLarge { deck_size });
        }
        // A hand of one card needs at most 26 bits, a hand of 16 at least 64.
        if required_entropy_bits(deck_size, hand_size) > MAX_HASH_BITS {
            return Err(DealerError::TooMuchEntropy {
                deck_size,
                hand_size,
            });
        }
        Ok(Self {
            deck_size: deck,
            hand_size: hand,
        })
    }

    /// How many queues are dealt from.
    pub fn deck_size(&self) -> u32 {
        self.deck_size
    }

    /// How many queues a flow gets.
    pub fn hand_size(&self) -> u32 {
        self.hand_size
    }

    /// The hand of the flow with a hash: the digits of the hash, lowest first, in a number system
    /// whose bases are the numbers of cards still in the deck.
    pub fn deal(&self, hash: u64) -> Hand {
        let mut rest = hash;
        let mut digits = [0; MAX_HAND_SIZE];
        let mut cards = [0; MAX_HAND_SIZE];
        let size = self.hand_size as usize;
        for index in 0..size {
            let left = u64::from(self.deck_size) - index as u64;
            // Less than `deck_size`.
            digits[index] = (rest % left) as u32;
            rest /= left;
            // Turns a position among the cards left into one in the whole deck.
            cards[index] = digits[..index]
                .iter()
                .rev()
                .fold(digits[index], |card, &dealt| {
                    card + u32::from(card >= dealt)
                });
        }
        Hand { cards, size }
    }
}

impl Deref for Hand {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.cards[..self.size]
    }
}

impl DerefMut for Hand {
    fn deref_mut(&mut self) -> &mut [u32] {
        &mut self.cards[..self.size]
    }
}
