//! An oracle for the data plane: random nodes, random packets, and a model that says what has to
//! become of each. The kernel's programs are held against it, and the same pipeline in memory, by
//! tests and by a fuzzer.
//!
//! | Module | What it has |
//! |---|---|
//! | `scene`, `service` | the node's addresses and devices; a service port |
//! | `choices` | where chance comes from: a seed, or a fuzzer's bytes |
//! | `model` | the rules, with nothing of the data plane's code but for Maglev's tables and hash |
//! | `walk` | nodes and packets by chance, each packet compared |
//! | `sent` | packets, whole and in fragments |
//! | `expected` | what can become of a packet, and what is kept of its flow |
//! | `memory` | the pipeline in memory, to be compared |

pub mod choices;
pub mod expected;
pub mod memory;
pub mod model;
pub mod scene;
pub mod sent;
pub mod service;
pub mod walk;

pub use self::{
    choices::Choices,
    expected::{At, Outcome},
    memory::MemoryNode,
    model::Model,
    walk::Subject,
};
