//! Packets to a node, as the input chooses them: what becomes of each, what is counted and what is
//! kept is what the oracle's model says. Each input has a node of its own, so that it does the same
//! again.
#![no_main]

use lb_tests::oracle::{Choices, MemoryNode, walk};
use libfuzzer_sys::fuzz_target;

/// Packets of an input at the most.
const PACKETS: usize = 64;

// The first two bytes are the node's number: a node is many choices, and packets are more of
// interest.
fuzz_target!(|input: &[u8]| {
    let Some((node, packets)) = input.split_first_chunk() else {
        return;
    };
    let seed = u16::from_be_bytes(*node);
    let mut model = walk::node(&mut Choices::of_seed(seed.into()));
    let mut node = MemoryNode::new(&model);
    let mut choices = Choices::of_bytes(packets);
    let name = format!("node {seed}");
    walk::walk(&mut node, &mut model, &mut choices, PACKETS, &name);
});
