//! Frames through the hooks, as a node's devices would hand them over.

use lb_common::verdict::{Action, Reason, Verdict};
use lb_datapath::memory::MemoryFrame;
use lb_packet::Read;
use node_lb::memory::ProgrammedTables;

/// The result of a frame at a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub action: Action,
    pub reason: Reason,
    pub frame: Vec<u8>,
}

impl Outcome {
    fn new(verdict: Verdict, frame: MemoryFrame) -> Self {
        Self {
            action: verdict.action,
            reason: verdict.reason,
            frame: frame.into_bytes(),
        }
    }

    pub fn read(&self) -> Read {
        Read::frame(&self.frame)
    }
}

/// A frame that arrives on an unknown device.
pub fn ingress(tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    ingress_by(0, tables, frame)
}

/// A frame that arrives on a device.
pub fn ingress_by(ifindex: u32, tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let mut frame = MemoryFrame::new(frame.to_vec(), ifindex);
    Outcome::new(tables.tc().ingress(&mut frame), frame)
}

/// The same with a program that still has the old flow tables as its own, while their size changes.
pub fn ingress_of_before(tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let mut frame = MemoryFrame::new(frame.to_vec(), 0);
    Outcome::new(tables.tc().of_before().ingress(&mut frame), frame)
}

/// A frame that leaves by an unknown device.
pub fn egress(tables: &ProgrammedTables, frame: &[u8]) -> Outcome {
    let mut frame = MemoryFrame::new(frame.to_vec(), 0);
    Outcome::new(tables.tc().egress(&mut frame), frame)
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
