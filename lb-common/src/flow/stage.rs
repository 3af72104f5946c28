//! How far a connection has come, and how long it may stay silent there.

use super::{flow_flag, tag};

/// Where a connection stands, from what both directions have shown.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The endpoint has not answered.
    Unreplied,
    /// It has, and the client has not shown that it got the answer: for TCP, it has not
    /// acknowledged the endpoint's own sequence number; for SCTP, its packets have not borne the tag
    /// that the endpoint asked for; for UDP, it has not sent again. A spoofed
    /// client never gets beyond this stage.
    Handshake,
    /// Both sides have proved to be there.
    Established,
    /// One side has ended its half (RFC 9293's half-closed states, and SCTP's shutdown).
    HalfClosed,
    /// Both have, or one reset the connection: only stragglers can come.
    Closed,
}

/// Number of stages.
pub const STAGES: usize = 5;

impl Stage {
    /// All stages, in order.
    pub const ALL: [Self; STAGES] = [
        Self::Unreplied,
        Self::Handshake,
        Self::Established,
        Self::HalfClosed,
        Self::Closed,
    ];

    /// The stage of a connection whose directions have these flags, and whose client's direction
    /// has this tag.
    #[inline(always)]
    pub fn of(tag: u32, forward: u32, reply: u32) -> Self {
        use flow_flag::{FIN, FIN_ACKED, RST, SEEN};
        if (forward | reply) & RST != 0 || forward & reply & FIN_ACKED != 0 {
            Self::Closed
        } else if tag::state(tag) == tag::HALF {
            match reply & SEEN {
                0 => Self::Unreplied,
                _ => Self::Handshake,
            }
        } else if (forward | reply) & FIN != 0 {
            Self::HalfClosed
        } else {
            Self::Established
        }
    }
}

/// The longest silence of a flow in ticks, by protocol and stage. Part of the settings that
/// programs read, so that they can make room without an agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub tcp: [u32; STAGES],
    pub udp: [u32; STAGES],
    /// For a closed connection with an endpoint that may remember the node's port (TIME-WAIT).
    pub port_held: u32,
    /// The shortest of all, to rule most records out quickly; 0 means that flows never time out.
    pub shortest: u32,
}

impl Timeouts {
    /// With [`Self::shortest`] filled in.
    #[must_use]
    pub fn with_shortest(mut self) -> Self {
        let all = self.tcp.into_iter().chain(self.udp);
        self.shortest = all.fold(self.port_held, u32::min);
        self
    }

    /// Of a flow with these flags in a stage.
    #[inline(always)]
    pub fn of(&self, flags: u32, stage: Stage) -> u32 {
        let of_protocol = match flags & flow_flag::UDP {
            0 => &self.tcp,
            _ => &self.udp,
        };
        of_protocol[stage as usize]
    }

    /// Of a flow in a stage, whose directions have these flags.
    #[inline(always)]
    pub fn of_flow(&self, stage: Stage, forward: u32, reply: u32) -> u32 {
        match stage == Stage::Closed && holds_port(forward, reply) {
            true => self.port_held,
            false => self.of(forward, stage),
        }
    }
}

/// Whether the endpoint of a closed connection may remember the node's port: where it has closed
/// first, without a reset (RFC 9293, 3.6.1).
#[inline(always)]
pub fn holds_port(forward: u32, reply: u32) -> bool {
    forward & flow_flag::SOURCE_NAT != 0
        && (forward | reply) & flow_flag::RST == 0
        && reply & flow_flag::CLOSED_FIRST != 0
}

/// Ticks from `last_seen` to `now`. Programs may write after `now` was read, so a time slightly in
/// the future counts as the present.
#[inline(always)]
pub fn idle(last_seen: u32, now: u32) -> u32 {
    const FUTURE: u32 = u32::MAX - (1 << 16);
    match now.wrapping_sub(last_seen) {
        ticks if ticks > FUTURE => 0,
        ticks => ticks,
    }
}

/// The later of two times on a clock that wraps.
#[inline(always)]
pub fn later(a: u32, b: u32) -> u32 {
    match b.wrapping_sub(a) < 1 << 31 {
        true => b,
        false => a,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_flag::{FIN, FIN_ACKED, RST, SEEN};

    #[test]
    fn stages() {
        for (state, forward, reply, stage) in [
            (tag::HALF, SEEN, 0, Stage::Unreplied),
            (tag::HALF, SEEN, SEEN, Stage::Handshake),
            (tag::LIVE, SEEN, SEEN, Stage::Established),
            (tag::LIVE, SEEN | FIN, SEEN, Stage::HalfClosed),
            (tag::LIVE, SEEN, SEEN | FIN, Stage::HalfClosed),
            (
                tag::LIVE,
                SEEN | FIN | FIN_ACKED,
                SEEN | FIN,
                Stage::HalfClosed,
            ),
            (
                tag::LIVE,
                SEEN | FIN | FIN_ACKED,
                SEEN | FIN | FIN_ACKED,
                Stage::Closed,
            ),
            (tag::LIVE, SEEN, SEEN | RST, Stage::Closed),
            (tag::HALF, SEEN | RST, 0, Stage::Closed),
        ] {
            assert_eq!(Stage::of(state, forward, reply), stage);
        }
    }

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
