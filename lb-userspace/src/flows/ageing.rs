//! How long a flow may stay silent.

use std::time::Duration;

use lb_common::{
    addr::Address,
    flow::{
        Flow, flow_flag,
        tcp::{self, Stage},
    },
};

use super::{
    clock::TickRate,
    records::{Connection, protocol},
};
use crate::{config::FlowTimeouts, model::Protocol};

/// A SYN that was not answered is sent again for about this long by every common stack
/// (`net.netfilter.nf_conntrack_tcp_timeout_syn_recv`).
const TCP_UNREPLIED: Duration = Duration::from_secs(60);
/// For stragglers of a connection that both sides have closed, or one has reset
/// (`nf_conntrack_tcp_timeout_close` is 10 s).
const CLOSED: Duration = Duration::from_secs(5);
/// How long an endpoint that closed first remembers the port of the node that it talked to, and may
/// refuse a SYN from there (RFC 9293, section 3.6.1; Linux's TIME-WAIT).
const PORT_HELD: Duration = Duration::from_secs(60);
/// Both while the table is short of room.
const CLOSED_CROWDED: Duration = Duration::from_secs(1);

/// The longest silence of a flow, in ticks, by protocol and stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    tcp_unreplied: u32,
    tcp_established: u32,
    tcp_half_closed: u32,
    udp_unreplied: u32,
    udp_replied: u32,
    closed: u32,
    port_held: u32,
    closed_crowded: u32,
}

impl Timeouts {
    /// The configured timeouts in ticks of the coarse clock.
    pub fn new(timeouts: &FlowTimeouts, rate: TickRate) -> Self {
        Self {
            tcp_unreplied: rate.ticks(TCP_UNREPLIED),
            tcp_established: rate.ticks(timeouts.tcp_established),
            tcp_half_closed: rate.ticks(timeouts.tcp_close_wait),
            udp_unreplied: rate.ticks(timeouts.udp),
            udp_replied: rate.ticks(timeouts.udp_stream),
            closed: rate.ticks(CLOSED),
            port_held: rate.ticks(PORT_HELD),
            closed_crowded: rate.ticks(CLOSED_CROWDED),
        }
    }

    /// Those to use while the table is short of room.
    #[must_use]
    pub fn crowded(self) -> Self {
        Self {
            closed: self.closed_crowded,
            port_held: self.closed_crowded,
            ..self
        }
    }

    /// Whether a connection is over at tick `now`.
    pub fn expired<A: Address>(&self, connection: &Connection<A>, now: u32) -> bool {
        let timeout = match connection.holds_port() {
            true => self.port_held,
            false => self.of(connection.protocol(), connection.stage()),
        };
        idle(connection.last_seen(), now) > timeout
    }

    /// Whether the flow that `flow` is one direction of may be over, as far as that direction alone can
    /// tell. If the flow is over, this holds for one of its directions at least: it has been silent
    /// for as long, and shows by itself what the shortest timeout can be.
    pub fn may_have_expired<A: Address>(&self, flow: &Flow<A>, now: u32) -> bool {
        let protocol = protocol(flow);
        let shortest = if flow.seen & tcp::RST != 0 {
            self.of(protocol, Stage::Closed)
        } else if flow.seen & tcp::FIN != 0 {
            let closed = match flow.has(flow_flag::SOURCE_NAT) {
                true => self.port_held,
                false => self.of(protocol, Stage::Closed),
            };
            closed.min(self.of(protocol, Stage::HalfClosed))
        } else if flow.has(flow_flag::REPLY) && flow.seen & tcp::SEEN == 0 {
            self.of(protocol, Stage::Unreplied)
        } else {
            self.of(protocol, Stage::Established)
        };
        idle(flow.last_seen, now) > shortest
    }

    fn of(&self, protocol: Protocol, stage: Stage) -> u32 {
        match (protocol, stage) {
            (Protocol::Udp, Stage::Unreplied) => self.udp_unreplied,
            (Protocol::Udp, _) => self.udp_replied,
            (_, Stage::Unreplied) => self.tcp_unreplied,
            (_, Stage::Established) => self.tcp_established,
            (_, Stage::HalfClosed) => self.tcp_half_closed,
            (_, Stage::Closed) => self.closed,
        }
    }
}

/// The later of two times on a clock that wraps.
pub fn later(a: u32, b: u32) -> u32 {
    match b.wrapping_sub(a) < 1 << 31 {
        true => b,
        false => a,
    }
}

/// Ticks from `last_seen` to `now`. Programs run on after `now` was read, so that what looks like a
/// little in the future is the present.
pub fn idle(last_seen: u32, now: u32) -> u32 {
    const FUTURE: u32 = u32::MAX - (1 << 16);
    match now.wrapping_sub(last_seen) {
        ticks if ticks > FUTURE => 0,
        ticks => ticks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_after_the_clock_was_read_is_not_ages_ago() {
        assert_eq!(idle(7, 5), 0);
        assert_eq!(idle(2, u32::MAX), 0);
        assert_eq!(idle(u32::MAX, 2), 3);
    }

    #[test]
    fn the_later_direction_counts() {
        assert_eq!(later(3, 9), 9);
        assert_eq!(later(9, 3), 9);
        assert_eq!(later(u32::MAX, 1), 1);
    }
}
