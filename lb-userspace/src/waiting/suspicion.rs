//! Whether the seats of a level may be held by handshakes that nobody completes, because connections wait
//! for long: then a pass over the flow tables is to look for such handshakes before its time.

use std::{collections::HashMap, time::Duration};

/// How often waits are looked at, in nanoseconds.
const PERIOD: u64 = 50_000_000;
/// Who has waited for so long has waited for long: less than half of what a connection may wait at most.
const LONG: Duration = Duration::from_millis(350);
/// So many times it is suspected that seats are held so, if they go on waiting for long: a level may just
/// be busy.
const TIMES: u32 = 3;
/// The time between these, in nanoseconds.
const AGAIN: u64 = 150_000_000;

/// What is suspected of levels, by their numbers.
#[derive(Debug, Default)]
pub struct Suspicions {
    looked_at: u64,
    /// Levels where connections wait for long: since when, and how often that was suspect.
    by_level: HashMap<u32, (u64, u32)>,
}

impl Suspicions {
    /// Whether it is time to look again.
    pub fn are_due(&mut self, now: u64) -> bool {
        let are_due = self.looked_at + PERIOD <= now;
        if are_due {
            self.looked_at = now;
        }
        are_due
    }

    /// Takes over for how long the first one at each level has waited. Returns whether there is reason to
    /// look for such handshakes now.
    pub fn follow(&mut self, waits: impl Iterator<Item = (u32, Duration)>, now: u64) -> bool {
        let mut before = std::mem::take(&mut self.by_level);
        let mut is_suspect = false;
        for (level, _) in waits.filter(|(_, wait)| *wait >= LONG) {
            let (since, mut times) = before.remove(&level).unwrap_or((now, 0));
            if times < TIMES && since + u64::from(times) * AGAIN <= now {
                times += 1;
                is_suspect = true;
            }
            self.by_level.insert(level, (since, times));
        }
        is_suspect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_level_is_suspected_some_times_while_connections_wait_for_long() {
        let mut suspicions = Suspicions::default();
        let mut suspected = Vec::new();
        let mut follow = |from: u64, to: u64, wait: u64| {
            for now in from..to {
                if suspicions.are_due(now * MS) {
                    let waits = [(2, Duration::from_millis(wait)), (3, Duration::ZERO)];
                    if suspicions.follow(waits.into_iter(), now * MS) {
                        suspected.push(now);
                    }
                }
            }
        };
        follow(1000, 2000, 349);
        follow(2000, 5000, 350);
        follow(5000, 5100, 10);
        follow(5100, 5200, 900);
        assert_eq!(suspected, [2000, 2150, 2300, 5100]);
    }
}
