//! What segments say about a connection, and which of them count.

use lb_packet::tcp_flag;

use super::{Flow, Tuple};
use crate::service::TCP;

/// What a TCP segment says about its connection.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    /// Bytes of data.
    pub length: u32,
}

impl Segment {
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn next(&self) -> u32 {
        let ends = u32::from(self.has(tcp_flag::SYN)) + u32::from(self.has(tcp_flag::FIN));
        self.sequence.wrapping_add(self.length + ends)
    }
}

/// What a side of a connection has said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    pub(super) seen: bool,
    pub next: u32,
    pub acknowledged: u32,
    /// The number of the endpoint's first byte.
    first: u32,
    pub(super) fin: bool,
    pub(super) fin_acknowledged: bool,
    pub(super) rst: bool,
}

impl Side {
    pub(super) fn note(&mut self, segment: &Segment) {
        let later = segment.next().wrapping_sub(self.next) as i32 > 0;
        if !self.fin || later {
            self.next = segment.next();
        }
        self.acknowledged = segment.acknowledged;
        self.seen = true;
    }

    /// Whether a number is in the window that this side offers. While it is silent, there is none.
    fn takes(&self, sequence: u32) -> bool {
        let window = if self.seen { u32::from(WINDOW) } else { 0 };
        sequence.wrapping_sub(self.acknowledged) <= window + 1
    }
}

/// The window that all segments offer.
const WINDOW: u16 = 0xfaf0;
/// How far apart the numbers of consecutive segments may be.
const REACH: u32 = 1 << 23;

fn near(one: u32, other: u32) -> bool {
    one.abs_diff(other).min(one.abs_diff(other).wrapping_neg()) < REACH
}

/// Applies a segment to what both sides have said. Returns whether it proves their connection.
pub(super) fn hear(
    flow: &Flow,
    half: bool,
    own: &mut Side,
    other: &mut Side,
    segment: &Segment,
) -> bool {
    if segment.has(tcp_flag::RST) {
        own.rst |= if !other.seen {
            segment.sequence == own.next
        } else if !own.seen && !flow.picked_up {
            segment.has(tcp_flag::ACK) && segment.acknowledged == other.next
        } else {
            other.takes(segment.sequence)
        };
        return false;
    }
    if segment.has(tcp_flag::SYN) {
        let counts = match flow.reply {
            true => {
                let early = other.next.wrapping_sub(segment.acknowledged);
                segment.has(tcp_flag::ACK) && early < 1 << 14
            }
            false => !segment.has(tcp_flag::ACK) && !other.seen,
        };
        if half && counts && !flow.picked_up {
            own.next = segment.next();
            own.acknowledged = segment.acknowledged;
            own.first = segment.sequence.wrapping_add(1);
            own.seen = true;
        }
        return false;
    }
    let answers = other.seen
        && near(other.acknowledged, segment.sequence)
        && near(other.next, segment.acknowledged);
    let shakes_hands = half && !flow.reply && other.seen;
    let goes_on = own.seen
        && !shakes_hands
        && near(own.next, segment.next())
        && near(own.acknowledged, segment.acknowledged);
    let ends = segment.has(tcp_flag::FIN) && !own.fin;
    if !(answers || goes_on) || ends && !other.takes(segment.sequence) {
        return false;
    }
    own.note(segment);
    other.rst = false;
    other.fin_acknowledged |= other.fin && segment.acknowledged == other.next;
    let past_first = segment.acknowledged.wrapping_sub(other.first);
    let proved = half
        && match flow.reply {
            true => flow.picked_up,
            false => {
                let exact = past_first <= other.next.wrapping_sub(other.first);
                other.seen && (flow.picked_up || exact)
            }
        };
    own.fin |= ends && (proved || !half || flow.reply);
    proved
}

pub(super) fn opens(tuple: Tuple, flags: u8) -> bool {
    tuple.0 == TCP && flags & (tcp_flag::SYN | tcp_flag::ACK | tcp_flag::RST) == tcp_flag::SYN
}
