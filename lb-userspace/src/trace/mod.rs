//! Traced packets: what is asked for, and what is told of each.
//!
//! [`Ask`] goes from the command line to the agent, [`Event`]s come back. [`Assembler`] makes
//! packets of the lines that the kernel's programs log.

mod ask;
mod packet;

pub use self::{
    ask::{Ask, MOST_PACKETS, Protocol, ServiceRef, Side, reason},
    packet::{Assembler, Names, Packet},
};

use serde::{Deserialize, Serialize};

/// What the agent tells of a trace, a line of JSON each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    /// From now on, packets are traced. Names devices that kept other programs, if some did.
    Started {
        untraced: Option<String>,
    },
    Packet(Box<Packet>),
    /// Nothing happened for a while.
    Idle,
    /// All devices have their ordinary programs again.
    Ended(Ended),
}

/// What a trace has come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// Why it is over, for people.
    pub reason: String,
    /// Packets that programs looked at.
    pub seen: u64,
    /// Packets told.
    pub packets: u64,
    /// Lines that the ring had no room for.
    pub lost_lines: u64,
}
