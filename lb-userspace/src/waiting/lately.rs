//! Connections that have been let in a moment ago.
//!
//! A client that waits sends its SYN again, and programs hand that over as well. It may still lie in the
//! ring when the connection is let in. It is no new connection then: it would wait anew, and be sent to an
//! endpoint once the connection is closed.
//!
//! Those that were turned away are not remembered: if their client was not told, it may ask again.

use std::collections::{HashMap, VecDeque};

use super::syn::{Connection, Syn};

/// For how long a SYN can lie in the ring, in nanoseconds; longer than it takes the keeper to empty it.
const RECENT: u64 = 2_000_000_000;
/// The most that are remembered; the oldest give way.
const MOST: usize = 16_384;

/// Which SYNs have had their turn.
#[derive(Debug, Default)]
pub struct Lately {
    /// The number of the SYN, and when it was let in.
    numbers: HashMap<Connection, (u32, u64)>,
    /// The oldest first; some ports have been used again since.
    order: VecDeque<(Connection, u64)>,
}

impl Lately {
    /// Remembers a SYN that is let in now.
    pub fn add(&mut self, syn: &Syn, now: u64) {
        self.forget(now);
        self.numbers.insert(syn.connection, (syn.number, now));
        self.order.push_back((syn.connection, now));
    }

    /// Whether a SYN is one that has been let in. Another one from the same port is not.
    pub fn has(&mut self, syn: &Syn, now: u64) -> bool {
        self.forget(now);
        let known = self.numbers.get(&syn.connection);
        known.is_some_and(|(number, _)| *number == syn.number)
    }

    /// Forgets what is long ago, or too much.
    fn forget(&mut self, now: u64) {
        while let Some((connection, at)) = self.order.front().copied()
            && (now.saturating_sub(at) >= RECENT || self.order.len() > MOST)
        {
            self.order.pop_front();
            if self
                .numbers
                .get(&connection)
                .is_some_and(|(_, last)| *last == at)
            {
                self.numbers.remove(&connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn(port: u16, number: u32) -> Syn {
        Syn {
            connection: Connection {
                protocol: 6,
                client: ([192, 0, 2, 1], port).into(),
                service: ([10, 96, 0, 1], 80).into(),
            },
            number,
            bytes: Vec::new(),
            is_whole: true,
        }
    }

    #[test]
    fn a_syn_that_comes_again_is_known_for_a_while() {
        let mut lately = Lately::default();
        lately.add(&syn(1, 7), 1000);
        assert!(lately.has(&syn(1, 7), 1000 + RECENT - 1));
        assert!(
            !lately.has(&syn(1, 8), 1001),
            "its client has begun another one"
        );
        assert!(!lately.has(&syn(2, 7), 1001));
        assert!(!lately.has(&syn(1, 7), 1000 + RECENT));
        assert!(lately.numbers.is_empty() && lately.order.is_empty());
    }

    #[test]
    fn the_latest_one_counts() {
        let mut lately = Lately::default();
        lately.add(&syn(1, 7), 0);
        lately.add(&syn(1, 8), 1000);
        assert!(!lately.has(&syn(1, 7), 1001));
        assert!(lately.has(&syn(1, 8), RECENT + 999));
        assert!(!lately.has(&syn(1, 8), RECENT + 1000));
    }

    #[test]
    fn it_has_bounds() {
        let mut lately = Lately::default();
        for port in 0..=u16::MAX {
            lately.add(&syn(port, 7), 1000);
        }
        assert!(lately.numbers.len() <= MOST + 1 && lately.order.len() <= MOST + 1);
        assert!(lately.has(&syn(u16::MAX, 7), 1000) && !lately.has(&syn(0, 7), 1000));
    }
}
