#![forbid(unsafe_code)]
//! What `cargo xtask` shares with build scripts and with tests: how the eBPF object is built, and how the
//! documentation is read.

pub mod docs;
pub mod ebpf;
