#![forbid(unsafe_code)]
//! What `cargo xtask` shares with build scripts: how the eBPF object is built.

pub mod ebpf;
