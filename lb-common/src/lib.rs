#![cfg_attr(not(test), no_std)]
//! What the kernel and user space sides of node-lb share: map layouts and the packet pipeline.
