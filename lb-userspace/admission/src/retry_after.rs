//! How long refused clients should stay away.

use std::collections::VecDeque;

/// The longest advice, in seconds.
const MAX: u64 = 32;

/// Learns from a level's rejections how many seconds clients should wait before they try again. The
/// advice doubles while rejections go on, and falls by one after quieter times, as APF's
/// `Retry-After` does.
///
/// TCP has no such header. Where the value is small, a refusal is answered; where it is large, most
/// are dropped silently, so that the clients' own back-off works.
#[derive(Clone, Debug)]
pub struct RetryAfter {
    seconds: u64,
    /// When the advice was last raised.
    raised_at: u64,
    /// The second in which rejections are being counted, and their number.
    current: Option<(u64, u64)>,
    /// Earlier seconds with rejections, oldest first.
    past: VecDeque<(u64, u64)>,
}

impl Default for RetryAfter {
    fn default() -> Self {
        Self {
            seconds: 1,
            raised_at: 0,
            current: None,
            past: VecDeque::with_capacity(MAX as usize + 1),
        }
    }
}

impl RetryAfter {
    /// The advice in force, 1 to 32 seconds.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Counts a rejection in a whole second, counted from any origin. The first in a second looks
    /// back at the seconds before it.
    pub fn reject(&mut self, second: u64) {
        match &mut self.current {
            Some((current, rejections)) if *current >= second => *rejections += 1,
            current => {
                self.past.extend(current.replace((second, 1)));
                self.evaluate(second);
            }
        }
    }

    fn evaluate(&mut self, second: u64) {
        if let Some(&(last, _)) = self.past.back() {
            let kept = (2 * self.seconds).min(MAX);
            while self.past.front().is_some_and(|(at, _)| at + kept < last) {
                self.past.pop_front();
            }
        }
        let from = second.saturating_sub(self.seconds);
        let recent = self.past.iter().filter(|(at, _)| *at >= from);
        let rejections: u64 = recent.map(|(_, rejections)| rejections).sum();
        if second.saturating_sub(self.raised_at) >= self.seconds && rejections >= 3 * self.seconds {
            self.seconds = (2 * self.seconds).min(MAX);
            self.raised_at = second;
        } else if rejections < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}
