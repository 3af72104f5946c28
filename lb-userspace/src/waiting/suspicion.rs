//! Whether the seats of a level may be held by handshakes that nobody completes, because flows wait for
//! their first one for long: then a pass over the flow tables is to look for such handshakes before its time.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// How often waits are looked at, in nanoseconds.
const PERIOD: u64 = 50_000_000;
/// Who has waited for so long has waited for long: less than half of what a connection may wait at most.
pub const LONG: Duration = Duration::from_millis(350);
/// So many times it is suspected that seats are held so, if they go on waiting for long: a level may just
/// have more clients than seats.
const TIMES: u32 = 3;
/// The least time between these, in nanoseconds, for all levels together: a pass costs as much as there are
/// flows, and who forges SYNs must not choose how many passes there are.
const AGAIN: u64 = 150_000_000;

/// What is suspected of levels, by their numbers.
#[derive(Debug, Default)]
pub struct Suspicions {
    looked_at: u64,
    /// When there may be reason to look for such handshakes again.
    again_at: u64,
    /// Levels where flows wait for long: since when, and how often that was suspect.
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

    /// Takes over the levels at which a flow has [waited](LONG) for its first seat for long. Returns
    /// whether there is reason to look for such handshakes now.
    pub fn follow(&mut self, levels: BTreeSet<u32>, now: u64) -> bool {
        let mut before = std::mem::take(&mut self.by_level);
        let mut is_suspect = false;
        for level in levels {
            let (since, mut times) = before.remove(&level).unwrap_or((now, 0));
            let is_due = self.again_at <= now && since + u64::from(times) * AGAIN <= now;
            if times < TIMES && is_due {
                times += 1;
                is_suspect = true;
            }
            self.by_level.insert(level, (since, times));
        }
        if is_suspect {
            self.again_at = now + AGAIN;
        }
        is_suspect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_level_is_suspected_some_times_while_flows_wait_for_long() {
        let mut suspicions = Suspicions::default();
        let mut suspected = Vec::new();
        let mut follow = |from: u64, to: u64, levels: &[u32]| {
            for now in from..to {
                let levels = levels.iter().copied().collect();
                if suspicions.are_due(now * MS) && suspicions.follow(levels, now * MS) {
                    suspected.push(now);
                }
            }
        };
        follow(1000, 2000, &[]);
        follow(2000, 5000, &[2]);
        follow(5000, 5100, &[]);
        follow(5100, 5200, &[2]);
        follow(5200, 5500, &[2, 3]);
        assert_eq!(suspected, [2000, 2150, 2300, 5100, 5250, 5400]);
    }
}
