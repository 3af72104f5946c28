//! The edge to the kernel: loading programs and maps, attaching to devices and cgroups, following the
//! node's devices.
//!
pub mod bpf;

