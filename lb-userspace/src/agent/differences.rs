//! What has been found different from what it should be, for a part of the agent that looks again and again.

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

use super::status;

/// So many rounds in a row with differences mean that the data plane does not stay as it should be.
const PATIENCE: u32 = 3;
/// The latest differences that are shown.
const SHOWN: usize = 20;
/// For so long a difference is worth somebody's attention.
const RECENT: Duration = Duration::from_secs(3600);

/// The latest differences, and how many there were.
#[derive(Default)]
pub struct Differences {
    latest: VecDeque<status::Difference>,
    total: u64,
    /// When rounds have ended with differences, and with how many.
    recent: VecDeque<(Instant, u64)>,
    /// Rounds in a row that were not as they should be.
    in_a_row: u32,
}

impl Differences {
    /// Notes what a round has found: so many differences, of which some are described, and whether all
    /// was well.
    pub fn end_round(
        &mut self,
        number: u64,
        described: impl IntoIterator<Item = String>,
        is_well: bool,
        now: SystemTime,
    ) {
        let at = status::timestamp(now);
        let found = described.into_iter().map(|what| status::Difference {
            at: at.clone(),
            what,
        });
        self.latest.extend(found);
        let excess = self.latest.len().saturating_sub(SHOWN);
        self.latest.drain(..excess);
        self.total += number;
        self.recent.retain(|(at, _)| at.elapsed() < RECENT);
        if number > 0 {
            self.recent.push_back((Instant::now(), number));
        }
        self.in_a_row = match is_well {
            true => 0,
            false => self.in_a_row + 1,
        };
    }

    /// How many rounds in a row were not as they should be, once these are too many.
    pub fn too_many_in_a_row(&self) -> Option<u32> {
        Some(self.in_a_row).filter(|rounds| *rounds >= PATIENCE)
    }

    /// For `node-lb status`.
    pub fn report(&self) -> status::Differences {
        let recent = self.recent.iter().filter(|(at, _)| at.elapsed() < RECENT);
        status::Differences {
            differences: self.total,
            within_an_hour: recent.map(|(_, number)| number).sum(),
            latest: self.latest.iter().cloned().collect(),
        }
    }
}
