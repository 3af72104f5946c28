//! Which limits, and which parties, have so many slow handshakes that handshakes hold no seats.

use std::{collections::HashMap, hash::Hash};

use lb_common::flow::{
    Seats,
    limit::{LEVELS, limit_flag, patience},
    stage::idle,
};

/// Ticks for which a limit stays pressed without too many slow handshakes: half a minute at least. A
/// flood that comes in waves finds it as it was.
const CALM: u32 = 256;
/// What is pressed, and the tick at which each last had too many slow handshakes.
#[derive(Debug)]
pub struct Signs<K>(HashMap<K, u32>);

impl<K> Default for Signs<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Signs<K> {
    /// Whether what may be pressed already is pressed from tick `now` on.
    pub fn press(&mut self, whose: K, is_pressed: bool, has_too_many: bool, now: u32) -> bool {
        if has_too_many {
            self.0.insert(whose, now);
            return true;
        }
        // An earlier agent may have pressed it.
        let at = self.0.remove(&whose).unwrap_or(now);
        let stays = is_pressed && idle(at, now) < CALM;
        if stays {
            self.0.insert(whose, at);
        }
        stays
    }

    /// Forgets one that could not be pressed.
    pub fn forget(&mut self, whose: &K) {
        self.0.remove(whose);
    }

    /// Whether one is pressed.
    pub fn contains(&self, whose: &K) -> bool {
        self.0.contains_key(whose)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// What is known of the slow handshakes within limits, by the limits' indexes.
#[derive(Debug, Default)]
pub struct Pressure {
    /// How many a priority level bears, by the level's number. Others say it themselves, or bear a part of
    /// their limit.
    patience: HashMap<u32, u32>,
    /// How many there are.
    slow: HashMap<u32, u32>,
    signs: Signs<u32>,
}

impl Pressure {
    /// Sets how many slow handshakes a priority level bears; `None` means a quarter of its limit.
    pub fn set_patience(&mut self, level: u32, handshakes: Option<u32>) {
        match handshakes {
            Some(handshakes) => _ = self.patience.insert(level, handshakes),
            None => _ = self.patience.remove(&level),
        }
    }

    /// The slow handshakes that were last seen within a limit.
    pub fn slow(&self, index: u32) -> u32 {
        self.slow.get(&index).copied().unwrap_or(0)
    }

    /// Whether a limit, which is as it was read, is pressed from tick `now` on, at which it has so
    /// many slow handshakes.
    pub fn presses(&mut self, index: u32, read: &Seats, slow: u32, now: u32) -> bool {
        match slow {
            0 => _ = self.slow.remove(&index),
            slow => _ = self.slow.insert(index, slow),
        }
        let level = index.checked_sub(LEVELS);
        let own = match level {
            Some(level) => self.patience.get(&level).copied(),
            None => Some(read.flags >> limit_flag::PATIENCE_SHIFT).filter(|most| *most != 0),
        };
        let has_too_many = slow > own.unwrap_or(patience(read.limit));
        let is_limit = read.limit != 0 || level.is_none() && own.is_some();
        self.signs.press(
            index,
            is_limit && read.pressed != 0,
            is_limit && has_too_many,
            now,
        )
    }
}
