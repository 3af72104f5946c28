//! Notices when the flows of a service port reach a limit: once when it begins, and again only
//! after a while without.

use std::{
    collections::BTreeMap,
    mem::{replace, take},
    time::{Duration, Instant},
};

/// A service port is below a limit again once it has not reached it for so long: floods come in
/// waves.
const OVER: Duration = Duration::from_secs(60);

/// A limit on what the flows of a service port may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// Places for flows that have not proved themselves. Beyond it the oldest give way.
    HalfOpen,
    /// Ports for source NAT towards one of the endpoints. Beyond it new connections are dropped.
    SnatPorts,
    /// The share of the flow table, or all of its records. Beyond it new connections are dropped.
    FlowTable,
}

impl Limit {
    /// All limits, in the order of [`Met`].
    pub const ALL: [Self; 3] = [Self::HalfOpen, Self::SnatPorts, Self::FlowTable];

    /// What is used up, in words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::HalfOpen => "half-open flows",
            Self::SnatPorts => "ports for source NAT",
            Self::FlowTable => "room in the flow table",
        }
    }

    /// What the node's operator can do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::HalfOpen => {
                "`node-lb flows` shows who opens them: a flood, which clients that complete their handshakes \
                 survive, or endpoints that do not answer"
            }
            Self::SnatPorts => {
                "add endpoints, use externalTrafficPolicy: Local, or set a larger --snat-ports"
            }
            Self::FlowTable => {
                "`node-lb flows` shows which Services fill it; set a larger --flow-table-size"
            }
        }
    }
}

/// How often a service port has reached each of [`Limit::ALL`] since it was programmed.
pub type Met = [u64; Limit::ALL.len()];

/// Watches how often service ports, identified by `K`, reach limits.
#[derive(Debug)]
pub struct Limits<K> {
    /// The service ports that have reached any limit.
    ports: BTreeMap<K, [Watched; Limit::ALL.len()]>,
    /// Whether there has been a first look.
    begun: bool,
}

/// The state of one service port and one limit.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// How often it had been reached at the last look.
    met: u64,
    /// When it was last seen to be reached again; `None` once that is over.
    at: Option<Instant>,
}

/// A change of one service port and one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has reached the limit.
    Begun,
    /// It is below the limit again.
    Over,
}

impl<K> Default for Limits<K> {
    /// No service port is at a limit.
    fn default() -> Self {
        Self {
            ports: BTreeMap::new(),
            begun: false,
        }
    }
}

impl<K: Ord + Clone> Limits<K> {
    /// Takes how often each service port has reached each limit, and returns what has changed. The
    /// first look only records what was reached before. Service ports that are missing are
    /// forgotten.
    pub fn look<'a>(
        &mut self,
        now: Instant,
        all: impl IntoIterator<Item = (&'a K, Met)>,
    ) -> Vec<(K, Limit, Change)>
    where
        K: 'a,
    {
        let is_first = !replace(&mut self.begun, true);
        let mut before = take(&mut self.ports);
        let mut changes = Vec::new();
        for (key, met) in all {
            if met == Met::default() {
                continue;
            }
            let mut port = before.remove(key).unwrap_or_default();
            for ((limit, watched), met) in Limit::ALL.into_iter().zip(&mut port).zip(met) {
                let change = match is_first {
                    true => None,
                    false => watched.change(now, met),
                };
                watched.met = met;
                changes.extend(change.map(|change| (key.clone(), limit, change)));
            }
            self.ports.insert(key.clone(), port);
        }
        changes
    }

    /// The service ports at a limit, with their limits.
    pub fn at_limit(&self) -> impl Iterator<Item = (&K, Vec<Limit>)> {
        self.ports.iter().filter_map(|(key, port)| {
            let limits = Limit::ALL.into_iter().zip(port);
            let limits = limits.filter(|(_, watched)| watched.at.is_some());
            let limits: Vec<_> = limits.map(|(limit, _)| limit).collect();
            (!limits.is_empty()).then_some((key, limits))
        })
    }
}

impl Watched {
    /// The change if the limit has now been reached `met` times.
    fn change(&mut self, now: Instant, met: u64) -> Option<Change> {
        // A service port that was removed and programmed again counts from zero.
        if met > self.met {
            return self.at.replace(now).is_none().then_some(Change::Begun);
        }
        let is_over = |at: Instant| now.saturating_duration_since(at) >= OVER;
        self.at.take_if(|at| is_over(*at)).map(|_| Change::Over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_goes_on_with_pauses_is_told_once() {
        let mut limits = Limits::default();
        let start = Instant::now();
        let begun = vec![("web", Limit::HalfOpen, Change::Begun)];
        let over = vec![("web", Limit::HalfOpen, Change::Over)];
        assert_eq!(limits.look(start, [(&"web", [0, 0, 0])]), []);
        assert_eq!(
            limits.look(start + SECOND, [(&"web", [9, 0, 0])]),
            begun,
            "a service port without a past counts from zero"
        );
        for wave in 1..10 {
            let met = [9 + u64::from(wave), 0, 0];
            let now = start + wave * (OVER - SECOND);
            assert_eq!(limits.look(now, [(&"web", met)]), []);
            assert_eq!(limits.look(now + SECOND, [(&"web", met)]), [], "a pause");
        }
        let last = start + 9 * (OVER - SECOND);
        assert_eq!(limits.at_limit().count(), 1);
        assert_eq!(limits.look(last + OVER, [(&"web", [18, 0, 0])]), over);
        assert_eq!(limits.at_limit().count(), 0);
        assert_eq!(limits.look(last + 2 * OVER, [(&"web", [18, 0, 0])]), []);
        assert_eq!(limits.look(last + 3 * OVER, [(&"web", [19, 0, 0])]), begun);
    }

    #[test]
    fn each_service_port_and_limit_is_told_of_by_itself() {
        let mut limits = Limits::default();
        let now = Instant::now();
        limits.look(now, [(&"dns", [0, 0, 0]), (&"web", [0, 0, 0])]);
        assert_eq!(
            limits.look(now, [(&"dns", [0, 0, 0]), (&"web", [0, 1, 1])]),
            [
                ("web", Limit::SnatPorts, Change::Begun),
                ("web", Limit::FlowTable, Change::Begun),
            ]
        );
        let dns = limits.look(now, [(&"dns", [0, 0, 7]), (&"web", [0, 2, 1])]);
        assert_eq!(dns, [("dns", Limit::FlowTable, Change::Begun)]);
        let at_limit: Vec<_> = limits.at_limit().collect();
        let of_web = vec![Limit::SnatPorts, Limit::FlowTable];
        assert_eq!(
            at_limit,
            [(&"dns", vec![Limit::FlowTable]), (&"web", of_web)]
        );
    }

    #[test]
    fn what_was_met_before_the_agent_began_is_no_news() {
        let mut limits = Limits::default();
        let now = Instant::now();
        assert_eq!(limits.look(now, [(&"web", [5, 6, 7])]), []);
        assert_eq!(limits.at_limit().count(), 0);
        let again = limits.look(now + SECOND, [(&"web", [5, 6, 8])]);
        assert_eq!(again, [("web", Limit::FlowTable, Change::Begun)]);
    }

    #[test]
    fn who_is_gone_is_forgotten_and_counts_anew() {
        let mut limits = Limits::default();
        let now = Instant::now();
        limits.look(now, [(&"web", [0, 100, 0])]);
        // Programmed again between two looks.
        assert_eq!(limits.look(now, [(&"web", [0, 3, 0])]), []);
        let more = limits.look(now, [(&"web", [0, 4, 0])]);
        assert_eq!(more, [("web", Limit::SnatPorts, Change::Begun)]);
        assert_eq!(limits.look(now, []), []);
        assert_eq!(limits.at_limit().count(), 0);
        let anew = limits.look(now, [(&"web", [0, 4, 0])]);
        assert_eq!(anew, [("web", Limit::SnatPorts, Change::Begun)]);
    }
}
