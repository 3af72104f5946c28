//! Packets to a node, as the input chooses them: what happens to each, what is counted and what is
//! kept is compared with the oracle's model. Each input has its own node, so that it can be
//! repeated.
#![no_main]

use lb_oracle::{Choices, MemoryNode, walk};
use libfuzzer_sys::fuzz_target;

/// The most packets of an input.
const PACKETS: usize = 64;

// The first two bytes are the node's number: packets are more interesting than the many choices of
// a node.
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
