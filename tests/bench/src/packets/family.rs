//! The differences between the families in the benchmark.

use aya::Pod;
use lb_common::addr::{Address, Ip4, Ip6};

use super::harness::{Network4, Network6};

/// An IP family as the kernel's maps and the harness see it.
pub trait Family: Address + Default + std::fmt::Debug {
    /// A flow's record, as words.
    type Record: Pod;
    /// The part of a packet that the harness rewrites.
    type Network: Pod;
    /// The map of flows.
    const FLOWS: &'static str;
    /// The harness's map of packets.
    const TRACE: &'static str;
    /// The harness's program.
    const HARNESS: &'static str;
    /// The empty record.
    const FREE: Self::Record;

    /// What the harness rewrites in a frame.
    fn network(frame: &[u8]) -> Self::Network;
}

impl Family for Ip4 {
    type Record = [u64; 8];
    type Network = Network4;
    const FLOWS: &'static str = "FLOWS4";
    const TRACE: &'static str = "TRACE4";
    const HARNESS: &'static str = "harness4";
    const FREE: Self::Record = [0; 8];

    fn network(frame: &[u8]) -> Self::Network {
        [word(frame, 22), word(frame, 30)]
    }
}

impl Family for Ip6 {
    type Record = [u64; 16];
    type Network = Network6;
    const FLOWS: &'static str = "FLOWS6";
    const TRACE: &'static str = "TRACE6";
    const HARNESS: &'static str = "harness6";
    const FREE: Self::Record = [0; 16];

    fn network(frame: &[u8]) -> Self::Network {
        let half = |offset| word(frame, offset) & 0xffff_ffff;
        [word(frame, 30), word(frame, 46), half(18) | half(54) << 32]
    }
}

/// Eight bytes of a frame, as they lie in memory.
fn word(frame: &[u8], offset: usize) -> u64 {
    let bytes = frame[offset..].first_chunk().expect("frames are longer");
    u64::from_ne_bytes(*bytes)
}
