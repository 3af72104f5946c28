//! What has been seen of a connection, and how long it may stay silent.

use crate::parse::tcp_flag;

/// A packet of the direction came.
pub const SEEN: u8 = 1 << 0;
/// It had a FIN.
pub const FIN: u8 = 1 << 1;
/// It had a RST.
pub const RST: u8 = 1 << 2;

/// The bits that a packet with these TCP flags adds to [`super::Flow::seen`]; UDP has no flags.
#[inline(always)]
pub fn bits(flags: u8) -> u8 {
    let mut bits = SEEN;
    if flags & tcp_flag::FIN != 0 {
        bits |= FIN;
    }
    if flags & tcp_flag::RST != 0 {
        bits |= RST;
    }
    bits
}

/// Whether the flags ask for a new connection.
#[inline(always)]
pub fn opens(flags: u8) -> bool {
    flags & (tcp_flag::SYN | tcp_flag::ACK | tcp_flag::RST) == tcp_flag::SYN
}

/// Where a connection stands, from what both directions have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The endpoint has not answered.
    Unreplied,
    /// Packets in both directions.
    Established,
    /// One side has sent its FIN (RFC 9293's half-closed states).
    HalfClosed,
    /// Both have, or one reset the connection: only stragglers can come.
    Closed,
}

impl Stage {
    /// The stage of a connection with these bits of its two directions.
    #[inline(always)]
    pub fn of(forward: u8, reply: u8) -> Self {
        if (forward | reply) & RST != 0 || forward & reply & FIN != 0 {
            Self::Closed
        } else if (forward | reply) & FIN != 0 {
            Self::HalfClosed
        } else if reply & SEEN == 0 {
            Self::Unreplied
        } else {
            Self::Established
        }
    }

    /// Whether a SYN with the same addresses and ports opens another connection.
    #[inline(always)]
    pub fn may_reopen(self) -> bool {
        matches!(self, Self::HalfClosed | Self::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages() {
        for (forward, reply, stage) in [
            (SEEN, 0, Stage::Unreplied),
            (SEEN, SEEN, Stage::Established),
            (SEEN | FIN, SEEN, Stage::HalfClosed),
            (SEEN, SEEN | FIN, Stage::HalfClosed),
            (SEEN | FIN, SEEN | FIN, Stage::Closed),
            (SEEN, SEEN | RST, Stage::Closed),
            (SEEN | RST, 0, Stage::Closed),
        ] {
            assert_eq!(Stage::of(forward, reply), stage);
        }
    }

    #[test]
    fn only_a_plain_syn_opens() {
        assert!(opens(tcp_flag::SYN));
        assert!(!opens(tcp_flag::SYN | tcp_flag::ACK));
        assert!(!opens(tcp_flag::ACK));
        assert!(!opens(tcp_flag::SYN | tcp_flag::RST));
    }
}
