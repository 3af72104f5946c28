//! Which limits have so many slow handshakes that handshakes hold no seats.

use std::collections::HashMap;

use lb_common::flow::{Seats, limit::LEVELS, stage::idle};

/// Ticks for which a limit stays pressed without too many slow handshakes: half a minute at least. A
/// flood that comes in waves finds it as it was.
const CALM: u32 = 256;
/// A limit is pressed if more than one part in so many of it could be slow handshakes.
const PART: u32 = 4;

/// What is known of the slow handshakes within limits, by the limits' indexes.
#[derive(Debug, Default)]
pub struct Pressure {
    /// How many a priority level bears, by the level's number; others bear a part of their limit.
    patience: HashMap<u32, u32>,
    /// How many there are.
    slow: HashMap<u32, u32>,
    /// The tick at which a pressed limit last had too many.
    pressed_at: HashMap<u32, u32>,
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
        let patience = level.and_then(|level| self.patience.get(&level).copied());
        if read.limit != 0 && slow > patience.unwrap_or(read.limit / PART) {
            self.pressed_at.insert(index, now);
            return true;
        }
        if read.pressed == 0 {
            return false;
        }
        // An earlier agent may have pressed it.
        let at = *self.pressed_at.entry(index).or_insert(now);
        let stays = read.limit != 0 && idle(at, now) < CALM;
        if !stays {
            self.pressed_at.remove(&index);
        }
        stays
    }
}
