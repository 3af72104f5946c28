//! How long a flow may stay silent.

use std::time::Duration;

use lb_common::{
    addr::Address,
    flow::{
        Flow, Stage, Timeouts, flow_flag,
        stage::{STAGES, idle},
        tag,
    },
};
use lb_datapath::TickRate;

use super::records::Connection;
use crate::config::FlowTimeouts;

/// A handshake: every common stack repeats an unanswered SYN for about this long, and its answer
/// too (`net.netfilter.nf_conntrack_tcp_timeout_syn_recv`).
const TCP_HANDSHAKE: Duration = Duration::from_secs(60);
/// A closed connection: time for late segments after both sides have closed it, or one has reset it
/// (`nf_conntrack_tcp_timeout_close` is 10 s).
const CLOSED: Duration = Duration::from_secs(5);
/// An endpoint that closed first remembers the node's port that it talked to for this long, and may
/// refuse a SYN from it (RFC 9293, section 3.6.1; Linux's TIME-WAIT).
const PORT_HELD: Duration = Duration::from_secs(60);
/// The shortest timeout under pressure.
const LEAST: Duration = Duration::from_secs(1);
/// From the first part of occupied records on, flows that have not proved themselves get less time;
/// from the second on, they get the least.
const SQUEEZE_HALF_OPEN: (f64, f64) = (0.25, 0.65);
/// The same for closed flows. Timeouts of live flows are not shortened.
const SQUEEZE_CLOSED: (f64, f64) = (0.4, 0.8);

/// The configured timeouts in ticks of the coarse clock.
pub fn timeouts(timeouts: &FlowTimeouts, rate: TickRate) -> Timeouts {
    let of = |stages: [Duration; STAGES]| stages.map(|timeout| rate.ticks(timeout));
    let FlowTimeouts {
        tcp_established,
        tcp_close_wait,
        udp,
        udp_stream,
        ..
    } = *timeouts;
    Timeouts {
        tcp: of([
            TCP_HANDSHAKE,
            TCP_HANDSHAKE,
            tcp_established,
            tcp_close_wait,
            CLOSED,
        ]),
        udp: of([udp, udp, udp_stream, udp_stream, udp_stream]),
        port_held: rate.ticks(PORT_HELD),
        shortest: 0,
    }
    .with_shortest()
}

/// The timeouts while the part `fill` of a table, between zero and one, is occupied. The fuller it
/// is, the shorter they are: first for flows that have not proved themselves, then for closed ones.
pub fn under_pressure(timeouts: &Timeouts, fill: f64, rate: TickRate) -> Timeouts {
    let least = rate.ticks(LEAST);
    let squeezed = |timeout: u32, (from, to): (f64, f64)| {
        let left = 1.0 - ((fill - from) / (to - from)).clamp(0.0, 1.0);
        let room = timeout.saturating_sub(least);
        timeout.min(least + (f64::from(room) * left) as u32)
    };
    let mut squeezed_timeouts = *timeouts;
    for stages in [&mut squeezed_timeouts.tcp, &mut squeezed_timeouts.udp] {
        for stage in [Stage::Unreplied, Stage::Handshake] {
            let timeout = &mut stages[stage as usize];
            *timeout = squeezed(*timeout, SQUEEZE_HALF_OPEN);
        }
    }
    let closed = &mut squeezed_timeouts.tcp[Stage::Closed as usize];
    *closed = squeezed(*closed, SQUEEZE_CLOSED);
    squeezed_timeouts.port_held = squeezed(timeouts.port_held, SQUEEZE_CLOSED);
    squeezed_timeouts.with_shortest()
}

/// Whether a connection has been silent for too long at tick `now`.
pub fn expired<A: Address>(timeouts: &Timeouts, connection: &Connection<A>, now: u32) -> bool {
    let Connection { forward, reply } = connection;
    let timeout = timeouts.of_flow(connection.stage(), forward.flags, reply.flags);
    idle(connection.last_seen(), now) > timeout
}

/// Whether a flow may be over, judged by its one direction `flow` alone. If the flow is over, this
/// holds for at least one of its directions: that direction has been silent for as long, and its
/// own bits show which timeout is the shortest possible one.
pub fn may_have_expired<A: Address>(timeouts: &Timeouts, flow: &Flow<A>, now: u32) -> bool {
    let of = |stage| timeouts.of(flow.flags, stage);
    let shortest = if flow.has(flow_flag::RST) {
        of(Stage::Closed)
    } else if flow.has(flow_flag::FIN) {
        of(Stage::Closed)
            .min(of(Stage::HalfClosed))
            .min(timeouts.port_held)
    } else if !flow.has(flow_flag::SEEN)
        || tag::state(flow.tag) == tag::HALF && !flow.has(flow_flag::REPLY)
    {
        of(Stage::Unreplied).min(of(Stage::Handshake))
    } else {
        of(Stage::Established)
    };
    idle(flow.last_seen, now) > shortest
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: TickRate = TickRate { hz: 4, shift: 0 };

    #[test]
    fn pressure_takes_time_from_who_has_proved_least() {
        let usual = timeouts(&FlowTimeouts::default(), RATE);
        assert_eq!(under_pressure(&usual, 0.2, RATE), usual);

        let half = under_pressure(&usual, 0.45, RATE);
        let [unreplied, handshake, established, half_closed, closed] = half.tcp;
        assert_eq!(
            (unreplied, handshake),
            (122, 122),
            "half of 60 s, and the least"
        );
        assert_eq!(established, usual.tcp[2]);
        assert_eq!(half_closed, usual.tcp[3]);
        assert!(closed < usual.tcp[4] && half.port_held < usual.port_held);

        let full = under_pressure(&usual, 1.0, RATE);
        assert_eq!(
            [full.tcp[0], full.tcp[1], full.tcp[4], full.port_held],
            [4; 4]
        );
        assert_eq!(full.udp[..2], [4, 4]);
        assert_eq!(
            full.udp[2], usual.udp[2],
            "who has proved itself keeps its time"
        );
        assert_eq!(full.shortest, 4);
    }
}
