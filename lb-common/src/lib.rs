#![cfg_attr(not(any(test, feature = "model")), no_std)]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        internal_features,
        reason = "the only way to the kernel's compare-and-swap"
    ),
    feature(asm_experimental_arch, core_intrinsics, adt_const_params)
)]
//! What the kernel and user space sides of node-lb share: map layouts and the packet pipeline.
//!
//! Everything here decides by what it is given: a packet through [`frame::Frame`], state through
//! [`tables`]. Start reading at [`pipeline`].

pub mod abi;
pub mod addr;
pub mod answer;
mod atomic;
pub mod checksum;
pub mod flow;
pub mod frame;
pub mod harness;
pub mod model;
mod opaque;
pub mod packet;
pub mod parse;
pub mod pipeline;
pub mod rewrite;
pub mod select;
pub mod service;
pub mod socket;
pub mod tables;
pub mod verdict;
pub mod work;

pub use atomic::{add, fetch_add};
pub use opaque::rolled;
