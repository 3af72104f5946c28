//! Who opens a connection, and whom the agent has served before.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
};

use tokio::time::{Duration, Instant};

/// How long a caller counts as known after its last answer: load balancers ask every few minutes at
/// the least.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Callers that are remembered. Whoever comes when all places are taken waits until one of them has
/// been silent for [`REMEMBERED`]: callers that come in crowds drive out nobody.
const MOST_REMEMBERED: usize = 1024;

/// Connections that are limited together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Caller {
    /// This node: both ends have the same address, or the socket is a Unix one. Nobody else can
    /// have that, because the kernel drops packets from outside that carry one of its own
    /// addresses. The kubelet's probes come so.
    Node,
    /// One IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 network of 64 bits, any address of which one host may use.
    V6([u16; 4]),
}

impl Caller {
    /// The caller at `peer` of a connection to `local`.
    pub(super) fn between(peer: IpAddr, local: IpAddr) -> Self {
        // A listener for both families shows IPv4 addresses inside IPv6 ones.
        match (peer.to_canonical(), local.to_canonical()) {
            (peer, local) if peer == local => Self::Node,
            (IpAddr::V4(peer), _) => Self::V4(peer),
            (IpAddr::V6(peer), _) => {
                let [a, b, c, d, ..] = peer.segments();
                Self::V6([a, b, c, d])
            }
        }
    }
}

/// The callers that have lately been answered.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<Caller, Instant>);

impl Known {
    /// Notes an answer to `caller`.
    pub(super) fn answered(&mut self, caller: Caller) {
        let now = Instant::now();
        if let Some(last) = self.0.get_mut(&caller) {
            *last = now;
            return;
        }
        if self.0.len() >= MOST_REMEMBERED {
            self.0.retain(|_, last| now - *last < REMEMBERED);
        }
        if self.0.len() < MOST_REMEMBERED {
            self.0.insert(caller, now);
        }
    }

    pub(super) fn contains(&self, caller: Caller) -> bool {
        let last = self.0.get(&caller);
        last.is_some_and(|last| last.elapsed() < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[test]
    fn callers_are_told_apart_by_address_or_network() {
        let between = |peer: &str, local: &str| {
            Caller::between(peer.parse().unwrap(), local.parse().unwrap())
        };
        assert_eq!(between("192.0.2.1", "192.0.2.1"), Caller::Node);
        assert_eq!(between("::ffff:192.0.2.1", "192.0.2.1"), Caller::Node);
        assert_eq!(between("2001:db8::1", "2001:db8::1"), Caller::Node);
        let other = between("192.0.2.2", "192.0.2.1");
        assert_eq!(other, Caller::V4(Ipv4Addr::new(192, 0, 2, 2)));
        assert_eq!(between("::ffff:192.0.2.2", "::ffff:192.0.2.1"), other);
        let one = between("2001:db8::2", "2001:db8::1");
        assert_eq!(one, between("2001:db8::ffff:2", "2001:db8::1"));
        assert_ne!(one, between("2001:db8:0:1::2", "2001:db8::1"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_of_callers_does_not_drive_out_those_known_before() {
        let mut known = Known::default();
        let probe = Caller::V4(Ipv4Addr::LOCALHOST);
        known.answered(probe);
        for number in 0..3000 {
            known.answered(Caller::V4(Ipv4Addr::from_bits(number)));
        }
        assert_eq!(known.0.len(), MOST_REMEMBERED);
        assert!(known.contains(probe));

        advance(REMEMBERED / 2).await;
        known.answered(probe);
        advance(REMEMBERED / 2).await;
        let next = Caller::V4(Ipv4Addr::BROADCAST);
        known.answered(next);
        assert!(known.contains(probe) && known.contains(next));
        assert_eq!(known.0.len(), 2, "the crowd is forgotten");
    }
}
