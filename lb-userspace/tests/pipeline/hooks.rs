//! Frames through the hooks, as a node's devices would hand them over.

use lb_common::{
    checksum::{Difference, fold},
    parse::ETHERNET,
    verdict::{Action, Reason, Verdict},
};
use lb_datapath::memory::MemoryFrame;
use lb_packet::{Read, UDP};
use node_lb::memory::ProgrammedTables;

/// The result of a frame at a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub action: Action,
    pub reason: Reason,
    pub frame: Vec<u8>,
}

impl Outcome {
    fn new(verdict: Verdict, before: &[u8], frame: MemoryFrame) -> Self {
        let change = frame.sum_change();
        let frame = frame.into_bytes();
        if verdict.action != Action::Answer && frame != before {
            assert_sum(before, &frame, change);
        }
        Self {
            action: verdict.action,
            reason: verdict.reason,
            frame,
        }
    }

    pub fn read(&self) -> Read {
        Read::frame(&self.frame)
    }
}

/// Asserts that a kernel which holds the sum of a packet's bytes holds the right one afterwards. It
/// does not care about that of a datagram without checksum.
fn assert_sum(before: &[u8], after: &[u8], change: Difference) {
    let read = Read::frame(before);
    if read.protocol == UDP && read.payload().get(6..8) == Some(&[0, 0]) {
        return;
    }
    let sum = |frame: &[u8]| {
        let words = frame[ETHERNET..].chunks(2);
        let word = |word: &[u8]| u16::from_ne_bytes([word[0], *word.get(1).unwrap_or(&0)]);
        words.map(|bytes| u64::from(word(bytes))).sum::<u64>()
    };
    let held = fold(sum(before) + u64::from(change.to_u32()));
    // Both are zero in one's complement.
    let [held, found] = [held, fold(sum(after))].map(|sum| if sum == 0xffff { 0 } else { sum });
    assert_eq!(held, found, "{read:x?}");
}

/// A frame that arrives on an unknown device.
pub fn ingress(tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    ingress_by(0, tables, frame)
}

/// A frame that arrives on a device.
pub fn ingress_by(ifindex: u32, tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let mut arrived = MemoryFrame::new(frame.to_vec(), ifindex);
    Outcome::new(tables.tc().ingress(&mut arrived), frame, arrived)
}

/// The same with a program that still has the old flow tables as its own, while their size changes.
pub fn ingress_of_before(tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let mut arrived = MemoryFrame::new(frame.to_vec(), 0);
    let verdict = tables.tc().of_before().ingress(&mut arrived);
    Outcome::new(verdict, frame, arrived)
}

/// A frame that leaves by an unknown device.
pub fn egress(tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let mut leaving = MemoryFrame::new(frame.to_vec(), 0);
    Outcome::new(tables.tc().egress(&mut leaving), frame, leaving)
}

/// A frame that goes through the host's stack, and the frames that the stack makes of it, as they leave.
pub fn across(
    tables: &ProgrammedTables,
    frame: &[u8],
    stack: impl FnOnce(&[u8]) -> Vec<Vec<u8>>,
) -> (Outcome, Vec<Outcome>) {
    let mut arrived = MemoryFrame::new(frame.to_vec(), 0);
    let verdict = tables.tc().ingress(&mut arrived);
    let token = arrived.token();
    let arrived = Outcome::new(verdict, frame, arrived);
    let leave = |frame: &Vec<u8>| {
        let mut leaving = MemoryFrame::new(frame.clone(), 0).with_token(token);
        let verdict = tables.tc().egress(&mut leaving);
        Outcome::new(verdict, frame, leaving)
    };
    let left = stack(&arrived.frame).iter().map(leave).collect();
    (arrived, left)
}

/// A frame on its way through the node: if it crosses the host's stack, it passes both hooks. The
/// reason is that of the hook which did something.
pub fn through(tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let arrived = ingress(tables, frame);
    if arrived.action != Action::Pass {
        return arrived;
    }
    let left = egress(tables, &arrived.frame);
    match left.reason {
        Reason::NotService | Reason::UnknownFragment if left.frame == arrived.frame => arrived,
        _ => left,
    }
}
