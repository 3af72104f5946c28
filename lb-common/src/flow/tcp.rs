//! What a TCP segment may say about its connection: only what its sequence number entitles it to
//! (RFC 9293, 3.5.2 and 3.5.3; RFC 5961). A blind attacker does not know the numbers.

use super::Flow;
use crate::{
    addr::Address,
    parse::{SCTP, Segment, TCP, tcp_flag},
};

/// How far a segment's numbers may lie from those of the segment before it, either way: more than
/// the largest window in common use.
pub const REACH: u32 = 1 << 23;

/// If a direction's segments have not fitted for so many ticks, they are believed: two seconds at
/// least. By then the receiver, if it is alive, has acknowledged what it really has (RFC 9293,
/// 3.10.7.4).
pub const PATIENCE: u16 = 16;

/// More than a SYN can bring along.
const SYN_DATA: u32 = 1 << 14;

/// Whether the flags ask for a new connection.
#[inline(always)]
pub fn opens(flags: u8) -> bool {
    flags & (tcp_flag::SYN | tcp_flag::ACK | tcp_flag::RST) == tcp_flag::SYN
}

/// Whether a packet of a protocol, with these flags, may be the first one of a connection.
#[inline(always)]
pub fn begins(protocol: u8, flags: u8) -> bool {
    match protocol {
        TCP | SCTP => opens(flags),
        _ => true,
    }
}

/// Whether the flags begin, end or reset a connection.
#[inline(always)]
pub fn controls(flags: u8) -> bool {
    flags & (tcp_flag::SYN | tcp_flag::FIN | tcp_flag::RST) != 0
}

/// Whether `a` comes after `b` in sequence.
#[inline(always)]
pub fn after(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) < 0
}

/// Whether a segment's numbers go on from those of its direction. Both have to, so that a blind
/// segment passes once in 65,536.
#[inline(always)]
pub fn continues<A: Address>(flow: &Flow<A>, segment: &Segment) -> bool {
    near(flow.next, segment.next) && near(flow.acknowledged, segment.acknowledged)
}

/// Whether a segment's numbers go on from what the other direction has said.
#[inline(always)]
pub fn answers<A: Address>(other: &Flow<A>, segment: &Segment) -> bool {
    near(other.acknowledged, segment.sequence) && near(other.next, segment.acknowledged)
}

/// Whether a sequence number lies in the window of its receiver, which obeys a FIN or a RST only
/// then. `receiver` is the record of the receiver's own segments.
#[inline(always)]
pub fn in_window<A: Address>(receiver: &Flow<A>, sequence: u32) -> bool {
    sequence.wrapping_sub(receiver.acknowledged) <= receiver.open_window()
}

/// Whether a number acknowledges the SYN that `client` records, if not necessarily the data that
/// came with it (RFC 7413).
#[inline(always)]
pub fn acknowledges_syn<A: Address>(client: &Flow<A>, number: u32) -> bool {
    client.next.wrapping_sub(number) < SYN_DATA
}

/// Whether an endpoint in TIME-WAIT takes a SYN for a new connection (RFC 6191; Linux does so too).
/// `closed` is its client's direction, and `stamp` the last timestamp that it had from the client.
#[inline(always)]
pub fn wakes<A: Address>(closed: &Flow<A>, stamp: u32, syn: &Segment) -> bool {
    match stamp != 0 && syn.stamp != 0 {
        true => after(syn.stamp, stamp),
        false => after(syn.sequence, closed.next),
    }
}

#[inline(always)]
fn near(known: u32, number: u32) -> bool {
    number.wrapping_sub(known).wrapping_add(REACH) < 2 * REACH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_syn_opens() {
        assert!(opens(tcp_flag::SYN));
        assert!(!opens(tcp_flag::SYN | tcp_flag::ACK));
        assert!(!opens(tcp_flag::ACK));
        assert!(!opens(tcp_flag::SYN | tcp_flag::RST));
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert!(after(5, u32::MAX - 5) && !after(u32::MAX - 5, 5) && !after(7, 7));
        assert!(near(u32::MAX, 3) && near(3, u32::MAX));
        assert!(!near(0, REACH) && near(0, REACH - 1) && near(0, REACH.wrapping_neg()));
    }
}
