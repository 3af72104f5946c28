//! Tests of the edge to the kernel: programs on devices and cgroups, pins, maps, netlink. Needs
//! root.

mod budget;
mod cleanup;
mod devices;
mod links;
mod maps;
mod pinned;
mod programs;
mod traffic;
