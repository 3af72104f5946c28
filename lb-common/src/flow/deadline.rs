//! Deadlines of the connections that a flow schema has taken.
//!
//! The agent measures them. It marks a connection that has run into one as [`flow_flag::EXPIRED`], in
//! both directions, and takes its seats out; whoever still sends is reset. Only a handshake may go on: it
//! takes seats at its end, if there are some.

use super::{Flow, flow_flag};
use crate::addr::Address;

/// What a deadline limits.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// The time from the SYN to the end of the handshake in which the connection has seats.
    Handshake,
    /// The time that an endpoint waits for its client.
    ClientIdle,
    /// The time that a client waits for its endpoint.
    ServerIdle,
    /// The time from one side's end to the other's.
    HalfClose,
    /// The time from the connection's begin to its end.
    Lifetime,
}

/// Number of deadlines.
pub const DEADLINES: usize = 5;

impl Deadline {
    /// All deadlines, in the order of their numbers.
    pub const ALL: [Self; DEADLINES] = [
        Self::Handshake,
        Self::ClientIdle,
        Self::ServerIdle,
        Self::HalfClose,
        Self::Lifetime,
    ];

    /// The deadline's name in metrics and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::ClientIdle => "client-idle",
            Self::ServerIdle => "server-idle",
            Self::HalfClose => "half-close",
            Self::Lifetime => "lifetime",
        }
    }
}

/// Whether it is the endpoint's turn to send something, and not the client's. In between, both may
/// acknowledge what they have, and ask whether the other one is still there.
pub fn awaits_endpoint<A: Address>(forward: &Flow<A>, reply: &Flow<A>) -> bool {
    match forward.has(flow_flag::PROTOCOL) {
        true => {
            !reply.has(flow_flag::SEEN)
                || forward.last_seen.wrapping_sub(reply.last_seen) as i32 > 0
        }
        // When the client sent its latest data, it had heard all that the endpoint has sent. An endpoint
        // that asks whether the client is there begins one number before its next one.
        false => {
            let unheard = (reply.next as u16).wrapping_sub(forward.mark);
            !forward.has(flow_flag::MISFIT) && matches!(unheard, 0 | u16::MAX)
        }
    }
}
