//! An oracle for the data plane: random nodes, random packets, and a model that says what must
//! happen to each packet. Tests and a fuzzer compare the kernel's programs with it, and the same
//! pipeline in memory.
//!
//! | Module | What it has |
//! |---|---|
//! | `scene`, `service` | the node's addresses and devices; a service port |
//! | `choices` | the source of choices: a seed, or a fuzzer's bytes |
//! | `model` | the rules, without any code of the data plane but Maglev's tables and hash |
//! | `walk` | random nodes and packets; each packet is compared |
//! | `sent` | packets, whole and in fragments |
//! | `expected` | the possible results for a packet, and what is kept of its flow |
//! | `memory` | the pipeline in memory, to compare |

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
