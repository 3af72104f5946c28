//! Priority levels proposed for a node from a recording of its connections: one for each namespace
//! whose Services they went to, large enough for what it used.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use crate::{
    level::{Level, MAX_LEVELS, Queuing},
    queueset::RECLAIM_TARGET,
    simulate::recording::Recorded,
};

/// Levels that are proposed; the others of [`MAX_LEVELS`] are for the mandatory ones and for those
/// that people add.
const MOST_LEVELS: usize = MAX_LEVELS / 2;
/// A level gets so many seats, in percent, of those that were enough nearly all the time.
const HEADROOM_PERCENT: u64 = 150;
/// The part of the time, in percent, in which the seats counted as enough really were.
const ENOUGH_PERCENT: u128 = 99;
/// A level lends at most so much, in percent: the recording does not know the future.
const MOST_LENT_PERCENT: u32 = 50;
/// Steps in which it lends.
const LENT_STEP_PERCENT: u32 = 5;
/// Queues of a level whose flows are to be told apart, and the most that one of them may use.
const QUEUES: u32 = 64;
const LARGEST_HAND: u32 = 6;
/// Seats of a level for each queue of a hand: with fewer, a flow that holds all that its hand can
/// take is the whole level.
const SEATS_PER_CARD: u32 = 10;
const QUEUE_LENGTH: u32 = 50;

/// The levels proposed for a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Length of the recording, in nanoseconds.
    pub span: u64,
    /// Connections in it.
    pub connections: u64,
    /// In order of seats, the largest first.
    pub levels: Vec<Proposed>,
}

/// A level, and what it was proposed for.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposed {
    /// The namespaces of its Services, in order.
    pub namespaces: Vec<String>,
    pub used: Used,
    /// Its shares: the seats that it is to have.
    pub seats: u32,
    pub lendable_percent: u32,
    pub queuing: Queuing,
}

/// What the connections to some Services used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Used {
    pub connections: u64,
    /// The most that were open at the same time.
    pub most: u32,
    /// As many as were enough for 99 % of the time.
    pub enough: u32,
    /// Seats in use, averaged over time.
    pub mean: f64,
    /// The part of the seats' time that belonged to connections which ended within the time in which
    /// a lent seat should come back, 0 to 1.
    pub short: f64,
    /// Addresses that they came from.
    pub sources: usize,
    /// The address that had the most open at the same time, and how many these were.
    pub largest: Option<(IpAddr, u32)>,
}

impl Proposal {
    /// Proposes levels for the connections of a recording.
    pub fn new(recording: &[Recorded]) -> Self {
        let begin = recording.iter().map(|recorded| recorded.t_ns).min();
        let end = recording.iter().map(Recorded::ended).max();
        let span = end.unwrap_or(0) - begin.unwrap_or(0);
        let mut namespaces: BTreeMap<&str, Vec<&Recorded>> = BTreeMap::new();
        for recorded in recording {
            let of_namespace = namespaces.entry(&recorded.namespace).or_default();
            of_namespace.push(recorded);
        }
        let propose = |namespaces: Vec<String>, recorded: &[&Recorded]| {
            Proposed::new(namespaces, Used::new(recorded, span))
        };
        let mut levels: Vec<_> = namespaces
            .iter()
            .map(|(namespace, recorded)| propose(vec![(*namespace).to_owned()], recorded))
            .collect();
        levels.sort_by_key(|level| Reverse(level.seats));
        if levels.len() > MOST_LEVELS {
            let small = levels.split_off(MOST_LEVELS - 1);
            let mut together: Vec<_> = small
                .into_iter()
                .flat_map(|level| level.namespaces)
                .collect();
            together.sort();
            let of = |namespace: &String| namespaces.get(namespace.as_str());
            let recorded: Vec<_> = together.iter().filter_map(of).flatten().copied().collect();
            levels.push(propose(together, &recorded));
        }
        Self {
            span,
            connections: recording.len() as u64,
            levels,
        }
    }

    /// The seats that the node needs for all levels, the mandatory ones included.
    pub fn seats(&self) -> u32 {
        let proposed = self.levels.iter().map(|level| level.seats);
        proposed.fold(Level::catch_all().shares, u32::saturating_add)
    }
}

impl Proposed {
    fn new(namespaces: Vec<String>, used: Used) -> Self {
        let seats = (u64::from(used.enough) * HEADROOM_PERCENT).div_ceil(100);
        let seats = u32::try_from(seats).unwrap_or(u32::MAX).max(1);
        let lent = (used.short * 100.0) as u32;
        let queuing = match used.sources {
            0 | 1 => Queuing {
                queues: 1,
                hand_size: 1,
                queue_length_limit: QUEUE_LENGTH,
            },
            _ => Queuing {
                queues: QUEUES,
                hand_size: (seats / SEATS_PER_CARD).clamp(1, LARGEST_HAND),
                queue_length_limit: QUEUE_LENGTH,
            },
        };
        Self {
            seats,
            lendable_percent: lent.min(MOST_LENT_PERCENT) / LENT_STEP_PERCENT * LENT_STEP_PERCENT,
            queuing,
            namespaces,
            used,
        }
    }
}

impl Used {
    /// Of connections in a recording of this length.
    fn new(recorded: &[&Recorded], span: u64) -> Self {
        let mut sources: HashMap<IpAddr, Vec<&Recorded>> = HashMap::new();
        for recorded in recorded {
            let of_source = sources.entry(recorded.source).or_default();
            of_source.push(recorded);
        }
        let largest = sources
            .iter()
            .map(|(source, recorded)| (*source, Open::new(recorded).most()));
        // Of several, always the same one.
        let largest = largest.max_by_key(|(source, most)| (*most, Reverse(*source)));
        let hold = |recorded: &&Recorded| u128::from(recorded.hold_ns);
        let held: u128 = recorded.iter().map(hold).sum();
        let is_short = |recorded: &&&Recorded| recorded.hold_ns < RECLAIM_TARGET;
        let soon: u128 = recorded.iter().filter(is_short).map(hold).sum();
        let part = |of: u128, whole: u128| match whole {
            0 => 0.0,
            _ => of as f64 / whole as f64,
        };
        let open = Open::new(recorded);
        Self {
            connections: recorded.len() as u64,
            most: open.most(),
            enough: open.enough(span),
            mean: part(held, u128::from(span)),
            short: part(soon, held),
            sources: sources.len(),
            largest,
        }
    }
}

/// For how long how many connections were open at the same time.
struct Open {
    /// Nanoseconds by number of connections.
    times: BTreeMap<u32, u64>,
}

impl Open {
    fn new(recorded: &[&Recorded]) -> Self {
        // None takes no time at all: its end would come before its beginning.
        let ended = |recorded: &Recorded| recorded.ended().max(recorded.t_ns.saturating_add(1));
        let mut changes: Vec<_> = recorded
            .iter()
            .flat_map(|recorded| [(recorded.t_ns, 1), (ended(recorded), -1)])
            .collect();
        // Of the same moment, ends come first: one connection may follow another.
        changes.sort_unstable();
        let mut times = BTreeMap::new();
        let (mut open, mut since) = (0_u32, 0);
        for (at, change) in changes {
            if at > since {
                *times.entry(open).or_insert(0) += at - since;
            }
            open = open.saturating_add_signed(change);
            since = at;
        }
        Self { times }
    }

    /// The most that were open.
    fn most(&self) -> u32 {
        self.times.keys().last().copied().unwrap_or(0)
    }

    /// As many as were not exceeded for [`ENOUGH_PERCENT`] of this time.
    fn enough(&self, span: u64) -> u32 {
        let mut exceeded = u128::from(span) * (100 - ENOUGH_PERCENT) / 100;
        for (open, time) in self.times.iter().rev() {
            match exceeded.checked_sub(u128::from(*time)) {
                Some(left) => exceeded = left,
                None => return *open,
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use lb_objects::Protocol;

    use super::*;
    use crate::schema::Ingress;

    const SECOND: u64 = 1_000_000_000;

    fn recorded(namespace: &str, source: u8, t_ns: u64, hold_ns: u64) -> Recorded {
        Recorded {
            t_ns,
            hold_ns,
            source: IpAddr::from([10, 244, 1, source]),
            ingress: Ingress::Pod,
            namespace: namespace.to_owned(),
            service: "web".to_owned(),
            port: 80,
            protocol: Protocol::Tcp,
            address: IpAddr::from([10, 96, 0, 10]),
        }
    }

    #[test]
    fn a_level_has_what_was_enough_nearly_all_the_time_and_half_as_much_again() {
        // Forty connections for a thousand seconds, and for five of them two hundred more.
        let mut recording: Vec<_> = (0..40)
            .map(|source| recorded("shop", source, 0, 1000 * SECOND))
            .collect();
        recording.extend((0..200).map(|_| recorded("shop", 7, 500 * SECOND, 5 * SECOND - 1)));
        let proposal = Proposal::new(&recording);
        let [level] = &proposal.levels[..] else {
            panic!("{proposal:?}");
        };
        assert_eq!((level.used.most, level.used.enough), (240, 40));
        assert_eq!((level.seats, proposal.seats()), (60, 65));
        assert_eq!(level.used.sources, 40);
        assert_eq!(
            level.used.largest,
            Some((recorded("", 7, 0, 0).source, 201))
        );
        assert_eq!(level.queuing.hand_size, 6);
        assert!((level.used.mean - 41.0).abs() < 0.01, "{}", level.used.mean);
        assert_eq!(level.lendable_percent, 0, "tunnels do not come back soon");
        assert_eq!(proposal.span, 1000 * SECOND);
    }

    #[test]
    fn short_connections_can_be_lent() {
        let follow_each_other = |hold: u64| {
            let one = move |n| recorded("shop", 1, n * hold, hold);
            (0..100).map(one).collect::<Vec<_>>()
        };
        let lent = |recording: &[Recorded]| Proposal::new(recording).levels[0].lendable_percent;
        assert_eq!(lent(&follow_each_other(SECOND)), MOST_LENT_PERCENT);
        assert_eq!(lent(&follow_each_other(RECLAIM_TARGET)), 0);
        let mut mixed = follow_each_other(SECOND);
        mixed.push(recorded("shop", 2, 0, 300 * SECOND));
        assert_eq!(lent(&mixed), 25);
        let proposal = Proposal::new(&follow_each_other(SECOND));
        assert_eq!(
            proposal.levels[0].used.most, 1,
            "each begins as another ends"
        );
    }

    #[test]
    fn without_anything_to_tell_apart_there_is_one_queue() {
        let recording = [recorded("shop", 1, 0, 0), recorded("shop", 1, 0, 0)];
        let level = &Proposal::new(&recording).levels[0];
        assert_eq!((level.queuing.queues, level.queuing.hand_size), (1, 1));
        assert_eq!((level.used.most, level.seats), (2, 3));
        assert_eq!(Proposal::new(&[]).levels, []);
        assert_eq!(Proposal::new(&[]).seats(), 5, "catch-all's");
    }

    #[test]
    fn the_smallest_namespaces_share_a_level() {
        let recording: Vec<_> = (0..200_u64)
            .flat_map(|n| (0..=n).map(move |_| recorded(&format!("ns-{n:03}"), 1, 0, SECOND)))
            .collect();
        let proposal = Proposal::new(&recording);
        assert_eq!(proposal.levels.len(), MOST_LEVELS);
        assert_eq!(proposal.levels[0].namespaces, ["ns-199"]);
        let last = proposal.levels.last().unwrap();
        assert_eq!(last.namespaces.len(), 200 - MOST_LEVELS + 1);
        assert_eq!(last.namespaces[0], "ns-000");
        let connections: u64 = proposal
            .levels
            .iter()
            .map(|level| level.used.connections)
            .sum();
        assert_eq!(connections, proposal.connections);
    }
}
