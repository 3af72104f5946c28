//! Flows: one record per direction of a connection, in a table of our own.

pub mod end;
mod entry;
pub mod table;
pub mod tcp;

pub use entry::{Ethernet, Flow, Hop, Rewrite, flow_flag, tag};
