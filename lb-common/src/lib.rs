#![cfg_attr(not(any(test, feature = "model")), no_std)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "the only way to the kernel's compare-and-swap"
    ),
    feature(asm_experimental_arch, core_intrinsics, adt_const_params)
)]
//! What the kernel and the user space side of node-lb share: map layouts and the packet pipeline.
//!
//! All code here decides only by what it is given: a packet through [`frame::Frame`], state through
//! [`tables`]. The modules, in reading order:
//!
//! | | |
//! |---|---|
//! | [`pipeline`] | a packet's way, from its headers to a [`verdict`] |
//! | [`verdict`] | what happens to a packet, and the reason, which is counted |
//! | [`packet`], [`frame`] | bounds-checked access to its bytes, and what hooks do differently |
//! | [`addr`], [`parse`] | addresses of both families; from bytes to headers |
//! | [`work`] | what is known of a packet on its way |
//! | [`tables`] | what a packet may ask: the kernel answers from maps, tests and `explain` from memory |
//! | [`service`], [`select`] | which Service, which set of endpoints, which of them |
//! | [`flow`] | the flow table: one record per direction of a connection |
//! | [`rewrite`], [`checksum`], [`crc32c`] | translation of packets |
//! | [`answer`] | ICMP errors and resets in place of a packet |
//! | [`socket`] | the node's own connections, translated at the socket |
//! | [`trace`] | what is noted of packets for those who trace them |
//! | [`abi`], [`entries`] | keys and values of the maps, and how many these have |
//! | [`model`] | the places where a model checker may switch threads |
//! | [`harness`] | what the benchmark and its harness share |

pub mod pipeline;
pub mod verdict;

pub mod frame;
pub mod packet;

pub mod addr;
pub mod parse;
pub mod work;

pub mod tables;

pub mod select;
pub mod service;

pub mod flow;

pub mod checksum;
pub mod crc32c;
pub mod rewrite;

pub mod answer;
pub mod socket;

pub mod trace;

pub mod abi;
pub mod entries;

pub mod model;

pub mod harness;

mod atomic;
mod opaque;

pub use atomic::{add, fetch_add};
pub use opaque::{rolled, settled};
